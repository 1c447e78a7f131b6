//! A request to the store that is under way, and its answer.

use crate::error::Error;
use crate::rt::poll_now;

use super::detach::DetachableRequest;

/// A request whose answer has not been taken yet.
pub(super) struct UnderWay<T: Send + 'static>(Option<DetachableRequest<T>>);

impl<T: Send + 'static> UnderWay<T> {
    pub(super) fn new(request: DetachableRequest<T>) -> Self {
        Self(Some(request))
    }

    /// The answer, if it is there already: most stores on this machine answer at the first poll.
    pub(super) fn poll_once(&mut self) -> Option<Result<T, Error>> {
        match poll_now(self.0.take()?) {
            Ok(answer) => Some(answer),
            Err(pending) => {
                self.0 = Some(pending);
                None
            }
        }
    }

    /// The answer. Cancel safe: without its answer the request stays under way.
    pub(super) async fn answer(&mut self) -> Result<T, Error> {
        let request = self.0.as_mut();
        let answer = request.expect("BUG: an answer is taken once").await;
        self.0 = None;
        answer
    }

    /// The request, unless its answer has been taken.
    pub(super) fn take(&mut self) -> Option<DetachableRequest<T>> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::driver::detach::RequestMonitor;
    use crate::rt::{Clock, Spawner};

    #[tokio::test]
    async fn a_request_is_under_way_until_its_answer_was_taken() {
        let (clock, _hand) = Clock::virtual_clock();
        let spawner = Spawner::current().unwrap();
        let monitor = Arc::new(RequestMonitor::new(spawner, &clock));
        let (answer, answered) = oneshot::channel();
        let request = async move { Ok(answered.await.unwrap()) };
        let mut under_way = UnderWay::new(monitor.detachable(Box::pin(request)));
        assert!(under_way.poll_once().is_none());
        // A dropped future takes no answer.
        assert!(poll_now(Box::pin(under_way.answer())).is_err());
        answer.send(7).unwrap();
        assert_eq!(under_way.answer().await.unwrap(), 7);
        assert!(under_way.poll_once().is_none() && under_way.take().is_none());
        let at_once = monitor.detachable(Box::pin(std::future::ready(Ok(8))));
        let mut under_way = UnderWay::new(at_once);
        assert_eq!(under_way.poll_once().unwrap().unwrap(), 8);
        assert!(under_way.take().is_none());
    }
}
