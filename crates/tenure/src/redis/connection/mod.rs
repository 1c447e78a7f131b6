//! Connections, and which server has a key: one server, the primary that sentinels name, or a node of a cluster.
//!
//! `endpoint` opens a connection, `server` is one server with its connection and `call` one request; `replication` asks
//! for the replicas that have a grant; `sentinel` and `cluster` find the server. `slot_map` and `slots` are the map of a cluster, `shard_subscriptions` the messages in it.

mod call;
mod cluster;
mod endpoint;
mod replication;
mod sentinel;
mod server;
mod shard_subscriptions;
mod slot_map;
mod slots;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::name::Escaped;
use tenure_core::time::Time;

use self::call::Call;
use self::cluster::Cluster;
use self::sentinel::Sentinels;
use self::server::Server;
use super::context::Context;
use super::errors;
use super::names::{self, Keys};
use super::scripts::{Publish, Script, Scripts};
use super::settings::Topology;

pub(super) use self::call::Reply;
pub(super) use self::server::Connection;
pub(super) use self::shard_subscriptions::ShardSubscription;

/// Locks that are renewed by one script: the server does nothing else for the time of some 300 commands.
const MAX_RENEWALS: usize = 100;

/// The connections of one client to all servers of its store.
pub(super) struct Connections {
    servers: Servers,
    context: Arc<Context>,
    pub(super) scripts: &'static Scripts,
}

enum Servers {
    One(Box<Server>),
    Sentinel(Arc<Sentinels>),
    Cluster(Cluster),
}

impl Connections {
    pub(super) async fn connect(context: &Arc<Context>) -> Result<Self, Error> {
        let settings = &context.settings;
        let mut publish = Publish::Everywhere;
        let servers = match &settings.topology {
            Topology::One(host) => {
                let server = Server::new(host.clone(), context)?;
                match server.connection().await {
                    Err(err)
                        if settings.may_be_unreachable && err.kind() == ErrorKind::Unreachable =>
                    {
                        tracing::warn!(%err, "one of the servers cannot be reached");
                    }
                    outcome => drop(outcome?),
                }
                Servers::One(Box::new(server))
            }
            Topology::Sentinel { sentinels, service } => {
                let sentinels = Sentinels::new(sentinels, service, context)?;
                sentinels.connection().await?;
                Servers::Sentinel(sentinels)
            }
            Topology::Cluster(seeds) => {
                let cluster = Cluster::connect(seeds, context).await?;
                publish = cluster.publish;
                Servers::Cluster(cluster)
            }
        };
        Ok(Self {
            servers,
            context: context.clone(),
            scripts: Scripts::get(settings.format, publish),
        })
    }

    /// The connection to the server that has this key.
    pub(super) async fn connection(&self, key: &str) -> Result<Arc<Connection>, Error> {
        match &self.servers {
            Servers::One(server) => server.connection().await,
            Servers::Sentinel(sentinels) => sentinels.connection().await,
            Servers::Cluster(cluster) => cluster.connection(key).await,
        }
    }

    /// The connections to all servers that have keys.
    pub(super) async fn all(&self) -> Result<Vec<Arc<Connection>>, Error> {
        match &self.servers {
            Servers::One(server) => Ok(vec![server.connection().await?]),
            Servers::Sentinel(sentinels) => Ok(vec![sentinels.connection().await?]),
            Servers::Cluster(cluster) => cluster.all_connections().await,
        }
    }

    /// The same, without the nodes of a cluster that cannot be reached.
    pub(super) async fn reachable(&self) -> Result<Vec<Arc<Connection>>, Error> {
        match &self.servers {
            Servers::Cluster(cluster) => Ok(cluster.reachable().await),
            _ => self.all().await,
        }
    }

    /// Runs a script about one lock.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &Keys,
        args: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Reply<T>, Error> {
        let fill = |cmd: &mut Cmd| {
            for key in keys.all() {
                cmd.arg(key);
            }
            args(cmd);
        };
        self.call(keys.lock(), script, keys.all().count(), fill)
            .await
    }

    /// Runs a script on the server that has `key`. `fill` adds the keys, of which there are `keys`, and the arguments.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        key: &str,
        script: &Script,
        keys: usize,
        fill: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Reply<T>, Error> {
        let (fill, clock) = (&fill, &self.context.clock);
        let call = Call {
            script,
            keys,
            fill,
            clock,
        };
        match &self.servers {
            Servers::One(server) => {
                let connection = server.connection().await?;
                call.send(connection, false).await.map_err(errors::request)
            }
            Servers::Sentinel(sentinels) => sentinels.call(&call).await,
            Servers::Cluster(cluster) => cluster.call(key, &call).await,
        }
    }

    /// Refuses a script about `lock` and `key` if these may lie on two servers.
    pub(super) fn check_slot(&self, lock: &str, key: &str) -> Result<(), Error> {
        if !self.is_cluster() || names::slot(key) == names::slot(lock) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the key \"{}\" is in another slot of the cluster than the lock; put what the lock's key is hashed by into braces in it, as in {{{}}}:data",
                Escaped(key),
                Escaped(names::hashed(lock)),
            ),
        ))
    }

    /// Whether one server has all these locks, so that one script can be about all of them.
    pub(super) fn are_together(&self, keys: &[Keys]) -> bool {
        let slots = keys.iter().map(|keys| names::slot(keys.lock()));
        !self.is_cluster() || slots.collect::<BTreeSet<_>>().len() == 1
    }

    /// Which locks are renewed by one script, as indexes of `keys`.
    pub(super) fn batches(&self, keys: &[Keys]) -> Vec<Vec<usize>> {
        match &self.servers {
            Servers::One(_) | Servers::Sentinel(_) => {
                let all: Vec<_> = (0..keys.len()).collect();
                all.chunks(MAX_RENEWALS).map(<[usize]>::to_vec).collect()
            }
            Servers::Cluster(cluster) => cluster.batches(keys, MAX_RENEWALS),
        }
    }

    /// Whether locks lie on several servers, so that one of them may be out of reach while another one is not.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// The channel on which a waiter of this client for that lock is woken.
    pub(super) fn channel(&self, key: &str) -> Cow<'_, str> {
        match &self.servers {
            Servers::Cluster(cluster) => cluster.channel(key),
            Servers::One(_) | Servers::Sentinel(_) => Cow::Borrowed(&self.context.events.channel),
        }
    }

    /// Subscribes to the channel of this lock for `owner`, which sent a request at `sent` and waits. `None`: the
    /// client is subscribed to that channel all the time.
    pub(super) fn subscribe(
        &self,
        key: &str,
        owner: OwnerId,
        sent: Time,
    ) -> Option<ShardSubscription> {
        match &self.servers {
            Servers::Cluster(cluster) => cluster.subscribe(key, owner, sent),
            Servers::One(_) | Servers::Sentinel(_) => None,
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        match &self.servers {
            Servers::One(server) => server.disconnect(),
            Servers::Sentinel(sentinels) => sentinels.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}
