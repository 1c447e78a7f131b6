//! Changing the mode of a hold.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Hold, Release, Request};

use crate::waiting::{self, AcquireReply, LeaseStore, QueuePosition};

use super::mode_requests::UpgradeReply;
use super::requests::{HeldEntry, LockReply};
use super::store::Store;

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move {
            drop(hold);
            upgrade(&self, &request).await
        })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(store: &Store, request: &Request) -> Result<Answer, Error> {
    let _acquisition = store.acquisitions.enter();
    let upgrading = Upgrading { store, request };
    match upgrading.ask().await? {
        AcquireReply::Granted(grant) => Ok(Answer::Granted(grant)),
        AcquireReply::Taken(_) if !request.wait => Ok(Answer::Busy),
        AcquireReply::Taken(position) => {
            let subscription = store.subscribe(request);
            let clock = &store.clock;
            waiting::wait(&upgrading, subscription, clock, request, position).await
        }
    }
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    // From now on the hold may be one beside others.
    store
        .holds
        .update(hold.owner, |entry| entry.is_shared_hold = true);
    store.requests.downgrade(hold, mode).await
}

/// One upgrade, as the loop of a waiter needs it.
struct Upgrading<'a> {
    store: &'a Store,
    request: &'a Request,
}

impl LeaseStore for Upgrading<'_> {
    async fn ask(&self) -> Result<AcquireReply, Error> {
        match self.store.requests.upgrade(self.request).await? {
            UpgradeReply::Upgraded(LockReply::Granted(grant, _)) => {
                let now = self.store.clock.now();
                let extend = |entry: &mut HeldEntry| entry.extend(grant.sent, grant.ttl, now);
                self.store.holds.update(self.request.owner, extend);
                Ok(AcquireReply::Granted(grant))
            }
            UpgradeReply::Upgraded(LockReply::Taken(position)) => Ok(AcquireReply::Taken(position)),
            UpgradeReply::NoHold => Err(Error::new(
                ErrorKind::Lost,
                "the database has no such hold; the lock was lost",
            )),
        }
    }

    async fn read_queue(&self) -> Option<QueuePosition> {
        // After an error the upgrade is asked for, which meets the error again.
        let wants = Mode::Exclusive;
        self.store.requests.look(self.request, wants).await.ok()?
    }

    /// The hold becomes upgradable again.
    async fn leave_queue(&self) -> Result<Release, Error> {
        let hold = Hold::new(self.request, 0);
        let requests = &self.store.requests;
        Ok(match requests.downgrade(&hold, Mode::Upgradable).await? {
            true => Release::Released,
            false => Release::NotHeld,
        })
    }
}
