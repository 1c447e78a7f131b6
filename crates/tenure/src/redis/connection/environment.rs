//! What all connections of one client share: the settings, the runtime, and what listens to the servers.

use std::sync::Arc;

use redis::PushInfo;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Spawner};
use tenure_core::time::Time;

use super::settings::ServerSettings;

pub(crate) struct Environment {
    pub(crate) settings: ServerSettings,
    pub(crate) listener: Arc<dyn PushListener>,
    pub(crate) clock: Clock,
    pub(crate) spawner: Spawner,
}

/// What servers push without being asked is passed to the listener.
pub(crate) trait PushListener: Send + Sync {
    /// The channel to which every connection subscribes when it is opened.
    fn channel(&self) -> &str;

    /// A message on a channel.
    fn receive(&self, message: &PushInfo);

    /// A connection was lost: the server may have been restarted or replaced, and may have forgotten what it was told.
    fn connection_lost(&self);
}

impl Environment {
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// When a request that is sent now has failed.
    pub(super) fn request_limit(&self) -> Time {
        self.now().after(self.settings.timeout)
    }

    /// Sleeps after failed attempt number `attempt` to reach a server; the first is 0.
    pub(super) async fn pause(&self, attempt: u32) -> Result<(), Error> {
        // A request goes on while the runtime shuts down: a sleep would panic.
        if self.spawner.is_shut_down() {
            let message = "the runtime of this client is gone";
            return Err(Error::new(ErrorKind::Closed, message));
        }
        let pause = pace::next(attempt, self.clock.random(), None, None).unwrap_or(pace::CAP);
        self.clock.sleep_until(self.now().after(pause)).await;
        Ok(())
    }
}
