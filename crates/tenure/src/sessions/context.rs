//! What all parts of one client share.

use std::sync::Arc;

use tenure_core::rt::{BackgroundTasks, Clock, Flag, Spawner};
use tenure_core::support::Maintenance;
use tenure_core::time::Time;

use super::dialect::Dialect;
use super::settings::Settings;

pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) dialect: Box<dyn Dialect>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    pub(super) maintenance: Arc<Maintenance>,
    /// Tasks whose callers do not wait for them. `close` waits for them.
    pub(super) tasks: Arc<BackgroundTasks>,
    /// Raised when the client is being closed.
    pub(super) closing: Flag,
}

impl Context {
    /// When a request that is sent now has to be answered.
    pub(super) fn request_limit(&self) -> Time {
        self.clock.now().after(self.settings.server.timeout)
    }

    pub(super) fn is_past(&self, time: Time) -> bool {
        time <= self.clock.now()
    }

    /// Runs `work` in the background. `close` waits for it, so it must end soon after `closing` is raised.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(&self.spawner, work);
    }
}
