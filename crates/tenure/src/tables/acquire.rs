//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::store::{AcquireAll, AllAnswer, Answer, BoxFuture, Hold, Release, Request};

use crate::waiting::{self, AcquireReply, LeaseStore, QueuePosition};

use super::names::Format;
use super::release::release;
use super::requests::{AllReply, LockReply};
use super::store::Store;

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(async move { acquire_all(&self, &requests).await })
    }
}

pub(super) async fn acquire(store: &Store, request: &Request) -> Result<Answer, Error> {
    let _acquisition = store.acquisitions.enter();
    let acquisition = Acquisition { store, request };
    match acquisition.remember(store.requests.acquire(request).await?) {
        AcquireReply::Granted(grant) => Ok(Answer::Granted(grant)),
        // The owner has no place in the queue yet.
        AcquireReply::Taken(_) if !request.wait || request.stop.is_raised() => Ok(Answer::Busy),
        AcquireReply::Taken(position) => {
            let subscription = store.subscribe(request);
            let clock = &store.clock;
            // In a box, because this future is large, and most locks are free.
            Box::pin(waiting::wait(
                &acquisition,
                subscription,
                clock,
                request,
                position,
            ))
            .await
        }
    }
}

/// Acquires several names with one transaction, all or none.
pub(super) async fn acquire_all(
    store: &Store,
    requests: &[Arc<Request>],
) -> Result<AllAnswer, Error> {
    let _acquisition = store.acquisitions.enter();
    let is_simple = |request: &Arc<Request>| request.mode == Mode::Exclusive;
    // ShedLock's table has its own statements, which other programs expect one by one.
    if store.settings.format == Format::ShedLock || !requests.iter().all(is_simple) {
        return Ok(AllAnswer::OneByOne);
    }
    let granted = match store.requests.acquire_all(requests).await? {
        AllReply::Granted(granted) => granted,
        AllReply::Busy(position) => return Ok(AllAnswer::Busy(position)),
    };
    let mut grants = Vec::with_capacity(granted.len());
    for (request, (grant, entry)) in requests.iter().zip(granted) {
        store.holds.insert(request.owner, entry);
        grants.push(grant);
    }
    Ok(AllAnswer::Granted(grants))
}

/// One acquisition, as the loop of a waiter needs it.
struct Acquisition<'a> {
    store: &'a Store,
    request: &'a Request,
}

impl Acquisition<'_> {
    /// Remembers a hold that is about to be passed to the driver.
    fn remember(&self, reply: LockReply) -> AcquireReply {
        match reply {
            LockReply::Granted(grant, entry) => {
                self.store.holds.insert(self.request.owner, entry);
                AcquireReply::Granted(grant)
            }
            LockReply::Taken(position) => AcquireReply::Taken(position),
        }
    }
}

impl LeaseStore for Acquisition<'_> {
    async fn ask(&self) -> Result<AcquireReply, Error> {
        let reply = match self.store.settings.format {
            Format::Tenure => self.store.requests.enqueue(self.request).await,
            // The table has no queue: the first client that asks after a release gets the lock.
            Format::ShedLock => self.store.requests.acquire(self.request).await,
        };
        Ok(self.remember(reply?))
    }

    async fn read_queue(&self) -> Option<QueuePosition> {
        // After an error the lock is asked for, which meets the error again.
        self.store.requests.read_queue(self.request).await.ok()?
    }

    async fn leave_queue(&self) -> Result<Release, Error> {
        release(self.store, &Hold::new(self.request, 0)).await
    }
}
