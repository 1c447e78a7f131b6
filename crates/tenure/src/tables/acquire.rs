//! Acquiring a lock, and changing the mode of a hold, from the first request to the answer.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::store::{
    AcquireAll, AllAnswer, Answer, BoxFuture, ChangeMode, Hold, Release, Request,
};
use tenure_core::time::Time;

use crate::waiting::{self, AcquireReply, LeaseStore, Places, QueuePosition, WakeUps};

use super::names::Format;
use super::release::release;
use super::store::Store;

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(async move { acquire_all(&self, &requests).await })
    }
}

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { upgrade(&self, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

pub(super) async fn acquire(store: &Store, request: &Request) -> Result<Answer, Error> {
    let is_upgrade = false;
    acquire_or_upgrade(store, request, is_upgrade).await
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
async fn upgrade(store: &Store, request: &Request) -> Result<Answer, Error> {
    let is_upgrade = true;
    acquire_or_upgrade(store, request, is_upgrade).await
}

async fn acquire_or_upgrade(
    store: &Store,
    request: &Request,
    is_upgrade: bool,
) -> Result<Answer, Error> {
    let _acquisition = store.acquisitions.enter();
    let operation = AcquireOrUpgrade {
        store,
        request,
        is_upgrade,
    };
    waiting::acquire(&operation, &store.clock, request).await
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    // From now on the hold may be a shared one.
    store
        .requests
        .holds
        .update(hold.owner, |entry| entry.is_shared_hold = true);
    store.requests.downgrade(hold, mode).await
}

/// Acquires several names with one transaction, all or none.
pub(super) async fn acquire_all(
    store: &Store,
    requests: &[Arc<Request>],
) -> Result<AllAnswer, Error> {
    let _acquisition = store.acquisitions.enter();
    // A candidate of an election asks for one name.
    let is_simple =
        |request: &Arc<Request>| request.mode == Mode::Exclusive && request.holder.value.is_none();
    // ShedLock's table has its own statements, which other programs expect one by one.
    if store.settings.format == Format::ShedLock || !requests.iter().all(is_simple) {
        return Ok(AllAnswer::OneByOne);
    }
    store.requests.acquire_all(requests).await
}

/// One acquisition or upgrade, as the loop of a waiter needs it.
struct AcquireOrUpgrade<'a> {
    store: &'a Store,
    request: &'a Request,
    /// The owner has an upgradable hold, which is to become exclusive.
    is_upgrade: bool,
}

impl LeaseStore for AcquireOrUpgrade<'_> {
    async fn ask(&self, is_first: bool, place: Duration) -> Result<AcquireReply, Error> {
        let Self { store, request, .. } = *self;
        match (self.is_upgrade, store.settings.format) {
            (true, _) => store.requests.upgrade(request, place).await,
            (false, Format::Tenure) if !is_first => store.requests.enqueue(request, place).await,
            // The first client that asks after a release gets the lock in ShedLock's table, which has no queue.
            (false, _) => store.requests.acquire(request).await,
        }
    }

    fn places(&self) -> &Places {
        &self.store.places
    }

    fn subscribe(&self, _: Time) -> impl WakeUps {
        self.store.subscribe(self.request)
    }

    async fn read_queue(&self) -> Option<QueuePosition> {
        let (requests, request) = (&self.store.requests, self.request);
        let position = match self.is_upgrade {
            true => requests.look(request, Mode::Exclusive).await,
            false => requests.read_queue(request).await,
        };
        // After an error the request for the lock is sent, and reports the error again.
        position.ok()?
    }

    /// An upgradable hold stays upgradable.
    async fn leave_queue(&self) -> Result<Release, Error> {
        let (store, hold) = (self.store, Hold::new(self.request, 0));
        if !self.is_upgrade {
            return release(store, &hold).await;
        }
        let downgraded = store.requests.downgrade(&hold, Mode::Upgradable).await;
        downgraded.map(Release::of)
    }
}
