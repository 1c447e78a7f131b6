//! One hold, from its grant to its end.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Hold, Release};
use crate::error::{Error, ErrorKind, Step};
use crate::fence::{Condition, FencingToken, OwnerId};
use crate::logic::lease::{Lease, State, Tick};
use crate::lost::{Loss, LostReason};
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::{Flag, lock};
use crate::time::Time;

use super::Driver;
use super::detach::DetachableRequest;
use super::observe::LOG_TARGET;
use super::observe::{Observation, RenewalOutcome};

/// A hold that was granted. Shared by the guard, its watchers and (weakly) the renewal task.
pub(crate) struct Held {
    driver: Arc<Driver>,
    name: LockName,
    owner: OwnerId,
    mode: Mode,
    token: u64,
    ttl: Duration,
    /// The store frees the hold by itself when it is not renewed.
    expires_in_store: bool,
    /// Time alone can change its state: it has a deadline, or has to be checked.
    clocked: bool,
    /// `release` was asked for: from now on nothing is renewed and nothing is reported as lost.
    ending: AtomicBool,
    lease: Mutex<Scheduled>,
    signals: Signals,
}

/// What waits for a change of state.
#[derive(Default)]
struct Signals {
    /// Raised when the hold is lost, at the deadline at the latest.
    lost: Flag,
    /// Woken when a renewal is overdue, and at a loss.
    at_risk: Notify,
    /// Cancelled at a loss.
    #[cfg(feature = "tokio-util")]
    tokens: Mutex<Vec<tokio_util::sync::CancellationToken>>,
}

impl Signals {
    /// Tells those who do not wait for the flag itself.
    fn tell_lost(&self) {
        self.at_risk.notify_waiters();
        #[cfg(feature = "tokio-util")]
        lock(&self.tokens)
            .drain(..)
            .for_each(|token| token.cancel());
    }
}

/// The lease, where it stands in the renewal task's list, and what is shown of the hold until it ends.
struct Scheduled {
    lease: Lease,
    due: Option<Time>,
    observation: Option<Observation>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("name", &self.name)
            .field("token", &self.token)
            .finish()
    }
}

impl Held {
    pub(super) fn new(
        driver: Arc<Driver>,
        hold: Hold,
        lease: Lease,
        expires_in_store: bool,
        clocked: bool,
        observation: Observation,
    ) -> Arc<Self> {
        let scheduled = Scheduled {
            lease,
            due: None,
            observation: Some(observation),
        };
        Arc::new(Self {
            driver,
            name: hold.name,
            owner: hold.owner,
            mode: hold.mode,
            token: hold.token,
            ttl: hold.ttl,
            expires_in_store,
            clocked,
            ending: AtomicBool::new(false),
            lease: Mutex::new(scheduled),
            signals: Signals::default(),
        })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Held, at risk or lost, by the clock of this moment.
    pub(crate) fn state(&self) -> State {
        let now = self.now();
        lock(&self.lease).lease.state(now)
    }

    fn now(&self) -> Time {
        if self.clocked {
            self.driver.clock.now()
        } else {
            Time::ZERO
        }
    }

    /// Time until the deadline; [`Duration::MAX`] without one.
    pub(crate) fn remaining(&self) -> Duration {
        let scheduled = lock(&self.lease);
        let now = self.driver.clock.now();
        match scheduled.lease.state(now) {
            State::Lost(_) => Duration::ZERO,
            _ => scheduled.lease.deadline().since(now),
        }
    }

    /// Resolves when the hold is lost; never when it was released before.
    pub(crate) async fn lost(self: Arc<Self>) -> LostReason {
        self.signals.lost.raised().await;
        match self.state() {
            State::Lost(reason) => reason,
            _ => unreachable!(
                "BUG: the flag is raised when the lease is lost, and a lost lease stays lost"
            ),
        }
    }

    /// Resolves when a renewal is overdue or has failed, and when the hold is lost; never when it was released before.
    /// Says how much is left until the deadline.
    pub(crate) async fn at_risk(self: Arc<Self>) -> Duration {
        let mut woken = pin!(self.signals.at_risk.notified());
        loop {
            // Listens before it looks, so that a change in between is not missed.
            woken.as_mut().enable();
            let is_over = self.is_ending() && !self.signals.lost.is_raised();
            if !is_over && self.state() != State::Held {
                return self.remaining();
            }
            woken.as_mut().await;
            woken.set(self.signals.at_risk.notified());
        }
    }

    /// Cancels `token` when the hold is lost.
    #[cfg(feature = "tokio-util")]
    pub(crate) fn cancel_when_lost(&self, token: &tokio_util::sync::CancellationToken) {
        lock(&self.signals.tokens).push(token.clone());
        // The state is read after the token is in the list: a loss before that did not cancel it.
        if matches!(self.state(), State::Lost(_)) {
            token.cancel();
        }
    }

    /// Adds what every error about this hold should name.
    pub(crate) fn explain(&self, err: Error, step: Step) -> Error {
        self.driver.explain(err, &self.name, step)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// What the backend needs to know about it.
    pub(super) fn hold(&self, unclean: bool) -> Hold {
        Hold {
            name: self.name.clone(),
            owner: self.owner,
            mode: self.mode,
            token: self.token,
            ttl: self.ttl,
            unclean,
        }
    }

    /// A new hold is made known to all who have to do with it.
    pub(super) fn begin(self: &Arc<Self>) {
        let mut scheduled = lock(&self.lease);
        scheduled.due = self.next_due(&scheduled.lease).filter(|_| self.clocked);
        let driver = &self.driver;
        driver.renewals.begin(driver, self, scheduled.due);
    }

    /// Puts it into the renewal task's list, at the next instant when something is due.
    fn schedule(self: &Arc<Self>) {
        let mut scheduled = lock(&self.lease);
        // Looked at under the lock that `end` takes: a hold that ends is not listed again.
        if self.is_ending() {
            return;
        }
        if scheduled.lease.state(self.now()) == State::AtRisk {
            self.signals.at_risk.notify_waiters();
        }
        let due = self.next_due(&scheduled.lease);
        if due != scheduled.due {
            self.driver.renewals.moved(self, scheduled.due, due);
            scheduled.due = due;
        }
    }

    fn next_due(&self, lease: &Lease) -> Option<Time> {
        let next = lease.next();
        (next != Time::MAX).then(|| {
            let grain = self.grain().as_nanos() as u64;
            let rounded = Time::from_nanos(next.as_nanos() / grain * grain);
            if rounded > self.driver.clock.now() {
                rounded
            } else {
                next
            }
        })
    }

    /// Renewals may come this much early, so that many holds share a request:
    /// 1/64 of the ttl makes at most some twenty requests per ttl/3, however many holds there are.
    fn grain(&self) -> Duration {
        (self.ttl / 64).max(Duration::from_nanos(1))
    }

    /// The counterpart of [`Held::begin`].
    fn end(self: &Arc<Self>) {
        let mut scheduled = lock(&self.lease);
        let due = scheduled.due.take();
        self.driver.renewals.end(self, due);
    }

    /// The renewal task took it out of its list because it is due. Says whether to renew now.
    pub(super) fn due(self: &Arc<Self>, now: Time) -> Tick {
        let tick = {
            let mut scheduled = lock(&self.lease);
            scheduled.due = None;
            // Renewing early is fine, losing early is not: the look ahead stops at the deadline.
            let ahead = now.after(self.grain());
            let at = if ahead < scheduled.lease.deadline() {
                ahead
            } else {
                now
            };
            scheduled.lease.tick(at)
        };
        if let Tick::Lost(reason) = tick {
            self.on_lost(reason);
        } else {
            self.schedule();
        }
        tick
    }

    /// The hold has ended: what is to be shown of its end, once.
    fn take_observation(&self) -> Option<Observation> {
        lock(&self.lease).observation.take()
    }

    /// The store answered a renewal, or did not.
    pub(super) fn observe_renewal(&self, outcome: RenewalOutcome) {
        if let Some(observation) = &lock(&self.lease).observation {
            observation.renewal(outcome);
        }
    }

    fn observe_loss(&self, reason: LostReason) {
        if let Some(observation) = self.take_observation() {
            observation.lost(reason);
        }
    }

    fn observe_release(&self) {
        if let Some(observation) = self.take_observation() {
            observation.released();
        }
    }

    fn observe_unconfirmed(&self) {
        if let Some(observation) = self.take_observation() {
            observation.unconfirmed();
        }
    }

    pub(super) fn renewed(self: &Arc<Self>, sent: Time, ttl: Option<Duration>) {
        let now = self.driver.clock.now();
        lock(&self.lease).lease.renewed(sent, ttl, now);
        self.schedule_or_lose();
    }

    pub(super) fn unanswered(self: &Arc<Self>, err: &Error) {
        tracing::debug!(target: LOG_TARGET, name = %self.name, backend = self.driver.backend_name, %err, "renewal unanswered");
        let clock = &self.driver.clock;
        let now = clock.now();
        lock(&self.lease).lease.unanswered(now, clock.random());
        self.schedule_or_lose();
    }

    /// An answer that came when the deadline had passed, and before the renewal task woke up for it, ends the
    /// lease: then the task has nothing to wake up for any more, and the loss is told from here.
    fn schedule_or_lose(self: &Arc<Self>) {
        match self.state() {
            State::Lost(reason) => self.on_lost(reason),
            _ => self.schedule(),
        }
    }

    /// The store or its session says that it is over.
    pub(super) fn refused(self: &Arc<Self>, reason: LostReason) {
        if self.is_ending() {
            return;
        }
        lock(&self.lease).lease.refused(reason);
        if let State::Lost(reason) = self.state() {
            self.on_lost(reason);
        }
    }

    fn on_lost(self: &Arc<Self>, reason: LostReason) {
        {
            // A release that begins now sees the loss, and one that has begun ends the hold in its own way.
            let _lease = lock(&self.lease);
            if self.is_ending() || !self.signals.lost.raise_once() {
                return;
            }
        }
        self.tell_lost(reason);
        if !self.expires_in_store && matches!(reason, LostReason::Expired | LostReason::MaxHold) {
            // The store would keep it for as long as we live: we end it ourselves,
            // a margin later, as a store with leases would.
            let held = self.clone();
            self.driver.spawner.spawn(async move {
                let (clock, ttl) = (held.driver.clock.clone(), held.ttl);
                let margin = crate::logic::lease::margin(ttl, Duration::ZERO);
                clock.sleep_until(clock.now().after(margin)).await;
                held.driver
                    .clone()
                    .release_until_definite(held.hold(true))
                    .await;
            });
        }
    }

    /// The release found that the hold had ended before it: a loss like any other, if it was not told yet.
    fn found_lost(&self, reason: LostReason) {
        lock(&self.lease).lease.refused(reason);
        if self.signals.lost.raise_once() {
            self.tell_lost(reason);
        }
    }

    fn tell_lost(&self, reason: LostReason) {
        self.signals.tell_lost();
        self.observe_loss(reason);
        let backend = self.driver.backend_name;
        tracing::warn!(target: LOG_TARGET, name = %self.name, backend, token = self.token, %reason, "lost");
        self.driver.tell_of_loss(Loss {
            name: self.name.clone(),
            token: FencingToken::new(self.token),
            mode: self.mode,
            reason,
            backend,
        });
    }

    /// See [`Backend::condition`](crate::backend::Backend::condition).
    pub(crate) fn condition(&self) -> Option<Condition> {
        self.driver.backend.condition(&self.hold(false))
    }

    /// Writes under these holds, at least one and all of one client; see [`Backend::write`](crate::backend::Backend::write).
    pub(crate) async fn write(
        all: &[&Arc<Self>],
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let first = all[0];
        let explain = |err: Error| first.driver.explain(err, &first.name, Step::Write);
        let refused = |reason: LostReason| {
            let message = format!("the lock had ended ({reason}), and nothing was written");
            Err(explain(Error::new(ErrorKind::Lost, message)))
        };
        for held in all {
            if let State::Lost(reason) = held.state() {
                return refused(reason);
            }
        }
        let holds = all.iter().map(|held| held.hold(false)).collect();
        let driver = &first.driver;
        match driver
            .detachable(driver.backend.write(holds, key, value))
            .await
        {
            Ok(true) => Ok(()),
            Ok(false) => refused(LostReason::StoreSaysNo),
            Err(err) => Err(explain(err)),
        }
    }

    /// Gives the hold back. Dropping the future does not stop the release.
    pub(crate) async fn release(self: Arc<Self>) -> Result<(), Error> {
        let Some(before) = self.begin_release() else {
            return self.settle_abandoned();
        };
        if let Some(outcome) = self.release_now(before) {
            return self.settle(before, Ok(outcome));
        }
        let mut releasing = Releasing::new(&self, before);
        if let State::Lost(_) = before {
            // There is nothing to wait for: the caller must hear of the loss now,
            // from a store that may be silent. Dropping it sees to the clean-up.
            drop(releasing);
            return self.settle(before, Ok(Release::NotHeld));
        }
        let outcome = match &mut releasing.future {
            Some(future) => future.await,
            None => Ok(Release::NotHeld),
        };
        releasing.future = None;
        self.settle(before, outcome)
    }

    /// Asks for the release and does not wait for it.
    pub(crate) fn release_in_background(self: &Arc<Self>) {
        let Some(before) = self.begin_release() else {
            return;
        };
        match self.release_now(before) {
            None => drop(Releasing::new(self, before)),
            Some(Release::NotHeld) => self.found_lost(LostReason::StoreSaysNo),
            Some(Release::Released) => self.observe_release(),
        }
    }

    /// Neither renews nor releases from now on, until its lease is over. Says how long that takes.
    pub(crate) fn abandon(self: &Arc<Self>) -> Duration {
        let left = match self.remaining() {
            // Without a lease nobody would ever free it.
            Duration::MAX => self.ttl,
            left => left,
        };
        if self.begin_release().is_some() {
            tracing::warn!(target: LOG_TARGET, name = %self.name, backend = self.driver.backend_name, token = self.token, ?left, "left to its lease");
            self.observe_unconfirmed();
            let held = self.clone();
            let end = self.driver.clock.now().after(left);
            self.driver.spawner.spawn(async move {
                let clock = held.driver.clock.clone();
                let margin = crate::logic::lease::margin(held.ttl, Duration::ZERO);
                clock.sleep_until(end).await;
                // Other entries of the same owner may still be inside: they learn of it now.
                lock(&held.lease).lease.refused(LostReason::Expired);
                held.signals.lost.raise();
                held.signals.tell_lost();
                clock.sleep_until(end.after(margin)).await;
                // Where a session keeps it alive, or nothing can end it but us.
                let driver = held.driver.clone();
                driver.release_until_definite(held.hold(true)).await;
            });
        }
        left
    }

    fn release_now(&self, before: State) -> Option<Release> {
        if !self.driver.answers_now {
            return None;
        }
        self.driver
            .backend
            .release_now(&self.hold(matches!(before, State::Lost(_))))
    }

    /// The state it is released from; `None` when that has begun already.
    fn begin_release(self: &Arc<Self>) -> Option<State> {
        let state = {
            let scheduled = lock(&self.lease);
            if self.ending.swap(true, Ordering::SeqCst) {
                return None;
            }
            scheduled.lease.state(self.now())
        };
        if let State::Lost(reason) = state {
            self.found_lost(reason);
        }
        self.end();
        Some(state)
    }

    /// Another entry of the same owner has left the hold to its lease.
    fn settle_abandoned(&self) -> Result<(), Error> {
        let message = "the lock is not released: an outcome under it is unknown, so it is kept until its lease ends";
        let err = match self.state() {
            State::Lost(reason) => self.ended_before(reason),
            _ => Error::new(ErrorKind::Indeterminate, message),
        };
        Err(self.explain(err, Step::Release))
    }

    fn ended_before(&self, reason: LostReason) -> Error {
        let message = format!(
            "the lock ended before it was released: {reason}; the work may have overlapped with that of the next holder"
        );
        Error::new(ErrorKind::Lost, message)
    }

    fn settle(&self, before: State, outcome: Result<Release, Error>) -> Result<(), Error> {
        let lost = |reason: LostReason| {
            self.found_lost(reason);
            Err(self.ended_before(reason))
        };
        let result = match (before, outcome) {
            (State::Lost(reason), _) => lost(reason),
            (_, Ok(Release::Released)) => Ok(()),
            (_, Ok(Release::NotHeld)) => lost(LostReason::StoreSaysNo),
            (_, Err(err)) => {
                let driver = self.driver.clone();
                let hold = self.hold(false);
                self.driver.see_to(driver.release_until_definite(hold));
                // Asking took longer than the lease.
                match self.state() {
                    State::Lost(reason) => lost(reason),
                    _ => {
                        self.observe_unconfirmed();
                        Err(err)
                    }
                }
            }
        };
        self.observe_release();
        tracing::debug!(target: LOG_TARGET, name = %self.name, backend = self.driver.backend_name, token = self.token, ok = result.is_ok(), "released");
        result.map_err(|err| self.driver.explain(err, &self.name, Step::Release))
    }
}

/// A release under way. Goes on in the background when it is dropped.
struct Releasing<'a> {
    held: &'a Arc<Held>,
    unclean: bool,
    future: Option<DetachableRequest<Release>>,
}

impl<'a> Releasing<'a> {
    fn new(held: &'a Arc<Held>, before: State) -> Self {
        let unclean = matches!(before, State::Lost(_));
        let driver = &held.driver;
        let future = driver.detachable(driver.backend.release(held.hold(unclean)));
        Self {
            held,
            unclean,
            future: Some(future),
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else {
            return;
        };
        self.held.observe_release();
        // Quick stores are done at the first poll, in or out of a runtime.
        let driver = &self.held.driver;
        let pending = match driver.spawner.poll_anywhere(future) {
            Ok(Ok(Release::NotHeld)) => return self.held.found_lost(LostReason::StoreSaysNo),
            Ok(Ok(Release::Released)) => return,
            Ok(Err(_)) => None,
            Err(pending) => pending,
        };
        let (driver, hold) = (driver.clone(), self.held.hold(self.unclean));
        let held = self.held.clone();
        self.held.driver.see_to(async move {
            if let Some(pending) = pending {
                match pending.await {
                    Ok(Release::NotHeld) => return held.found_lost(LostReason::StoreSaysNo),
                    Ok(Release::Released) => return,
                    Err(_) => {}
                }
            }
            driver.release_until_definite(hold).await;
        });
    }
}

/// Keeps no hold alive.
pub(super) type WeakHeld = Weak<Held>;
