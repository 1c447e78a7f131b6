//! Which node of a cluster has which slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::lock;
use tenure_core::support::{Maintenance, SingleFlight};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::endpoint::Endpoint;
use super::environment::Environment;
use super::errors;
use super::server::{Connection, Server};
use super::slots::{self, SLOTS, SlotRange};

/// Nodes that are asked for the map at the same time; the first answer counts.
const PARALLEL_NODES: usize = 3;

/// The nodes of one cluster, and the slots that each of them has.
pub(super) struct SlotMap {
    /// The nodes that the URL names.
    seeds: Vec<Host>,
    env: Arc<Environment>,
    nodes: Mutex<Nodes>,
    refreshing: SingleFlight<Error>,
    /// The map is known to be old.
    is_stale: AtomicBool,
    /// The task that replaces a stale map.
    maintenance: Arc<Maintenance>,
}

/// The map itself.
struct Nodes {
    /// The node of each slot, if a node has the slot.
    owners: Vec<Option<Arc<Server>>>,
    servers: Vec<Arc<Server>>,
    /// When the nodes were asked for this map.
    asked: Time,
}

impl Nodes {
    fn new(asked: Time) -> Self {
        Self {
            owners: vec![None; usize::from(SLOTS)],
            servers: Vec::new(),
            asked,
        }
    }

    fn has(&self, host: &Host) -> bool {
        self.servers.iter().any(|server| server.host == *host)
    }

    /// The node at that address, which is added if it is unknown.
    fn server(&mut self, host: &Host, env: &Arc<Environment>) -> Result<Arc<Server>, Error> {
        if let Some(known) = self.servers.iter().find(|server| server.host == *host) {
            return Ok(known.clone());
        }
        let server = Arc::new(Server::new(host.clone(), env)?);
        self.servers.push(server.clone());
        Ok(server)
    }
}

impl SlotMap {
    pub(super) fn new(
        seeds: &[Host],
        env: &Arc<Environment>,
        maintenance: &Arc<Maintenance>,
    ) -> Self {
        Self {
            seeds: seeds.to_vec(),
            env: env.clone(),
            nodes: Mutex::new(Nodes::new(Time::default())),
            refreshing: SingleFlight::default(),
            is_stale: AtomicBool::new(false),
            maintenance: maintenance.clone(),
        }
    }

    /// The node that has the slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Server>> {
        lock(&self.nodes).owners[usize::from(slot)].clone()
    }

    /// All nodes that have slots.
    pub(super) fn owners(&self) -> Vec<Arc<Server>> {
        let nodes = lock(&self.nodes);
        let has_slots = |server: &&Arc<Server>| {
            let mut owners = nodes.owners.iter().flatten();
            owners.any(|owner| Arc::ptr_eq(owner, server))
        };
        nodes.servers.iter().filter(has_slots).cloned().collect()
    }

    /// The node at that address, which need not have a slot.
    pub(super) fn server(&self, host: &Host) -> Result<Arc<Server>, Error> {
        lock(&self.nodes).server(host, &self.env)
    }

    /// A node said that `host` has the slot.
    pub(super) fn assign(&self, slot: u16, host: &Host) -> Result<(), Error> {
        let mut nodes = lock(&self.nodes);
        let server = nodes.server(host, &self.env)?;
        nodes.owners[usize::from(slot)] = Some(server);
        Ok(())
    }

    pub(super) fn disconnect_all(&self) {
        for server in &lock(&self.nodes).servers {
            server.disconnect();
        }
    }

    /// A reply does not fit the map: maintenance gets a new one.
    pub(super) fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::SeqCst);
        self.maintenance.wake();
    }

    /// Gets a new map if the map is known to be old.
    pub(super) async fn refresh_if_stale(&self) {
        if self.is_stale.swap(false, Ordering::SeqCst) {
            // The next request meets the same error and reports it.
            let _ = self.refresh(self.env.now()).await;
        }
    }

    /// Asks for the map, unless the map was asked for at `since` or later.
    pub(super) async fn refresh(&self, since: Time) -> Result<(), Error> {
        let is_fresh = || (lock(&self.nodes).asked >= since).then_some(());
        let refresh = async {
            let asked = self.env.now();
            let ranges = self.fetch().await?;
            self.install(&ranges, asked)
        };
        self.refreshing
            .run(&self.env.clock, is_fresh, refresh)
            .await
    }

    fn install(&self, ranges: &[SlotRange], asked: Time) -> Result<(), Error> {
        let mut nodes = lock(&self.nodes);
        let mut new = Nodes::new(asked);
        for range in ranges {
            // With its connection, if the node is known.
            let server = nodes.server(&range.primary, &self.env)?;
            if !new.has(&server.host) {
                new.servers.push(server.clone());
            }
            let slots = usize::from(range.first)..=usize::from(range.last);
            new.owners[slots].fill(Some(server));
        }
        for server in nodes.servers.iter().filter(|it| !new.has(&it.host)) {
            tracing::debug!(host = %server.host, "the node has no slots any more");
            server.retire();
        }
        *nodes = new;
        Ok(())
    }

    /// Asks a few nodes at a time, first those to which there is a connection.
    async fn fetch(&self) -> Result<Vec<SlotRange>, Error> {
        let mut nodes: Vec<_> = {
            let nodes = lock(&self.nodes);
            let node = |server: &Arc<Server>| (server.host.clone(), server.current());
            nodes.servers.iter().map(node).collect()
        };
        // A random first node: a node that is cut off from the others has an old map for as long as that lasts.
        let first = usize::try_from(self.env.clock.random()).unwrap_or(0);
        let first = first.checked_rem(nodes.len()).unwrap_or(0);
        nodes.rotate_left(first);
        nodes.sort_by_key(|(_, connection)| connection.is_none());
        for seed in &self.seeds {
            if !nodes.iter().any(|(host, _)| host == seed) {
                nodes.push((seed.clone(), None));
            }
        }
        let mut failure: Option<Error> = None;
        for some in nodes.chunks(PARALLEL_NODES) {
            let ask = |(host, connection): &(Host, Option<Arc<Connection>>)| {
                self.ask_node(host.clone(), connection.clone())
            };
            let mut replies: FuturesUnordered<_> = some.iter().map(ask).collect();
            while let Some(reply) = replies.next().await {
                match reply {
                    Ok(ranges) => return Ok(ranges),
                    // The error of a node that answers says more than that of a node that cannot be reached.
                    Err(err) if err.kind() != ErrorKind::Unreachable => failure = Some(err),
                    Err(err) => failure = failure.or(Some(err)),
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Unreachable, "no node is known")))
    }

    async fn ask_node(
        &self,
        host: Host,
        connection: Option<Arc<Connection>>,
    ) -> Result<Vec<SlotRange>, Error> {
        let settings = &self.env.settings;
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let failed = |err: RedisError| {
            if err.to_string().contains("cluster support disabled") {
                return Error::new(
                    ErrorKind::Invalid,
                    format!("{host} is no node of a cluster; write redis://"),
                );
            }
            errors::connecting(err, &host, settings.is_tls())
        };
        let reply: Value = match connection {
            Some(connection) => connection.send(&cmd).await.map_err(failed)?,
            None => {
                // A connection of its own: the node may be a replica, which is no `Server` and knows the map too.
                let endpoint = Endpoint::new(&host, settings, &settings.login)?;
                let connection = endpoint.connect(&self.env, settings.connection_config());
                let mut connection = connection.await.map_err(failed)?;
                cmd.query_async(&mut *connection).await.map_err(failed)?
            }
        };
        match slots::parse(&reply, &host) {
            Some(ranges) if !ranges.is_empty() => Ok(ranges),
            Some(_) => Err(Error::new(
                ErrorKind::Unreachable,
                format!("{host} knows of no node that has slots; is the cluster set up?"),
            )),
            None => Err(Error::new(
                ErrorKind::Unreachable,
                format!("{host} does not answer like a node of a cluster; is the port right?"),
            )),
        }
    }
}
