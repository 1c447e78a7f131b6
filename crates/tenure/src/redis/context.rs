//! What all components of one client share, and whether a client trusts a server.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::holder::RestartGuard;
use tenure_core::rt::{BackgroundTasks, Clock, Spawner};
use tenure_core::support::ServerStart;
use tenure_core::time::Time;

use super::connection::{Connection, Persistence};
use super::events::ServerEvents;
use super::redisson::RedissonLock;
use super::scripts::OwnerText;
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

    /// An owner as it is written.
    pub(super) fn owner_text(&self, owner: OwnerId) -> OwnerText<'_> {
        let redisson = self.settings.redisson;
        let has_client = redisson.is_some_and(RedissonLock::has_client_in_owner);
        let client = has_client.then_some(&*self.events.client);
        OwnerText { client, owner }
    }

    /// Until when the server grants nothing with this ttl, because the server started so lately that it may have
    /// forgotten who holds a lock. `None`: the server is trusted.
    pub(super) fn untrusted_until(&self, connection: &Connection, ttl: Duration) -> Option<Time> {
        let (start, guard) = self.start(connection)?;
        let until = start.trusted_from(guard, ttl);
        (until > self.now()).then_some(until)
    }

    /// The same for people. `None`: the server forgets no lock, or the option `restart_guard` is off.
    pub(super) fn restart_guard(&self, connection: &Connection) -> Option<RestartGuard> {
        let (start, guard) = self.start(connection)?;
        let mut guard = start.report(&connection.host, guard, self.now());
        let is_unknown = connection.server_info.is_unknown;
        guard.unknown = is_unknown.then_some("this user may not run INFO (allow +info)");
        Some(guard)
    }

    /// When the server was started, and for how long after that it grants nothing.
    fn start(&self, connection: &Connection) -> Option<(ServerStart, Duration)> {
        let info = &connection.server_info;
        let guard = self.settings.restart_guard?;
        // The uptime is the difference of two whole seconds.
        let uptime = info.uptime.saturating_sub(Duration::from_secs(1));
        let forgets = info.persistence != Persistence::Full;
        forgets.then(|| (ServerStart::new(connection.asked, uptime), guard))
    }
}
