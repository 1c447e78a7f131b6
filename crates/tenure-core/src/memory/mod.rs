//! `memory:`: the reference lock table of `logic` as a store.
//!
//! Complete, and the fewest lines in which a backend can be written. With
//! [`Backend::with_virtual_clock`] it is also a store for your tests: time stands still until the test
//! moves it, leases run out when the test says so, and replies are lost, late or never on request.
//!
//! ```
//! # async fn example() -> Result<(), tenure::Error> {
//! use std::time::Duration;
//! use tenure::memory;
//! use tenure::{Client, LostReason};
//!
//! let store = memory::Backend::with_virtual_clock();
//! let client = Client::from_backend(store.clone())?;
//! let guard = client.lock("orders/42").ttl(Duration::from_secs(10)).acquire().await?;
//! store.pause(); // the store answers nobody: renewals hang
//! store.advance(Duration::from_secs(10));
//! assert_eq!(guard.lost().await, LostReason::Expired);
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```

mod script;

use std::collections::{HashMap, VecDeque};
use std::future::ready;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, oneshot};

pub use self::script::Disturbance;
use self::script::{reply_lost, too_young};
use crate::backend::{
    Answer, Backend as Door, BoxFuture, Finding, Grant, Hold, LossNotifier, Release, Renewal,
    Request, Severity,
};
use crate::error::{Error, ErrorKind, Step};
use crate::fence::{OwnerId, RandomAlready};
use crate::guarantees::{Cell, Fault, Guarantees, Order};
use crate::holder::{HoldInfo, Holder, Status};
use crate::logic::table::{Ask, Table, Verdict};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::rt::{Clock, Flag, VirtualClock, lock};
use crate::time::Time;

/// A store in this process. Clones share it; give one to each client that shall compete.
#[derive(Clone, Debug)]
pub struct Backend(Arc<Store>);

#[derive(Debug)]
struct Store {
    guarantees: Guarantees,
    clock: Clock,
    /// Present in a store for tests; without it no lease runs, because a holder cannot vanish.
    virtual_clock: Option<Arc<VirtualClock>>,
    state: Mutex<State>,
    /// Something is due earlier than before: who waits for the table looks again.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    holders: HashMap<OwnerId, Arc<Holder>, RandomAlready>,
    waiting: HashMap<OwnerId, oneshot::Sender<(u64, Time)>>,
    granted: Vec<(OwnerId, u64)>,
    loss_notifiers: Vec<LossNotifier>,
    script: VecDeque<(Step, Disturbance)>,
    /// Requests wait for it while the store is paused.
    resumed: Option<Arc<Flag>>,
    /// The store was restarted and is not to be trusted with new holds until then.
    guarded_until: Option<Time>,
    requests: u64,
}

impl Default for Backend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend {
    /// An empty store on the real clock. Its holds have no lease: they last until they are released.
    pub fn new() -> Self {
        Self::with(Clock::system(), None)
    }

    /// An empty store for tests, with leases, on a clock that stands still until
    /// [`advance`](Backend::advance) moves it.
    pub fn with_virtual_clock() -> Self {
        let (clock, virtual_clock) = Clock::virtual_clock();
        Self::with(clock, Some(virtual_clock))
    }

    /// Another empty store on the clock of this one: for backends that are made of several.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::with(self.0.clock.clone(), self.0.virtual_clock.clone())
    }

    fn with(clock: Clock, virtual_clock: Option<Arc<VirtualClock>>) -> Self {
        let guarantees = guarantees();
        let (state, earlier) = (Mutex::default(), Notify::new());
        Self(Arc::new(Store {
            guarantees,
            clock,
            virtual_clock,
            state,
            earlier,
        }))
    }
}

impl Store {
    /// Brings the table up to date, works on it, and tells waiters that were granted.
    fn with_state<T>(&self, work: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        if state.table.next() <= now {
            state.table.tick(now);
        }
        let before = state.table.next();
        let result = work(&mut state, now);
        state.wake(now);
        if state.table.next() < before {
            self.earlier.notify_waiters();
        }
        result
    }

    /// The lease for a ttl that was asked for.
    fn lease(&self, ttl: Duration) -> Option<Duration> {
        self.virtual_clock.is_some().then_some(ttl)
    }

    fn grant(&self, token: u64, sent: Time, round_trip: Duration, ttl: Duration) -> Grant {
        match self.lease(ttl) {
            // Breaking is the only way to lose such a hold, and the one who breaks tells us.
            None => Grant::new(token, sent, Duration::ZERO, None).watched(),
            lease => Grant::new(token, sent, round_trip, lease),
        }
    }

    fn status(&self, name: &LockName) -> Status {
        let now = self.clock.now();
        let wall = SystemTime::now();
        let mut state = lock(&self.state);
        state.table.tick(now);
        state.wake(now);
        let mut status = Status::free(name.clone());
        let Some(view) = state.table.view(name) else {
            return status;
        };
        let holder = |owner: &OwnerId, since: Option<Time>| {
            let since = since.and_then(|since| wall.checked_sub(now.since(since)));
            let holder = state.holders.get(owner).map(|holder| (**holder).clone());
            Holder {
                since,
                ..holder.unwrap_or_default()
            }
        };
        status.holds = view
            .holds
            .iter()
            .map(|hold| {
                let left = hold.expires.map(|expires| expires.since(now));
                HoldInfo::new(
                    holder(&hold.owner, Some(hold.since)),
                    hold.mode,
                    Some(hold.token),
                    left,
                )
            })
            .collect();
        status.queue = Some(
            view.waiters
                .iter()
                .map(|(owner, _)| holder(owner, None))
                .collect(),
        );
        status.reserved = view
            .reserved_until
            .map(|until| until.since(now))
            .filter(|left| !left.is_zero());
        status
    }
}

impl State {
    fn acquire(&mut self, request: &Request, ttl: Option<Duration>, now: Time) -> Verdict {
        self.ask(request, request.wait, ttl, now)
    }

    fn try_acquire(&mut self, request: &Request, ttl: Option<Duration>, now: Time) -> Verdict {
        self.ask(request, false, ttl, now)
    }

    fn ask(&mut self, request: &Request, wait: bool, ttl: Option<Duration>, now: Time) -> Verdict {
        let ask = Ask {
            name: request.name.clone(),
            owner: request.owner,
            mode: request.mode,
            ttl,
            wait,
            barge: request.fair == Some(false),
            min_hold: request.min_hold,
            lock_delay: request.lock_delay,
            waiter_ttl: None,
            propose: request.propose,
        };
        let verdict = self.table.acquire(&ask, now);
        if verdict != Verdict::Busy {
            self.holders.insert(request.owner, request.holder.clone());
        }
        verdict
    }

    fn release(&mut self, hold: &Hold, now: Time) -> Release {
        self.holders.remove(&hold.owner);
        if !self.waiting.is_empty() {
            self.waiting.remove(&hold.owner);
        }
        if self
            .table
            .release(&hold.name, hold.owner, hold.unclean, now)
        {
            Release::Released
        } else {
            Release::NotHeld
        }
    }

    /// How long a store that was restarted still grants nothing.
    fn guarded(&self, now: Time) -> Option<Duration> {
        let left = self.guarded_until?.since(now);
        Some(left).filter(|left| !left.is_zero())
    }

    /// Requests reach the store, and at once.
    fn is_undisturbed(&self) -> bool {
        self.script.is_empty() && self.resumed.is_none()
    }

    fn wake(&mut self, now: Time) {
        self.table.granted(&mut self.granted);
        for (owner, token) in self.granted.drain(..) {
            if let Some(waiting) = self.waiting.remove(&owner) {
                // A waiter that is gone leaves its hold to the release of its driver.
                let _ = waiting.send((token, now));
            }
        }
    }
}

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn attach(&self, notifier: LossNotifier) {
        let mut state = lock(&self.0.state);
        state
            .loss_notifiers
            .retain(|notifier| !notifier.has_no_listener());
        state.loss_notifiers.push(notifier);
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        let apply = {
            let request = request.clone();
            // Read before the request is on its way: a test may make the way long.
            let sent = self.0.clock.now();
            move |store: &Arc<Store>| store.acquire(&request, sent)
        };
        // Nothing was applied when a request is stopped before it reached the table.
        let first = self.request(Step::Acquire, Some(request.clone()), apply, || {
            Ok(Ok(Ok(Answer::Busy)))
        });
        let first = match crate::rt::poll_now(first) {
            Ok(Ok(Ok(answer))) => return Box::pin(ready(answer)),
            Ok(Ok(Err(queued))) => return Box::pin(self.0.clone().wait(request, queued)),
            Ok(Err(err)) => return Box::pin(ready(Err(err))),
            Err(pending) => pending,
        };
        let store = self.0.clone();
        Box::pin(async move {
            match first.await? {
                Ok(answer) => answer,
                Err(queued) => store.wait(request, queued).await,
            }
        })
    }

    fn answers_now(&self) -> bool {
        true
    }

    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        self.0.acquire_now(request)
    }

    fn release_now(&self, hold: &Hold) -> Option<Release> {
        self.0.release_now(hold)
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let sent = self.0.clock.now();
        let count = holds.len();
        let apply = move |store: &Arc<Store>| {
            store.with_state(|state, now| {
                let renew = |hold: &Hold| {
                    let ttl = store.lease(hold.ttl);
                    if state.table.renew(&hold.name, hold.owner, ttl, now) {
                        Renewal::Renewed { sent, ttl }
                    } else {
                        Renewal::Lost(LostReason::StoreSaysNo)
                    }
                };
                holds.iter().map(renew).collect::<Vec<_>>()
            })
        };
        let renewing = self.request(Step::Renew, None, apply, || Err(reply_lost()));
        Box::pin(async move {
            renewing.await.unwrap_or_else(|err| {
                let unknown = || Renewal::Unknown(Error::new(err.kind(), err.to_string()));
                (0..count).map(|_| unknown()).collect()
            })
        })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let apply =
            move |store: &Arc<Store>| store.with_state(|state, now| state.release(&hold, now));
        self.request(Step::Release, None, apply, || Err(reply_lost()))
    }

    fn raise(&self, hold: Hold, token: u64) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Store>| {
            store.with_state(|state, now| state.table.raise(&hold.name, hold.owner, token, now))
        };
        self.request(Step::Acquire, None, apply, || Err(reply_lost()))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        self.request(
            Step::Inspect,
            None,
            move |store| store.status(&name),
            || Err(reply_lost()),
        )
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        let apply = move |store: &Arc<Store>| {
            let names = store.with_state(|state, _| state.table.names(&prefix));
            let all = names.iter().map(|name| store.status(name));
            let mut held: Vec<_> = all.filter(Status::is_held).collect();
            held.sort_by(|a, b| a.name.cmp(&b.name));
            held
        };
        self.request(Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let apply = move |store: &Arc<Store>| {
            let (broken, owner) = store.with_state(|state, now| {
                let view = state.table.view(&name);
                let hold =
                    view.and_then(|view| view.holds.into_iter().find(|hold| hold.token == token));
                (
                    state.table.break_hold(&name, token, now),
                    hold.map(|hold| hold.owner),
                )
            });
            if let (true, Some(owner)) = (broken, owner) {
                let loss_notifiers = lock(&store.state).loss_notifiers.clone();
                loss_notifiers
                    .iter()
                    .for_each(|notifier| notifier.lost(owner, LostReason::TakenOver));
            }
            broken
        };
        self.request(Step::Inspect, None, apply, || Err(reply_lost()))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(ready(Ok(vec![Finding::new(
            Severity::Good,
            "the store is this process: it excludes clients of this store only, and ends with the process",
        )])))
    }
}

/// A place in the queue.
struct Queued(oneshot::Receiver<(u64, Time)>);

impl Store {
    /// `Err`: queued.
    fn acquire(&self, request: &Request, sent: Time) -> Result<Result<Answer, Error>, Queued> {
        self.with_state(|state, now| {
            if let Some(left) = state.guarded(now) {
                return Ok(Err(too_young(left)));
            }
            match state.acquire(request, self.lease(request.ttl), now) {
                Verdict::Busy => Ok(Ok(Answer::Busy)),
                Verdict::Granted { token } => {
                    let way = now.since(sent);
                    let grant = self.grant(token, sent, way, request.ttl);
                    Ok(Ok(Answer::Granted(grant)))
                }
                Verdict::Queued => {
                    let (sender, receiver) = oneshot::channel();
                    state.waiting.insert(request.owner, sender);
                    Err(Queued(receiver))
                }
            }
        })
    }

    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        self.with_state(|state, now| {
            if !state.is_undisturbed() || state.guarded(now).is_some() {
                return None;
            }
            match state.try_acquire(request, self.lease(request.ttl), now) {
                Verdict::Granted { token } => {
                    state.requests += 1;
                    Some(self.grant(token, now, Duration::ZERO, request.ttl))
                }
                Verdict::Queued | Verdict::Busy => None,
            }
        })
    }

    fn release_now(&self, hold: &Hold) -> Option<Release> {
        self.with_state(|state, now| {
            state.is_undisturbed().then(|| {
                state.requests += 1;
                state.release(hold, now)
            })
        })
    }

    async fn wait(self: Arc<Self>, request: Arc<Request>, queued: Queued) -> Result<Answer, Error> {
        let Queued(mut receiver) = queued;
        loop {
            let mut earlier = pin!(self.earlier.notified());
            earlier.as_mut().enable();
            let next = lock(&self.state).table.next();
            tokio::select! {
                biased;
                granted = &mut receiver => {
                    let (token, at) = granted.map_err(|_| {
                        Error::new(ErrorKind::Unreachable, "the place in the queue is gone")
                    })?;
                    // Nothing has to keep a place alive here: the lease begins with the hand-over.
                    let grant = self.grant(token, at, Duration::ZERO, request.ttl);
                    return Ok(Answer::Granted(grant));
                }
                () = request.stop.raised() => break,
                // Nobody else may be there to notice that a lease or a reservation is over.
                () = self.clock.sleep_until(next) => self.with_state(|_, _| ()),
                () = earlier => {}
            }
        }
        self.with_state(|state, now| {
            state
                .table
                .release(&request.name, request.owner, false, now);
            state.holders.remove(&request.owner);
            state.waiting.remove(&request.owner);
        });
        Ok(Answer::Busy)
    }
}

/// What this store can do and promises.
pub fn guarantees() -> Guarantees {
    let together = "holder and store are one process";
    let faults = vec![
        Cell::effects(Fault::HolderKilled, "the store ends with the holder"),
        Cell::effects(
            Fault::HolderPaused,
            "there is no lease: a paused holder keeps the lock",
        )
        .late(),
        Cell::not_applicable(Fault::Partition, together),
        Cell::not_applicable(Fault::StoreRestart, together),
        Cell::not_applicable(Fault::PowerLoss, together),
        Cell::not_applicable(Fault::Failover, together),
        Cell::effects(Fault::StoreClockForward, "no wall clock is involved"),
        Cell::effects(Fault::StoreClockBack, "no wall clock is involved"),
        Cell::effects(Fault::ClientClock, "no wall clock is involved"),
        Cell::effects(
            Fault::ClientSuspended,
            "holder and store are suspended together",
        ),
    ];
    Guarantees {
        shared: true,
        permits: true,
        min_hold: true,
        lock_delay: true,
        liveness: "the guard: a hold lasts until its guard is dropped",
        clock: "none; with a virtual clock, that clock",
        waiting: "a queue in the table; a release wakes one waiter",
        token: "a counter per name, until the store is dropped",
        loss: "at once (only `break_lock` can end a hold)",
        fit: "tests, and tasks of one process",
        ..Guarantees::new("memory", Order::Fair, faults)
    }
}
