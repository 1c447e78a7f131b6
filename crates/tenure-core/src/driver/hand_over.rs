//! Passes a hold from one task of this client to the next one that waits for the name, without a request to the store.
//! `logic/hand_over.rs` decides whether.
//!
//! A hold passes on only if a task waits when it is granted: then it keeps the turn of its task, so that no other task of
//! the client asks the store meanwhile. The first task that releases it has the store reserve tokens for those that follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Error;
use crate::logic::hand_over::{Next, Released, SharedTurn};
use crate::logic::lease::HoldState;
use crate::options::{Fairness, Mode, Options, Renew};
use crate::rt::sync::{Mutex, lock};
use crate::store::{Grant, Hold, Release, Store};

use super::acquire::Tentative;
use super::held::Held;
use super::kept_turn::KeptTurn;
use super::local_queue::{Passed, Turn, WaitingTask};
use super::shared::Driver;

/// Whether a hold with these options may pass from task to task, in a store that can reserve tokens.
fn may_pass_on(options: &Options) -> bool {
    options.local_hand_overs > 0
        && options.mode == Mode::Exclusive
        && options.renew == Renew::Automatic
        && options.fair != Fairness::Fair
        && options.min_hold.is_zero()
        && options.value.is_none()
}

/// Whether the store has the same of a hold with these options as of one with those.
fn is_stored_alike(these: &Options, those: &Options) -> bool {
    these.ttl == those.ttl && these.lock_delay == those.lock_delay && these.label == those.label
}

impl Driver {
    /// The options of a task that waits for its turn, if it may have the hold of another task.
    pub(super) fn options_to_pass_on(&self, options: &Options) -> Option<Box<Options>> {
        let is_possible = may_pass_on(options)
            && self.answer_now.is_none()
            && self.store.clone().as_reserve_tokens().is_some();
        is_possible.then(|| Box::new(options.clone()))
    }
}

impl Held {
    /// Keeps the turn of the task that was granted this hold, if the hold may pass on to the next task. Otherwise the next task
    /// has the turn and asks the store. `round_trip`: of the request that the store granted.
    pub(super) fn keep_turn(&self, turn: Turn, options: &Options, round_trip: Duration) {
        if !may_pass_on(options) || !turn.is_next(|next| is_stored_alike(options, next)) {
            return;
        }
        let (clock, limit) = (&self.driver.clock, options.local_hand_overs);
        let now = clock.now();
        let shared = SharedTurn::granted(self.token(), limit, round_trip, now);
        if !shared.can_reserve(now) {
            return;
        }
        let end = shared.end();
        turn.set_taken();
        let turn = Arc::new(Mutex::new(Some(turn)));
        let kept = Arc::downgrade(&turn);
        self.set_turn(KeptTurn {
            turn,
            shared,
            options: Box::new(options.clone()),
        });
        let clock = clock.clone();
        // The next task asks the store before a hold ends that lasts longer, so that it does not come behind other clients.
        self.driver.tasks.spawner.spawn(async move {
            clock.sleep_until(end).await;
            if let Some(turn) = kept.upgrade() {
                let turn = lock(&turn).take();
                drop(turn);
            }
        });
    }

    /// Passes the hold on, whose release has begun, if that is possible without a request.
    pub(super) fn pass_on(self: &Arc<Self>, kept: Option<Box<KeptTurn>>) -> PassedOn {
        let Some(kept) = kept else {
            return PassedOn::NotNow;
        };
        let turn = lock(&kept.turn).take();
        match turn {
            Some(turn) => self.pass_on_turn(turn, *kept),
            None => PassedOn::NotNow,
        }
    }

    fn pass_on_turn(self: &Arc<Self>, turn: Turn, kept: KeptTurn) -> PassedOn {
        if self.driver.closed.is_raised() {
            return PassedOn::NotNow;
        }
        let (released, now) = (self.released(), self.driver.clock.now());
        let mut decided = Next::Release;
        let next = turn.take_next(|options| {
            if is_stored_alike(&kept.options, options) {
                decided = kept.shared.next(released, options.min_lease, now);
            }
            matches!(decided, Next::HandOver(_))
        });
        match (decided, next) {
            (Next::HandOver(shared), Some((next, options))) => {
                self.hand_over(next, &options, turn, KeptTurn { shared, ..kept });
                PassedOn::Done
            }
            (Next::Reserve(last), _) => PassedOn::After(Reservation { turn, kept, last }),
            _ => PassedOn::NotNow,
        }
    }

    fn released(&self) -> Released {
        let (state, remaining) = (self.state(), self.remaining());
        Released {
            token: self.token(),
            is_exclusive: self.mode() == Mode::Exclusive && !self.is_unconfirmed(),
            state,
            remaining,
            has_late_requests: self.state.progress.late_requests.load(Ordering::SeqCst) > 0,
            is_asked: self.state.is_asked(),
        }
    }

    /// Makes a hold of its own for the next task. If the task has left, dropping that hold releases it.
    fn hand_over(
        self: &Arc<Self>,
        next: WaitingTask,
        options: &Options,
        turn: Turn,
        kept: KeptTurn,
    ) {
        let driver = &self.driver;
        let (sent, ttl) = lock(&self.state.lease).lease.confirmed();
        let grant = Grant::new(kept.shared.token(), sent, Duration::ZERO, ttl);
        let hold = Hold {
            token: grant.token,
            ..self.as_hold(false)
        };
        let Ok(held) = driver.hold_of(hold, driver.describe(options), options, &grant) else {
            // The lease was over in the last moment, and the hold is released.
            return next.pass(Passed::Turn(turn));
        };
        held.set_offered();
        let may_pass_on = kept.shared.may_pass_on(driver.clock.now());
        if may_pass_on && turn.is_next(|next| is_stored_alike(options, next)) {
            let (stored, end) = (kept.turn.clone(), kept.shared.end());
            *lock(&stored) = Some(turn);
            held.set_turn(kept);
            // The task that ends the turn in time may have looked in vain meanwhile.
            if driver.clock.now() >= end {
                let turn = lock(&stored).take();
                drop(turn);
            }
        }
        next.pass(Passed::Hold(Box::new(Tentative::new(held))));
    }

    /// Has the store reserve tokens, and passes the hold on. Releases the hold if that is not possible.
    pub(super) async fn reserve_and_pass_on(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        reservation: Reservation,
    ) -> Result<Release, Error> {
        let Reservation {
            turn,
            mut kept,
            last,
        } = reservation;
        if let Some(store) = store.clone().as_reserve_tokens()
            && let Ok(true) = store.reserve(self.as_hold(false), last).await
        {
            kept.shared.reserved(last);
            if let PassedOn::Done = self.pass_on_turn(turn, kept) {
                return Ok(Release::Released);
            }
        } else {
            // The next task can wait in the queue of the store.
            drop(turn);
        }
        let is_unclean = matches!(self.state(), HoldState::Lost(_));
        store.release(self.as_hold(is_unclean)).await
    }
}

/// Whether a hold that is released has passed on.
pub(super) enum PassedOn {
    /// The next task has the hold.
    Done,
    /// The hold may pass on after a request to the store.
    After(Reservation),
    /// The store gets the hold back.
    NotNow,
}

/// What follows after the store has reserved the tokens up to `last`.
pub(super) struct Reservation {
    turn: Turn,
    kept: KeptTurn,
    last: u64,
}

#[cfg(test)]
mod tests;
