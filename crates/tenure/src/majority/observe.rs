//! What one observer of an election hears: the nodes push, each for itself, and after a push a majority is read.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{StreamExt as _, stream};

use tenure_core::error::Error;
use tenure_core::leader::Sighting;
use tenure_core::logic::election::retry_pause;
use tenure_core::name::LockName;
use tenure_core::rt::Clock;
use tenure_core::store::Sightings;
use tenure_core::time::Time;

use super::elections;
use super::store::Store;
use super::wait::sleep_until;

/// Who leads now, and after each push of a node again. `None`: not every node pushes.
pub(super) fn watch(store: Arc<Store>, name: LockName) -> Option<Sightings> {
    let nodes = (0..store.nodes.len()).map(|node| {
        let pushes = push(&store, node, &name)?;
        Some(NodePushes {
            pushes: Some(pushes),
            open_at: Time::MAX,
            failures: 0,
        })
    });
    let nodes = nodes.collect::<Option<_>>()?;
    let watch = Watch { store, name, nodes };
    Some(Box::pin(stream::unfold(watch, |mut watch| async {
        let sighting = watch.next().await;
        Some((sighting, watch))
    })))
}

fn push(store: &Store, node: usize, name: &LockName) -> Option<Sightings> {
    let elections = store.nodes[node].clone().as_elections()?;
    elections.watch(name.clone())
}

struct Watch {
    store: Arc<Store>,
    name: LockName,
    nodes: Vec<NodePushes>,
}

/// The pushes of one node.
struct NodePushes {
    /// `None`: the node does not push until they are opened again.
    pushes: Option<Sightings>,
    open_at: Time,
    /// In a row.
    failures: u32,
}

/// What the nodes did.
enum Event {
    /// A node has pushed.
    Changed,
    /// A node does not push any more.
    Closed,
}

impl Watch {
    /// Who leads after the next push. The observer ends the stream after an error.
    async fn next(&mut self) -> Result<Sighting, Error> {
        let clock = self.store.clock.clone();
        loop {
            self.open_due(clock.now());
            let due = self.nodes.iter().map(|node| node.open_at);
            let due = due.min().unwrap_or(Time::MAX);
            let event = tokio::select! {
                biased;
                event = poll_fn(|cx| self.poll_nodes(&clock, cx)) => event,
                () = sleep_until(&clock, due) => continue,
            };
            if let Event::Changed = event {
                return elections::leader(&self.store, &self.name).await;
            }
        }
    }

    /// The first push of a node says what it has, so nothing is missed.
    fn open_due(&mut self, now: Time) {
        let (store, name) = (&self.store, &self.name);
        for (node, part) in self.nodes.iter_mut().enumerate() {
            if part.open_at <= now {
                part.open_at = Time::MAX;
                part.pushes = push(store, node, name);
            }
        }
    }

    /// Takes all that the nodes have pushed: one read is enough for all of it.
    fn poll_nodes(&mut self, clock: &Clock, cx: &mut Context<'_>) -> Poll<Event> {
        let (mut is_changed, mut is_closed) = (false, false);
        for node in &mut self.nodes {
            while let Some(pushes) = &mut node.pushes
                && let Poll::Ready(pushed) = pushes.poll_next_unpin(cx)
            {
                if let Some(Ok(_)) = pushed {
                    node.failures = 0;
                    is_changed = true;
                } else {
                    let pause = retry_pause(node.failures, clock.random());
                    node.failures = node.failures.saturating_add(1);
                    node.pushes = None;
                    node.open_at = clock.now().after(pause);
                    is_closed = true;
                }
            }
        }
        match (is_changed, is_closed) {
            (true, _) => Poll::Ready(Event::Changed),
            (false, true) => Poll::Ready(Event::Closed),
            (false, false) => Poll::Pending,
        }
    }
}
