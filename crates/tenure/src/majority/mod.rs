//! A lock on a majority of several independent stores (the Redlock algorithm). Where the stores are Redis servers, the
//! URL is `redlock://HOST,HOST,HOST`.
//!
//! The stores, called nodes, know nothing of each other. Any of them may fail: the lock works while more than half of
//! the nodes answer. Every request goes to all nodes at once and the replies are counted; the modules `quorum_acquisition` and
//! `quorum` of `logic` decide. A node may be a backend of any kind: it is used through the trait only.
//!
//! ```
//! # async fn example() -> Result<(), tenure::Error> {
//! use std::sync::Arc;
//! use tenure::backend::Backend;
//! use tenure::memory;
//! use tenure::majority;
//! use tenure::Client;
//!
//! let first = memory::Backend::with_virtual_clock(); // in production: stores on three machines
//! let nodes: Vec<Arc<dyn Backend>> =
//!     vec![Arc::new(first.beside()), Arc::new(first.beside()), Arc::new(first)];
//! let store = majority::Store::new(nodes, majority::Settings::default())?;
//! let guard = Client::from_backend(store)?.lock("orders/42").acquire().await?;
//! guard.release().await
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Reading order
//! `settings` · `holds` (what is remembered of a hold and of its part on each node) · `requests` (one request to each
//! node, polled together) · `background` (requests that no caller waits for) · `store` (the parts of a client) ·
//! `acquire`, `wait`, `mode`, `upgrade`, `renew`, `release` (the operations) · `losses` (what nodes report) · `errors` ·
//! `inspect` (for operators) · `merge` (the answers of the nodes as one).

mod acquire;
mod background;
mod errors;
mod guarantees;
mod holds;
mod inspect;
mod losses;
mod merge;
mod mode;
mod release;
mod renew;
mod requests;
mod settings;
mod store;
mod upgrade;
mod wait;

use std::sync::Arc;

use tenure_core::backend::{
    Answer, AsyncBackend, Finding, Hold, LossNotifier, Release, Renewal, Request,
};
use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::Clock;

use crate::capabilities::stores_with;

pub use self::guarantees::guarantees;
pub use self::settings::{MAX_NODE_TIMEOUT, MIN_NODE_TIMEOUT, Settings};
pub use self::store::Store;

impl AsyncBackend for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        self.attach_nodes(&loss_notifier);
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

    async fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Vec<Renewal> {
        renew::renew(&self, &holds).await
    }

    async fn release(self: Arc<Self>, hold: Hold) -> Result<Release, Error> {
        release::release(&self, &hold).await
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        self.nodes.iter().all(|node| node.ends_by_itself(hold))
    }

    async fn inspect(self: Arc<Self>, name: LockName) -> Result<Status, Error> {
        inspect::inspect(&self, &name).await
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
