//! One request to each node, all polled together by one task.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use tenure_core::rt::Clock;
use tenure_core::store::BoxFuture;
use tenure_core::time::Time;

use super::background::Background;

/// Requests to several nodes, at most one for each, and the replies that were not read yet.
pub(super) struct NodeRequests<T> {
    /// By node.
    pending: Vec<Option<BoxFuture<T>>>,
    replies: VecDeque<(usize, T)>,
}

impl<T> NodeRequests<T> {
    /// One request to each node, in the order of the nodes.
    pub(super) fn new(requests: impl IntoIterator<Item = BoxFuture<T>>) -> Self {
        Self {
            pending: requests.into_iter().map(Some).collect(),
            replies: VecDeque::new(),
        }
    }

    /// No request to any of `nodes` nodes.
    pub(super) fn none(nodes: usize) -> Self {
        Self {
            pending: (0..nodes).map(|_| None).collect(),
            replies: VecDeque::new(),
        }
    }

    /// Sends a request to a node that has none under way.
    pub(super) fn send(&mut self, node: usize, request: BoxFuture<T>) {
        debug_assert!(!self.is_open(node), "BUG: two requests to one node");
        self.pending[node] = Some(request);
    }

    /// Whether the node has a request whose reply was not read yet.
    pub(super) fn is_open(&self, node: usize) -> bool {
        self.pending[node].is_some() || self.replies.iter().any(|(from, _)| *from == node)
    }

    /// Takes the request to a node out.
    pub(super) fn take(&mut self, node: usize) -> Option<BoxFuture<T>> {
        self.pending[node].take()
    }

    /// The next reply; `None` when no request is left. Every request has been polled by then, so all have been sent.
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.replies.is_empty() {
                for (node, pending) in self.pending.iter_mut().enumerate() {
                    if let Some(request) = pending
                        && let Poll::Ready(reply) = request.as_mut().poll(cx)
                    {
                        *pending = None;
                        self.replies.push_back((node, reply));
                    }
                }
            }
            match self.replies.pop_front() {
                Some(reply) => Poll::Ready(Some(reply)),
                None if self.has_pending() => Poll::Pending,
                None => Poll::Ready(None),
            }
        })
        .await
    }

    /// The next reply, or `None` at `until` or when no request is left. Cancel safe.
    pub(super) async fn next_until(&mut self, clock: &Clock, until: Time) -> Option<(usize, T)> {
        tokio::select! {
            biased;
            reply = self.next() => reply,
            () = clock.sleep_until(until) => None,
        }
    }

    /// A reply that has arrived already.
    pub(super) fn next_arrived(&mut self) -> Option<(usize, T)> {
        self.replies.pop_front()
    }

    /// Whether [`next`](Self::next) has a reply or waits for one.
    pub(super) fn is_any_open(&self) -> bool {
        !self.replies.is_empty() || self.has_pending()
    }

    /// Whether a request is under way.
    pub(super) fn has_pending(&self) -> bool {
        self.pending.iter().any(Option::is_some)
    }
}

impl<T: Send + 'static> NodeRequests<T> {
    /// Finishes what is under way in the background: a request of a store must not be dropped.
    pub(super) fn finish_in(mut self, background: &Background) {
        if self.has_pending() {
            background.run(Box::pin(
                async move { while self.next().await.is_some() {} },
            ));
        }
    }
}
