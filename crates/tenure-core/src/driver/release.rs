//! The end of a hold: a release, a release in the background, or an end that is left to the lease.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Step};
use crate::logic::lease::{HoldState, margin};
use crate::lost::LostReason;
use crate::options::Mode;
use crate::rt::sync::lock;
use crate::store::Release;

use super::hand_over::{PassedOn, Reservation};
use super::held::{Ending, Held};
use super::labels::LOG_TARGET;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;

impl Held {
    /// Releases the hold. Dropping the future does not stop the release.
    pub(crate) async fn release(self: Arc<Self>) -> Result<(), Error> {
        let Some(Ending { before, mode, turn }) = self.begin_release() else {
            return self.settle_abandoned();
        };
        if let HoldState::Lost(_) = before
            && self.forget_if_attached()
        {
            return self.settle(before, Ok(Release::NotHeld));
        }
        if let Some(outcome) = self.release_now(before, mode) {
            return self.settle(before, Ok(outcome));
        }
        let reservation = match self.pass_on(turn) {
            PassedOn::Done => return self.settle(before, Ok(Release::Released)),
            PassedOn::After(reservation) => Some(reservation),
            PassedOn::NotNow => None,
        };
        let mut releasing = self.send_release(before, reservation);
        if let HoldState::Lost(_) = before {
            // The caller must learn of the loss now, and the store may be silent. Dropping `releasing` cleans up in the
            // background.
            drop(releasing);
            return self.settle(before, Ok(Release::NotHeld));
        }
        let outcome = releasing.answer().await;
        let outcome = releasing.settle(outcome);
        self.settle(before, outcome)
    }

    /// Sends the release and does not wait for the answer.
    pub(crate) fn release_in_background(self: &Arc<Self>) {
        let Some(Ending { before, mode, turn }) = self.begin_release() else {
            return;
        };
        if let HoldState::Lost(_) = before
            && self.forget_if_attached()
        {
            return;
        }
        let released = match (self.release_now(before, mode), self.pass_on(turn)) {
            (Some(released), _) => released,
            (None, PassedOn::Done) => Release::Released,
            (None, PassedOn::After(reservation)) => {
                return drop(self.send_release(before, Some(reservation)));
            }
            (None, PassedOn::NotNow) => return drop(self.send_release(before, None)),
        };
        match released {
            Release::NotHeld => self.found_lost(LostReason::StoreSaysNo),
            Release::Released => {
                self.observe_release();
                self.state.set_over();
            }
        }
    }

    /// From now on the hold is neither renewed nor released, until its lease is over. Returns how long that takes.
    pub(crate) fn abandon(self: &Arc<Self>) -> Duration {
        let left = match self.remaining() {
            // Without a lease the store would never free the hold.
            Duration::MAX => self.ttl(),
            left => left,
        };
        if self.begin_release().is_some() {
            tracing::warn!(target: LOG_TARGET, name = %self.name(), store = self.driver.scheme(), token = self.token(), ?left, "left to its lease");
            self.observe_unconfirmed();
            let held = self.clone();
            let end = self.driver.clock.now().after(left);
            self.driver.tasks.spawner.spawn(async move {
                let clock = held.driver.clock.clone();
                let margin = margin(held.ttl(), Duration::ZERO);
                clock.sleep_until(end).await;
                // Other entries of the same owner may still exist: their guards are told now.
                lock(&held.state.lease).lease.refused(LostReason::Expired);
                held.state.raise_lost();
                held.state.notify_loss();
                clock.sleep_until(end.after(margin)).await;
                if held.forget_if_attached() {
                    return;
                }
                // A session may keep the hold alive, or only its owner can end the hold: so a release follows.
                let driver = held.driver.clone();
                driver.release_until_definite(held.as_hold(true)).await;
            });
        }
        left
    }

    fn release_now(&self, before: HoldState, mode: Mode) -> Option<Release> {
        let store = self.driver.answer_now.as_ref()?;
        let is_unclean = matches!(before, HoldState::Lost(_));
        store.release_now(&self.as_hold_in(mode, is_unclean))
    }

    /// Sends the release, or what may come in its place.
    fn send_release(
        self: &Arc<Self>,
        before: HoldState,
        reservation: Option<Reservation>,
    ) -> RunningRequest<'_, Release, Releasing> {
        let unclean = matches!(before, HoldState::Lost(_));
        let releasing = Releasing {
            held: self.clone(),
            unclean,
        };
        RunningRequest::send(&self.driver, releasing, |store| match reservation {
            Some(reservation) => Box::pin(self.clone().reserve_and_pass_on(store, reservation)),
            None => store.release(self.as_hold(unclean)),
        })
    }

    /// Ends a hold here that this client is attached to, without an end in the store: another client may count on it. Whether
    /// this is such a hold.
    pub(super) fn forget_if_attached(&self) -> bool {
        let Some(attachment) = self.attachment.get() else {
            return false;
        };
        if let Some(store) = self.driver.store.clone().as_detach() {
            store.forget(&self.as_hold(false));
        }
        attachment.end();
        self.state.set_over();
        true
    }

    /// Ends a hold here that was lost. The store frees a hold that this client acquired, and keeps one that the client is
    /// attached to for the others.
    pub(super) fn give_up_lost(self: &Arc<Self>) {
        if !self.forget_if_attached() {
            let held = self.clone();
            let driver = self.driver.clone();
            self.driver.tasks.clean_up(async move {
                driver.release_until_definite(held.as_hold(true)).await;
                held.state.set_over();
            });
        }
    }

    /// This client has nothing to do with the hold any more, which it was attached to: the hold goes on under its receipt.
    pub(crate) fn leave(self: &Arc<Self>) {
        if self.begin_release().is_some() {
            self.observe_detached();
            self.forget_if_attached();
        }
    }

    /// The hold is detached again.
    pub(super) fn end_attachment(&self) {
        if let Some(attachment) = self.attachment.get() {
            attachment.end();
        }
    }

    /// What the hold is when its release begins; `None` when a release has begun already.
    pub(super) fn begin_release(&self) -> Option<Ending> {
        let ending = self.end()?;
        if let HoldState::Lost(reason) = ending.before {
            self.found_lost(reason);
        }
        if let Some(attachment) = self.attachment.get() {
            attachment.set_ending();
        }
        Some(ending)
    }

    /// Another entry of the same owner has left the hold to its lease.
    fn settle_abandoned(&self) -> Result<(), Error> {
        let message = "the lock is not released: an outcome under it is unknown, so it is kept until its lease ends";
        let err = match self.state() {
            HoldState::Lost(reason) => self.ended_before(reason),
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

    fn settle(&self, before: HoldState, outcome: Result<Release, Error>) -> Result<(), Error> {
        let lost = |reason: LostReason| {
            self.found_lost(reason);
            Err(self.ended_before(reason))
        };
        let result = match (before, outcome) {
            (HoldState::Lost(reason), _) => lost(reason),
            (_, Ok(Release::Released)) => Ok(()),
            (_, Ok(Release::NotHeld)) => lost(LostReason::StoreSaysNo),
            (_, Err(err)) => match self.state() {
                // The release took longer than the lease.
                HoldState::Lost(reason) => lost(reason),
                _ => {
                    self.observe_unconfirmed();
                    Err(err)
                }
            },
        };
        self.observe_release();
        self.state.set_over();
        tracing::debug!(target: LOG_TARGET, name = %self.name(), store = self.driver.scheme(), token = self.token(), ok = result.is_ok(), "released");
        result.map_err(|err| self.driver.explain(err, self.name(), Step::Release))
    }
}

/// A release that is under way.
struct Releasing {
    held: Arc<Held>,
    unclean: bool,
}

impl CleanUp<Release> for Releasing {
    /// The release goes on.
    fn stop(&self) {
        self.held.observe_release();
    }

    fn is_needed_after(_: ErrorKind) -> bool {
        true
    }

    async fn clean_up(self, driver: Arc<Driver>, answer: Option<Release>) {
        match answer {
            Some(Release::Released) => {}
            Some(Release::NotHeld) => self.held.found_lost(LostReason::StoreSaysNo),
            None => {
                let hold = self.held.as_hold(self.unclean);
                driver.release_until_definite(hold).await;
            }
        }
    }
}
