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

    use super::super::tests::store::{Change, TestStore};
    use super::*;
    use crate::fence::OwnerId;
    use crate::rt::poll_now;
    use crate::time::Time;

    const TTL: Duration = Duration::from_secs(3);
    const SILENCE: Duration = Duration::from_secs(12);

    /// How often a request that ends with an error of `kind` is sent, and how long that takes. The store answers after
    /// several ttls.
    fn repeated(change: Change, step: Step, kind: ErrorKind) -> (u32, Duration) {
        let (store, memory, _) = TestStore::with(change);
        let driver = Driver::new(Arc::new(store)).unwrap();
        let hold = Hold {
            ttl: TTL,
            ..Hold::of(LockName::new("n").unwrap(), OwnerId::random())
        };
        let start: Time = driver.clock.now();
        let count = Cell::new(0);
        let request = || -> BoxFuture<Result<(), Error>> {
            count.set(count.get() + 1);
            let is_silent = driver.clock.now() < start.after(SILENCE);
            let no_answer = || Err(Error::new(kind, "no answer"));
            Box::pin(ready(if is_silent { no_answer() } else { Ok(()) }))
        };
        let mut repeating = Box::pin(driver.until_definite(&hold, step, request));
        while let Err(pending) = poll_now(repeating) {
            repeating = pending;
            memory.advance(Duration::from_millis(1));
        }
        (count.get(), driver.clock.now().since(start))
    }

    #[tokio::test]
    async fn a_request_is_repeated_until_the_ttl_has_passed() {
        for (change, step) in [
            (Change::None, Step::Downgrade),
            (Change::None, Step::Release),
            (Change::HasSessions, Step::Downgrade),
        ] {
            let (count, time) = repeated(change, step, ErrorKind::Unreachable);
            assert_eq!(time, TTL, "{step} after {count} requests");
            assert!(count > 10);
        }
    }

    /// Other holds keep the session alive, so this one would last.
    #[tokio::test]
    async fn a_release_in_a_session_is_repeated_until_the_store_answers() {
        let (_, time) = repeated(Change::HasSessions, Step::Release, ErrorKind::Unreachable);
        assert!(time >= SILENCE, "given up after {time:?}");
    }

    #[tokio::test]
    async fn a_closed_client_repeats_nothing() {
        let repeated = repeated(Change::None, Step::Release, ErrorKind::Closed);
        assert_eq!(repeated, (1, Duration::ZERO));
    }
}
