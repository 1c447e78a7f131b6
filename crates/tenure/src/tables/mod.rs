//! A lease table in a database, `mysql://..?mode=table`, `postgres://..?mode=table` and `sqlite:FILE`: one row for
//! each name, which says who holds the name and until when by the database's clock.
//!
//! One statement acquires a free lock and one releases it, on any of a few connections: a hold belongs to no
//! connection, so locks work through proxies and clusters that keep no session. A waiter has a row in a second table, in
//! the order of arrival; PostgreSQL notifies the first waiter of a release, elsewhere waiters read the queue.
//! The published format is in `docs/stores/table.md`.
//!
//! # Reading order
//! `names` and `sql/schema/` (the format) · `sql` (statements on our own tables, `sql/shedlock` on Java's table) ·
//! `store` (the parts of a client) · `acquire`, `renew`, `release`, `detach` (the operations; `crate::waiting` waits) ·
//! `requests` (one function for each request) · `mode_requests`, `step` and `sql/modes` (shared holds, by the reference lock
//! table) · `holder_text`, `sql/elections`, `election_requests` and `elections` (the value of a leader) · `subscribe` and `listener` (notifications) · `pool`, `pool_check` and `connection` · `database_file` (the
//! file of SQLite) · `server_info` (what a server says about itself) · `errors` (what errors of the database mean) ·
//! `inspect` and `init` (for operators).

mod acquire;
mod builder;
mod cells;
mod connection;
#[cfg(feature = "sqlite")]
mod database_file;
mod detach;
mod election_requests;
mod elections;
mod errors;
#[cfg(feature = "sqlite")]
mod file_access;
mod file_id;
mod guarantees;
mod holder_text;
mod init;
mod inspect;
#[cfg(feature = "postgres")]
mod listener;
mod mode_requests;
mod names;
mod pool;
mod pool_check;
mod release;
mod renew;
mod requests;
mod server_info;
mod settings;
mod sql;
mod step;
mod store;
mod subscribe;
#[cfg(all(test, feature = "postgres"))]
mod tests;
mod tokens;

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::LockStatus;
use tenure_core::name::LockName;
use tenure_core::store::{
    AcquireAll, Answer, BoxFuture, ChangeMode, Detach, Elections, Hold, Listed, LossNotifier,
    Operate, Release, Renewal, Request, ReserveTokens,
};

use crate::capabilities::stores_with;

pub use self::builder::Settings;
pub use self::guarantees::{Configuration, Database, Durability, guarantees};
use self::names::Format;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
pub use self::store::Store;
pub use crate::database::DatabasePool;

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        let stores = stores_with(capability);
        match (capability, self.settings.format) {
            (Capability::Detach, Format::ShedLock) => format!(
                "{stores}; ShedLock's table has no room for the `min_hold` that another process needs to end a hold"
            ),
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
        Box::pin(async move { renew::renew(&self, holds).await })
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

    /// ShedLock's table has no tokens.
    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        match self.settings.format {
            Format::Tenure => Some(self),
            Format::ShedLock => None,
        }
    }

    /// ShedLock's table has no room for a value.
    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        match self.settings.format {
            Format::Tenure => Some(self),
            Format::ShedLock => None,
        }
    }

    /// ShedLock's table has no column for `min_hold`, which the process that ends a hold has to know.
    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        match self.settings.format {
            Format::Tenure => Some(self),
            Format::ShedLock => None,
        }
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}
