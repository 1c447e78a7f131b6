//! `etcd:`: a key for each contender, under a lease, laid out as etcd's own lock library and `etcdctl lock` do. So they
//! exclude us and we exclude them.
//!
//! The keys of a lock are in one directory, and the key that was created first holds. One request acquires a free
//! lock and one releases it. An exclusive waiter watches the keys ahead of its own, up to eight of them, and needs no
//! further request when its turn comes. The fencing token is the revision at which the key was created.
//! The published format is in `docs/stores/etcd.md`.
//!
//! The order of the requests, and what becomes of one that fails, is the engine [`tenure_core::queue`]; here are the requests.
//!
//! # Reading order
//! `names` (keys) · `record` (their values) · `settings` · `queue` (what the keys of a directory mean to one of them) · `store` (the parts of a
//! client) · `wait` (a request of the engine: read and watch), `acquire`, `upgrade`, `renew`, `release` (the operations) · `requests` and `lease_requests` (one function for each request), with
//! `wire` (messages) · `leases` · `subscribe` (watches that wake waiters) · `keys` (which keys are in use) and `key_state` (what the store has of a hold) · `connection`
//! (which member, and the login) and `endpoint` (how a connection is opened) · `errors` (what errors mean) · `inspect` (for operators).
//!
//! Detached holds: `detach` (a hold leaves its client, and another client finds it) · `attached` (its renewal and its end) with `attachment` ·
//! `detached_lease` (its lease) · `detach_requests`.
//!
//! Elections: `candidate` (the second key of a candidate) and `candidate_requests` · `contenders` (the keys of a name and whose they are)
//! · `leader` (who leads) · `observers` (what observers hear) · `release_requests` (what holders are asked) · `elections`.

mod acquire;
mod attached;
mod attachment;
mod builder;
mod callers_channel;
mod candidate;
mod candidate_requests;
mod connection;
mod contenders;
mod context;
mod detach;
mod detach_requests;
mod detached_lease;
mod elections;
mod endpoint;
mod errors;
mod guarantees;
mod inspect;
mod key_state;
mod keys;
mod leader;
mod lease_requests;
mod leases;
mod names;
mod observers;
mod queue;
mod record;
mod release;
mod release_requests;
mod renew;
mod requests;
mod settings;
mod store;
mod subscribe;
mod upgrade;
mod wait;
mod wire;
mod write;

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::LockStatus;
use tenure_core::name::LockName;
use tenure_core::store::{
    AcquireAll, Answer, BoxFuture, ChangeMode, Detach, Elections, GuardedWrite, Hold, Listed,
    LossNotifier, Operate, Release, Renewal, Request,
};

use crate::capabilities::stores_with;

pub use self::builder::Settings;
pub use self::guarantees::guarantees;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
pub use self::store::Store;
pub use tenure_core::guard_traits::{EtcdGuard, KeyValueGuard};

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        self.losses.attach(loss_notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { acquire::acquire(&self, &request).await })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(async move { renew::renew(&self, &holds).await })
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
        release::abandon(self);
    }

    fn as_acquire_all(self: Arc<Self>) -> Option<Arc<dyn AcquireAll>> {
        Some(self)
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_guarded_write(self: Arc<Self>) -> Option<Arc<dyn GuardedWrite>> {
        Some(self)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        Some(self)
    }

    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}
