//! A lock on a majority of several independent stores (the Redlock algorithm). Where the stores are Redis servers, the
//! URL is `redlock://HOST,HOST,HOST`.
//!
//! The stores, called nodes, know nothing of each other. Any of them may fail: the lock works while more than half of
//! the nodes answer. Every request goes to all nodes at once and the replies are counted; the modules `quorum_acquisition` and
//! `quorum` of `logic` decide. A node may be a store of any kind that can raise a token: it is used through the trait only.
//!
//! ```
//! # async fn example() -> Result<(), tenure::Error> {
//! use std::sync::Arc;
//! use tenure::store::Store;
//! use tenure::memory;
//! use tenure::majority;
//! use tenure::Client;
//!
//! let first = memory::Store::with_virtual_clock(); // in production: stores on three machines
//! let nodes: Vec<Arc<dyn Store>> =
//!     vec![Arc::new(first.beside()), Arc::new(first.beside()), Arc::new(first)];
//! let store = majority::Store::new(nodes, majority::Settings::default())?;
//! let guard = Client::from_dyn_store(store)?.lock("orders/42").acquire().await?;
//! guard.release().await
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Reading order
//! `settings` · `owners` and `holds` (what is remembered of a hold and of its part on each node) · `requests` (one request to each
//! node, polled together) · `yes_or_no` (the answers to it, counted) · `background` (requests that no caller waits for) ·
//! `store` (the parts of a client) · `acquire`, `wait`, `mode`, `upgrade`, `tokens`, `renew`, `release`, `find` and `detach` (the
//! operations) · `losses` (what nodes report) · `errors` ·
//! `inspect` (for operators) · `merge` (the answers of the nodes as one) · `elections`, `observe` and `sightings` (the same for
//! elections).

mod acquire;
mod background;
mod detach;
mod elections;
mod errors;
mod find;
mod guarantees;
mod holds;
mod inspect;
mod losses;
mod merge;
mod mode;
mod observe;
mod owners;
mod release;
mod renew;
mod requests;
mod settings;
mod sightings;
mod store;
mod tokens;
mod upgrade;
mod vote;
mod wait;
mod yes_or_no;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::{Holder, LockStatus};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::rt::Clock;
use tenure_core::store::{
    Answer, BoxFuture, ChangeMode, Detach, Elections, Hold, Listed, LossNotifier, Operate, Release,
    Renewal, Request, ReserveTokens, Sightings,
};

use crate::capabilities::stores_with;

pub use self::guarantees::guarantees;
pub use self::settings::{MAX_NODE_TIMEOUT, MIN_NODE_TIMEOUT, Settings};
pub use self::store::Store;

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn needs_runtime(&self) -> bool {
        self.has_node_that_needs_runtime()
    }

    fn attach(&self, loss_notifier: LossNotifier) {
        self.attach_nodes(&loss_notifier);
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

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        self.nodes.iter().all(|node| node.ends_by_itself(hold))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        Box::pin(async move { inspect::inspect(&self, &name).await })
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
        self.closing.raise();
        for node in &self.nodes {
            node.abandon();
        }
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        tokens::are_reserved(&self).then_some(self as _)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        elections::are_there(&self).then_some(self as _)
    }

    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        detach::is_there(&self).then_some(self as _)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { elections::publish(&self, &hold, holder).await })
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        Box::pin(async move { elections::leader(&self, &name).await })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        observe::watch(self, name)
    }

    fn poll_interval(&self) -> Duration {
        elections::poll_interval(self)
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { elections::ask_to_release(&self, &name, token).await })
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        elections::listen_for_requests(&self, &hold);
    }
}
