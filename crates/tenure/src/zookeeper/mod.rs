//! `zookeeper:`: an ephemeral sequential node for each contender, laid out as Apache Curator does.
//!
//! The directory of a name has a node for each holder and each waiter. The server numbers the nodes: the first one
//! holds, and every other watches the one just ahead. So programs with Curator, go-zk and others of that
//! family take the same lock. The published format is in `docs/stores/zookeeper.md`.
//!
//! Taking a free lock costs two round trips the first time and one from then on, see `cache`.
//!
//! # Reading order
//! `names` (paths and node names) · `settings` · `session` (the sessions of a client) · `contact` (until when a session
//! lasts for certain) · `store` (the parts of a client) · `acquire`, `enqueue`, `queue`, `wait`, `semaphore`, `upgrade`,
//! `renew`, `release` (the operations) · `mode` (what the data of a node say about its hold) · `requests` (one function for
//! each request) · `cache` (one round trip) · `errors` (what errors mean) · `diagnose`, `server_info` and `handshake` (why
//! there is no session) · `write` (writes that need the hold) · `inspect` (for operators).

mod acquire;
mod cache;
mod contact;
mod diagnose;
mod enqueue;
mod errors;
mod guarantees;
#[cfg(feature = "zookeeper-tls")]
mod handshake;
mod inspect;
mod mode;
mod names;
mod queue;
mod release;
mod renew;
mod requests;
mod semaphore;
mod server_info;
mod session;
mod settings;
mod store;
mod upgrade;
mod wait;
mod write;

use std::sync::Arc;

use tenure_core::backend::{
    Answer, AsyncBackend, Finding, Hold, LossNotifier, Release, Renewal, Request,
};
use tenure_core::error::Error;
use tenure_core::fence::{Condition, ZooKeeperCheck};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::lock;

use crate::capabilities::stores_with;

pub use self::guarantees::{Configuration, Dialect, guarantees};
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
use self::store::HeldEntry;
pub use self::store::Store;

impl AsyncBackend for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        *lock(&self.loss_notifier) = Some(loss_notifier);
    }

    async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        acquire::acquire(&self, &request).await
    }

    async fn upgrade(self: Arc<Self>, _: Hold, request: Arc<Request>) -> Result<Answer, Error> {
        upgrade::upgrade(&self, &request).await
    }

    async fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> Result<bool, Error> {
        upgrade::downgrade(&self, &hold, mode).await
    }

    async fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Vec<Renewal> {
        renew::renew(&self, &holds).await
    }

    async fn release(self: Arc<Self>, hold: Hold) -> Result<Release, Error> {
        release::release(&self, &hold).await
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let has_ended = |held: &HeldEntry| held.session.ended.is_raised();
        self.holds.read(hold.owner, has_ended).unwrap_or(true)
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

    async fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<bool, Error> {
        write::write(&self, &holds, &key, value.as_deref()).await
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let (_, path) = self.holds.get(hold.owner)?.node()?;
        // Any version, as in `requests::checks`.
        Some(Condition::ZooKeeper(ZooKeeperCheck::new(&*path, -1)))
    }

    async fn close(self: Arc<Self>) {
        release::close(&self).await;
    }
}
