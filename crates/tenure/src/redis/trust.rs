//! Whether a grant of a server counts: the server knows who holds the lock, and enough replicas have the grant.

use tenure_core::error::{Error, ErrorKind};
use tenure_core::store::Request;
use tenure_core::support::not_trusted_yet;

use super::connection::Connection;
use super::format::Keys;
use super::store::Store;

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
        // A wait that ends before the guard does would be for nothing.
        if !request.wait || request.until < until {
            return Err(err);
        }
        if !std::mem::replace(&mut is_reported, true) {
            tracing::warn!(name = %request.name, "waiting: {err}");
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
