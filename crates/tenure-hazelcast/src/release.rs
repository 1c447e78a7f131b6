//! Release, and the end of sessions.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};

use tenure_core::error::Error;
use tenure_core::store::{Hold, Release};
use tenure_core::support::closed;

use crate::errors::{Refusal, RequestError};
use crate::messages;
use crate::requests::{ask, within};
use crate::sessions::Session;
use crate::store::{Lease, State, Store};
use crate::upkeep;

/// So many sessions are closed at the same time.
const PARALLEL: usize = 64;

/// Releases what the owner has. A hold is released by a request to unlock, which has a definite answer even when it is sent
/// again. What may be left of a request of unknown outcome ends with its session.
pub(crate) async fn release(store: &Arc<Store>, hold: &Hold) -> Result<Release, Error> {
    if store.closing.is_raised() {
        return Err(closed());
    }
    let release = async |lease: Option<&mut Lease>| -> Result<Release, Error> {
        let Some(lease) = lease else {
            return Ok(Release::NotHeld);
        };
        let released = release_lease(store, lease).await?;
        upkeep::end_session(store, lease);
        Ok(released)
    };
    store.leases.release(hold.owner, release).await
}

async fn release_lease(store: &Arc<Store>, lease: &mut Lease) -> Result<Release, Error> {
    let State::Held { .. } = lease.state else {
        let was_open = store.sessions.close(&lease.session).await?;
        lease.is_clean = false;
        return Ok(Release::of(was_open));
    };
    let call = messages::unlock(lease.target(), lease.endpoint(), lease.uids[1]);
    match ask(&store.sessions.members, within(&lease.session.group, call)).await {
        Ok(reply) => {
            // A lock that is still held was entered twice, which only the end of the session can undo.
            lease.is_clean &= reply.is_first && !reply.value;
            if reply.value {
                store.sessions.close(&lease.session).await?;
            }
            Ok(Release::Released)
        }
        Err(RequestError::Refused(Refusal::Other(err))) => Err(err),
        Err(RequestError::Refused(refusal)) => {
            lease.is_clean &= matches!(refusal, Refusal::NotOwner);
            Ok(Release::NotHeld)
        }
        Err(err) => {
            lease.is_clean = false;
            Err(err.into())
        }
    }
}

/// Closes all sessions, which ends what they hold, and the connection.
pub(crate) async fn close(store: &Store) {
    store.closing.raise();
    store.maintenance.stop();
    store.background.all_done().await;
    let mut sessions = store.sessions.take_all();
    let leases = store.leases.take_all().into_iter();
    sessions.extend(leases.map(|(_, lease)| lease.session));
    // A session that cannot be closed ends by itself.
    let close = async |session: Arc<Session>| drop(store.sessions.close(&session).await);
    stream::iter(sessions)
        .for_each_concurrent(PARALLEL, close)
        .await;
    store.sessions.members.close();
}

/// Ends what is left without waiting.
pub(crate) fn abandon(store: &Store) {
    store.closing.raise();
    store.maintenance.stop();
    store.sessions.members.close();
}
