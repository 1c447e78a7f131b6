//! `zookeeper:`: an ephemeral sequential node for each contender, laid out as Apache Curator does.
//!
//! The directory of a name has a node for each holder and each waiter. The server numbers the nodes: the first one
//! holds, and every other watches the one just ahead. So programs with Curator, go-zk and others of that
//! family take the same lock. The published format is in `docs/stores/zookeeper.md`.
//!
//! Taking a free lock costs two round trips the first time and one from then on, see `cache`.
//!
//! The order of the requests, and what becomes of one that fails, is the engine [`tenure_core::queue`]; here are the requests.
//!
//! # Reading order
//! `names` (paths and node names) · `settings` · `session` (the sessions of a client) · `contact` (until when a session
//! lasts for certain) · `store` (the parts of a client) · `wait` (a request of the engine: read and watch), `acquire`,
//! `enqueue`, `queue`, `semaphore`, `upgrade`, `renew`, `release` (the operations) · `mode` (what the data of a node say about
//! its hold), `node_data` (what other programs have written there), `directory_data` · `requests` (one function for each request) · `cache` (one round trip) · `errors` (what errors mean) ·
//! `diagnose`, `server_info` and `handshake` (why there is no session) · `write` (writes that need the hold) · `front` (who
//! leads), `observers` (what observers hear), `elections`, `asking` (requests to let go) · `inspect` (for operators).

mod acquire;
mod asking;
mod builder;
mod cache;
mod contact;
mod diagnose;
mod directory_data;
mod elections;
mod enqueue;
mod errors;
mod front;
mod guarantees;
#[cfg(feature = "zookeeper-tls")]
mod handshake;
mod inspect;
mod mode;
mod names;
mod node_data;
mod observers;
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

use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::LockStatus;
use tenure_core::name::LockName;
use tenure_core::store::{
    Answer, BoxFuture, ChangeMode, Elections, GuardedWrite, Hold, Listed, LossNotifier, Operate,
    Release, Renewal, Request,
};

use crate::capabilities::stores_with;

pub use self::builder::Settings;
pub use self::guarantees::{Configuration, Dialect, guarantees};
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
use self::store::ContenderNode;
pub use self::store::Store;
pub use tenure_core::guard_traits::{KeyValueGuard, ZooKeeperGuard};

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        let stores = stores_with(capability);
        // Only the dialect is the reason.
        match capability {
            Capability::Elections if !self.settings.dialect.has_elections() => {
                format!("this store with another `dialect`, {stores}")
            }
            Capability::Detach => format!("{stores}; a hold of zookeeper ends with its session"),
            _ => stores,
        }
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

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let has_ended = |held: &ContenderNode| held.session.ended.is_raised();
        self.holds.read(hold.owner, has_ended).unwrap_or(true)
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

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        self.settings.dialect.has_elections().then_some(self)
    }

    fn as_guarded_write(self: Arc<Self>) -> Option<Arc<dyn GuardedWrite>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}
