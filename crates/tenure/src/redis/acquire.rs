//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use tenure_core::backend::{Answer, Release, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::support::not_trusted_yet;

use crate::lease_store::{self, AcquireReply, LeaseStore};

use super::connection::Connection;
use super::names::Keys;
use super::renew::verify_holds;
use super::requests::{Attempt, ReleaseKind};
use super::store::Store;
use super::subscribe::Subscription;

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let _operation = store.context.operations.enter();
    let keys = &store.requests.keys(&request.name);
    let acquisition = Acquisition {
        store,
        request,
        keys,
    };
    let answer = match acquisition.send(Attempt::First).await? {
        AcquireReply::Granted(grant) => Answer::Granted(grant),
        AcquireReply::Taken(_) if !request.wait => Answer::Busy,
        AcquireReply::Taken(position) => {
            let (context, connections) = (&store.context, &store.connections);
            let subscription =
                Subscription::new(context, connections, keys, request, position.sent);
            let clock = &context.clock;
            // In a box, as in `Server::connection`.
            Box::pin(lease_store::wait(
                &acquisition,
                subscription,
                clock,
                request,
                position,
            ))
            .await?
        }
    };
    if let Answer::Granted(_) = &answer {
        store.remember(request);
        store.maintenance.start(
            &store.context.spawner,
            &store.context.clock,
            store,
            verify_holds,
        );
    }
    Ok(answer)
}

/// One acquisition, as the loop of a waiter needs it.
struct Acquisition<'a> {
    store: &'a Store,
    request: &'a Request,
    keys: &'a Keys,
}

impl LeaseStore for Acquisition<'_> {
    async fn ask(&self) -> Result<AcquireReply, Error> {
        self.send(Attempt::Repeated).await
    }

    async fn leave_queue(&self) -> Result<Release, Error> {
        self.release().await
    }
}

impl Acquisition<'_> {
    /// Asks a server that can be trusted to know who holds the lock. The server may be restarted at any moment, also
    /// while we wait, so the server that replied is checked as well as the server that was to be asked.
    async fn send(&self, attempt: Attempt) -> Result<AcquireReply, Error> {
        let Self {
            store,
            request,
            keys,
        } = self;
        loop {
            self.until_trusted().await?;
            let reply = store.requests.acquire(request, keys, attempt).await?;
            let now = store.context.now();
            if reply.connection.untrusted_until(now, request.ttl).is_some() {
                // A grant of this server does not count: the holder of before the restart may believe to hold the lock.
                Box::pin(self.release()).await?;
                continue;
            }
            if store.context.settings.wait_replicas > 0
                && matches!(reply.value, AcquireReply::Granted(_))
            {
                // In a box, as in `Server::connection`.
                Box::pin(self.until_replicated(&reply.connection)).await?;
            }
            return Ok(reply.value);
        }
    }

    /// Waits until the server can be trusted to know who holds the lock.
    async fn until_trusted(&self) -> Result<(), Error> {
        let Self {
            store,
            request,
            keys,
        } = self;
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
    async fn until_replicated(&self, connection: &Connection) -> Result<(), Error> {
        let settings = &self.store.context.settings;
        let (wanted, limit) = (settings.wait_replicas, settings.timeout / 2);
        let requests = &self.store.requests;
        let acknowledged = requests.wait_for_replicas(connection, limit).await?;
        if acknowledged >= wanted {
            return Ok(());
        }
        self.release().await?;
        Err(Error::new(
            ErrorKind::Unreachable,
            format!(
                "{acknowledged} of {wanted} replicas acknowledged within {limit:?}, so it was given back; see wait_replicas in the URL"
            ),
        ))
    }

    /// Releases what the owner has: the lock, or its place in the queue.
    async fn release(&self) -> Result<Release, Error> {
        let requests = &self.store.requests;
        let (keys, owner) = (self.keys, self.request.owner);
        requests.release(keys, owner, ReleaseKind::UNKNOWN).await
    }
}
