//! One future per node, polled together.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use tenure_core::backend::BoxFuture;
use tenure_core::rt::Clock;
use tenure_core::time::Time;

use super::store::Core;

/// Requests to several nodes that are under way; at most one for each.
pub(super) struct Crowd<T> {
    flights: Vec<Option<BoxFuture<T>>>,
    landed: VecDeque<(usize, T)>,
}

impl<T> Crowd<T> {
    pub(super) fn new(flights: impl IntoIterator<Item = BoxFuture<T>>) -> Self {
        Self {
            flights: flights.into_iter().map(Some).collect(),
            landed: VecDeque::new(),
        }
    }

    /// No request to any of `nodes` nodes.
    pub(super) fn empty(nodes: usize) -> Self {
        Self {
            flights: (0..nodes).map(|_| None).collect(),
            landed: VecDeque::new(),
        }
    }

    /// Sends a request to a node that has none under way.
    pub(super) fn send(&mut self, node: usize, flight: BoxFuture<T>) {
        debug_assert!(!self.is_flying(node), "BUG: two requests to one node");
        self.flights[node] = Some(flight);
    }

    pub(super) fn is_flying(&self, node: usize) -> bool {
        self.flights[node].is_some() || self.landed.iter().any(|(landed, _)| *landed == node)
    }

    /// Takes the request to a node out.
    pub(super) fn take(&mut self, node: usize) -> Option<BoxFuture<T>> {
        self.flights[node].take()
    }

    /// The next answer; `None` when no request is under way. Every request has been polled by then, so all
    /// have been sent. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.landed.is_empty() {
                for (node, flight) in self.flights.iter_mut().enumerate() {
                    if let Some(future) = flight
                        && let Poll::Ready(value) = future.as_mut().poll(cx)
                    {
                        *flight = None;
                        self.landed.push_back((node, value));
                    }
                }
            }
            match self.landed.pop_front() {
                Some(landed) => Poll::Ready(Some(landed)),
                None if self.flights.iter().all(Option::is_none) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// An answer that has come already.
    pub(super) fn landed(&mut self) -> Option<(usize, T)> {
        self.landed.pop_front()
    }

    /// Whether there is anything to wait for.
    pub(super) fn is_any(&self) -> bool {
        !self.landed.is_empty() || self.is_any_flying()
    }

    pub(super) fn is_any_flying(&self) -> bool {
        self.flights.iter().any(Option::is_some)
    }

    /// The next answer, or `None` at `until` or when no request is under way.
    pub(super) async fn next_until(&mut self, clock: &Clock, until: Time) -> Option<(usize, T)> {
        tokio::select! {
            biased;
            landed = self.next() => landed,
            () = clock.sleep_until(until) => None,
        }
    }
}

impl<T: Send + 'static> Crowd<T> {
    /// Sees what is under way to its end in the background: a backend's requests must not be dropped.
    pub(super) fn leave(self, core: &Core) {
        if self.flights.iter().any(Option::is_some) {
            core.see_to(Box::pin(async move {
                let mut rest = self;
                while rest.next().await.is_some() {}
            }));
        }
    }
}
