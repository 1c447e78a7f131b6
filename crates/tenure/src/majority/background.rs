//! Requests to single nodes that no caller waits for.

use std::sync::{Arc, OnceLock};

use tenure_core::backend::BoxFuture;
use tenure_core::rt::{BackgroundTasks, Spawner};

/// Finishes requests after their caller has left. `close` waits for them.
#[derive(Default)]
pub(super) struct Background {
    /// The runtime of the client; empty before there is a client.
    spawner: OnceLock<Spawner>,
    tasks: Arc<BackgroundTasks>,
}

impl Background {
    /// Called inside the runtime of the client. Later calls change nothing.
    pub(super) fn attach(&self) {
        if let Some(spawner) = Spawner::current() {
            let _ = self.spawner.set(spawner);
        }
    }

    /// Polls `work` once in place, so that its requests are sent, and then as a task.
    pub(super) fn run(&self, work: BoxFuture<()>) {
        // Without a spawner there was no client yet, so no request was made.
        if let Some(spawner) = self.spawner.get()
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
