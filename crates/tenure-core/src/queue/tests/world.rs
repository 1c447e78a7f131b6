//! A queue store in memory, whose network loses requests and replies and applies writes late.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind};
use crate::logic::queue::{
    Contender, Turn, Upgrading, count_holders, decide, decide_while_upgrading,
};
use crate::options::Mode;
use crate::queue::{
    Acquisition, Created, HoldMode, ModeChange, Others, Position, QueueRequest, Replaced,
};
use crate::rt::{Clock, Flag, lock};
use crate::store::{Answer, Grant, Request};
use crate::time::Time;

pub(super) const TTL: Duration = Duration::from_secs(15);
/// How late a write may be applied.
const MAX_DELAY: u32 = 3_000;

/// How the mode of a hold was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    To(HoldMode),
    Exclusive,
}

/// An entry as the store has it.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// The revision that created the entry.
    pub(super) id: u64,
    /// Made by the client; no other attempt has the same.
    key: u64,
    session: u64,
    mode: Mode,
    /// Set when the mode was changed.
    hold: Option<Hold>,
    /// The revision that changed the entry last.
    version: u64,
    token: u64,
}

impl Stored {
    fn contender(&self) -> Contender {
        let mode = match self.hold {
            None => self.mode,
            Some(Hold::To(HoldMode::Shared)) => Mode::Shared,
            Some(Hold::To(_)) => Mode::Upgradable,
            Some(Hold::Exclusive) => Mode::Exclusive,
        };
        Contender { mode }
    }
}

/// A mistake in the store or in its use, to show that the simulation notices it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mistake {
    #[default]
    None,
    SilentWatch,
    NothingIsDeleted,
    UpgradeForgetsHolders,
    OldTokenAfterUpgrade,
}

type Op = Box<dyn FnOnce(&mut World) + Send>;

#[derive(Default)]
pub(super) struct World {
    random: u64,
    revision: u64,
    /// No token that was granted is greater.
    last_token: u64,
    pub(super) entries: Vec<Stored>,
    sessions: HashSet<u64>,
    late: Vec<(Time, Op)>,
    /// Keys that may be created late. Their clients delete them again and again.
    left: Vec<u64>,
    /// Of 100 requests so many have a fault.
    faults: u32,
    mistake: Mistake,
    pub(super) late_writes: u32,
}

impl World {
    pub(super) fn random(&mut self, below: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 33) as u32 % below
    }

    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn create(&mut self, key: u64, session: u64, mode: Mode) -> Option<u64> {
        self.sessions.contains(&session).then(|| {
            let id = self.next_revision();
            self.entries.push(Stored {
                id,
                key,
                session,
                mode,
                hold: None,
                version: id,
                token: id,
            });
            id
        })
    }

    fn entry(&mut self, id: u64) -> Option<&mut Stored> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    fn delete(&mut self, keys: &[u64]) {
        self.entries.retain(|entry| !keys.contains(&entry.key));
    }

    fn end_session(&mut self, session: u64) {
        self.sessions.remove(&session);
        self.entries.retain(|entry| entry.session != session);
    }

    fn replace(&mut self, own: &Stored, hold: Hold) -> Replaced<Stored> {
        let revision = self.next_revision();
        let Some(entry) = self.entry(own.id) else {
            return Replaced::Gone;
        };
        if entry.version != own.version {
            return Replaced::Refused;
        }
        entry.version = revision;
        entry.hold = Some(hold);
        if hold == Hold::Exclusive {
            entry.token = revision;
        }
        let entry = entry.clone();
        self.last_token = self.last_token.max(entry.token);
        Replaced::Done(entry)
    }

    /// Deletes what was created late, as the clients of the store do.
    pub(super) fn delete_left(&mut self) {
        let left = self.left.clone();
        self.delete(&left);
    }
}

pub(super) struct Store {
    pub(super) clock: Clock,
    world: Mutex<World>,
    changed: Notify,
}

impl Store {
    pub(super) fn new(clock: Clock, seed: u64, faults: u32, mistake: Mistake) -> Self {
        let world = World {
            random: seed,
            faults,
            mistake,
            ..World::default()
        };
        Self {
            clock,
            world: Mutex::new(world),
            changed: Notify::new(),
        }
    }

    pub(super) fn apply<T>(&self, op: impl FnOnce(&mut World) -> T) -> T {
        let result = op(&mut lock(&self.world));
        self.changed.notify_waiters();
        result
    }

    pub(super) fn random(&self, below: u32) -> u32 {
        lock(&self.world).random(below)
    }

    pub(super) async fn nap(&self, up_to: u32) {
        let millis = self.random(up_to + 1);
        let until = self.clock.now().after(Duration::from_millis(millis.into()));
        self.clock.sleep_until(until).await;
    }

    fn has(&self, mistake: Mistake) -> bool {
        lock(&self.world).mistake == mistake
    }

    /// Applies the late writes that are due, and returns when the next one is.
    pub(super) fn apply_late(&self) -> Time {
        let now = self.clock.now();
        loop {
            let mut world = lock(&self.world);
            let Some(at) = world.late.iter().position(|(at, _)| *at <= now) else {
                let times = world.late.iter().map(|(at, _)| *at);
                return times.min().unwrap_or(Time::MAX);
            };
            let (_, op) = world.late.swap_remove(at);
            world.late_writes += 1;
            drop(world);
            self.apply(op);
        }
    }

    /// Sends a request: done, refused, or unknown.
    async fn send<T: 'static>(
        &self,
        op: impl FnOnce(&mut World) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.nap(3).await;
        let faults = lock(&self.world).faults;
        if self.random(100) >= faults {
            let reply = Ok(self.apply(op));
            self.nap(3).await;
            return reply;
        }
        let unknown = || Err(Error::new(ErrorKind::Indeterminate, "no reply"));
        match self.random(4) {
            0 => return Err(Error::new(ErrorKind::Unreachable, "not sent")),
            1 => {}
            2 => drop(self.apply(op)),
            _ => {
                let delay = Duration::from_millis(self.random(MAX_DELAY).into());
                let late: Op = Box::new(|world| drop(op(world)));
                let at = self.clock.now().after(delay);
                lock(&self.world).late.push((at, late));
            }
        }
        self.nap(200).await;
        unknown()
    }
}

/// A session of one client.
pub(super) struct Session {
    id: u64,
    pub(super) ended: Flag,
}

impl Session {
    pub(super) fn open(store: &Store) -> Arc<Self> {
        let id = store.apply(|world| {
            let id = world.next_revision();
            world.sessions.insert(id);
            id
        });
        let ended = Flag::new();
        Arc::new(Self { id, ended })
    }

    pub(super) fn end(&self, store: &Store) {
        self.ended.raise();
        store.apply(|world| world.end_session(self.id));
    }
}

#[derive(Clone, Copy)]
enum Goal {
    Turn,
    EndOfOthers(i64),
}

pub(super) struct Entry {
    id: u64,
    goal: Goal,
    session: Arc<Session>,
}

/// One acquisition, and the hold that comes of it.
pub(super) struct Contention {
    pub(super) store: Arc<Store>,
    pub(super) request: Request,
    pub(super) session: Arc<Session>,
    /// What this request has, or may have, in the queue.
    keys: Mutex<Vec<u64>>,
    id: Mutex<u64>,
}

impl Contention {
    pub(super) fn new(store: &Arc<Store>, session: &Arc<Session>, request: Request) -> Self {
        Self {
            store: store.clone(),
            request,
            session: session.clone(),
            keys: Mutex::default(),
            id: Mutex::default(),
        }
    }

    /// The same hold for another request.
    pub(super) fn again(self, request: Request) -> Self {
        Self { request, ..self }
    }
}

/// The entries that one waits for, with their versions.
type Ahead = Vec<(u64, u64)>;

fn position(entries: &[Stored], last_token: u64, id: u64, goal: Goal) -> Position<Ahead> {
    let Some(me) = entries.iter().position(|entry| entry.id == id) else {
        return Position::Gone;
    };
    let ahead: Vec<usize> = match goal {
        Goal::Turn => match turn(entries, me) {
            Turn::Held => Vec::new(),
            Turn::WatchOne(at) => vec![at],
            Turn::WatchAll(range) => range.collect(),
        },
        Goal::EndOfOthers(last) => {
            let is_other = |at: &usize| *at != me && entries[*at].id.cast_signed() <= last;
            (0..entries.len()).rev().filter(is_other).take(1).collect()
        }
    };
    match ahead.is_empty() {
        true => Position::Held { last_token },
        false => {
            let watched = ahead.iter().map(|at| &entries[*at]);
            Position::Behind(watched.map(|entry| (entry.id, entry.version)).collect())
        }
    }
}

fn turn(entries: &[Stored], me: usize) -> Turn {
    let contenders: Vec<_> = entries.iter().map(Stored::contender).collect();
    let upgrading = entries.iter().enumerate().find_map(|(at, entry)| {
        let Some(Hold::To(HoldMode::Upgrading { last_holder })) = entry.hold else {
            return None;
        };
        let is_holder = |last: i64| entries.iter().rposition(|it| it.id.cast_signed() <= last);
        let last_holder = last_holder.and_then(is_holder);
        Some(Upgrading { at, last_holder })
    });
    match upgrading {
        Some(upgrading) => decide_while_upgrading(&contenders, upgrading, me),
        None => decide(&contenders, me),
    }
}

impl QueueRequest for Contention {
    type Entry = Entry;
    type Ahead = Ahead;

    const BEGINS_ANEW: bool = true;

    fn context(&self) -> (&Request, &Clock) {
        (&self.request, &self.store.clock)
    }

    async fn read(
        &self,
        entry: &Entry,
        ahead: Option<Ahead>,
        is_safety_poll: bool,
    ) -> Result<Position<Ahead>, Error> {
        let (id, goal) = (entry.id, entry.goal);
        let read = move |world: &mut World| position(&world.entries, world.last_token, id, goal);
        if is_safety_poll && ahead.is_some() {
            let now = self.store.apply(read);
            let is_missed = matches!(now, Position::Held { .. });
            assert!(!is_missed, "a wake-up is missing: {now:?} after {ahead:?}");
        }
        self.store.send(read).await
    }

    async fn watch(
        &self,
        entry: &Entry,
        ahead: &mut Ahead,
    ) -> Result<Option<Position<Ahead>>, Error> {
        if self.store.random(100) < lock(&self.store.world).faults {
            self.store.nap(50).await;
            return Err(Error::new(ErrorKind::Unreachable, "the watch ended"));
        }
        loop {
            let changed = self.store.changed.notified();
            let is_same = |world: &World| {
                ahead.iter().all(|(id, version)| {
                    let mut entries = world.entries.iter();
                    entries.any(|it| (it.id, it.version) == (*id, *version))
                })
            };
            let known = {
                let world = lock(&self.store.world);
                let at = || position(&world.entries, world.last_token, entry.id, entry.goal);
                (!is_same(&world)).then(at)
            };
            if let Some(position) = known
                && !self.store.has(Mistake::SilentWatch)
            {
                // Some watches can tell the position.
                let tells = self.store.random(2) == 0;
                return Ok(tells.then_some(position));
            }
            changed.await;
        }
    }

    async fn session_end(&self, entry: &Entry) {
        entry.session.ended.raised().await;
    }
}

impl Acquisition for Contention {
    async fn create(&self) -> Result<Created<Entry, Ahead>, Error> {
        let key = self.store.apply(World::next_revision);
        lock(&self.keys).push(key);
        let (session, mode) = (self.session.id, self.request.mode);
        let is_read = self.store.random(2) == 0;
        let create = move |world: &mut World| {
            let id = world.create(key, session, mode)?;
            let position = position(&world.entries, world.last_token, id, Goal::Turn);
            Some((id, is_read.then_some(position)))
        };
        match self.store.send(create).await {
            Ok(Some((id, position))) => {
                *lock(&self.id) = id;
                let entry = Entry {
                    id,
                    goal: Goal::Turn,
                    session: self.session.clone(),
                };
                Ok(Created::Entry(entry, position))
            }
            Ok(None) => Err(Error::new(ErrorKind::Closed, "the session is over")),
            Err(err) => {
                if err.kind() != ErrorKind::Indeterminate {
                    lock(&self.keys).retain(|it| *it != key);
                }
                Err(err)
            }
        }
    }

    async fn grant(&self, entry: &Entry, last_token: u64) -> Result<Option<Answer>, Error> {
        let id = entry.id;
        let last_token = match self.store.has(Mistake::OldTokenAfterUpgrade) {
            true => 0,
            false => last_token,
        };
        let grant = move |world: &mut World| {
            let revision = world.next_revision();
            let entry = world.entry(id)?;
            if entry.token < last_token {
                entry.token = revision;
                world.last_token = revision;
            }
            world.entry(id).map(|entry| entry.token)
        };
        let token = self.store.send(grant).await?;
        let token = token.filter(|_| !entry.session.ended.is_raised());
        Ok(token.map(|token| Answer::Granted(self.granted(token))))
    }

    async fn leave(&self) -> Result<(), Error> {
        if self.store.has(Mistake::NothingIsDeleted) {
            return Ok(());
        }
        let keys = lock(&self.keys).clone();
        let late = keys.clone();
        self.store.send(move |world| world.delete(&keys)).await?;
        self.store.apply(|world| world.left.extend(late));
        lock(&self.keys).clear();
        Ok(())
    }
}

impl Contention {
    fn granted(&self, token: u64) -> Grant {
        Grant::new(token, self.store.clock.now(), Duration::ZERO, Some(TTL))
    }
}

impl ModeChange for Contention {
    type Own = Stored;

    async fn read_own(&self) -> Result<Option<Stored>, Error> {
        let id = *lock(&self.id);
        let own = self.store.send(move |world| world.entry(id).cloned()).await;
        Ok(own?.filter(|_| !self.session.ended.is_raised()))
    }

    fn is_exclusive(&self, own: &Stored) -> bool {
        own.contender().mode == Mode::Exclusive
    }

    async fn replace(&self, own: &mut Stored, mode: HoldMode) -> Result<Replaced<()>, Error> {
        let was = own.clone();
        let replaced = self
            .store
            .send(move |world| world.replace(&was, Hold::To(mode)));
        Ok(replaced.await?.map(|new| *own = new))
    }

    async fn others(&self, own: &mut Stored) -> Result<Option<Others<Entry, Ahead>>, Error> {
        let entries = self.store.send(|world| world.entries.clone()).await?;
        let contenders: Vec<_> = entries.iter().map(Stored::contender).collect();
        let holders = entries.iter().take(count_holders(&contenders));
        let holders: Vec<_> = holders.filter(|entry| entry.id < own.version).collect();
        let are_known = holders.len() > 1 && !self.store.has(Mistake::UpgradeForgetsHolders);
        let Some(last) = holders.last().filter(|_| are_known) else {
            return Ok(None);
        };
        let last_holder = last.id.cast_signed();
        let entry = Entry {
            id: own.id,
            goal: Goal::EndOfOthers(last_holder),
            session: self.session.clone(),
        };
        Ok(Some(Others {
            last_holder,
            entry,
            position: None,
        }))
    }

    async fn become_exclusive(&self, own: &mut Stored) -> Result<Replaced<Grant>, Error> {
        let was = own.clone();
        let replaced = match self.is_exclusive(own) {
            true => Replaced::Done(was),
            false => {
                let change = move |world: &mut World| world.replace(&was, Hold::Exclusive);
                self.store.send(change).await?
            }
        };
        Ok(replaced.map(|new| self.granted(new.token)))
    }
}
