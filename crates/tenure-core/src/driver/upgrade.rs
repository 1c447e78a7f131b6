//! Changing the mode of a hold: from upgradable to exclusive, and from either to shared.
//!
//! The owner of the hold stays the same, and so the hold is renewed and released in the same way before, during and after
//! the change, whatever becomes of the request.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::{Error, ErrorKind, Step};
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::options::Mode;
use crate::store::{Answer, Hold, Request};
use crate::support::closed;

use super::held::Held;
use super::labels::LOG_TARGET;
use super::running::{CleanUp, RunningRequest};
use super::shared::Driver;

impl Held {
    /// Makes an upgradable hold exclusive. `Ok(false)`: others hold, and `wait` is not set.
    ///
    /// Cancel safe at every await: when the future is dropped, the driver stops the request, polls it to its end in the
    /// background, and the hold is upgradable again.
    pub(crate) async fn upgrade(self: &Arc<Self>, wait: bool) -> Result<bool, Error> {
        let upgraded = self.upgrade_inner(wait).await;
        upgraded.map_err(|err| self.explain(err, Step::Upgrade))
    }

    async fn upgrade_inner(self: &Arc<Self>, wait: bool) -> Result<bool, Error> {
        let permit = self.right_to_change_mode().await?;
        match self.mode() {
            Mode::Exclusive => return Ok(true),
            Mode::Upgradable => {}
            mode => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "the hold is not upgradable ({mode}): two shared holders that both upgrade would wait for each other; acquire with `upgradable()`"
                    ),
                ));
            }
        }
        let hold = self.as_hold(false);
        let request = Arc::new(Request {
            mode: Mode::Exclusive,
            wait,
            holder: self.holder(),
            ..Request::new(hold.name.clone(), hold.owner, hold.ttl)
        });
        let upgrading = Upgrading {
            held: self.clone(),
            request: request.clone(),
            _permit: permit,
        };
        let mut running = RunningRequest::send(&self.driver, upgrading, |store| {
            store.upgrade(hold, request)
        });
        // Most stores on this machine answer at the first poll.
        let answer = match running.poll_once() {
            Some(answer) => answer,
            None => tokio::select! {
                biased;
                answer = running.answer() => answer,
                () = self.state.ended() => return Err(self.lost_error()),
                () = self.driver.closed.raised() => return Err(closed()),
            },
        };
        match running.settle(answer) {
            Ok(Answer::Granted(grant)) => {
                self.upgraded(&grant);
                self.refuse_lost()?;
                tracing::debug!(target: LOG_TARGET, name = %self.name(), store = self.driver.scheme(), token = self.token(), "upgraded");
                Ok(true)
            }
            // A request that waits and was not stopped is refused only when the store has no such hold.
            Ok(Answer::Busy) if wait => {
                self.clone().found_gone();
                Err(self.lost_error())
            }
            Ok(Answer::Busy) => Ok(false),
            Err(err) => {
                if err.kind() == ErrorKind::Lost {
                    self.clone().found_gone();
                }
                Err(err)
            }
        }
    }

    /// Makes an exclusive or upgradable hold shared. Waits for nothing but the answer of the store; a future that is
    /// dropped does not stop the change. `if_alone` calls its argument unless another guard may rely on the mode, and says
    /// whether it did; no guard is made meanwhile.
    pub(crate) async fn downgrade(
        self: &Arc<Self>,
        if_alone: impl FnOnce(&dyn Fn()) -> bool,
    ) -> Result<(), Error> {
        let downgraded = self.downgrade_inner(if_alone).await;
        downgraded.map_err(|err| self.explain(err, Step::Downgrade))
    }

    async fn downgrade_inner(
        self: &Arc<Self>,
        if_alone: impl FnOnce(&dyn Fn()) -> bool,
    ) -> Result<(), Error> {
        if self.holder().value.is_some() {
            let message = "the term of a leader cannot become shared; resign, and acquire a lock";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let permit = self.right_to_change_mode().await?;
        let before = self.mode();
        match before {
            Mode::Shared if !self.is_unconfirmed() => return Ok(()),
            Mode::Shared | Mode::Exclusive | Mode::Upgradable => {}
            mode => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("the hold cannot become shared ({mode})"),
                ));
            }
        }
        let hold = self.as_hold(false);
        if !if_alone(&|| self.claim_shared()) {
            let message = "this owner has entered the lock more than once, and another guard may rely on its mode";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let downgrading = Downgrading {
            hold: hold.clone(),
            _permit: permit,
        };
        let mut running = RunningRequest::send(&self.driver, downgrading, |store| {
            store.downgrade(hold, Mode::Shared)
        });
        let answer = running.answer().await;
        match running.settle(answer) {
            Ok(true) => {
                self.set_mode(Mode::Shared);
                Ok(())
            }
            Ok(false) => {
                self.clone().found_gone();
                Err(self.lost_error())
            }
            Err(err) => {
                if !Downgrading::is_needed_after(err.kind()) {
                    self.set_mode(before);
                }
                Err(err)
            }
        }
    }

    /// Other processes with the same receipt count on the mode and the token.
    fn refuse_attached(&self) -> Result<(), Error> {
        match self.attachment.get() {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Invalid,
                "a hold that was attached keeps its mode, because other processes may have its receipt; release it, and acquire the lock in the other mode",
            )),
        }
    }

    /// Waits for an earlier change to end, but not longer than the hold lasts: that change may wait for a silent store.
    async fn right_to_change_mode(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.refuse_attached()?;
        let permit = tokio::select! {
            biased;
            permit = self.mode_gate() => permit,
            () = self.state.ended() => return Err(self.lost_error()),
            () = self.driver.closed.raised() => return Err(closed()),
        };
        self.refuse_lost()?;
        Ok(permit)
    }

    fn refuse_lost(&self) -> Result<(), Error> {
        match self.state() {
            HoldState::Lost(_) => Err(self.lost_error()),
            _ => Ok(()),
        }
    }

    fn lost_error(&self) -> Error {
        let reason = match self.state() {
            HoldState::Lost(reason) => reason,
            _ => LostReason::StoreSaysNo,
        };
        let message = format!("the lock had ended ({reason}), so its mode cannot change");
        Error::new(ErrorKind::Lost, message)
    }
}

/// An upgrade that is under way.
struct Upgrading {
    held: Arc<Held>,
    request: Arc<Request>,
    /// No other request changes the mode meanwhile.
    _permit: OwnedSemaphorePermit,
}

impl CleanUp<Answer> for Upgrading {
    fn stop(&self) {
        self.request.stop.raise();
    }

    fn is_needed_after(kind: ErrorKind) -> bool {
        kind == ErrorKind::Indeterminate
    }

    /// Makes the hold upgradable again.
    async fn clean_up(self, driver: Arc<Driver>, answer: Option<Answer>) {
        match answer {
            Some(Answer::Granted(grant)) => self.held.token_is(grant.token),
            Some(Answer::Busy) => return,
            None => {}
        }
        let hold = self.held.as_hold(false);
        driver
            .downgrade_until_definite(hold, Mode::Upgradable)
            .await;
    }
}

/// A downgrade to shared that is under way.
struct Downgrading {
    hold: Hold,
    /// No other request changes the mode meanwhile.
    _permit: OwnedSemaphorePermit,
}

impl CleanUp<bool> for Downgrading {
    /// The change goes on.
    fn stop(&self) {}

    /// A store that refuses the change has done nothing, and never will.
    fn is_needed_after(kind: ErrorKind) -> bool {
        !matches!(kind, ErrorKind::Unsupported | ErrorKind::Invalid)
    }

    /// Sends the request again until the answer is definite.
    async fn clean_up(self, driver: Arc<Driver>, answer: Option<bool>) {
        if answer.is_none() {
            driver
                .downgrade_until_definite(self.hold.clone(), Mode::Shared)
                .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::error::ErrorKind;
    use crate::options::Renew;
    use crate::rt::poll_now;
    use crate::{Client, Mode, memory};

    /// A store that has no such hold any more does not make the guard exclusive.
    #[tokio::test]
    async fn an_upgrade_of_a_hold_that_the_store_has_not_is_an_error() {
        let store = memory::Store::with_virtual_clock();
        let client = Client::from_store(store.clone()).unwrap();
        let lock = client.lock("n").ttl(Duration::from_secs(30));
        let guard = lock.upgradable().acquire().await.unwrap();
        assert_eq!(store.expire("n").unwrap(), 1);
        let upgraded = guard.upgrade().await;
        assert_eq!(upgraded.map_err(|err| err.kind()), Err(ErrorKind::Lost));
        assert!(!guard.is_held() && guard.mode() == Mode::Upgradable);
    }

    /// The wait for the readers uses up a part of the lease, so the store has to extend the lease with the upgrade.
    #[tokio::test]
    async fn an_upgrade_that_waited_claims_no_more_than_the_store_has() {
        const TTL: Duration = Duration::from_secs(30);
        let store = memory::Store::with_virtual_clock();
        let [one, two] = [(); 2].map(|()| Client::from_store(store.clone()).unwrap());
        let lock = one.lock("n").ttl(TTL).renew(Renew::Never);
        let guard = lock.upgradable().acquire().await.unwrap();
        let reader = two.lock("n").shared().acquire().await.unwrap();
        let waiting = poll_now(Box::pin(guard.upgrade()));
        let waiting = waiting.expect_err("a reader is there");
        store.advance(TTL / 3);
        reader.release().await.unwrap();
        waiting.await.unwrap();
        let claimed = guard.remaining();
        let status = two.inspect("n").await.unwrap();
        let left = status.holds[0].ttl_left.unwrap();
        assert!(
            claimed <= left,
            "claimed {claimed:?}, the store has {left:?}"
        );
    }

    /// The first upgrade is answered by a silent store only after the hold has ended, and keeps the right to change the
    /// mode until then.
    #[tokio::test]
    async fn an_upgrade_that_waits_for_another_one_ends_with_the_hold() {
        let store = memory::Store::with_virtual_clock();
        let client = Client::from_store(store.clone()).unwrap();
        let lock = client.lock("n").ttl(Duration::from_secs(30));
        let guard = lock.upgradable().acquire().await.unwrap();
        store.pause();
        let first = poll_now(Box::pin(guard.upgrade()));
        assert!(first.is_err(), "the store is silent");
        let waiting = poll_now(Box::pin(guard.upgrade()));
        let waiting = waiting.expect_err("the first one is under way");
        let mut lost = Box::pin(guard.lost());
        while let Err(pending) = poll_now(lost) {
            lost = pending;
            store.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
        let ended = poll_now(waiting);
        let ended = ended.unwrap_or_else(|_| panic!("it still waits"));
        assert_eq!(ended.map_err(|err| err.kind()), Err(ErrorKind::Lost));
    }
}
