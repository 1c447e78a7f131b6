//! One hold, from its grant to its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::backend::{Hold, Release};
use crate::error::{Error, ErrorKind, Step};
use crate::fence::{Condition, OwnerId};
use crate::kernel::lease::{Lease, State, Tick};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::{Flag, lock};
use crate::time::Time;

use super::Driver;
use super::carried::Carried;

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
    /// Raised when the hold is lost, at the deadline at the latest.
    lost: Flag,
}

/// The lease, and where it stands in the renewal task's list.
struct Scheduled {
    lease: Lease,
    due: Option<Time>,
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
    ) -> Arc<Self> {
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
            lease: Mutex::new(Scheduled { lease, due: None }),
            lost: Flag::new(),
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
        self.lost.raised().await;
        match self.state() {
            State::Lost(reason) => reason,
            _ => unreachable!(
                "BUG: the flag is raised when the lease is lost, and a lost lease stays lost"
            ),
        }
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

    pub(super) fn renewed(self: &Arc<Self>, sent: Time, ttl: Option<Duration>) {
        let now = self.driver.clock.now();
        lock(&self.lease).lease.renewed(sent, ttl, now);
        self.schedule_or_lose();
    }

    pub(super) fn unanswered(self: &Arc<Self>, err: &Error) {
        tracing::debug!(name = %self.name, backend = self.driver.backend_name, %err, "renewal unanswered");
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
        if self.is_ending() || self.lost.is_raised() {
            return;
        }
        self.lost.raise();
        tracing::warn!(name = %self.name, backend = self.driver.backend_name, token = self.token, %reason, "lost");
        if !self.expires_in_store && matches!(reason, LostReason::Expired | LostReason::MaxHold) {
            // The store would keep it for as long as we live: we end it ourselves,
            // a margin later, as a store with leases would.
            let held = self.clone();
            self.driver.spawner.spawn(async move {
                let (clock, ttl) = (held.driver.clock.clone(), held.ttl);
                let margin = crate::kernel::lease::margin(ttl, Duration::ZERO);
                clock.sleep_until(clock.now().after(margin)).await;
                held.driver
                    .clone()
                    .release_until_definite(held.hold(true))
                    .await;
            });
        }
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
            .carried(driver.backend.write(holds, key, value))
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
            return Ok(());
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
        if let Some(before) = self.begin_release()
            && self.release_now(before).is_none()
        {
            drop(Releasing::new(self, before));
        }
    }

    /// Neither renews nor releases from now on, until its lease is over. Says how long that takes.
    #[cfg(feature = "sqlx")]
    pub(crate) fn abandon(self: &Arc<Self>) -> Duration {
        let left = match self.remaining() {
            // Without a lease nobody would ever free it.
            Duration::MAX => self.ttl,
            left => left,
        };
        if self.begin_release().is_some() {
            tracing::warn!(name = %self.name, backend = self.driver.backend_name, token = self.token, ?left, "left to its lease");
            let held = self.clone();
            self.driver.spawner.spawn(async move {
                let (clock, ttl) = (held.driver.clock.clone(), held.ttl);
                let margin = crate::kernel::lease::margin(ttl, Duration::ZERO);
                clock
                    .sleep_until(clock.now().after(left).after(margin))
                    .await;
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
        let state = self.state();
        if self.ending.swap(true, Ordering::SeqCst) {
            return None;
        }
        self.end();
        Some(state)
    }

    fn settle(&self, before: State, outcome: Result<Release, Error>) -> Result<(), Error> {
        let lost = |reason: LostReason| {
            Err(Error::new(
                ErrorKind::Lost,
                format!(
                    "the lock ended before it was released: {reason}; the work may have overlapped with that of the next holder"
                ),
            ))
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
                    _ => Err(err),
                }
            }
        };
        tracing::debug!(name = %self.name, backend = self.driver.backend_name, token = self.token, ok = result.is_ok(), "released");
        result.map_err(|err| self.driver.explain(err, &self.name, Step::Release))
    }
}

/// A release under way. Goes on in the background when it is dropped.
struct Releasing<'a> {
    held: &'a Held,
    unclean: bool,
    future: Option<Carried<Release>>,
}

impl<'a> Releasing<'a> {
    fn new(held: &'a Held, before: State) -> Self {
        let unclean = matches!(before, State::Lost(_));
        let driver = &held.driver;
        let future = driver.carried(driver.backend.release(held.hold(unclean)));
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
        // Quick stores are done at the first poll, in or out of a runtime.
        let driver = &self.held.driver;
        let pending = match driver.spawner.poll_anywhere(future) {
            Ok(Ok(_)) => return,
            Ok(Err(_)) => None,
            Err(pending) => pending,
        };
        let (driver, hold) = (driver.clone(), self.held.hold(self.unclean));
        self.held.driver.see_to(async move {
            if let Some(pending) = pending
                && pending.await.is_ok()
            {
                return;
            }
            driver.release_until_definite(hold).await;
        });
    }
}

/// Keeps no hold alive.
pub(super) type WeakHeld = Weak<Held>;
