//! What all components of one client share.

use std::sync::Arc;

use tenure_core::rt::{BackgroundTasks, Clock, Spawner};
use tenure_core::time::Time;

use super::events::ServerEvents;
use super::settings::Settings;

pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) events: Arc<ServerEvents>,
    /// Acquisitions and background requests that are under way: `close` waits for them.
    pub(super) operations: Arc<BackgroundTasks>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
}

impl Context {
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }
}
