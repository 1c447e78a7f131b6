//! Connections to one server, to the primary that sentinels name, or to the nodes of a cluster.
//!
//! This folder knows: servers, logins, TLS, connections and their ends, scripts, slots, redirections, failovers, channels,
//! and which outcome of a request is unknown. It does not know: locks. It sees no lock name, owner, mode or ttl, none of
//! our scripts, keys and messages, and decides nothing about a lock; it could be a crate of its own. What it needs of its
//! user comes as arguments, and by the trait [`PushListener`]. `tests/tidy.rs` refuses other imports.
//!
//! # Reading order
//! `settings` (which servers, and how to log in) · `environment` (what all connections share) · `endpoint` (opens a
//! connection) · `server` (one server and its connection) · `script` (one call) · `server_info`, `errors` (what a server
//! says) · `replication` (how many replicas have a write) · `sentinel` · `cluster`, with `slots` and `slot_map` (which node
//! has a key) and `shard_subscriptions` (messages within a slot)

mod cluster;
mod endpoint;
mod environment;
mod errors;
mod replication;
mod script;
mod sentinel;
mod server;
mod server_info;
mod settings;
mod shard_subscriptions;
mod slot_map;
mod slots;

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::time::Time;

use self::cluster::Cluster;
use self::script::Call;
use self::sentinel::Sentinels;
use self::server::Server;

pub(crate) use self::environment::{Environment, PushListener};
pub(crate) use self::errors::unexpected_reply;
pub(crate) use self::script::{Script, ScriptReply};
pub(crate) use self::server::Connection;
pub use self::server_info::Persistence;
pub(crate) use self::server_info::ServerInfo;
pub(crate) use self::settings::{ServerSettings, Topology};
pub(crate) use self::shard_subscriptions::{OnGap, ShardSubscription};
pub(crate) use self::slots::{hashed, slot, slot_tag};

/// The connections of one client to all its servers.
pub(crate) struct Connections {
    servers: Servers,
    env: Arc<Environment>,
}

enum Servers {
    One(Box<Server>),
    Sentinel(Arc<Sentinels>),
    Cluster(Cluster),
}

impl Connections {
    pub(crate) async fn connect(env: Environment) -> Result<Self, Error> {
        let env = Arc::new(env);
        let settings = &env.settings;
        let servers = match &settings.topology {
            Topology::One(host) => {
                let server = Server::new(host.clone(), &env)?;
                match server.connection().await {
                    Err(err)
                        if settings.may_be_unreachable && err.kind() == ErrorKind::Unreachable =>
                    {
                        tracing::warn!(
                            err = format_args!("{err:#}"),
                            "one of the servers cannot be reached"
                        );
                    }
                    outcome => drop(outcome?),
                }
                Servers::One(Box::new(server))
            }
            Topology::Sentinel { sentinels, service } => {
                let sentinels = Sentinels::new(sentinels, service, &env)?;
                sentinels.connection().await?;
                Servers::Sentinel(sentinels)
            }
            Topology::Cluster(seeds) => Servers::Cluster(Cluster::connect(seeds, &env).await?),
        };
        Ok(Self { servers, env })
    }

    /// The connection to the server that has this key.
    pub(crate) async fn connection(&self, key: &str) -> Result<Arc<Connection>, Error> {
        match &self.servers {
            Servers::One(server) => server.connection().await,
            Servers::Sentinel(sentinels) => sentinels.connection().await,
            Servers::Cluster(cluster) => cluster.connection(key).await,
        }
    }

    /// The connections to all servers that have keys.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<Connection>>, Error> {
        match &self.servers {
            Servers::One(server) => Ok(vec![server.connection().await?]),
            Servers::Sentinel(sentinels) => Ok(vec![sentinels.connection().await?]),
            Servers::Cluster(cluster) => cluster.all_connections().await,
        }
    }

    /// The same, without the nodes of a cluster that cannot be reached.
    pub(crate) async fn reachable(&self) -> Result<Vec<Arc<Connection>>, Error> {
        match &self.servers {
            Servers::Cluster(cluster) => Ok(cluster.reachable().await),
            _ => self.all().await,
        }
    }

    /// Runs a script on the server that has the first of these keys. `args` adds the other arguments.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        args: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<ScriptReply<T>, Error> {
        let call = Call {
            script,
            keys,
            args,
            clock: &self.env.clock,
        };
        match &self.servers {
            Servers::One(server) => {
                let connection = server.connection().await?;
                call.send(connection, false).await.map_err(errors::request)
            }
            // In boxes: with one server, each request would need space for these larger futures.
            Servers::Sentinel(sentinels) => Box::pin(sentinels.call(&call)).await,
            Servers::Cluster(cluster) => Box::pin(cluster.call(&call)).await,
        }
    }

    /// Whether one server has all these keys, so that one script can be about all of them.
    pub(crate) fn are_together<'a>(&self, keys: impl Iterator<Item = &'a str>) -> bool {
        !self.is_cluster() || keys.map(slots::slot).collect::<BTreeSet<_>>().len() <= 1
    }

    /// Which of these keys one script can be about, as indexes of `keys`, with up to `max` of them in each script.
    pub(crate) fn batches(&self, keys: &[&str], max: usize) -> Vec<Vec<usize>> {
        match &self.servers {
            Servers::One(_) | Servers::Sentinel(_) => {
                let all: Vec<_> = (0..keys.len()).collect();
                all.chunks(max).map(<[usize]>::to_vec).collect()
            }
            Servers::Cluster(cluster) => cluster.batches(keys, max),
        }
    }

    /// Whether keys lie on several servers, so that one of them may be out of reach while another one is not.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Whether the slot of this key was being moved lately. Then a node refuses a script with a key that does not exist.
    pub(crate) fn is_moving(&self, key: &str) -> bool {
        matches!(&self.servers, Servers::Cluster(cluster) if cluster.is_moving(key))
    }

    /// Whether messages stay within the nodes of the slot of their channel.
    pub(crate) fn has_shard_channels(&self) -> bool {
        matches!(&self.servers, Servers::Cluster(cluster) if cluster.has_shard_channels)
    }

    /// Subscribes to `channel` at the node that has its slot, for a subscriber that sent a request at `sent`. `None`: messages
    /// do not stay within a slot.
    pub(crate) fn subscribe(
        &self,
        channel: &str,
        sent: Time,
        on_gap: OnGap,
    ) -> Option<ShardSubscription> {
        match &self.servers {
            Servers::Cluster(cluster) if cluster.has_shard_channels => {
                Some(cluster.subscribe(channel, sent, on_gap))
            }
            _ => None,
        }
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        match &self.servers {
            Servers::One(server) => server.disconnect(),
            Servers::Sentinel(sentinels) => sentinels.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}
