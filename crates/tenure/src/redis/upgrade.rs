//! Changing the mode of a hold.

use std::sync::Arc;

use tenure_core::backend::{Answer, Hold, Release, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;

use crate::lease_store::{self, AcquireReply, LeaseStore};

use super::errors;
use super::names::Keys;
use super::requests::UpgradeReply;
use super::store::Store;
use super::subscribe::Subscription;

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let _operation = store.context.operations.enter();
    let keys = &store.requests.keys(&request.name);
    let upgrading = Upgrading {
        store,
        request,
        keys,
    };
    match upgrading.ask().await? {
        AcquireReply::Granted(grant) => Ok(Answer::Granted(grant)),
        AcquireReply::Taken(_) if !request.wait => Ok(Answer::Busy),
        AcquireReply::Taken(position) => {
            let (context, connections) = (&store.context, &store.connections);
            let subscription =
                Subscription::new(context, connections, keys, request, position.sent);
            let clock = &context.clock;
            lease_store::wait(&upgrading, subscription, clock, request, position).await
        }
    }
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    let lease = store.requests.lease(mode, hold.ttl);
    if lease < hold.ttl {
        return Err(errors::lease_too_long(lease));
    }
    // From now on the hold may be one beside others.
    store
        .holds
        .update(hold.owner, |entry| entry.is_beside_others = true);
    let keys = store.requests.keys(&hold.name);
    store.requests.downgrade(&keys, hold.owner, mode).await
}

/// One upgrade, as the loop of a waiter needs it.
struct Upgrading<'a> {
    store: &'a Store,
    request: &'a Request,
    keys: &'a Keys,
}

impl LeaseStore for Upgrading<'_> {
    async fn ask(&self) -> Result<AcquireReply, Error> {
        let requests = &self.store.requests;
        match requests.upgrade(self.request, self.keys).await? {
            UpgradeReply::Upgraded(reply) => Ok(reply),
            UpgradeReply::NoHold => Err(Error::new(
                ErrorKind::Lost,
                "the server has no such hold; the lock was lost",
            )),
        }
    }

    /// The hold becomes upgradable again.
    async fn leave_queue(&self) -> Result<Release, Error> {
        let requests = &self.store.requests;
        let owner = self.request.owner;
        let mode = Mode::Upgradable;
        Ok(match requests.downgrade(self.keys, owner, mode).await? {
            true => Release::Released,
            false => Release::NotHeld,
        })
    }
}
