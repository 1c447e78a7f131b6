//! One acquisition, from the first request to the answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::store::{
    AcquireAll, AllAnswer, Answer, BoxFuture, Hold, RaiseToken, Release, Request,
};

use crate::waiting::{self, AcquireReply, LeaseStore};

use super::context::Context;
use super::errors;
use super::names::Keys;
use super::renew::verify_holds;
use super::requests::{Attempt, ReleaseKind};
use super::store::Store;
use super::subscribe::Subscription;
use super::trust::{until_replicated, until_trusted};

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(async move { acquire_all(&self, &requests).await })
    }
}

impl RaiseToken for Store {
    fn raise(self: Arc<Self>, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        Box::pin(async move { self.requests.raise(&hold, token).await })
    }
}

/// Locks in one script: the server does nothing else for the time of some 200 commands.
const MAX_ALL: usize = 64;

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
            Box::pin(waiting::wait(
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
        start_maintenance(store);
    }
    Ok(answer)
}

/// Acquires several locks with one script, all or none.
pub(super) async fn acquire_all(
    store: &Arc<Store>,
    requests: &[Arc<Request>],
) -> Result<AllAnswer, Error> {
    let _operation = store.context.operations.enter();
    let settings = &store.context.settings;
    let is_simple = |request: &Arc<Request>| {
        request.mode == Mode::Exclusive && request.propose.is_none() && request.fair != Some(false)
    };
    let keys: Vec<_> = requests
        .iter()
        .map(|request| store.requests.keys(&request.name))
        .collect();
    // The grant of one lock says what to do when replicas are missing, or a server was restarted.
    if !requests.iter().all(is_simple)
        || requests.len() > MAX_ALL
        || settings.wait_replicas > 0
        || !store.connections.are_together(&keys)
        || !is_trusted(store, &keys[0], requests[0].ttl).await
    {
        return Ok(AllAnswer::OneByOne);
    }
    let Some(reply) = store.requests.acquire_all(requests, &keys).await? else {
        return Ok(AllAnswer::OneByOne);
    };
    let AllAnswer::Granted(_) = &reply.value else {
        return Ok(reply.value);
    };
    let now = store.context.now();
    let ttl = requests[0].ttl;
    if reply.connection.untrusted_until(now, ttl).is_some() {
        // Grants of this server do not count: the holders of before the restart may believe to hold the locks.
        let give_back = |(request, keys)| async move {
            let acquisition = Acquisition {
                store,
                request,
                keys,
            };
            acquisition.give_back().await
        };
        let locks = requests.iter().map(|request| &**request).zip(&keys);
        let given_back = join_all(locks.map(give_back)).await;
        given_back.into_iter().collect::<Result<(), _>>()?;
        return Ok(AllAnswer::OneByOne);
    }
    for request in requests {
        store.remember(request);
    }
    start_maintenance(store);
    Ok(reply.value)
}

/// Whether the server that has the lock can be reached and is trusted to know who holds its locks.
async fn is_trusted(store: &Store, keys: &Keys, ttl: Duration) -> bool {
    let connection = store.connections.connection(keys.lock()).await;
    connection.is_ok_and(|it| it.untrusted_until(store.context.now(), ttl).is_none())
}

fn start_maintenance(store: &Arc<Store>) {
    let Context { spawner, clock, .. } = &*store.context;
    store.maintenance.start(spawner, clock, store, verify_holds);
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
            until_trusted(store, request, keys).await?;
            let reply = store.requests.acquire(request, keys, attempt).await?;
            let now = store.context.now();
            if reply.connection.untrusted_until(now, request.ttl).is_some() {
                // A grant of this server does not count: the holder of before the restart may believe to hold the lock.
                Box::pin(self.give_back()).await?;
                continue;
            }
            if matches!(reply.value, AcquireReply::Granted(_))
                && let Err(err) = until_replicated(store, &reply.connection, keys).await
            {
                // In a box, as in `Server::connection`.
                Box::pin(self.give_back()).await?;
                return Err(err);
            }
            return Ok(reply.value);
        }
    }

    /// Releases what the owner has, and was not used: the lock, or its place in the queue.
    async fn release(&self) -> Result<Release, Error> {
        let requests = &self.store.requests;
        let (keys, owner) = (self.keys, self.request.owner);
        requests.release(keys, owner, ReleaseKind::UNUSED).await
    }

    /// Releases a grant that does not count. After an error the grant may still be there.
    async fn give_back(&self) -> Result<(), Error> {
        self.release().await.map(drop).map_err(errors::left_behind)
    }
}
