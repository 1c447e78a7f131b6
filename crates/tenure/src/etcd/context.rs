//! What all components of one client share.

use std::sync::Arc;

use tenure_core::rt::{BackgroundTasks, Clock, Flag, Spawner};
use tenure_core::time::Time;

use super::settings::Settings;

pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    /// Requests that no caller waits for, for example those that revoke a lease. `close` waits for them.
    pub(super) background: Arc<BackgroundTasks>,
    /// Raised when the client closes.
    pub(super) closing: Flag,
}

impl Context {
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// When a request that is sent now has failed.
    pub(super) fn request_limit(&self) -> Time {
        self.now().after(self.settings.timeout)
    }
}
