//! What all components of one client share.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::rt::{BackgroundTasks, Clock, Spawner};
use tenure_core::time::Time;

use super::events::ServerEvents;
use super::scripts::OwnerText;
use super::settings::{Format, RedissonLock, Settings};

pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) events: ServerEvents,
    /// Acquisitions and background requests that are under way: `close` waits for them.
    pub(super) operations: Arc<BackgroundTasks>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
}

impl Context {
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// An owner as it is written.
    pub(super) fn owner_text(&self, owner: OwnerId) -> OwnerText {
        match self.settings.format {
            Format::Token | Format::Redisson(RedissonLock::Semaphore) => {
                OwnerText::Hex(owner.to_digits())
            }
            // Redisson writes the id of a client and that of a thread, and reads neither.
            Format::Redisson(_) => {
                OwnerText::Long([&self.events.client, ":", &owner.to_hex()].concat())
            }
        }
    }

    /// When a request that is sent now has failed.
    pub(super) fn request_limit(&self) -> Time {
        self.now().after(self.settings.timeout)
    }

    /// Sleeps after failed attempt number `attempt` to reach a server; the first is 0.
    pub(super) async fn pause(&self, attempt: u32) -> Result<(), Error> {
        // A guard was dropped while the runtime shuts down: a sleep would panic.
        if self.spawner.is_shut_down() {
            let message = "the runtime of this client is gone";
            return Err(Error::new(ErrorKind::Closed, message));
        }
        let pause = pace::next(attempt, self.clock.random(), None, None).unwrap_or(pace::CAP);
        self.clock.sleep_until(self.now().after(pause)).await;
        Ok(())
    }
}
