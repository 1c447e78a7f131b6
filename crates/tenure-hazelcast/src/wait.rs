//! A waiter: its request stays in the cluster, which answers it when it is the waiter's turn.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::store::Request;
use tenure_core::support::{RetryBudget, not_left};

use crate::attempt::{self, Attempt};
use crate::errors::RequestError;
use crate::messages;
use crate::requests::{self, may_pass, within};
use crate::store::{Lease, Store};
use crate::upkeep;

/// Waits for the lock in this session. The request is sent again, as the same request, after a connection was lost; the place
/// in the queue stays as long as the session does.
pub(crate) async fn wait(
    store: &Arc<Store>,
    request: &Request,
    lease: &Lease,
) -> Result<Attempt, Error> {
    let session = &lease.session;
    upkeep::schedule(store, lease.due());
    let began = store.clock.now();
    let mut retries = RetryBudget::without_limit();
    let call = messages::lock(lease.target(), lease.endpoint(), lease.uids[0]);
    let flags = [&request.stop, &store.closing];
    loop {
        let sent = store.clock.now();
        let call = within(&session.group, call.clone());
        let reply = requests::wait(&store.sessions.members, call, flags).await;
        let err = match reply {
            None => return cancel(store, request, lease).await,
            Some(Ok(fence)) if fence > 0 => {
                return attempt::grant(store, request, session, (fence, sent)).await;
            }
            Some(Ok(_)) => {
                attempt::finish(store, request);
                return Err(too_often());
            }
            Some(Err(err)) => err,
        };
        if let RequestError::Unknown(_) = err {
            attempt::mark_unclean(store, request);
        }
        let limit = began.max(session.confirmed()).after(request.ttl);
        if !may_pass(&err) || store.clock.now() >= limit {
            return give_up(store, request, err);
        }
        let pause = retries.pause(&store.clock);
        tokio::select! {
            biased;
            () = request.stop.raised() => {}
            () = pause => {}
        }
    }
}

/// A configuration of the lock allows less than one entry.
fn too_often() -> Error {
    Error::new(
        ErrorKind::Store,
        "Hazelcast says that the lock is held as often as it may be; is its lock-acquire-limit right?",
    )
}

/// Ends the wait: closes the session, which also releases a lock that was granted meanwhile.
async fn cancel(store: &Arc<Store>, request: &Request, lease: &Lease) -> Result<Attempt, Error> {
    match store.sessions.close(&lease.session).await {
        Ok(_) => {
            store.leases.remove(request.owner);
            Ok(Attempt::Busy)
        }
        Err(err) => {
            let unknown = RequestError::Unknown(not_left(err.into()));
            attempt::fail(store, request, unknown)
        }
    }
}

/// The members were silent for so long that the wait is given up, or have refused it.
fn give_up(store: &Arc<Store>, request: &Request, err: RequestError) -> Result<Attempt, Error> {
    let is_clean = store.leases.read(request.owner, |lease| lease.is_clean);
    match err {
        // An earlier attempt may be in the queue.
        RequestError::NotSent(err) if is_clean == Some(false) => {
            let message = "the members do not answer; the request may still be in their queue";
            let err = Error::new(ErrorKind::Indeterminate, message).with_source(err);
            attempt::fail(store, request, RequestError::Unknown(err))
        }
        err => attempt::fail(store, request, err),
    }
}
