//! Requests that are repeated until the store has given a definite answer.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Step};
use crate::name::LockName;
use crate::options::Mode;
use crate::store::{BoxFuture, Hold};
use crate::support::RetryBudget;

use super::labels::LOG_TARGET;
use super::shared::Driver;

impl Driver {
    /// Sends the release until the store has given a definite answer, or the client is closed, or the store has freed the
    /// hold by itself because its ttl has passed. For holds whose owner does not wait for the outcome.
    pub(crate) async fn release_until_definite(self: Arc<Self>, hold: Hold) {
        let release = || self.store.clone().release(hold.clone());
        self.until_definite(&hold, Step::Release, release).await;
    }

    /// Changes the mode of the hold until the store has given a definite answer, or the hold or the client has ended.
    pub(super) async fn downgrade_until_definite(self: Arc<Self>, hold: Hold, mode: Mode) {
        let downgrade = || self.store.clone().downgrade(hold.clone(), mode);
        self.until_definite(&hold, Step::Downgrade, downgrade).await;
    }

    /// Inspects the name until the store has answered, if only with an error of its own. The caller sets the limit. Cancel
    /// safe.
    pub(super) async fn inspect_until_answered(&self, name: LockName) {
        let mut retries = RetryBudget::without_limit();
        let inspect = || self.send(|store| store.inspect(name.clone()));
        while inspect().await.is_err_and(|err| err.is_retryable()) {
            retries.pause(&self.clock).await;
        }
    }

    /// Sends the request until the store has given a definite answer, or the hold or the client has ended.
    pub(super) async fn until_definite<T>(
        &self,
        hold: &Hold,
        step: Step,
        request: impl Fn() -> BoxFuture<Result<T, Error>>,
    ) {
        let end = || self.clock.now().after(hold.ttl);
        let mut retries = RetryBudget::until(end());
        while let Err(err) = request().await {
            tracing::debug!(target: LOG_TARGET, name = %hold.name, store = self.scheme(), err = format_args!("{err:#}"), "{step} in the background");
            if step == Step::Release && !self.store.ends_by_itself(hold) {
                retries.extend(end());
            }
            // A closed client sends nothing more, and closing ends the hold.
            if err.kind() == ErrorKind::Closed || retries.is_spent(&self.clock) {
                return;
            }
            retries.pause(&self.clock).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;
    use std::time::Duration;

    use super::*;
    use crate::fence::OwnerId;
    use crate::memory;
    use crate::rt::poll_now;
    use crate::time::Time;

    const TTL: Duration = Duration::from_secs(3);

    /// How often a request that always ends with an error of `kind` is sent, and how long that takes.
    fn repeated(kind: ErrorKind) -> (u32, Duration) {
        let store = memory::Store::with_virtual_clock();
        let driver = Driver::new(Arc::new(store.clone())).unwrap();
        let hold = Hold {
            ttl: TTL,
            ..Hold::of(LockName::new("n").unwrap(), OwnerId::random())
        };
        let count = Cell::new(0);
        let request = || -> BoxFuture<Result<(), Error>> {
            count.set(count.get() + 1);
            Box::pin(ready(Err(Error::new(kind, "no answer"))))
        };
        let start: Time = driver.clock.now();
        let mut repeating = Box::pin(driver.until_definite(&hold, Step::Downgrade, request));
        while let Err(pending) = poll_now(repeating) {
            repeating = pending;
            store.advance(Duration::from_millis(1));
        }
        (count.get(), driver.clock.now().since(start))
    }

    #[tokio::test]
    async fn a_request_is_repeated_until_the_ttl_has_passed() {
        let (count, time) = repeated(ErrorKind::Unreachable);
        assert_eq!(time, TTL, "after {count} requests");
        assert!(count > 10);
    }

    #[tokio::test]
    async fn a_closed_client_repeats_nothing() {
        assert_eq!(repeated(ErrorKind::Closed), (1, Duration::ZERO));
    }
}
