//! `redis:`: a key with a random owner, and beside it what other libraries lack: a queue in the server, fencing
//! tokens, and data about the holder.
//!
//! The key itself is the common one (`SET NX PX`, compared before it is deleted), so programs in other languages exclude
//! us and we exclude them. The published format is in `docs/stores/redis.md`.
//!
//! One script acquires and one releases, one round trip each. A release grants the lock to the first waiter whose place
//! in the queue is still valid, and wakes only that waiter.
//!
//! # Folders
//! - `connection/`: connections to servers, sentinels and clusters. It knows nothing of locks.
//! - `lua/`: the scripts of our own format. `common.lua` has the holders, `queue.lua` the waiters.
//! - `redisson/`: the formats of Redisson's locks, with scripts of their own.
//!
//! # Reading order
//! 1. `names` (the keys of a lock) and `lua/` (what the server does with them)
//! 2. `store`, `context` and `holds` (the parts of a client)
//! 3. `acquire`, `renew`, `release` (the operations; `crate::waiting` waits), `trust` (whether a grant counts)
//! 4. `requests` (one function for each request), `scripts` and `format` (what is sent), `batch` (many requests in one)
//! 5. `subscribe` and `events` (what servers push)
//! 6. `detach` (holds that outlive their client)
//! 7. `elections` (what candidates and observers ask), `observe` and `watchers` (what observers hear), `sighting` (who leads)
//! 8. `errors`, `inspect`, `check` and `guarantees` (what users and operators are told), `settings` (the URL)
//!
//! # Where a release wakes the next waiter
//! `release.rs` calls `Requests::release`, which runs `lua/release.lua`. Its function `serve` (`lua/queue.lua`) grants the
//! lock to the first waiter and publishes `granted` on the channel of the waiter's client. That client's `events.rs`
//! (`receive`) wakes the waiter, which holds the lock without another request.

mod acquire;
mod batch;
mod builder;
mod check;
mod connection;
mod context;
mod detach;
mod elections;
mod errors;
mod events;
mod format;
mod guarantees;
mod holds;
mod inspect;
mod names;
mod observe;
mod redisson;
mod release;
mod renew;
mod requests;
mod scripts;
mod settings;
mod sighting;
mod store;
mod subscribe;
mod tokens;
mod trust;
mod watchers;

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::{Holder, LockStatus};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{
    AcquireAll, AllAnswer, Answer, BoxFuture, ChangeMode, Detach, Elections, Finding, GuardedWrite,
    Hold, Listed, LossNotifier, Operate, RaiseToken, Release, Renewal, Request, ReserveTokens,
    Sightings,
};

use crate::capabilities::stores_with;

pub use self::builder::Settings;
pub use self::connection::Persistence;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::format::fuzz as fuzz_names;
pub use self::guarantees::{Configuration, guarantees};
pub use self::redisson::RedissonLock;
use self::requests::Purpose;
pub use self::store::Store;
pub use tenure_core::guard_traits::KeyValueGuard;

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        self.context.events.losses.attach(loss_notifier);
    }

    fn answers_shared_together(&self) -> bool {
        self.requests.batches_shared()
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { acquire::acquire(&self, &request).await })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(async move { renew::renew(&self, &holds, Purpose::Extend).await })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(async move { release::release(&self, &hold).await })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        Box::pin(async move { inspect::inspect(&self, name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        Box::pin(async move { inspect::list(&self, &prefix).await })
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            release::close(&self).await;
        })
    }

    fn abandon(&self) {
        // Also of a node of a majority that was silent before `close` came to it.
        self.maintenance.stop();
        self.connections.close();
    }

    fn as_acquire_all(self: Arc<Self>) -> Option<Arc<dyn AcquireAll>> {
        Some(self)
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_raise_token(self: Arc<Self>) -> Option<Arc<dyn RaiseToken>> {
        Some(self)
    }

    /// Not of Redisson's locks.
    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        self.requests.reserves_tokens().then_some(self as _)
    }

    fn as_guarded_write(self: Arc<Self>) -> Option<Arc<dyn GuardedWrite>> {
        Some(self)
    }

    /// Not of Redisson's locks.
    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        self.requests.elections.is_some().then_some(self as _)
    }

    /// Not of Redisson's locks.
    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        detach::scripts(&self).is_ok().then_some(self as _)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(async move { acquire::acquire_all(&self, &requests).await })
    }
}

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { acquire::upgrade(&self, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { acquire::downgrade(&self, &hold, mode).await })
    }
}

impl GuardedWrite for Store {
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { self.requests.write(&holds, &key, value.as_deref()).await })
    }
}

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { elections::publish(&self, &hold, &holder).await })
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        Box::pin(async move { elections::leader(&self, &name).await })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        Some(observe::watch(self, name))
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { elections::ask_to_release(&self, &name, token).await })
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        elections::listen_for_requests(&self, hold.owner);
    }
}

impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { detach::detach(&self, &hold).await })
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { detach::attach(&self, &hold).await })
    }

    fn forget(&self, hold: &Hold) {
        detach::forget(self, hold.owner);
    }
}

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { self.requests.break_hold(&name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check::check(&self).await })
    }
}
