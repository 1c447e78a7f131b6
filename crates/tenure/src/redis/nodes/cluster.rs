//! The nodes of a cluster, and which of them has a slot.
//!
//! A node that does not have the slot says who does (`MOVED`), or who will (`ASK`), and has done nothing.
//! So requests are sent on, within a bound. A request whose fate is unknown is not: that is for the caller.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError, Value};
use tokio::sync::Notify;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::rt::{Clock, Spawner, Task, lock};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::super::inbox::Inbox;
use super::super::link::{Link, Session};
use super::super::names::{self, Keys, SLOTS};
use super::super::outcome;
use super::super::script::Publish;
use super::super::settings::{Dialect, Settings};
use super::ears::{Ears, Listening};
use super::slots::{self, Range};
use super::{Call, Reply};

/// Nodes that are asked at the same time who has which slot; the first answer counts.
const AT_ONCE: usize = 3;

/// So often a request is sent on at once; then there is a pause before each time.
const HOPS: u32 = 5;

/// For so long after a sign of it a slot counts as being moved.
const MOVING: Duration = Duration::from_secs(10);

/// How often the keeper looks around while anybody waits.
const TICK: Duration = Duration::from_millis(500);

/// At least this long between two looks, however much happens.
const BREATH: Duration = Duration::from_millis(20);

/// All nodes of one cluster.
pub(super) struct Cluster {
    inner: Arc<Inner>,
    publish: Publish,
    keeper: Task,
}

pub(super) struct Inner {
    seeds: Vec<Host>,
    pub(super) settings: Settings,
    pub(super) inbox: Arc<Inbox>,
    pub(super) clock: Clock,
    spawner: Spawner,
    map: Mutex<Map>,
    /// Held by the one who asks for the map; what came of it, for those who waited for that.
    refreshing: tokio::sync::Mutex<Option<Refreshed>>,
    /// Slots that are being moved: when the last sign of that was seen.
    moving: Mutex<BTreeMap<u16, Time>>,
    pub(super) ears: Ears,
    /// The map is known to be old.
    is_stale: AtomicBool,
    /// There is something to do for the keeper.
    pub(super) wake: Arc<Notify>,
}

/// Who has which slot.
struct Map {
    /// By slot the place in `links`, if anybody has it.
    owners: Vec<Option<u16>>,
    links: Vec<Arc<Link>>,
}

/// When the map was asked for, and what was wrong.
struct Refreshed {
    begun: Time,
    failure: Option<(ErrorKind, String)>,
}

impl Map {
    fn new() -> Self {
        Self {
            owners: vec![None; usize::from(SLOTS)],
            links: Vec::new(),
        }
    }

    fn owner(&self, slot: u16) -> Option<&Arc<Link>> {
        let place = self.owners[usize::from(slot)]?;
        self.links.get(usize::from(place))
    }

    fn place(&self, host: &Host) -> Option<usize> {
        self.links.iter().position(|link| link.host == *host)
    }

    fn place_or_add(
        &mut self,
        host: &Host,
        make: impl FnOnce() -> Result<Arc<Link>, Error>,
    ) -> Result<usize, Error> {
        if let Some(place) = self.place(host) {
            return Ok(place);
        }
        self.links.push(make()?);
        Ok(self.links.len() - 1)
    }
}

impl Cluster {
    pub(super) async fn connect(
        seeds: &[Host],
        settings: &Settings,
        inbox: &Arc<Inbox>,
        clock: &Clock,
        spawner: &Spawner,
    ) -> Result<Self, Error> {
        let inner = Arc::new(Inner {
            seeds: seeds.to_vec(),
            settings: settings.clone(),
            inbox: inbox.clone(),
            clock: clock.clone(),
            spawner: spawner.clone(),
            map: Mutex::new(Map::new()),
            refreshing: tokio::sync::Mutex::default(),
            moving: Mutex::default(),
            ears: Ears::default(),
            is_stale: AtomicBool::new(false),
            wake: Arc::default(),
        });
        inner.refresh(clock.now()).await?;
        let mut failure = None;
        let mut sessions = Vec::new();
        for answer in inner.connect_all().await {
            match answer {
                Ok(session) => sessions.push(session),
                Err(err) => failure = Some(err),
            }
        }
        if let (true, Some(err)) = (sessions.is_empty(), failure) {
            return Err(err);
        }
        let is_new = |session: &Arc<Session>| session.facts.has_shard_messages();
        let publish = match sessions.iter().all(is_new) {
            true => Publish::Shard,
            false => Publish::Everywhere,
        };
        let keeper = spawner.spawn(inner.clone().keep());
        Ok(Self {
            inner,
            publish,
            keeper,
        })
    }

    /// How waiters are told here.
    pub(super) fn publish(&self) -> Publish {
        self.publish
    }

    pub(super) async fn session(&self, key: &str) -> Result<Arc<Session>, Error> {
        let limit = self.inner.limit();
        self.inner.reach(names::slot(key), limit).await
    }

    /// Of all nodes that have slots.
    pub(super) async fn sessions(&self) -> Result<Vec<Arc<Session>>, Error> {
        self.inner.refresh(self.inner.clock.now()).await?;
        self.inner.connect_all().await.into_iter().collect()
    }

    pub(super) async fn reachable(&self) -> Vec<Arc<Session>> {
        let all = self.inner.connect_all().await;
        all.into_iter().filter_map(Result::ok).collect()
    }

    pub(super) async fn call<T: FromRedisValue>(
        &self,
        key: &str,
        call: &Call<'_>,
    ) -> Result<Reply<T>, Error> {
        let (inner, slot) = (&self.inner, names::slot(key));
        let limit = inner.limit();
        let mut asking: Option<Arc<Link>> = None;
        for hops in 0.. {
            if hops > HOPS {
                inner.pause(hops - HOPS).await?;
            }
            let is_asking = asking.is_some();
            let session = match asking.take() {
                Some(link) => match link.session().await {
                    // Nothing was sent; the one that sent us there may know better by now.
                    Err(err)
                        if err.kind() == ErrorKind::Unreachable && inner.clock.now() < limit =>
                    {
                        inner.pause(hops).await?;
                        continue;
                    }
                    answer => answer?,
                },
                None => inner.reach(slot, limit).await?,
            };
            let host = session.host.clone();
            let err = match call.send(session, is_asking).await {
                Ok(answer) => return Ok(answer),
                Err(err) => err,
            };
            let Some(detour) = Detour::of(&err, &host) else {
                if err.is_io_error() {
                    // A replica may be about to take over.
                    inner.distrust_map();
                }
                return Err(outcome::asking(err));
            };
            if inner.clock.now() >= limit {
                return Err(Error::new(
                    ErrorKind::Unreachable,
                    "the cluster is rearranging itself and has no place for this key yet; retry",
                )
                .with_source(err));
            }
            match detour {
                Detour::Moved(host) => {
                    inner.assign(slot, &host)?;
                    inner.distrust_map();
                }
                Detour::Ask(host) => {
                    inner.see_moving(slot);
                    asking = Some(inner.link(&host)?);
                }
                Detour::Pause => {
                    inner.see_moving(slot);
                    inner.pause(hops).await?;
                }
                Detour::Refresh => {
                    let asked = inner.clock.now();
                    inner.pause(hops).await?;
                    // Without a new map the old one is tried again.
                    let _ = inner.refresh(asked).await;
                }
            }
        }
        unreachable!("the loop ends with a return")
    }

    /// Which locks go into one script: those of one slot, `most` at a time. While a slot is being moved
    /// each goes alone: a script whose keys are on both sides is refused.
    pub(super) fn batches(&self, keys: &[Keys], most: usize) -> Vec<Vec<usize>> {
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, keys) in keys.iter().enumerate() {
            slots.entry(names::slot(keys.lock())).or_default().push(at);
        }
        let now = self.inner.clock.now();
        let mut moving = lock(&self.inner.moving);
        moving.retain(|_, seen| now.since(*seen) < MOVING);
        let batches = slots.iter().flat_map(|(slot, all)| {
            let most = if moving.contains_key(slot) { 1 } else { most };
            all.chunks(most).map(<[usize]>::to_vec)
        });
        batches.collect()
    }

    pub(super) fn channel(&self, key: &str) -> Cow<'_, str> {
        if self.has_shard_channels() {
            Cow::Owned(self.inner.shard_channel(names::slot(key)))
        } else {
            Cow::Borrowed(&self.inner.inbox.channel)
        }
    }

    /// Redisson's locks have a channel each, and tell it everywhere.
    fn has_shard_channels(&self) -> bool {
        self.publish == Publish::Shard && self.inner.settings.dialect == Dialect::Token
    }

    pub(super) fn listen(&self, key: &str, owner: OwnerId, sent: Time) -> Option<Listening> {
        self.has_shard_channels()
            .then(|| Ears::listen(&self.inner, names::slot(key), owner, sent))
    }

    pub(super) fn close(&self) {
        self.keeper.abort();
        for link in &lock(&self.inner.map).links {
            link.disconnect();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// An error after which nothing was applied and something else is to be tried.
#[derive(Debug, PartialEq, Eq)]
enum Detour {
    /// That node has the slot.
    Moved(Host),
    /// That node has this key already.
    Ask(Host),
    /// The keys are just moving.
    Pause,
    /// A replica is taking over.
    Refresh,
}

impl Detour {
    fn of(err: &RedisError, asked: &Host) -> Option<Self> {
        let to = || {
            let (address, _) = err.redirect_node()?;
            slots::address(address, asked)
        };
        match err.code() {
            Some("MOVED") => to().map(Self::Moved),
            Some("ASK") => to().map(Self::Ask),
            Some("TRYAGAIN") => Some(Self::Pause),
            Some("CLUSTERDOWN" | "MASTERDOWN") => Some(Self::Refresh),
            _ => outcome::is_readonly(err).then_some(Self::Refresh),
        }
    }
}

impl Inner {
    fn limit(&self) -> Time {
        self.clock.now().after(self.settings.timeout)
    }

    async fn pause(&self, attempt: u32) -> Result<(), Error> {
        super::pause(&self.clock, &self.spawner, attempt).await
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Link>> {
        lock(&self.map).owner(slot).cloned()
    }

    /// The channel of this client in a slot.
    pub(super) fn shard_channel(&self, slot: u16) -> String {
        format!("tenure:{{{}}}:push:{}", slots::tag(slot), self.inbox.client)
    }

    /// The connection to the node that has the slot; when that cannot be reached, to the one that takes
    /// over, if that happens in time.
    async fn reach(&self, slot: u16, limit: Time) -> Result<Arc<Session>, Error> {
        for attempt in 0.. {
            let asked = self.clock.now();
            let owner = self.owner(slot);
            let failure = match &owner {
                Some(link) => match link.session().await {
                    Err(err) if err.kind() == ErrorKind::Unreachable => err,
                    answer => return answer,
                },
                None => Error::new(
                    ErrorKind::Unreachable,
                    "no node of the cluster has the slot of this key; is one of them down?",
                ),
            };
            if self.clock.now() >= limit {
                return Err(failure);
            }
            // In a box, as in `Link::session`.
            match Box::pin(self.refresh(asked)).await {
                Err(err) if err.kind() != ErrorKind::Unreachable => return Err(err),
                // Perhaps all are down, perhaps for a moment only.
                _ => {}
            }
            let is_same = match (&owner, &self.owner(slot)) {
                (Some(old), Some(new)) => old.host == new.host,
                (_, new) => new.is_none(),
            };
            if is_same {
                self.pause(attempt).await?;
            }
        }
        unreachable!("the loop ends with a return")
    }

    /// Connections to all nodes that have slots.
    async fn connect_all(&self) -> Vec<Result<Arc<Session>, Error>> {
        let links: Vec<_> = {
            let map = lock(&self.map);
            let has_slots = |place: &usize| {
                map.owners
                    .iter()
                    .flatten()
                    .any(|it| usize::from(*it) == *place)
            };
            let places = (0..map.links.len()).filter(has_slots);
            places.map(|place| map.links[place].clone()).collect()
        };
        join_all(links.iter().map(|link| link.session())).await
    }

    fn make_link(&self, host: &Host) -> Result<Arc<Link>, Error> {
        let (inbox, clock) = (self.inbox.clone(), self.clock.clone());
        Link::new(host.clone(), &self.settings, inbox, clock).map(Arc::new)
    }

    fn link(&self, host: &Host) -> Result<Arc<Link>, Error> {
        let mut map = lock(&self.map);
        let place = map.place_or_add(host, || self.make_link(host))?;
        Ok(map.links[place].clone())
    }

    fn assign(&self, slot: u16, host: &Host) -> Result<(), Error> {
        let mut map = lock(&self.map);
        let place = map.place_or_add(host, || self.make_link(host))?;
        map.owners[usize::from(slot)] = u16::try_from(place).ok();
        Ok(())
    }

    fn see_moving(&self, slot: u16) {
        lock(&self.moving).insert(slot, self.clock.now());
    }

    /// Something does not fit the map: the keeper gets a new one.
    pub(super) fn distrust_map(&self) {
        self.is_stale.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// Sees to it that the map was asked for at `since` or later.
    pub(super) async fn refresh(&self, since: Time) -> Result<(), Error> {
        let mut last = self.refreshing.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.begun >= since) {
            return match &last.failure {
                None => Ok(()),
                Some((kind, message)) => Err(Error::new(*kind, message.clone())),
            };
        }
        let begun = self.clock.now();
        let found = self.find_map().await;
        let found = found.and_then(|ranges| self.install(&ranges));
        let failure = found.as_ref().err();
        let failure = failure.map(|err| (err.kind(), err.to_string()));
        *last = Some(Refreshed { begun, failure });
        found
    }

    fn install(&self, ranges: &[Range]) -> Result<(), Error> {
        let mut map = lock(&self.map);
        let mut new = Map::new();
        for range in ranges {
            let known = map.place(&range.primary);
            let place = new.place_or_add(&range.primary, || match known {
                Some(place) => Ok(map.links[place].clone()),
                None => self.make_link(&range.primary),
            })?;
            let slots = usize::from(range.first)..=usize::from(range.last);
            new.owners[slots].fill(u16::try_from(place).ok());
        }
        for link in &map.links {
            if new.place(&link.host).is_none() {
                tracing::debug!(host = %link.host, "has no slots any more");
                link.retire();
            }
        }
        *map = new;
        Ok(())
    }

    /// Asks the nodes one after the other, first those that we are connected to.
    async fn find_map(&self) -> Result<Vec<Range>, Error> {
        let mut nodes: Vec<_> = {
            let map = lock(&self.map);
            let node = |link: &Arc<Link>| (link.host.clone(), link.live());
            map.links.iter().map(node).collect()
        };
        // Not always the same ones: one that is cut off from the others knows no better for ever.
        let turn = usize::try_from(rand::random::<u32>()).unwrap_or(0);
        let turn = turn.checked_rem(nodes.len()).unwrap_or(0);
        nodes.rotate_left(turn);
        nodes.sort_by_key(|(_, live)| live.is_none());
        for seed in &self.seeds {
            if !nodes.iter().any(|(host, _)| host == seed) {
                nodes.push((seed.clone(), None));
            }
        }
        let mut failure: Option<Error> = None;
        for some in nodes.chunks(AT_ONCE) {
            let asked = some
                .iter()
                .map(|(host, live)| self.ask_for_map(host, live.as_deref()));
            let mut asked: FuturesUnordered<_> = asked.collect();
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(ranges) => return Ok(ranges),
                    // That one is there and of no use tells more than that one is not there.
                    Err(err) if err.kind() != ErrorKind::Unreachable => failure = Some(err),
                    Err(err) => failure = failure.or(Some(err)),
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Unreachable, "no node is known")))
    }

    async fn ask_for_map(&self, host: &Host, live: Option<&Session>) -> Result<Vec<Range>, Error> {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let failed = |err: RedisError| {
            if err.to_string().contains("cluster support disabled") {
                return Error::new(
                    ErrorKind::Invalid,
                    format!("{host} is no node of a cluster; write redis://"),
                );
            }
            outcome::connecting(err, host, self.settings.is_tls())
        };
        let answer: Value = match live {
            Some(session) => session.send(&cmd).await.map_err(failed)?,
            None => {
                // It may be a replica, which is no link of ours and knows all the same.
                let timeout = Some(self.settings.timeout);
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(timeout)
                    .set_response_timeout(timeout);
                let client = self.settings.client(host)?;
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                let mut connection = connection.await.map_err(failed)?;
                cmd.query_async(&mut connection).await.map_err(failed)?
            }
        };
        match slots::parse(&answer, host) {
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

    /// Background work: new maps, and to be where messages arrive.
    async fn keep(self: Arc<Self>) {
        let mut ears = Vec::new();
        loop {
            let tick = async {
                if self.ears.are_idle() {
                    return std::future::pending().await;
                }
                self.clock.sleep_until(self.clock.now().after(TICK)).await;
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = tick => {}
            }
            if self.is_stale.swap(false, Ordering::SeqCst) {
                // In vain: the next request finds that out by itself.
                let _ = self.refresh(self.clock.now()).await;
            }
            self.tend(&mut ears).await;
            self.clock.sleep_until(self.clock.now().after(BREATH)).await;
        }
    }
}
