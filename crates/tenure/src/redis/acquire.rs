//! Acquiring a lock, and changing the mode of a hold, from the first request to the answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::{Fairness, Mode};
use tenure_core::store::{AllAnswer, Answer, Hold, Release, Request};
use tenure_core::support::millis_down;
use tenure_core::time::Time;

use crate::waiting::{self, AcquireReply, LeaseStore, Places};

use super::context::Context;
use super::elections;
use super::errors;
use super::format::Keys;
use super::holds::is_candidate;
use super::redisson;
use super::renew::verify_holds;
use super::requests::ReleaseKind;
use super::store::Store;
use super::subscribe::Subscription;
use super::trust::{until_replicated, until_trusted};

/// Locks in one script: the server does nothing else for the time of some 200 commands.
const MAX_ALL: usize = 64;

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let is_upgrade = false;
    let answer = acquire_or_upgrade(store, request, is_upgrade).await;
    match &answer {
        Ok(Answer::Granted(_)) => {
            store.remember(request);
            start_maintenance(store);
            // The lock may have been handed over by the script of a lock, which tells no observer.
            if is_candidate(request) && request.is_taken() {
                elections::tell(store, &request.name);
            }
        }
        // The release has to tell observers of the end of what may have been granted.
        Err(err) if err.kind() == ErrorKind::Indeterminate && is_candidate(request) => {
            store.remember_ambiguous(request);
        }
        _ => {}
    }
    answer
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(store: &Store, request: &Request) -> Result<Answer, Error> {
    let is_upgrade = true;
    acquire_or_upgrade(store, request, is_upgrade).await
}

async fn acquire_or_upgrade(
    store: &Store,
    request: &Request,
    is_upgrade: bool,
) -> Result<Answer, Error> {
    let _operation = store.context.operations.enter();
    let operation = AcquireOrUpgrade {
        store,
        request,
        keys: &store.requests.keys(&request.name),
        is_upgrade,
    };
    waiting::acquire(&operation, &store.context.clock, request).await
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    let lease = store.requests.lease(mode, hold.ttl);
    if lease < hold.ttl {
        return Err(redisson::lease_too_long(lease));
    }
    // From now on the hold may be a shared one.
    store
        .holds
        .update(hold.owner, |entry| entry.is_shared_hold = true);
    let keys = store.requests.keys(&hold.name);
    store.requests.downgrade(&keys, hold.owner, mode).await
}

/// Acquires several locks with one script, all or none.
pub(super) async fn acquire_all(
    store: &Arc<Store>,
    requests: &[Arc<Request>],
) -> Result<AllAnswer, Error> {
    let _operation = store.context.operations.enter();
    let settings = &store.context.settings;
    let is_simple = |request: &Arc<Request>| {
        request.mode == Mode::Exclusive
            && request.propose.is_none()
            && !is_candidate(request)
            && request.fair != Fairness::Unfair
    };
    let keys: Vec<_> = requests
        .iter()
        .map(|request| store.requests.keys(&request.name))
        .collect();
    // The grant of one lock says what to do when replicas are missing, or a server was restarted.
    if !requests.iter().all(is_simple)
        || requests.len() > MAX_ALL
        || settings.wait_replicas > 0
        || !store.connections.are_together(keys.iter().map(Keys::lock))
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
    let untrusted = store
        .context
        .untrusted_until(&reply.connection, requests[0].ttl);
    if untrusted.is_some() {
        // Grants of this server do not count: the holders of before the restart may believe to hold the locks.
        let give_back = |(request, keys)| async move {
            let operation = AcquireOrUpgrade {
                store,
                request,
                keys,
                is_upgrade: false,
            };
            operation.give_back().await
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
    connection.is_ok_and(|it| store.context.untrusted_until(&it, ttl).is_none())
}

pub(super) fn start_maintenance(store: &Arc<Store>) {
    let Context { spawner, clock, .. } = &*store.context;
    store.maintenance.start(spawner, clock, store, verify_holds);
}

/// One acquisition or upgrade, as the loop of a waiter needs it.
struct AcquireOrUpgrade<'a> {
    store: &'a Store,
    request: &'a Request,
    keys: &'a Keys,
    /// The owner has an upgradable hold, which is to become exclusive.
    is_upgrade: bool,
}

impl LeaseStore for AcquireOrUpgrade<'_> {
    /// Asks a server that can be trusted to know who holds the lock. The server may be restarted at any moment, also
    /// while we wait, so the server that replied is checked as well as the server that was to be asked.
    async fn ask(&self, is_first: bool, place: Duration) -> Result<AcquireReply, Error> {
        let Self {
            store,
            request,
            keys,
            is_upgrade,
        } = *self;
        loop {
            until_trusted(store, request, keys).await?;
            let reply = match is_upgrade {
                true => {
                    // The request does not say what the hold was acquired with.
                    let (lease, now) = (request.ttl, store.context.now());
                    let live = store
                        .holds
                        .read(request.owner, |entry| entry.live(lease, now));
                    let live = live.unwrap_or_else(|| millis_down(lease));
                    // In a box, as in `Server::connection`.
                    Box::pin(store.requests.upgrade(request, keys, live, place)).await?
                }
                false => {
                    store
                        .requests
                        .acquire(request, keys, is_first, place)
                        .await?
                }
            };
            let context = &store.context;
            let untrusted = context.untrusted_until(&reply.connection, request.ttl);
            if untrusted.is_some() {
                // A reply of this server does not count: a holder of before the restart may believe to hold the lock.
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

    fn places(&self) -> &Places {
        &self.store.places
    }

    fn subscribe(&self, sent: Time) -> impl waiting::WakeUps {
        let Self {
            store,
            request,
            keys,
            is_upgrade,
        } = *self;
        Subscription::new(store, request, keys, is_upgrade, sent)
    }

    /// An upgradable hold stays upgradable.
    async fn leave_queue(&self) -> Result<Release, Error> {
        let (requests, owner) = (&self.store.requests, self.request.owner);
        if !self.is_upgrade {
            let kind = ReleaseKind::unused(self.request);
            return requests.release(self.keys, owner, kind).await;
        }
        let downgraded = requests.downgrade(self.keys, owner, Mode::Upgradable);
        downgraded.await.map(Release::of)
    }
}

impl AcquireOrUpgrade<'_> {
    /// Gives up what does not count: a grant, or a place in the queue. After an error it may still be there.
    async fn give_back(&self) -> Result<(), Error> {
        let left = self.leave_queue().await;
        left.map(drop).map_err(errors::left_behind)
    }
}
