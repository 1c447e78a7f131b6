//! One request each: taking what is free, giving back, seeing that it is still ours.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::backend::{Alarm, Answer, Grant, Hold, Release, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::guarantees::Guarantees;
use tenure_core::holder::RestartGuard;
use tenure_core::logic::pace;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::{Clock, Flag, NextWakeup, Spawner, lock};
use tenure_core::time::Time;

use super::board::{Board, Note};
use super::contended::Contended;
use super::dialect::{Ask, Dialect};
use super::entries::{Entry, Stage};
use super::job::{self, Failure, Said};
use super::link::Link;
use super::names::{self, Found, Key};
use super::outcome;
use super::pool::Pick;
use super::settings::Settings;

/// Keys that the server was asked for are remembered, up to so many.
const KEYS: usize = 10_000;

/// How often a request is made again whose session ended under it.
const TRIES: u32 = 3;

/// What one client knows of its store.
pub(super) struct Store {
    pub(super) settings: Settings,
    pub(super) guarantees: Guarantees,
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    pub(super) alarm: OnceLock<Alarm>,
    pub(super) closing: Flag,
    /// Sessions for locks.
    pub(super) links: Mutex<Vec<Arc<Link>>>,
    /// Sessions are made one after the other: of many who need one, most can share it.
    pub(super) opening: tokio::sync::Mutex<()>,
    /// The session for everything else: looking, calling off, the board.
    pub(super) desk: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// Not before then, in ns, another session is made for a crowd.
    pub(super) grows_from: AtomicU64,
    /// A connection that is there already, for the first session that is needed.
    pub(super) spare: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// Where each acquisition is.
    pub(super) owners: Mutex<HashMap<OwnerId, Arc<Link>, RandomAlready>>,
    keys: Mutex<HashMap<LockName, Key>>,
    contended: Contended,
    pub(super) board: Board,
    /// Of the task that looks after sessions.
    pub(super) maintenance: Arc<NextWakeup>,
}

/// What came of one attempt.
pub(super) enum Attempt {
    Answer(Answer),
    /// Somebody has it.
    Busy,
    /// The server is to be trusted from then on.
    NotYet(Time),
    /// The session ended, and with it whatever was asked; that is certain.
    Again(Error),
}

/// What a request is about.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) key: Key,
    pub(super) is_shared: bool,
    /// As long as a session that carries it lasts.
    pub(super) ttl: Duration,
}

impl Store {
    pub(super) fn new(
        settings: Settings,
        guarantees: Guarantees,
        dialect: Arc<dyn Dialect>,
        spawner: Spawner,
    ) -> Self {
        Self {
            settings,
            guarantees,
            dialect,
            clock: Clock::system(),
            spawner,
            alarm: OnceLock::new(),
            closing: Flag::new(),
            links: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            desk: tokio::sync::Mutex::default(),
            grows_from: AtomicU64::new(0),
            spare: tokio::sync::Mutex::default(),
            owners: Mutex::default(),
            keys: Mutex::default(),
            contended: Contended::default(),
            board: Board::default(),
            maintenance: Arc::new(NextWakeup::new()),
        }
    }

    /// The key of a name; some the server has to be asked for, once.
    pub(super) async fn key(self: &Arc<Self>, name: &LockName) -> Result<Key, Error> {
        match names::key(&self.settings, name)? {
            Found::Here(key) => Ok(key),
            Found::Asked(bytes) => self.asked_key(name, bytes).await,
        }
    }

    async fn asked_key(self: &Arc<Self>, name: &LockName, bytes: Vec<u8>) -> Result<Key, Error> {
        if let Some(key) = lock(&self.keys).get(name) {
            return Ok(key.clone());
        }
        let rows = self.look(self.dialect.ask_key(&bytes)).await?;
        let number = rows
            .first()
            .and_then(|row| row.first()?.as_deref()?.parse().ok());
        let key = Key::One(number.ok_or_else(outcome::nonsense)?);
        let mut keys = lock(&self.keys);
        if keys.len() >= KEYS {
            keys.clear();
        }
        keys.insert(name.clone(), key.clone());
        Ok(key)
    }

    pub(super) async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        let key = match names::key(&self.settings, &request.name)? {
            Found::Here(key) => key,
            Found::Asked(bytes) => {
                // In a box, as more below: rarely done, and every request would have to have room for it.
                let asking = Box::pin(self.asked_key(&request.name, bytes));
                match self.unless_over(&request, asking).await {
                    Some(key) => key?,
                    None => return Ok(Answer::Busy),
                }
            }
        };
        let wanted = Wanted {
            key,
            is_shared: request.mode == Mode::Shared,
            ttl: self.dialect.idle_limit(request.ttl),
        };
        // Until when a server that is not there is asked again.
        let mut patience = self.clock.now().after(request.ttl);
        let mut failures = 0;
        let mut tries = 0;
        loop {
            if self.is_over_for(&request) {
                return Ok(Answer::Busy);
            }
            let attempt = match tries + failures == 0 && self.is_contended(&request, &wanted) {
                true => Ok(Attempt::Busy),
                false => self.attempt(&request, &wanted).await,
            };
            let attempt = match attempt {
                Ok(Attempt::Busy) if request.wait => {
                    patience = self.clock.now().after(request.ttl);
                    Box::pin(self.wait(&request, &wanted, tries, &mut patience)).await
                }
                attempt => attempt,
            };
            let err = match attempt {
                Ok(Attempt::Answer(answer)) => return Ok(answer),
                Ok(Attempt::Busy) if !request.wait => return Ok(Answer::Busy),
                Ok(Attempt::Busy) => {
                    failures = 0;
                    tries += 1;
                    continue;
                }
                Ok(Attempt::NotYet(from)) => {
                    self.unless_over(&request, self.clock.sleep_until(from))
                        .await;
                    patience = self.clock.now().after(request.ttl);
                    continue;
                }
                Ok(Attempt::Again(err)) => err,
                // Nothing was done.
                Err(err) if err.kind() == ErrorKind::Unreachable && request.wait => err,
                Err(err) => return Err(err),
            };
            failures += 1;
            let is_enough = match request.wait {
                true => self.clock.now() >= patience,
                false => failures >= TRIES,
            };
            if is_enough {
                return Err(outcome::unreachable(err));
            }
            tracing::debug!(name = %request.name, backend = self.guarantees.backend, %err, "asking again");
            self.pause(&request, failures).await;
        }
    }

    /// Whether to wait at once: a look would most likely be for nothing.
    fn is_contended(&self, request: &Request, wanted: &Wanted) -> bool {
        request.wait && self.contended.has(&wanted.key, || self.clock.now())
    }

    /// Nobody wants an answer any more.
    pub(super) fn is_over_for(&self, request: &Request) -> bool {
        request.stop.is_raised() || self.closing.is_raised()
    }

    /// `None` as soon as nobody wants an answer any more.
    pub(super) async fn unless_over<T>(
        &self,
        request: &Request,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            () = request.stop.raised() => None,
            () = self.closing.raised() => None,
            value = future => Some(value),
        }
    }

    /// Waits for a moment, or until nobody wants an answer any more.
    pub(super) async fn pause(&self, request: &Request, tries: u32) {
        let pause = pace::next(tries, rand::random(), None, None).unwrap_or(pace::CAP);
        let at = self.clock.now().after(pause);
        self.unless_over(request, self.clock.sleep_until(at)).await;
    }

    /// Takes it if it is free.
    async fn attempt(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wanted: &Wanted,
    ) -> Result<Attempt, Error> {
        let link = loop {
            match self.pick(request, wanted) {
                Pick::Busy => match self.being_given(&wanted.key) {
                    // The server may have it back already, and only its answer be on the way.
                    Some(link) if self.has_changed(&link).await => continue,
                    _ => return Ok(Attempt::Busy),
                },
                Pick::Use(link) => break link,
                // A session that is not there yet has taken nothing.
                Pick::Open => {
                    let opening = Box::pin(self.open_another(wanted));
                    match self.unless_over(request, opening).await {
                        Some(opened) => opened?,
                        None => return Ok(Attempt::Answer(Answer::Busy)),
                    }
                }
            };
        };
        match self.trusted_from(request, &link) {
            Ok(None) => {}
            not_yet => {
                self.forget(request.owner);
                return not_yet.map(|from| from.map_or(Attempt::Busy, Attempt::NotYet));
            }
        }
        self.board.settled(&self.clock, &link, &wanted.key).await;
        let ask = Ask::Take {
            key: wanted.key.clone(),
            is_shared: wanted.is_shared,
        };
        match link.ask(ask, Some(request.owner)).await {
            Ok(job::Answer {
                said: Said::Granted(token),
                sent,
                round_trip,
            }) => {
                let grant = Grant::new(token, sent, round_trip, Some(link.ttl));
                Ok(Attempt::Answer(self.granted(request, &link, grant)))
            }
            Ok(_) => {
                self.forget(request.owner);
                self.contended.was_busy(&wanted.key, self.clock.now());
                Ok(Attempt::Busy)
            }
            Err(failure @ (Failure::Refused(_) | Failure::RefusedToo)) => {
                self.forget(request.owner);
                Err(outcome::of_failure(failure, &self.settings.server))
            }
            Err(Failure::Late) => Err(outcome::of_failure(Failure::Late, &self.settings.server)),
            Err(failure) => Box::pin(self.after_the_end(request, &link, failure)).await,
        }
    }

    /// The session ended under the request. What it may have taken is free as soon as that is known for sure.
    pub(super) async fn after_the_end(
        self: &Arc<Self>,
        request: &Request,
        link: &Arc<Link>,
        failure: Failure,
    ) -> Result<Attempt, Error> {
        let err = outcome::of_failure(failure, &self.settings.server);
        if !self.is_buried(link).await {
            return Err(err);
        }
        self.forget(request.owner);
        Ok(Attempt::Again(err))
    }

    pub(super) fn granted(
        self: &Arc<Self>,
        request: &Request,
        link: &Arc<Link>,
        grant: Grant,
    ) -> Answer {
        self.due_at(self.check_of(link).min(grant.sent.after(link.ttl)));
        if self.board.is_there() {
            // Not there any more if the session has ended since.
            let key = lock(&link.entries)
                .get(&request.owner)
                .map(|entry| entry.key.clone());
            if let Some(key) = key {
                let note = Note::new(link, key, grant.token, request);
                self.board.put_up(self, request.owner, note);
            }
        }
        Answer::Granted(grant)
    }

    /// From when on the server can be trusted to know who holds what: it forgets all of it when it starts. `None`:
    /// it can.
    pub(super) fn trusted_from(
        &self,
        request: &Request,
        link: &Link,
    ) -> Result<Option<Time>, Error> {
        let Some(option) = self.settings.restart_guard else {
            return Ok(None);
        };
        let until = link.trusted_from(option.max(request.ttl));
        // Most often it has been so for long, and no look at the clock is due.
        if until <= link.sent() {
            return Ok(None);
        }
        let left = until.since(self.clock.now());
        if left.is_zero() {
            return Ok(None);
        }
        let guard = self.restart_guard_of(link, option);
        let why = guard.describe(request.ttl);
        if !request.wait {
            let err = Error::new(ErrorKind::Unreachable, why);
            return Err(err.with_restart_guard(Some(guard)));
        }
        tracing::warn!(name = %request.name, "waiting: {why}");
        Ok(Some(until))
    }

    /// What people are told of the start of the server. `None`: `restart_guard=off`.
    pub(super) fn restart_guard(&self, link: &Link) -> Option<RestartGuard> {
        let option = self.settings.restart_guard?;
        Some(self.restart_guard_of(link, option))
    }

    fn restart_guard_of(&self, link: &Link, option: Duration) -> RestartGuard {
        let uptime = link.uptime(self.clock.now());
        RestartGuard::new(self.settings.server.to_string(), uptime, option)
    }

    /// Whether something has changed on a session by the time that a request may take.
    async fn has_changed(&self, link: &Link) -> bool {
        let limit = self.clock.now().after(self.settings.server.timeout);
        let changed = link.changed.notified();
        if !self.is_in_flux(link) {
            return true;
        }
        tokio::select! {
            biased;
            () = changed => true,
            () = self.clock.sleep_until(limit) => false,
        }
    }

    /// Nothing is known of that acquisition any more.
    pub(super) fn forget(&self, owner: OwnerId) {
        let link = lock(&self.owners).remove(&owner);
        if let Some(link) = link {
            lock(&link.entries).remove(&owner);
            link.changed.notify_waiters();
        }
    }

    pub(super) async fn release(self: Arc<Self>, hold: Hold) -> Result<Release, Error> {
        let known = lock(&self.owners).get(&hold.owner).cloned();
        let Some(link) = known else {
            return Ok(Release::NotHeld);
        };
        let mut now = self.clock.now();
        let limit = now.after(self.settings.server.timeout);
        loop {
            let changed = link.changed.notified();
            let ask = {
                let mut entries = lock(&link.entries);
                let alone = entries.len() == 1;
                match entries.get(&hold.owner).cloned() {
                    _ if link.gone.is_raised() => Step::Bury,
                    None => Step::Done,
                    Some(entry) => match entry.stage {
                        Stage::Asking | Stage::Unwanted => {
                            entries.set(&hold.owner, Stage::Unwanted);
                            // Nothing else would be lost with the session.
                            if alone { Step::End } else { Step::Wait }
                        }
                        Stage::Held { .. } | Stage::Giving { .. } => {
                            let again = now.after(link.ttl / 3);
                            entries.set(&hold.owner, Stage::Giving { again });
                            self.due_at(again);
                            Step::Give(entry)
                        }
                    },
                }
            };
            match ask {
                Step::Done => {
                    self.forget(hold.owner);
                    return Ok(Release::NotHeld);
                }
                Step::End => link.end(),
                Step::Bury => {
                    if !self.is_buried(&link).await {
                        return Err(outcome::doubt(&self.settings.server));
                    }
                    self.forget(hold.owner);
                    return Ok(Release::NotHeld);
                }
                Step::Wait => {
                    tokio::select! {
                        biased;
                        () = changed => now = self.clock.now(),
                        () = self.clock.sleep_until(limit) => {
                            return Err(outcome::doubt(&self.settings.server));
                        }
                    }
                }
                Step::Give(entry) => return self.give(&link, hold.owner, entry).await,
            }
        }
    }

    /// Gives back what is ours as far as we know.
    pub(super) async fn give(
        self: &Arc<Self>,
        link: &Arc<Link>,
        owner: OwnerId,
        entry: Entry,
    ) -> Result<Release, Error> {
        let ask = Ask::Give {
            key: entry.key,
            is_shared: entry.is_shared,
        };
        self.board.take_down(self, owner);
        match link.ask(ask, Some(owner)).await {
            Ok(answer) => {
                self.forget(owner);
                Ok(match answer.said {
                    Said::Given(true) => Release::Released,
                    _ => Release::NotHeld,
                })
            }
            Err(failure) => Err(outcome::of_failure(failure, &self.settings.server)),
        }
    }

    pub(super) async fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Vec<Renewal> {
        let mut links: Vec<Arc<Link>> = Vec::new();
        {
            let owners = lock(&self.owners);
            for link in holds.iter().filter_map(|hold| owners.get(&hold.owner)) {
                if !links.iter().any(|known| Arc::ptr_eq(known, link)) {
                    links.push(link.clone());
                }
            }
        }
        // What was asked a moment ago need not be asked again. A short moment: the next renewal comes a third of the
        // ttl after this one, however old its answer is.
        let recently = |link: &Link| link.sent().after(link.ttl / 32) > self.clock.now();
        let asked = links.iter().map(|link| {
            let is_known = link.gone.is_raised() || recently(link);
            async move {
                match is_known {
                    true => Ok(()),
                    false => link.ask(Ask::Ping, None).await.map(drop),
                }
            }
        });
        let asked = join_all(asked).await;
        holds
            .iter()
            .map(|hold| self.renewed(hold, &links, &asked))
            .collect()
    }

    fn renewed(&self, hold: &Hold, links: &[Arc<Link>], asked: &[Result<(), Failure>]) -> Renewal {
        let known = lock(&self.owners).get(&hold.owner).cloned();
        let Some(link) = known else {
            return Renewal::Lost(LostReason::StoreSaysNo);
        };
        if link.gone.is_raised() {
            return Renewal::Lost(LostReason::SessionGone);
        }
        let at = links.iter().position(|it| Arc::ptr_eq(it, &link));
        if let Some(Err(failure)) = at.and_then(|at| asked.get(at)) {
            return Renewal::Unknown(outcome::of_check(failure, &self.settings.server));
        }
        let sent = link.sent();
        let mut entries = lock(&link.entries);
        match entries.get(&hold.owner).map(|entry| entry.stage) {
            Some(Stage::Held { token, until }) => {
                let until = sent.after(link.ttl).max(until);
                entries.set(&hold.owner, Stage::Held { token, until });
                Renewal::Renewed {
                    sent,
                    ttl: Some(link.ttl),
                }
            }
            _ => Renewal::Lost(LostReason::StoreSaysNo),
        }
    }

    /// A session is over: everybody is told, and it is seen to that the server knows.
    pub(super) fn is_over(self: &Arc<Self>, link: &Arc<Link>) {
        lock(&self.links).retain(|it| !Arc::ptr_eq(it, link));
        let entries = lock(&link.entries).take();
        for (owner, entry) in entries {
            self.board.take_down(self, owner);
            if let Stage::Held { .. } = entry.stage
                && let Some(alarm) = self.alarm.get()
            {
                alarm.lost(owner, LostReason::SessionGone);
            }
        }
        let (store, link) = (self.clone(), link.clone());
        self.spawner.spawn(async move { store.bury(&link).await });
    }

    /// Sees to it that the server has ended that session too.
    async fn bury(self: &Arc<Self>, link: &Arc<Link>) {
        // By then the server has done it by itself.
        let limit = self.clock.now().after(link.ttl).after(link.ttl / 2);
        let session = link.facts.session;
        for tries in 0.. {
            let found = self.look(self.dialect.find(session)).await;
            match found {
                Ok(rows) if rows.is_empty() => break,
                // It may be gone by now; that is what the next look is for.
                Ok(_) => drop(self.order(session, self.dialect.kill(session)).await),
                // A server that is not there has no sessions, and the next one gives their numbers to others.
                Err(_) => {}
            }
            let now = self.clock.now();
            if now >= limit || self.closing.is_raised() {
                break;
            }
            let pause = pace::next(tries, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(now.after(pause)).await;
        }
        link.buried.raise();
    }

    /// Whether it is known by the time that a request may take.
    pub(super) async fn is_buried(&self, link: &Link) -> bool {
        let limit = self.clock.now().after(self.settings.server.timeout);
        tokio::select! {
            biased;
            () = link.buried.raised() => true,
            () = self.clock.sleep_until(limit) => false,
        }
    }

    /// When the keeper is to see whether that session is there.
    pub(super) fn check_of(&self, link: &Link) -> Time {
        let pace = self.settings.validate.min(link.ttl / 3);
        link.sent().after(pace)
    }

    /// The keeper has something to look after by then.
    pub(super) fn due_at(self: &Arc<Self>, at: Time) {
        super::keeper::start(self);
        self.maintenance.due_at(at);
    }

    pub(super) fn is_past(&self, time: Time) -> bool {
        time <= self.clock.now()
    }
}

enum Step {
    Done,
    End,
    Bury,
    Wait,
    Give(Entry),
}
