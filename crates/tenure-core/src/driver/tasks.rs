//! Where the work of one client runs: in the callers of its requests, and in background tasks.

use std::sync::Arc;

use crate::rt::{BackgroundTasks, Clock, Spawner};
use crate::support::RuntimeWatch;

use super::detach::RequestMonitor;

/// The tasks of one client.
pub(super) struct Tasks {
    pub(super) spawner: Spawner,
    /// Clean-up that [`Driver::close`](super::Driver::close) waits for.
    pub(super) background: Arc<BackgroundTasks>,
    pub(super) monitor: Arc<RequestMonitor>,
    /// `None`: the store needs no runtime.
    runtime: Option<RuntimeWatch>,
}

impl Tasks {
    pub(super) fn new(spawner: Spawner, clock: &Clock, needs_runtime: bool) -> Self {
        Self {
            runtime: needs_runtime.then(|| RuntimeWatch::new(&spawner)),
            monitor: Arc::new(RequestMonitor::new(spawner.clone(), clock)),
            background: Arc::default(),
            spawner,
        }
    }

    /// Whether the store needs the runtime of this client, and that one has shut down: then nothing of the store may be
    /// polled, because timers and sockets panic, and a panic may end the process.
    pub(super) fn is_runtime_gone(&self) -> bool {
        let runtime = self.runtime.as_ref();
        runtime.is_some_and(RuntimeWatch::is_gone)
    }

    /// Polls `future` once, for a drop that may happen anywhere: in this runtime, in another, in none.
    /// `Err(None)`: `future` cannot be polled, because the runtime that it needs is gone.
    pub(super) fn poll_anywhere<F: Future + Unpin>(
        &self,
        future: F,
    ) -> Result<F::Output, Option<F>> {
        match self.is_runtime_gone() {
            true => Err(None),
            false => self.spawner.poll_anywhere(future),
        }
    }

    /// Cleans up in the background; closing the client waits for it.
    pub(super) fn clean_up(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(&self.spawner, work);
    }
}
