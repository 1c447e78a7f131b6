//! Requests to single nodes that no caller waits for.

use std::sync::{Arc, OnceLock};

use tenure_core::rt::{BackgroundTasks, Spawner};
use tenure_core::store::BoxFuture;
use tenure_core::support::RuntimeWatch;

/// Finishes requests after their caller has left. `close` waits for them.
#[derive(Default)]
pub(super) struct Background {
    /// The runtime of the client, which is watched if the nodes need it; empty before there is a client.
    runtime: OnceLock<(Spawner, Option<RuntimeWatch>)>,
    tasks: Arc<BackgroundTasks>,
}

impl Background {
    /// Called inside the runtime of the client. Later calls change nothing.
    pub(super) fn attach(&self, needs_runtime: bool) {
        if let Some(spawner) = Spawner::current() {
            let watch = needs_runtime.then(|| RuntimeWatch::new(&spawner));
            let _ = self.runtime.set((spawner, watch));
        }
    }

    /// Polls `work` once in place, so that its requests are sent, and then as a task.
    pub(super) fn run(&self, work: BoxFuture<()>) {
        // Without a spawner there was no client yet, so no request was made.
        if let Some((spawner, watch)) = self.runtime.get()
            && !watch.as_ref().is_some_and(RuntimeWatch::is_gone)
            && let Err(Some(pending)) = spawner.poll_anywhere(work)
        {
            self.tasks.spawn(spawner, pending);
        }
    }

    /// Resolves when no task is left. Cancel safe.
    pub(super) async fn all_done(&self) {
        self.tasks.all_done().await;
    }
}
