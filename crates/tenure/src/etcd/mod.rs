//! `etcd:`: a key for each contender, under a lease, laid out as etcd's own lock library and `etcdctl lock` do. So they
//! exclude us and we exclude them.
//!
//! The keys of a lock are in one directory, and the key that was created first holds. One request acquires a free
//! lock and one releases it. An exclusive waiter watches the keys ahead of its own, up to eight of them, and needs no
//! further request when its turn comes. The fencing token is the revision at which the key was created.
//! The published format is in `docs/stores/etcd.md`.
//!
//! # Reading order
//! `names` (keys) · `record` (their values) · `settings` · `queue` (what the keys of a directory mean to one of them) · `store` (the parts of a
//! client) · `acquire`, `wait`, `upgrade`, `renew`, `release` (the operations) · `requests` (one function for each request), with
//! `wire` (messages) · `leases` · `subscribe` (watches that wake waiters) · `keys` (which keys are in use) and `key_state` (what the store has of a hold) · `connection`
//! (which member, and the login) and `endpoint` (how a connection is opened) · `errors` (what errors mean) · `inspect` (for operators).

mod acquire;
mod connection;
mod context;
mod endpoint;
mod errors;
mod guarantees;
mod inspect;
mod key_state;
mod keys;
mod leases;
mod names;
mod queue;
mod record;
mod release;
mod renew;
mod requests;
mod settings;
mod store;
mod subscribe;
mod upgrade;
mod wait;
mod wire;

use std::sync::Arc;

use tenure_core::backend::{
    AllAnswer, Answer, AsyncBackend, Finding, Hold, LossNotifier, Release, Renewal, Request,
};
use tenure_core::error::Error;
use tenure_core::fence::{Condition, EtcdCompare};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::options::Mode;

use crate::capabilities::stores_with;

pub use self::guarantees::guarantees;
use self::key_state::KeyState;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
pub use self::store::Store;

impl AsyncBackend for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        // Called once.
        let _ = self.loss_notifier.set(loss_notifier);
    }

    async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        acquire::acquire(&self, &request).await
    }

    async fn upgrade(self: Arc<Self>, hold: Hold, request: Arc<Request>) -> Result<Answer, Error> {
        upgrade::upgrade(&self, &hold, &request).await
    }

    async fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> Result<bool, Error> {
        upgrade::downgrade(&self, &hold, mode).await
    }

    async fn acquire_all(self: Arc<Self>, requests: Vec<Arc<Request>>) -> Result<AllAnswer, Error> {
        acquire::acquire_all(&self, &requests).await
    }

    async fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Vec<Renewal> {
        renew::renew(&self, &holds).await
    }

    async fn release(self: Arc<Self>, hold: Hold) -> Result<Release, Error> {
        release::release(&self, &hold).await
    }

    async fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<bool, Error> {
        let keys: Option<Vec<_>> = holds.iter().map(|hold| self.key_of(hold)).collect();
        match keys {
            Some(keys) => requests::write(&self.connections, &keys, key, value).await,
            None => Ok(false),
        }
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let KeyState { key, created, .. } = self.key_of(hold)?;
        Some(Condition::Etcd(EtcdCompare::new(key, created)))
    }

    async fn inspect(self: Arc<Self>, name: LockName) -> Result<Status, Error> {
        inspect::inspect(&self, name).await
    }

    async fn list(self: Arc<Self>, prefix: String) -> Result<Vec<Status>, Error> {
        inspect::list(&self, &prefix).await
    }

    async fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> Result<bool, Error> {
        inspect::break_lock(&self, &name, token).await
    }

    async fn check(self: Arc<Self>) -> Result<Vec<Finding>, Error> {
        inspect::check(&self).await
    }

    async fn close(self: Arc<Self>) {
        release::close(&self).await;
    }
}
