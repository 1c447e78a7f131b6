//! A hold that goes on without its client.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Step};
use crate::guarantees::{Capability, DetachedHolds};
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::options::Mode;
use crate::store::{BoxFuture, Detach, Hold, Renewal};
use crate::time::Time;

use super::held::{Ending, Held};
use super::labels::LOG_TARGET;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;

/// What the store has definitely said about a hold that it was asked to detach or to attach.
pub(super) enum Found {
    /// The store has the hold, for this long from `sent` on.
    Held { sent: Time, ttl: Option<Duration> },
    /// The store has no such hold.
    Gone(LostReason),
}

/// The answer to such a request; an error: the outcome is unknown, or the store has refused.
pub(super) fn found(answer: BoxFuture<Renewal>) -> BoxFuture<Result<Found, Error>> {
    Box::pin(async move {
        match answer.await {
            Renewal::Renewed { sent, ttl } => Ok(Found::Held { sent, ttl }),
            Renewal::Lost(reason) => Ok(Found::Gone(reason)),
            Renewal::Unknown(err) => Err(err),
        }
    })
}

impl Driver {
    /// The part of the store that detaches holds of this mode. Refuses, before any request, if there is none.
    pub(super) fn detaches(&self, mode: Mode) -> Result<Arc<dyn Detach>, Error> {
        let can = self.store.guarantees();
        match self.store.clone().as_detach() {
            Some(store) if can.detaches(mode) => Ok(store),
            Some(_) if can.detached == DetachedHolds::Exclusive => {
                let why = format!(" other than exclusive ones, and this is {mode}");
                Err(self.refusal(Capability::Detach, &why))
            }
            _ => Err(self.refusal(Capability::Detach, "")),
        }
    }
}

impl Held {
    /// Refuses, before any request, a hold that cannot be detached.
    pub(crate) fn check_detachable(&self) -> Result<(), Error> {
        if self.holder().value.is_some() {
            let message = "the term of a leader cannot be detached; resign, and acquire a lock";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.driver.detaches(self.mode()).map(drop)
    }

    /// Detaches the hold from this client. If the future is dropped before its end, the hold is released, because nothing is
    /// written down that could release it later; a hold that this client was attached to goes on under its receipt.
    pub(crate) async fn detach(self: &Arc<Self>) -> Result<(), Error> {
        let detached = self.detach_inner().await;
        detached.map_err(|err| self.explain(err, Step::Detach))
    }

    async fn detach_inner(self: &Arc<Self>) -> Result<(), Error> {
        let store = self.driver.detaches(self.mode())?;
        let Some(Ending { before, .. }) = self.begin_release() else {
            let message = "the hold is left to its lease, because an outcome under it is unknown";
            return Err(Error::new(ErrorKind::Indeterminate, message));
        };
        if let HoldState::Lost(reason) = before {
            self.give_up_lost();
            return Err(ended_before(reason));
        }
        let hold = self.as_hold(false);
        let detaching = Detaching { held: self.clone() };
        let request = |_| found(store.detach(hold));
        let mut running = RunningRequest::send(&self.driver, detaching, request);
        let answer = running.answer().await;
        match running.settle(answer) {
            Ok(Found::Held { .. }) => {
                self.end_attachment();
                self.observe_detached();
                self.state.set_over();
                tracing::debug!(target: LOG_TARGET, name = %self.name(), store = self.driver.scheme(), token = self.token(), "detached");
                Ok(())
            }
            Ok(Found::Gone(reason)) => {
                self.found_lost(reason);
                self.give_up_lost();
                Err(ended_before(reason))
            }
            Err(err) => {
                self.observe_unconfirmed();
                self.state.set_over();
                Err(err)
            }
        }
    }
}

impl Held {
    /// Whether this client was attached to the hold.
    pub(crate) fn is_attached(&self) -> bool {
        self.attachment.get().is_some()
    }

    /// Releases a hold that was detached and has no receipt. One that this client was attached to has a receipt, and stays.
    pub(crate) fn release_detached(self: &Arc<Self>) {
        if !self.is_attached() {
            let driver = self.driver.clone();
            let releasing = driver.clone().release_detached(self.as_hold(false));
            driver.tasks.clean_up(releasing);
        }
    }
}

impl Driver {
    /// Releases a hold that was detached. The store has forgotten it for this client, so the client attaches itself before.
    async fn release_detached(self: Arc<Self>, hold: Hold) {
        if let Ok(store) = self.detaches(hold.mode) {
            let attach = || found(store.clone().attach(hold.clone()));
            self.until_definite(&hold, Step::Attach, attach).await;
        }
        self.release_until_definite(hold).await;
    }
}

pub(super) fn ended_before(reason: LostReason) -> Error {
    let message = format!(
        "the lock had ended ({reason}); the work may have overlapped with that of the next holder"
    );
    Error::new(ErrorKind::Lost, message)
}

/// A hold that is being detached.
struct Detaching {
    held: Arc<Held>,
}

impl CleanUp<Found> for Detaching {
    fn stop(&self) {
        self.held.observe_unconfirmed();
    }

    fn is_needed_after(_: ErrorKind) -> bool {
        true
    }

    /// Nothing is written down for a hold that was acquired here, so it ends. A hold that has a receipt stays.
    async fn clean_up(self, driver: Arc<Driver>, answer: Option<Found>) {
        if let Some(Found::Gone(reason)) = answer {
            self.held.found_lost(reason);
            self.held.give_up_lost();
        } else if !self.held.forget_if_attached() {
            let hold = self.held.as_hold(false);
            match answer {
                Some(_) => driver.release_detached(hold).await,
                None => driver.release_until_definite(hold).await,
            }
        }
    }
}

#[cfg(test)]
mod tests;
