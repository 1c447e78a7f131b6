//! Whether a grant of a server counts: the server knows who holds the lock, and enough replicas have the grant.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::RestartGuard;
use tenure_core::store::Request;
use tenure_core::support::{ServerStart, not_trusted_yet};
use tenure_core::time::Time;

use super::connection::{Connection, Persistence};
use super::context::Context;
use super::format::Keys;
use super::store::Store;

impl Context {
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

/// Waits until the server can be trusted to know who holds the lock.
pub(super) async fn until_trusted(
    store: &Store,
    request: &Request,
    keys: &Keys,
) -> Result<(), Error> {
    let mut is_reported = false;
    loop {
        let connection = store.connections.connection(keys.lock()).await?;
        let context = &store.context;
        let until = context.untrusted_until(&connection, request.ttl);
        let (Some(until), Some(guard)) = (until, context.restart_guard(&connection)) else {
            return Ok(());
        };
        let err = not_trusted_yet(guard, request.ttl);
        // A wait that ends before the restart guard ends would gain nothing.
        if !request.wait || request.until < until {
            return Err(err);
        }
        if !std::mem::replace(&mut is_reported, true) {
            tracing::warn!(name = %request.name, "waiting: {err:#}");
        }
        tokio::select! {
            biased;
            () = request.stop.raised() => return Err(err),
            () = connection.ended.raised() => {}
            () = context.clock.sleep_until(until) => {}
        }
    }
}

/// Waits until the replicas have the grant that came over this connection. After an error the grant does not count, and
/// the caller gives it back.
pub(super) async fn until_replicated(
    store: &Store,
    connection: &Connection,
    keys: &Keys,
) -> Result<(), Error> {
    let settings = &store.context.settings;
    let (wanted, limit) = (settings.wait_replicas, settings.servers.timeout / 2);
    if wanted == 0 {
        return Ok(());
    }
    // In a box, as in `Server::connection`.
    let key = keys.replicated();
    let acknowledged = Box::pin(connection.acknowledged(&key, wanted)).await?;
    if acknowledged >= wanted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unreachable,
        format!(
            "{acknowledged} of {wanted} replicas acknowledged within {limit:?}, so it was given back; see wait_replicas in the URL"
        ),
    ))
}
