//! `redis:`: a key with a random owner, and beside it what other libraries lack: a queue in the server, fencing
//! tokens, and data about the holder.
//!
//! The key itself is the common one (`SET NX PX`, compared before it is deleted), so programs in other languages exclude
//! us and we exclude them. The published format is in `docs/stores/redis.md`.
//!
//! One script acquires and one releases, one round trip each. A release grants the lock to the first waiter whose place
//! in the queue is still good, and wakes only that waiter.
//!
//! # Reading order
//! `names` and `lua/` (keys, and what the server does) · `store` (the parts of a client) · `acquire`, `upgrade`, `renew`,
//! `release` (the operations; `crate::lease_store` waits), with `trust` (whether a grant counts) · `requests` (one function
//! for each request), with `scripts` (what is sent), `lifetimes` (for how long) and `batch` (many requests in one) ·
//! `subscribe` and `events` (what servers push) · `connection/` (connections, and which server has a key) · `server_info`
//! (what a server says about itself) · `errors` (what errors mean) · `inspect` (for operators).

mod acquire;
mod batch;
mod connection;
mod context;
mod errors;
mod events;
mod guarantees;
mod inspect;
mod lifetimes;
mod mode;
mod names;
mod release;
mod renew;
mod requests;
mod scripts;
mod server_info;
mod settings;
mod store;
mod subscribe;
mod trust;
mod upgrade;

use std::sync::Arc;

use tenure_core::backend::{
    AllAnswer, Answer, AsyncBackend, Finding, Hold, LossNotifier, Release, Renewal, Request,
};
use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::options::Mode;

use crate::capabilities::stores_with;

pub use self::guarantees::{Configuration, guarantees};
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
use self::requests::Purpose;
pub use self::server_info::Persistence;
pub use self::settings::RedissonLock;
pub use self::store::Store;

impl AsyncBackend for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        self.context.events.attach(loss_notifier);
    }

    async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        acquire::acquire(&self, &request).await
    }

    async fn acquire_all(self: Arc<Self>, requests: Vec<Arc<Request>>) -> Result<AllAnswer, Error> {
        acquire::acquire_all(&self, &requests).await
    }

    async fn upgrade(self: Arc<Self>, _: Hold, request: Arc<Request>) -> Result<Answer, Error> {
        upgrade::upgrade(&self, &request).await
    }

    async fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> Result<bool, Error> {
        upgrade::downgrade(&self, &hold, mode).await
    }

    async fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Vec<Renewal> {
        renew::renew(&self, &holds, Purpose::Extend).await
    }

    async fn release(self: Arc<Self>, hold: Hold) -> Result<Release, Error> {
        release::release(&self, &hold).await
    }

    async fn raise(self: Arc<Self>, hold: Hold, token: u64) -> Result<Option<u64>, Error> {
        self.requests.raise(&hold, token).await
    }

    async fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<bool, Error> {
        self.requests.write(&holds, &key, value.as_deref()).await
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
