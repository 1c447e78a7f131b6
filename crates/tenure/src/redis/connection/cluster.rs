//! The nodes of a cluster, and how a request finds the node that has its slot.
//!
//! A node that does not have the slot names the node that does (`MOVED`), or that will (`ASK`), and has done nothing.
//! So the request is sent to that node, a bounded number of times. A request of unknown outcome is not sent again:
//! that is the caller's decision.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{FromRedisValue, RedisError};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::rt::lock;
use tenure_core::support::Maintenance;
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::environment::Environment;
use super::errors;
use super::script::{Call, ScriptReply};
use super::server::{Connection, Server};
use super::shard_subscriptions::{OnGap, ShardSubscription, ShardSubscriptions};
use super::slot_map::SlotMap;
use super::slots;

/// How often a request is sent to another node without a pause; after that there is a pause before each time.
const MAX_REDIRECTS: u32 = 5;

/// For how long after the last reply that said so a slot counts as being moved.
const SLOT_MOVE_WINDOW: Duration = Duration::from_secs(10);

/// One cluster.
pub(super) struct Cluster {
    map: Arc<SlotMap>,
    subscriptions: Arc<ShardSubscriptions>,
    env: Arc<Environment>,
    /// Slots that are being moved: when the last sign of that was seen.
    moving: Mutex<BTreeMap<u16, Time>>,
    /// Whether messages can stay within the nodes of a slot.
    pub(super) has_shard_channels: bool,
    maintenance: Arc<Maintenance>,
}

impl Cluster {
    pub(super) async fn connect(seeds: &[Host], env: &Arc<Environment>) -> Result<Self, Error> {
        let maintenance = Arc::<Maintenance>::default();
        let map = Arc::new(SlotMap::new(seeds, env, &maintenance));
        map.refresh(env.now()).await?;
        let mut failure = None;
        let mut connections = Vec::new();
        for outcome in connect_all(&map).await {
            match outcome {
                Ok(connection) => connections.push(connection),
                Err(err) => failure = Some(err),
            }
        }
        if let (true, Some(err)) = (connections.is_empty(), failure) {
            return Err(err);
        }
        let is_new = |it: &Arc<Connection>| it.server_info.has_shard_channels();
        let has_shard_channels = connections.iter().all(is_new);
        let subscriptions = ShardSubscriptions::new(&map, env, &maintenance);
        let subscriptions = Arc::new(subscriptions);
        let work = ShardSubscriptions::maintain;
        maintenance.start(&env.spawner, &env.clock, &subscriptions, work);
        Ok(Self {
            map,
            subscriptions,
            env: env.clone(),
            moving: Mutex::default(),
            has_shard_channels,
            maintenance,
        })
    }

    pub(super) async fn connection(&self, key: &str) -> Result<Arc<Connection>, Error> {
        self.reach(slots::slot(key), self.env.request_limit()).await
    }

    /// Connections to all nodes that have slots.
    pub(super) async fn all_connections(&self) -> Result<Vec<Arc<Connection>>, Error> {
        self.map.refresh(self.env.now()).await?;
        connect_all(&self.map).await.into_iter().collect()
    }

    /// The same, without the nodes that cannot be reached.
    pub(super) async fn reachable(&self) -> Vec<Arc<Connection>> {
        let all = connect_all(&self.map).await;
        all.into_iter().filter_map(Result::ok).collect()
    }

    /// Sends the call to the node that has the first key, and to the nodes that this one names.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        call: &Call<'_>,
    ) -> Result<ScriptReply<T>, Error> {
        let slot = slots::slot(call.keys.first().copied().unwrap_or_default());
        let limit = self.env.request_limit();
        let mut asked: Option<Arc<Server>> = None;
        for attempt in 0.. {
            if attempt > MAX_REDIRECTS {
                self.env.pause(attempt - MAX_REDIRECTS).await?;
            }
            let connection = match &asked {
                None => self.reach(slot, limit).await?,
                Some(server) => match server.connection().await {
                    // Nothing was sent, and the node that named this one may name another one by now.
                    Err(err) if err.kind() == ErrorKind::Unreachable && self.env.now() < limit => {
                        asked = None;
                        self.env.pause(attempt).await?;
                        continue;
                    }
                    outcome => outcome?,
                },
            };
            let host = connection.host.clone();
            let redirect = match call.send(connection, asked.is_some()).await {
                Ok(reply) => return Ok(reply),
                Err(err) => self.redirect(err, &host, limit)?,
            };
            asked = self.follow(redirect, slot, attempt).await?;
        }
        unreachable!("the loop ends with a return")
    }

    /// What to do after this error of `host`; an error if the request cannot be sent again.
    fn redirect(&self, err: RedisError, host: &Host, limit: Time) -> Result<Redirect, Error> {
        let Some(redirect) = Redirect::of(&err, host) else {
            if err.is_io_error() {
                // A replica may be about to take over.
                self.map.mark_stale();
            }
            return Err(errors::request(err));
        };
        if self.env.now() < limit {
            return Ok(redirect);
        }
        let message = "the cluster is rearranging itself and has no place for this key yet; retry";
        Err(Error::new(ErrorKind::Unreachable, message).with_source(err))
    }

    /// Prepares the next attempt. Returns the node that has to be told with `ASKING` that it was named.
    async fn follow(
        &self,
        redirect: Redirect,
        slot: u16,
        attempt: u32,
    ) -> Result<Option<Arc<Server>>, Error> {
        match redirect {
            Redirect::Moved(host) => {
                self.map.assign(slot, &host)?;
                self.map.mark_stale();
            }
            Redirect::Ask(host) => {
                self.note_moving(slot);
                return Ok(Some(self.map.server(&host)?));
            }
            Redirect::TryAgain => {
                self.note_moving(slot);
                self.env.pause(attempt).await?;
            }
            Redirect::Refresh => {
                let failed_at = self.env.now();
                self.env.pause(attempt).await?;
                // Without a new map the old one is tried again.
                let _ = self.map.refresh(failed_at).await;
            }
        }
        Ok(None)
    }

    /// The connection to the node that has the slot; when that node cannot be reached, to the node that takes over,
    /// if one does in time.
    async fn reach(&self, slot: u16, limit: Time) -> Result<Arc<Connection>, Error> {
        for attempt in 0.. {
            let asked = self.env.now();
            let owner = self.map.owner(slot);
            let failure = match &owner {
                Some(server) => match server.connection().await {
                    Err(err) if err.kind() == ErrorKind::Unreachable => err,
                    outcome => return outcome,
                },
                None => Error::new(
                    ErrorKind::Unreachable,
                    "no node of the cluster has the slot of this key; is one of them down?",
                ),
            };
            if self.env.now() >= limit {
                return Err(failure);
            }
            // In a box, as in `Server::connection`.
            match Box::pin(self.map.refresh(asked)).await {
                Err(err) if err.kind() != ErrorKind::Unreachable => return Err(err),
                // If all nodes are down, they may be back soon.
                _ => {}
            }
            let is_same = match (&owner, &self.map.owner(slot)) {
                (Some(old), Some(new)) => old.host == new.host,
                (_, new) => new.is_none(),
            };
            if is_same {
                self.env.pause(attempt).await?;
            }
        }
        unreachable!("the loop ends with a return")
    }

    /// Which of these keys one script can be about, as indexes of `keys`: keys of one slot, `max` at a time. While a slot is
    /// being moved each key has a script of its own: a node refuses a script whose keys are on both nodes.
    pub(super) fn batches(&self, keys: &[&str], max: usize) -> Vec<Vec<usize>> {
        let mut by_slot: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, key) in keys.iter().enumerate() {
            by_slot.entry(slots::slot(key)).or_default().push(index);
        }
        let now = self.env.now();
        let mut moving = lock(&self.moving);
        moving.retain(|_, seen| now.since(*seen) < SLOT_MOVE_WINDOW);
        let batches = by_slot.iter().flat_map(|(slot, all)| {
            let max = if moving.contains_key(slot) { 1 } else { max };
            all.chunks(max).map(<[usize]>::to_vec)
        });
        batches.collect()
    }

    /// Whether the slot of this key was being moved lately. Then a node refuses a script with a key that does not exist.
    pub(super) fn is_moving(&self, key: &str) -> bool {
        let seen = lock(&self.moving).get(&slots::slot(key)).copied();
        seen.is_some_and(|seen| self.env.now().since(seen) < SLOT_MOVE_WINDOW)
    }

    pub(super) fn subscribe(&self, channel: &str, sent: Time, on_gap: OnGap) -> ShardSubscription {
        self.subscriptions.subscribe(channel, sent, on_gap)
    }

    pub(super) fn close(&self) {
        self.maintenance.stop();
        self.subscriptions.close();
        self.map.disconnect_all();
    }

    fn note_moving(&self, slot: u16) {
        lock(&self.moving).insert(slot, self.env.now());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.maintenance.stop();
    }
}

async fn connect_all(map: &SlotMap) -> Vec<Result<Arc<Connection>, Error>> {
    let servers = map.owners();
    join_all(servers.iter().map(|server| server.connection())).await
}

/// What to do after an error with which nothing was applied.
#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// That node has the slot.
    Moved(Host),
    /// That node has this key already.
    Ask(Host),
    /// The keys are being moved just now.
    TryAgain,
    /// A replica is taking over.
    Refresh,
}

impl Redirect {
    fn of(err: &RedisError, asked: &Host) -> Option<Self> {
        let to = || {
            let (address, _) = err.redirect_node()?;
            slots::address(address, asked)
        };
        match err.code() {
            Some("MOVED") => to().map(Self::Moved),
            Some("ASK") => to().map(Self::Ask),
            Some("TRYAGAIN") => Some(Self::TryAgain),
            Some("CLUSTERDOWN" | "MASTERDOWN") => Some(Self::Refresh),
            _ => errors::is_readonly(err).then_some(Self::Refresh),
        }
    }
}
