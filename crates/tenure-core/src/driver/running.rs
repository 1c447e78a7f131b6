//! A request that a caller waits for, and what becomes of the request when the caller leaves before the answer.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::store::{BoxFuture, Store};

use super::detach::DetachableRequest;
use super::shared::Driver;

/// What is done about a request when no caller can use its answer: the caller has left, or the outcome is unknown.
pub(super) trait CleanUp<T>: Send + 'static {
    /// The caller has left.
    fn stop(&self);

    /// Whether a request that ended with an error of this kind may have changed something.
    fn is_needed_after(kind: ErrorKind) -> bool;

    /// Undoes or completes what the request has done. `None`: its outcome is unknown.
    fn clean_up(
        self,
        driver: Arc<Driver>,
        answer: Option<T>,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// A request that is under way for a caller. If this is dropped before the answer, the request is stopped, polled to its end
/// in the background, and cleaned up there.
pub(super) struct RunningRequest<'a, T: Send + 'static, C: CleanUp<T>> {
    driver: &'a Arc<Driver>,
    request: DetachableRequest<T>,
    /// `None`: the clean-up has begun.
    clean_up: Option<C>,
}

impl<'a, T: Send + 'static, C: CleanUp<T>> RunningRequest<'a, T, C> {
    pub(super) fn send(
        driver: &'a Arc<Driver>,
        clean_up: C,
        request: impl FnOnce(Arc<dyn Store>) -> BoxFuture<Result<T, Error>>,
    ) -> Self {
        Self {
            driver,
            request: driver.send(request),
            clean_up: Some(clean_up),
        }
    }

    /// See [`DetachableRequest::poll_once`].
    pub(super) fn poll_once(&mut self) -> Option<Result<T, Error>> {
        self.request.poll_once()
    }

    /// The answer. Cancel safe: without its answer the request stays under way.
    pub(super) async fn answer(&mut self) -> Result<T, Error> {
        (&mut self.request).await
    }

    /// Tells the store that the caller waits no more. The store may still answer that the request has succeeded.
    pub(super) fn stop(&self) {
        if let Some(clean_up) = &self.clean_up {
            clean_up.stop();
        }
    }

    /// The answer, for the caller. If the outcome is unknown, the clean-up begins in the background.
    pub(super) fn settle(&mut self, answer: Result<T, Error>) -> Result<T, Error> {
        if let Err(err) = &answer
            && C::is_needed_after(err.kind())
            && let Some(clean_up) = self.clean_up.take()
        {
            let cleaning = clean_up.clean_up(self.driver.clone(), None);
            self.driver.tasks.clean_up(cleaning);
        }
        answer
    }
}

impl<T: Send + 'static, C: CleanUp<T>> RunningRequest<'_, T, C> {
    /// What the clean-up would need, after an answer. `None`: the clean-up has begun.
    pub(super) fn take_clean_up(&mut self) -> Option<C> {
        self.clean_up.take()
    }
}

impl<T: Send + 'static, C: CleanUp<T>> Drop for RunningRequest<'_, T, C> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else {
            return;
        };
        let Some(clean_up) = self.clean_up.take() else {
            return;
        };
        clean_up.stop();
        let driver = self.driver.clone();
        let finish = async move {
            let answer = match request.await {
                Ok(answer) => Some(answer),
                Err(err) if C::is_needed_after(err.kind()) => None,
                Err(_) => return,
            };
            clean_up.clean_up(driver, answer).await;
        };
        // Stores on this machine answer at the first poll, inside or outside of a runtime.
        let polled = self.driver.tasks.poll_anywhere(Box::pin(finish));
        if let Err(Some(pending)) = polled {
            self.driver.tasks.clean_up(pending);
        }
    }
}
