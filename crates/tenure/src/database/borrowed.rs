//! A connection that is borrowed from a pool of the program that uses this library.
//!
//! A borrowed connection goes back into its pool only after an answer that left nothing behind in its session. Otherwise
//! the connection is closed: a request may be under way, or a transaction open, and the next user of the pool would be in it.

use sqlx::Database;
use sqlx::pool::{Pool, PoolConnection};
#[cfg(feature = "postgres")]
use sqlx::postgres::Postgres;

use tenure_core::store::BoxFuture;
use tenure_core::support;

/// A connection of a pool. It is closed when it is dropped, unless it was [given back](Self::give_back) before.
pub(super) struct Borrowed<DB: Database> {
    /// `None` after [`give_back`](Self::give_back) and [`close`](Self::close).
    connection: Option<PoolConnection<DB>>,
    /// The pool opens another connection in place of one that is closed (`min_connections`), for which it needs a runtime.
    is_replaced: bool,
}

impl<DB: Database> Borrowed<DB> {
    pub(super) async fn from(pool: &Pool<DB>) -> Result<Self, sqlx::Error> {
        // In a box: the future of the client library is deep, and each request of a client has one.
        let acquire: BoxFuture<_> = Box::pin(pool.acquire());
        let connection = Some(acquire.await?);
        let is_replaced = pool.options().get_min_connections() > 0;
        Ok(Self {
            connection,
            is_replaced,
        })
    }

    /// The connection itself.
    pub(super) fn connection(&mut self) -> Result<&mut DB::Connection, sqlx::Error> {
        let connection = self.connection.as_deref_mut();
        connection.ok_or(sqlx::Error::PoolClosed)
    }

    /// Gives a connection back of whose session nothing was changed. The pool tests the connection in a task of the runtime.
    pub(super) fn give_back(mut self) {
        drop(self.connection.take());
    }

    /// Ends the connection in order.
    pub(super) async fn close(mut self) -> Result<(), sqlx::Error> {
        match self.connection.take() {
            Some(connection) => {
                let close: BoxFuture<_> = Box::pin(connection.close());
                close.await
            }
            None => Ok(()),
        }
    }
}

impl<DB: Database> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        match self.is_replaced && support::spawner().is_err() {
            false => drop(connection.detach()),
            // The pool would panic without a runtime. The connection ends with the process, or when the server ends an idle
            // session.
            true => std::mem::forget(connection),
        }
    }
}

#[cfg(feature = "postgres")]
impl Borrowed<Postgres> {
    /// What the server reported when the connection opened.
    pub(super) fn version(&self) -> Option<u32> {
        self.connection.as_deref()?.server_version_num()
    }
}
