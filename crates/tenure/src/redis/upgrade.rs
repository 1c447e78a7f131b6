//! Changing the mode of a hold.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Hold, Release, Request};
use tenure_core::support::millis_down;

use crate::waiting::{self, AcquireReply, LeaseStore};

use super::errors;
use super::names::Keys;
use super::requests::UpgradeReply;
use super::store::Store;
use super::subscribe::Subscription;
use super::trust::{until_replicated, until_trusted};

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
                Subscription::new(context, connections, keys, request, position.sent).of_upgrade();
            let clock = &context.clock;
            waiting::wait(&upgrading, subscription, clock, request, position).await
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
        .update(hold.owner, |entry| entry.is_shared_hold = true);
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
    /// Asks a server that can be trusted to know who holds the lock. As for an acquisition, the server that replied is
    /// checked as well as the server that was to be asked.
    async fn ask(&self) -> Result<AcquireReply, Error> {
        let Self {
            store,
            request,
            keys,
        } = self;
        loop {
            until_trusted(store, request, keys).await?;
            // The request does not say what the hold was acquired with.
            let (lease, now) = (request.ttl, store.context.now());
            let live = store
                .holds
                .read(request.owner, |entry| entry.live(lease, now));
            let live = live.unwrap_or_else(|| millis_down(lease));
            let reply = store.requests.upgrade(request, keys, live).await?;
            let grant = match reply.value {
                UpgradeReply::Upgraded(AcquireReply::Granted(grant)) => grant,
                UpgradeReply::Upgraded(taken) => return Ok(taken),
                UpgradeReply::NoHold => {
                    let message = "the server has no such hold; the lock was lost";
                    return Err(Error::new(ErrorKind::Lost, message));
                }
            };
            let now = store.context.now();
            if reply.connection.untrusted_until(now, request.ttl).is_some() {
                // A grant of this server does not count: a reader of before the restart may believe to hold the lock.
                self.undo().await?;
                continue;
            }
            if let Err(err) = until_replicated(store, &reply.connection, keys).await {
                self.undo().await?;
                return Err(err);
            }
            return Ok(AcquireReply::Granted(grant));
        }
    }

    /// The hold becomes upgradable again.
    async fn leave_queue(&self) -> Result<Release, Error> {
        Ok(match self.become_upgradable().await? {
            true => Release::Released,
            false => Release::NotHeld,
        })
    }
}

impl Upgrading<'_> {
    async fn become_upgradable(&self) -> Result<bool, Error> {
        let requests = &self.store.requests;
        let (owner, mode) = (self.request.owner, Mode::Upgradable);
        requests.downgrade(self.keys, owner, mode).await
    }

    /// Makes the hold upgradable again after a grant that does not count. After an error the hold may be exclusive.
    async fn undo(&self) -> Result<(), Error> {
        let undone = Box::pin(self.become_upgradable()).await;
        undone.map(drop).map_err(errors::left_behind)
    }
}
