//! What one observer of an election hears: the nodes push, each for itself, and after a push a majority is read.
//!
//! Pushes and reads are tasks of the client, which end with the observer. An observer that is not polled would keep what
//! they need (a connection, or the turn to connect) from the renewals of the client, and pushes that are not polled during
//! a read would keep it from the read.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{mpsc, oneshot};

use tenure_core::error::Error;
use tenure_core::leader::Sighting;
use tenure_core::logic::election::retry_pause;
use tenure_core::name::LockName;
use tenure_core::store::Sightings;
use tenure_core::support::closed;

use super::elections;
use super::store::Store;

/// Who leads now, and after each push of a node again. `None`: not every node pushes.
pub(super) fn watch(store: Arc<Store>, name: LockName) -> Option<Sightings> {
    let nodes = 0..store.nodes.len();
    let pushes: Vec<_> = nodes
        .map(|node| push(&store, node, &name))
        .collect::<Option<_>>()?;
    // One read is enough for all that the nodes have pushed: a change that finds the channel full is noted already.
    let (changed, changes) = mpsc::channel(1);
    for (node, pushes) in pushes.into_iter().enumerate() {
        hear_in_background(&store, node, &name, pushes, changed.clone());
    }
    let watch = Watch {
        store,
        name,
        changes,
    };
    Some(Box::pin(stream::unfold(watch, |mut watch| async {
        let sighting = watch.next().await;
        Some((sighting, watch))
    })))
}

/// The first push of a node says what it has, so nothing is missed.
fn push(store: &Store, node: usize, name: &LockName) -> Option<Sightings> {
    let elections = store.nodes[node].clone().as_elections()?;
    elections.watch(name.clone())
}

struct Watch {
    store: Arc<Store>,
    name: LockName,
    /// A message says that a node has pushed.
    changes: mpsc::Receiver<()>,
}

impl Watch {
    /// Who leads after the next push. The observer ends the stream after an error.
    async fn next(&mut self) -> Result<Sighting, Error> {
        // No task is left if the client is closed, or its runtime gone.
        self.changes.recv().await.ok_or_else(closed)?;
        self.read().await
    }

    async fn read(&self) -> Result<Sighting, Error> {
        let (mut answer, answered) = oneshot::channel();
        let (store, name) = (self.store.clone(), self.name.clone());
        self.store.background.run(Box::pin(async move {
            let sighting = tokio::select! {
                biased;
                () = store.closing.raised() => return,
                () = answer.closed() => return,
                sighting = elections::leader(&store, &name) => sighting,
            };
            // The observer may be gone.
            let _ = answer.send(sighting);
        }));
        answered.await.map_err(|_| closed())?
    }
}

fn hear_in_background(
    store: &Arc<Store>,
    node: usize,
    name: &LockName,
    pushes: Sightings,
    changed: mpsc::Sender<()>,
) {
    let (of_client, name) = (store.clone(), name.clone());
    store.background.run(Box::pin(async move {
        tokio::select! {
            biased;
            () = of_client.closing.raised() => {}
            () = changed.closed() => {}
            () = hear(&of_client, node, &name, pushes, &changed) => {}
        }
    }));
}

/// Notes each push of one node. Opens the pushes again, after a pause, when they have ended.
async fn hear(
    store: &Store,
    node: usize,
    name: &LockName,
    mut pushes: Sightings,
    changed: &mpsc::Sender<()>,
) {
    let clock = &store.clock;
    let mut failures = 0;
    loop {
        while let Some(Ok(_)) = pushes.next().await {
            failures = 0;
            let _ = changed.try_send(());
        }
        drop(pushes);
        let pause = retry_pause(failures, clock.random());
        failures = failures.saturating_add(1);
        clock.sleep_until(clock.now().after(pause)).await;
        match push(store, node, name) {
            Some(again) => pushes = again,
            None => return,
        }
    }
}
