//! A name is held on a majority of several independent stores (the Redlock algorithm). Where the stores are Redis
//! servers, the URL is `redlock://HOST,HOST,HOST`.
//!
//! The nodes know nothing of each other, so any of them may fail, and as long as more than half of them
//! answer the lock goes on. `acquire` asks all of them at once and counts; the decisions are those of
//! the modules `ballot` and `quorum` of `logic`. Nodes are backends of any kind, used through the trait only.
//!
//! ```
//! # async fn example() -> Result<(), tenure::Error> {
//! use std::sync::Arc;
//! use tenure::backend::Backend;
//! use tenure::memory;
//! use tenure::majority;
//! use tenure::Client;
//!
//! let first = memory::Backend::with_virtual_clock(); // in real life, stores on three machines
//! let nodes: Vec<Arc<dyn Backend>> =
//!     vec![Arc::new(first.beside()), Arc::new(first.beside()), Arc::new(first)];
//! let store = majority::Backend::new(nodes, majority::Settings::default())?;
//! let guard = Client::from_backend(store)?.lock("orders/42").acquire().await?;
//! guard.release().await
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```

mod acquire;
mod claim;
mod errors;
mod guarantees;
mod inspect;
mod losses;
mod release;
mod renew;
mod requests;
mod settings;
mod store;

use std::sync::Arc;

use tenure_core::backend::{
    Alarm, Answer, Backend as Door, BoxFuture, Finding, Hold, Release, Renewal, Request,
};
use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Spawner};

use self::losses::Ear;
use crate::capabilities::stores_with;

pub use self::guarantees::guarantees;
pub use self::settings::{LEAST_NODE_LIMIT, MOST_NODE_LIMIT, Settings};
pub use self::store::Backend;

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn attach(&self, alarm: Alarm) {
        if let Some(spawner) = Spawner::current() {
            let _ = self.0.spawner.set(spawner);
        }
        let _ = self.0.alarm.set(alarm);
        let ear = |node| {
            let core = Arc::downgrade(&self.0);
            Arc::new(Ear { core, node })
        };
        let ears = self
            .0
            .ears
            .get_or_init(|| (0..self.0.nodes.len()).map(ear).collect());
        for (node, ear) in self.0.nodes.iter().zip(ears) {
            node.attach(Alarm::new(Arc::<Ear>::downgrade(ear)));
        }
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(acquire::acquire(self.0.clone(), request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(renew::renew(self.0.clone(), holds))
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(release::release(self.0.clone(), hold))
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        self.0.nodes.iter().all(|node| node.ends_by_itself(hold))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        Box::pin(inspect::inspect(self.0.clone(), name))
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        Box::pin(inspect::list(self.0.clone(), prefix))
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(inspect::break_lock(self.0.clone(), name, token))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(inspect::check(self.0.clone()))
    }

    fn close(&self) -> BoxFuture<()> {
        let core = self.0.clone();
        Box::pin(async move {
            core.settle().await;
            let mut closing = requests::Crowd::new(core.nodes.iter().map(|node| node.close()));
            while closing.next().await.is_some() {}
        })
    }
}
