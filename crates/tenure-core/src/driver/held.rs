//! One hold, from its grant to its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::fence::{Condition, FencingToken, OwnerId};
use crate::holder::Holder;
use crate::logic::lease::{HoldState, Lease, Tick, margin};
use crate::lost::{Loss, LostReason};
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::sync::{Mutex, lock};
use crate::store::{Grant, Hold, Renewal};
use crate::time::Time;

use super::attached_owners::{AttachedOwner, Attachment};
use super::hold_state::{ScheduledLease, SharedHoldState};
use super::kept_turn::KeptTurn;
use super::labels::{LOG_TARGET, RenewalOutcome};
use super::observe::HoldObservation;
use super::renewal::Renewable;
use super::shared::Driver;

/// A hold that was granted. Shared by the guard, the tasks that end the hold, and (weakly) the renewal task. What may be kept
/// for longer than the guard has the state of the hold only.
pub(crate) struct Held {
    pub(super) driver: Arc<Driver>,
    /// As it was granted; its token and mode may have changed since.
    pub(super) hold: Hold,
    token: AtomicU64,
    /// What others see of the holder; the leader of an election changes it.
    holder: Mutex<Arc<Holder>>,
    /// The store frees the hold by itself when it is not renewed.
    expires_in_store: bool,
    pub(super) state: Arc<SharedHoldState>,
    /// One permit: one request at a time changes the mode. Made when it is first needed.
    mode_gate: OnceLock<Arc<Semaphore>>,
    /// This client was attached to the hold: its end here is not its end in the store.
    pub(super) attachment: OnceLock<Attachment>,
}

/// What a hold was when its end began.
pub(super) struct Ending {
    pub(super) before: HoldState,
    pub(super) mode: Mode,
    /// The turn of the task, if the hold had kept it. Dropping the turn passes it on.
    pub(super) turn: Option<Box<KeptTurn>>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("name", &self.hold.name)
            .field("token", &self.token())
            .finish()
    }
}

impl Held {
    pub(super) fn new(
        driver: Arc<Driver>,
        hold: Hold,
        holder: Arc<Holder>,
        lease: Lease,
        expires_in_store: bool,
        is_clocked: bool,
        observation: HoldObservation,
    ) -> Arc<Self> {
        let lease = ScheduledLease {
            lease,
            mode: hold.mode,
            is_unconfirmed: false,
            due: None,
            observation: Some(observation),
            error: None,
            turn: None,
        };
        Arc::new(Self {
            state: SharedHoldState::new(driver.clock.clone(), lease, is_clocked),
            driver,
            token: AtomicU64::new(hold.token),
            hold,
            holder: Mutex::new(holder),
            expires_in_store,
            mode_gate: OnceLock::new(),
            attachment: OnceLock::new(),
        })
    }

    /// A hold that this client is attached to.
    pub(super) fn attached(
        driver: Arc<Driver>,
        hold: Hold,
        holder: Arc<Holder>,
        lease: Lease,
        observation: HoldObservation,
        place: Arc<AttachedOwner>,
    ) -> Arc<Self> {
        let held = Self::new(driver, hold, holder, lease, true, true, observation);
        let _ = held.attachment.set(Attachment::new(place));
        held
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.hold.name
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.hold.owner
    }

    /// What others see of the holder.
    pub(super) fn holder(&self) -> Arc<Holder> {
        lock(&self.holder).clone()
    }

    pub(super) fn set_holder(&self, holder: Arc<Holder>) {
        *lock(&self.holder) = holder;
    }

    pub(crate) fn mode(&self) -> Mode {
        lock(&self.state.lease).mode
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        let mut scheduled = lock(&self.state.lease);
        scheduled.mode = mode;
        scheduled.is_unconfirmed = false;
    }

    /// This client claims no more than a shared hold from now on, whatever the store has done by then.
    pub(super) fn claim_shared(&self) {
        let mut scheduled = lock(&self.state.lease);
        scheduled.mode = Mode::Shared;
        scheduled.is_unconfirmed = true;
    }

    /// Whether the store has not confirmed a downgrade.
    pub(super) fn is_unconfirmed(&self) -> bool {
        lock(&self.state.lease).is_unconfirmed
    }

    /// The right to change the mode, or what others see of the holder, which one request at a time has. Cancel safe.
    pub(super) async fn mode_gate(&self) -> OwnedSemaphorePermit {
        let gate = self.mode_gate.get_or_init(|| Arc::new(Semaphore::new(1)));
        let permit = gate.clone().acquire_owned().await;
        permit.expect("BUG: the gate is never closed")
    }

    pub(crate) fn token(&self) -> u64 {
        self.token.load(Ordering::SeqCst)
    }

    /// The store has the hold under another token now. Tokens only grow.
    pub(super) fn token_is(&self, token: u64) {
        self.token.fetch_max(token, Ordering::SeqCst);
    }

    /// The store has made the hold exclusive.
    pub(super) fn upgraded(self: &Arc<Self>, grant: &Grant) {
        self.token_is(grant.token);
        self.set_mode(Mode::Exclusive);
        self.renewed(grant.sent, grant.ttl);
    }

    /// The store has no such hold any more.
    pub(super) fn found_gone(self: Arc<Self>) {
        self.refused(LostReason::StoreSaysNo, None);
    }

    /// The lease that was asked for.
    pub(crate) fn ttl(&self) -> Duration {
        self.hold.ttl
    }

    /// See [`SharedHoldState::state`].
    pub(crate) fn state(&self) -> HoldState {
        self.state.state()
    }

    /// See [`SharedHoldState::remaining`].
    pub(crate) fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// What may be kept for longer than the hold.
    pub(crate) fn hold_state(&self) -> &Arc<SharedHoldState> {
        &self.state
    }

    /// Adds what every error about this hold should name.
    pub(crate) fn explain(&self, err: Error, step: Step) -> Error {
        self.driver.explain(err, &self.hold.name, step)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.state.is_ending()
    }

    /// A caller has the guard from now on.
    pub(crate) fn set_used(&self) {
        self.state.progress.is_used.store(true, Ordering::Relaxed);
    }

    /// The hold was passed on to a task that has not taken it yet. It is not renewed, because a task that is not polled may
    /// never take it.
    pub(super) fn set_offered(&self) {
        let flag = &self.state.progress.is_offered;
        flag.store(true, Ordering::Relaxed);
    }

    /// The task has taken the hold. A renewal that was due meanwhile is due now.
    pub(super) fn set_taken(self: &Arc<Self>) {
        let flag = &self.state.progress.is_offered;
        flag.store(false, Ordering::Relaxed);
        self.schedule();
    }

    fn is_offered(&self) -> bool {
        self.state.progress.is_offered.load(Ordering::Relaxed)
    }

    /// The hold as the store knows it.
    pub(super) fn as_hold(&self, unclean: bool) -> Hold {
        self.as_hold_in(self.mode(), unclean)
    }

    /// The same, of a hold whose mode the caller has read.
    pub(super) fn as_hold_in(&self, mode: Mode, unclean: bool) -> Hold {
        Hold {
            unclean,
            unused: !self.state.progress.is_used.load(Ordering::Relaxed),
            mode,
            token: self.token(),
            ..self.hold.clone()
        }
    }

    /// Adds a new hold to the list of the renewal task, where reports of the store find it too. A report that came
    /// before counts now.
    pub(super) fn begin(self: &Arc<Self>) {
        let lost = if self.state.is_clocked {
            let mut scheduled = lock(&self.state.lease);
            scheduled.due = self.next_due(&scheduled.lease);
            self.driver.renewals.begin(self, scheduled.due)
        } else {
            self.driver.renewals.begin(self, None)
        };
        if let Some(reason) = lost {
            self.clone().refused(reason, None);
        }
    }

    /// Moves the hold in the list of the renewal task to the next instant at which something is due.
    fn schedule(self: &Arc<Self>) {
        let mut scheduled = lock(&self.state.lease);
        // Read under the lock that `begin_release` takes: a hold that ends is not added again.
        if self.is_ending() {
            return;
        }
        if scheduled.lease.state(self.state.now()) == HoldState::AtRisk {
            self.state.notify();
        }
        let due = self.next_due(&scheduled.lease);
        if due != scheduled.due {
            self.driver.renewals.moved(self, scheduled.due, due);
            scheduled.due = due;
        }
    }

    fn next_due(&self, lease: &Lease) -> Option<Time> {
        let next = match self.is_offered() {
            true => lease.deadline(),
            false => lease.next(),
        };
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
        (self.hold.ttl / 64).max(Duration::from_nanos(1))
    }

    pub(super) fn set_turn(&self, turn: KeptTurn) {
        lock(&self.state.lease).turn = Some(Box::new(turn));
    }

    /// The counterpart of [`Held::begin`]: from now on the hold is ending. `None`: it was ending already.
    pub(super) fn end(&self) -> Option<Ending> {
        let (ending, due) = {
            let mut scheduled = lock(&self.state.lease);
            if self.state.progress.is_ending.swap(true, Ordering::SeqCst) {
                return None;
            }
            let ending = Ending {
                before: scheduled.lease.state(self.state.now()),
                mode: scheduled.mode,
                turn: scheduled.turn.take(),
            };
            (ending, scheduled.due.take())
        };
        self.driver.renewals.end(self.hold.owner, due);
        Some(ending)
    }

    /// The observation of a hold that has ended, for the first caller.
    fn take_observation(&self) -> Option<HoldObservation> {
        lock(&self.state.lease).observation.take()
    }

    fn observe_renewal(&self, outcome: RenewalOutcome) {
        if let Some(observation) = &lock(&self.state.lease).observation {
            observation.renewal(outcome);
        }
    }

    fn observe_loss(&self, reason: LostReason) {
        if let Some(observation) = self.take_observation() {
            observation.lost(reason);
        }
    }

    pub(super) fn observe_release(&self) {
        if let Some(observation) = self.take_observation() {
            observation.released();
        }
    }

    pub(super) fn observe_detached(&self) {
        if let Some(observation) = self.take_observation() {
            observation.detached();
        }
    }

    pub(super) fn observe_unconfirmed(&self) {
        if let Some(observation) = self.take_observation() {
            observation.unconfirmed();
        }
    }

    fn renewed(self: &Arc<Self>, sent: Time, ttl: Option<Duration>) {
        let now = self.driver.clock.now();
        {
            let mut scheduled = lock(&self.state.lease);
            scheduled.lease.renewed(sent, ttl, now);
            scheduled.error = None;
        }
        self.schedule_or_lose();
    }

    fn unanswered(self: &Arc<Self>, err: Error) {
        tracing::debug!(target: LOG_TARGET, name = %self.hold.name, store = self.driver.scheme(), err = format_args!("{err:#}"), "renewal unanswered");
        let clock = &self.driver.clock;
        let now = clock.now();
        {
            let mut scheduled = lock(&self.state.lease);
            scheduled.lease.unanswered(now, clock.random());
            scheduled.error = Some(self.explain(err, Step::Renew));
        }
        self.schedule_or_lose();
    }

    /// An answer may arrive when the deadline has passed and the renewal task has not woken up for it yet. Then the
    /// lease is over, nothing is due any more, and the loss is reported from here.
    fn schedule_or_lose(self: &Arc<Self>) {
        match self.state() {
            HoldState::Lost(reason) => self.on_lost(reason),
            _ => self.schedule(),
        }
    }

    fn on_lost(self: &Arc<Self>, reason: LostReason) {
        let turn = {
            // A release that begins now sees the loss, and one that has begun ends the hold in its own way.
            let mut scheduled = lock(&self.state.lease);
            if self.is_ending() || !self.state.raise_lost() {
                return;
            }
            scheduled.turn.take()
        };
        // The next task asks the store.
        drop(turn);
        self.report_loss(reason);
        if !self.expires_in_store && matches!(reason, LostReason::Expired | LostReason::MaxHold) {
            // The store would keep the hold as long as this process lives. The driver ends it a margin later, as a store
            // with leases would.
            let held = self.clone();
            self.driver.tasks.spawner.spawn(async move {
                let (clock, ttl) = (held.driver.clock.clone(), held.hold.ttl);
                let margin = margin(ttl, Duration::ZERO);
                clock.sleep_until(clock.now().after(margin)).await;
                held.driver
                    .clone()
                    .release_until_definite(held.as_hold(true))
                    .await;
            });
        }
    }

    /// The release found that the hold had ended before. That is a loss like any other, unless it was reported already.
    pub(super) fn found_lost(&self, reason: LostReason) {
        lock(&self.state.lease).lease.refused(reason);
        if self.state.raise_lost() {
            self.report_loss(reason);
        }
    }

    fn report_loss(&self, reason: LostReason) {
        self.state.notify_loss();
        self.observe_loss(reason);
        let scheme = self.driver.scheme();
        let cause = self.cause_of(reason);
        tracing::warn!(target: LOG_TARGET, name = %self.hold.name, store = scheme, token = self.token(), %reason, "lost");
        self.driver.report_loss(Loss {
            name: self.hold.name.clone(),
            token: FencingToken::new(self.token()),
            mode: self.mode(),
            reason,
            scheme,
            cause,
        });
    }

    /// The error that led to a loss for this reason.
    fn cause_of(&self, reason: LostReason) -> Option<Error> {
        let error = lock(&self.state.lease).error.take();
        let cause = match reason {
            // This end was asked for.
            LostReason::MaxHold => return None,
            LostReason::StoreSaysNo => {
                let step = match self.is_ending() {
                    true => Step::Release,
                    false => Step::Renew,
                };
                let gone = "the store has no such hold any more";
                let gone = Error::new(ErrorKind::Lost, gone).with_step(step);
                match error {
                    Some(err) => gone.with_source(err),
                    None => gone,
                }
            }
            _ => error?,
        };
        let scheme = self.driver.scheme();
        Some(cause.with_name(&self.hold.name).with_scheme(scheme))
    }

    /// See [`GuardedWrite::condition`](crate::store::GuardedWrite::condition).
    pub(crate) fn condition(&self) -> Option<Condition> {
        let store = self.driver.store.clone().as_guarded_write()?;
        // The caller may use the condition at any time, and more than once.
        self.state.begin_late_request();
        store.condition(&self.as_hold(false))
    }

    /// Writes under these holds, at least one and all of one client; see [`GuardedWrite::write`](crate::store::GuardedWrite::write).
    pub(crate) async fn write(
        all: &[&Arc<Self>],
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let first = all[0];
        let explain = |err: Error| first.driver.explain(err, &first.hold.name, Step::Write);
        let refused = |reason: LostReason| {
            let message = format!("the lock had ended ({reason}), and nothing was written");
            Err(explain(Error::new(ErrorKind::Lost, message)))
        };
        for held in all {
            if let HoldState::Lost(reason) = held.state() {
                return refused(reason);
            }
        }
        let holds = all.iter().map(|held| held.as_hold(false)).collect();
        let driver = &first.driver;
        all.iter().for_each(|held| held.state.begin_late_request());
        let answer = driver.send(|store| store.write(holds, key, value)).await;
        if answer.is_ok() {
            all.iter().for_each(|held| held.state.end_late_request());
        }
        match answer {
            Ok(true) => Ok(()),
            Ok(false) => refused(LostReason::StoreSaysNo),
            Err(err) => Err(explain(err)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Also when a runtime that shuts down drops the task that would have ended the hold.
        self.state.set_over();
        // The futures of the guard may keep the state, and must not keep the turn from other tasks.
        if Arc::strong_count(&self.state) > 1 {
            let turn = lock(&self.state.lease).turn.take();
            drop(turn);
        }
    }
}

impl Renewable for Held {
    fn owner(&self) -> OwnerId {
        self.hold.owner
    }

    fn hold(&self) -> Hold {
        self.as_hold(false)
    }

    fn release_if_lost(self: Arc<Self>) {
        if let HoldState::Lost(_) = self.state() {
            self.release_in_background();
        }
    }

    fn is_hold_of(&self, name: &LockName) -> bool {
        self.name() == name && !self.is_ending() && !matches!(self.state(), HoldState::Lost(_))
    }

    fn tick(self: Arc<Self>, now: Time) -> Tick {
        let tick = {
            let mut scheduled = lock(&self.state.lease);
            scheduled.due = None;
            // A renewal may be early, a loss may not: the time that is looked ahead ends at the deadline.
            let ahead = now.after(self.grain());
            let at = if ahead < scheduled.lease.deadline() {
                ahead
            } else {
                now
            };
            match self.is_offered() && at < scheduled.lease.deadline() {
                true => Tick::Wait,
                false => scheduled.lease.tick(at),
            }
        };
        if let Tick::Lost(reason) = tick {
            self.on_lost(reason);
        } else {
            self.schedule();
        }
        tick
    }

    fn asked_to_release(&self) {
        tracing::debug!(target: LOG_TARGET, name = %self.hold.name, store = self.driver.scheme(), token = self.token(), "asked to release");
        self.state.set_asked();
    }

    fn answered(self: Arc<Self>, answer: Renewal) {
        self.observe_renewal(match &answer {
            Renewal::Renewed { .. } => RenewalOutcome::Renewed,
            Renewal::Lost(_) => RenewalOutcome::Lost,
            Renewal::Unknown(_) => RenewalOutcome::Unanswered,
        });
        match answer {
            Renewal::Renewed { sent, ttl } => self.renewed(sent, ttl),
            Renewal::Lost(reason) => self.refused(reason, None),
            Renewal::Unknown(err) => self.unanswered(err),
        }
    }

    fn refused(self: Arc<Self>, reason: LostReason, cause: Option<Error>) {
        if self.is_ending() {
            return;
        }
        {
            let mut scheduled = lock(&self.state.lease);
            scheduled.lease.refused(reason);
            scheduled.error = cause.or(scheduled.error.take());
        }
        if let HoldState::Lost(reason) = self.state() {
            self.on_lost(reason);
        }
    }
}
