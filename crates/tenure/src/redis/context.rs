//! What all components of one client share.

use std::sync::Arc;

use tenure_core::rt::{BackgroundTasks, Clock, Spawner};

use super::events::ServerEvents;
use super::settings::Settings;

pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) events: ServerEvents,
    /// Acquisitions and background requests that are under way: `close` waits for them.
    pub(super) operations: Arc<BackgroundTasks>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
}
