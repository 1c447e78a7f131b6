//! `mysql:` and `postgres:`: locks that the server keeps for a session (`GET_LOCK`, advisory locks). Every other
//! program that takes these locks excludes us, and we exclude it.
//!
//! A session carries any number of locks. Operations that are requested while a statement runs are sent together, as the
//! next statement. A waiter waits in the server's own queue, on a session of its own. The server ends a session
//! that is silent for a ttl: that is the lease. A table shows the holders to operators, and decides nothing.
//! The published format is in `docs/stores/mysql.md` and `docs/stores/postgres.md`.
//!
//! # Reading order
//! `names`, `key` and `mode` (from a name to its key, and how a key is held) · `dialect` with `mysql` and `postgres` (the SQL of each server) ·
//! `session`, `acquisitions`, `operations`, `batch` and `statements` (one session and its requests) · `connection` and
//! `pool` (which session, and when another is opened) · `control` and `requests` (everything but locks) · `store` (the
//! parts of a client) · `acquire`, `wait`, `upgrade`, `tokens`, `renew`, `release` with `attempt` and `keep` (the operations) · `holder_table` and
//! `inspect` (what operators see) · `elections` and `listener` (the value of a leader, and what observers are told) · `errors` (what errors of the server mean).

mod acquire;
mod acquisitions;
mod attempt;
mod batch;
mod builder;
mod connection;
mod contended;
mod context;
mod control;
mod dialect;
mod elections;
mod errors;
mod guarantees;
mod holder_row;
mod holder_table;
mod inspect;
mod keep;
mod key;
mod key_cache;
#[cfg(feature = "postgres")]
mod listener;
mod mode;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
mod operations;
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_locks;
mod release;
mod renew;
mod requests;
mod server_info;
mod session;
mod settings;
mod statements;
mod store;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod tests;
mod tokens;
mod upgrade;
mod wait;

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::LockStatus;
use tenure_core::name::LockName;
use tenure_core::rt::Clock;
use tenure_core::store::{
    Answer, BoxFuture, ChangeMode, Elections, Hold, Listed, LossNotifier, Operate, Release,
    Renewal, Request, ReserveTokens,
};

use crate::capabilities::stores_with;

pub use self::builder::Settings;
pub use self::guarantees::{Configuration, guarantees};
use self::session::{Session, SessionObserver};
pub use self::store::Store;
pub use crate::database::DatabasePool;

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        let stores = stores_with(capability);
        match capability {
            Capability::Detach => {
                format!("{stores}; without `mode=table` a hold ends with its connection")
            }
            _ => stores,
        }
    }

    fn clock(&self) -> Clock {
        self.context.clock.clone()
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

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        Some(self)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl SessionObserver for Store {
    fn on_session_ended(self: Arc<Self>, session: &Arc<Session>) {
        release::on_session_ended(self, session);
    }
}
