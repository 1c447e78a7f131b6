//! Release, and the end of sessions.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};

use tenure_core::error::Error;
use tenure_core::store::{Hold, Release};
use tenure_core::support::{RetryBudget, closed};

use crate::errors::{Refusal, RequestError};
use crate::messages;
use crate::renew;
use crate::requests::{ask, may_pass, within};
use crate::sessions::Session;
use crate::store::{Lease, State, Store};

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
        end_session(store, lease);
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

/// Ends the session of an acquisition that is over, or keeps it for the next one if nothing of this one can arrive late.
pub(crate) fn end_session(store: &Arc<Store>, lease: &Lease) {
    match lease.is_clean {
        true => give_back(store, &lease.session),
        false => close_in_background(store, &lease.session),
    }
}

/// Keeps a session of which nothing is under way.
pub(crate) fn give_back(store: &Arc<Store>, session: &Arc<Session>) {
    match store.sessions.give_back(session) {
        Some(until) => renew::schedule(store, until),
        None => close_in_background(store, session),
    }
}

/// Closes a session in the background, at the latest when the client closes. A session that cannot be closed ends by itself,
/// because it has no more heartbeats.
pub(crate) fn close_in_background(store: &Arc<Store>, session: &Arc<Session>) {
    store.sessions.begin_to_leave(session);
    let (closer, session) = (store.clone(), session.clone());
    spawn_until_closed(store, async move {
        let mut retries = RetryBudget::until(session.end());
        while let Err(err) = closer.sessions.close(&session).await {
            if !may_pass(&err) || retries.is_spent(&closer.clock) {
                return;
            }
            retries.pause(&closer.clock).await;
        }
    });
}

/// Runs `work` in the background until the client closes.
pub(crate) fn spawn_until_closed(
    store: &Arc<Store>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let closing = store.clone();
    store.background.spawn(&store.spawner, async move {
        tokio::select! {
            biased;
            () = closing.closing.raised() => {}
            () = work => {}
        }
    });
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
