//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use tenure_core::backend::{Answer, Grant, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::support::not_trusted_yet;

use super::connection::Connection;
use super::names::Keys;
use super::release::leave_queue;
use super::renew::verify_holds;
use super::requests::{AcquireReply, Attempt, QueuePosition, ReleaseKind};
use super::store::Store;
use super::wait::{Next, Waiter};

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let _operation = store.context.operations.enter();
    let keys = store.requests.keys(&request.name);
    match ask(store, request, &keys, Attempt::First).await? {
        AcquireReply::Granted(grant) => Ok(granted(store, request, grant)),
        AcquireReply::Queued(_) if !request.wait => Ok(Answer::Busy),
        // In a box, as in `Server::connection`.
        AcquireReply::Queued(position) => Box::pin(in_queue(store, request, &keys, position)).await,
    }
}

/// Waits in the queue, and asks again whenever there is a reason to.
async fn in_queue(
    store: &Arc<Store>,
    request: &Request,
    keys: &Keys,
    position: QueuePosition,
) -> Result<Answer, Error> {
    let mut waiter = Waiter::new(store, request, keys, position);
    loop {
        match waiter.until_next_request().await {
            Next::Ask => {}
            Next::HandedOver(grant) => return Ok(granted(store, request, grant)),
            Next::Removed => return Ok(Answer::Busy),
            Next::Leave => return leave_queue(store, request, keys).await,
        }
        match ask(store, request, keys, Attempt::Repeated).await {
            Ok(AcquireReply::Granted(grant)) => return Ok(granted(store, request, grant)),
            Ok(AcquireReply::Queued(position)) => waiter.update(position),
            Err(err) if waiter.may_ask_again(&err) => {}
            // The error says why the wait ended, unless something may be left in the store.
            Err(err) => return leave_queue(store, request, keys).await.and(Err(err)),
        }
    }
}

/// Asks a server that can be trusted to know who holds the lock. The server may be restarted at any moment, also while
/// we wait, so the server that replied is checked as well as the server that was to be asked.
async fn ask(
    store: &Store,
    request: &Request,
    keys: &Keys,
    attempt: Attempt,
) -> Result<AcquireReply, Error> {
    loop {
        until_trusted(store, request, keys).await?;
        let reply = store.requests.acquire(request, keys, attempt).await?;
        let now = store.context.now();
        if reply.connection.untrusted_until(now, request.ttl).is_some() {
            // A grant of this server does not count: the holder of before the restart may believe to hold the lock.
            let release = store
                .requests
                .release(keys, request.owner, ReleaseKind::UNKNOWN);
            Box::pin(release).await?;
            continue;
        }
        if store.context.settings.wait_replicas > 0
            && matches!(reply.value, AcquireReply::Granted(_))
        {
            // In a box, as in `Server::connection`.
            Box::pin(until_replicated(store, request, keys, &reply.connection)).await?;
        }
        return Ok(reply.value);
    }
}

/// Waits until the server can be trusted to know who holds the lock.
async fn until_trusted(store: &Store, request: &Request, keys: &Keys) -> Result<(), Error> {
    let mut is_reported = false;
    loop {
        let connection = store.connections.connection(keys.lock()).await?;
        let now = store.context.now();
        let until = connection.untrusted_until(now, request.ttl);
        let (Some(until), Some(guard)) = (until, connection.restart_guard(now)) else {
            return Ok(());
        };
        let err = not_trusted_yet(guard, request.ttl);
        if !request.wait {
            return Err(err);
        }
        if !std::mem::replace(&mut is_reported, true) {
            tracing::warn!(name = %request.name, "waiting: {err}");
        }
        tokio::select! {
            biased;
            () = request.stop.raised() => return Err(err),
            () = connection.ended.raised() => {}
            () = store.context.clock.sleep_until(until) => {}
        }
    }
}

/// Waits until the replicas have the grant, and releases the lock when they do not get it in time.
async fn until_replicated(
    store: &Store,
    request: &Request,
    keys: &Keys,
    connection: &Connection,
) -> Result<(), Error> {
    let (wanted, limit) = (
        store.context.settings.wait_replicas,
        store.context.settings.timeout / 2,
    );
    let acknowledged = store.requests.wait_for_replicas(connection, limit).await?;
    if acknowledged >= wanted {
        return Ok(());
    }
    store
        .requests
        .release(keys, request.owner, ReleaseKind::UNKNOWN)
        .await?;
    Err(Error::new(
        ErrorKind::Unreachable,
        format!(
            "{acknowledged} of {wanted} replicas acknowledged within {limit:?}, so it was given back; see wait_replicas in the URL"
        ),
    ))
}

/// Remembers a hold that is about to be passed to the driver.
fn granted(store: &Arc<Store>, request: &Request, grant: Grant) -> Answer {
    store.remember(request);
    store.maintenance.start(
        &store.context.spawner,
        &store.context.clock,
        store,
        verify_holds,
    );
    Answer::Granted(grant)
}
