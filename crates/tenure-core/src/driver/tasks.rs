//! Where the work of one client runs: in the callers of its requests, and in background tasks.

use std::sync::Arc;

use crate::backend::BoxFuture;
use crate::error::Error;
use crate::rt::{BackgroundTasks, Clock, Spawner};

use super::detach::{DetachableRequest, RequestMonitor};

/// The tasks of one client.
pub(super) struct Tasks {
    pub(super) spawner: Spawner,
    /// Clean-up that [`Driver::close`](super::Driver::close) waits for.
    pub(super) background: Arc<BackgroundTasks>,
    pub(super) monitor: Arc<RequestMonitor>,
}

impl Tasks {
    pub(super) fn new(spawner: Spawner, clock: &Clock) -> Self {
        Self {
            monitor: Arc::new(RequestMonitor::new(spawner.clone(), clock)),
            background: Arc::default(),
            spawner,
        }
    }

    /// A request to the backend whose caller may stop polling it half-way.
    pub(super) fn detachable<T: Send + 'static>(
        &self,
        future: BoxFuture<Result<T, Error>>,
    ) -> DetachableRequest<T> {
        self.monitor.detachable(future)
    }

    /// Cleans up in the background; closing the client waits for it.
    pub(super) fn clean_up(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(&self.spawner, work);
    }
}
