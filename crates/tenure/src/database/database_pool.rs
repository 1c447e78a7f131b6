//! A pool of the program that uses this library, and the connections that are borrowed from it.
//!
//! A borrowed connection goes back into its pool only after an answer that left nothing behind in its session. Otherwise
//! the connection is closed: a request may be under way, or a transaction open, and the next user of the pool would be in it.

use std::fmt;

use sqlx::Database;
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlPool, MySqlSslMode};
use sqlx::pool::{Pool, PoolConnection};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgPool, PgSslMode, Postgres};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqlitePool;

use tenure_core::store::BoxFuture;

use super::connection::{Connection, Driver};

/// A pool of connections that the program has: a `PgPool`, a `MySqlPool` or a `SqlitePool` of sqlx 0.9. A clone is the same
/// pool.
#[derive(Clone)]
pub struct DatabasePool(pub(crate) PoolKind);

#[derive(Clone)]
pub(crate) enum PoolKind {
    #[cfg(feature = "mysql")]
    MySql(MySqlPool),
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    #[cfg(feature = "sqlite")]
    Sqlite(SqlitePool),
}

/// The same with any kind of pool.
macro_rules! with {
    ($pool:expr, $it:ident => $work:expr) => {
        match &$pool.0 {
            #[cfg(feature = "mysql")]
            PoolKind::MySql($it) => $work,
            #[cfg(feature = "postgres")]
            PoolKind::Postgres($it) => $work,
            #[cfg(feature = "sqlite")]
            PoolKind::Sqlite($it) => $work,
        }
    };
}

/// How a pool of sqlx becomes a pool of any kind.
macro_rules! from {
    ($feature:literal, $pool:ident, $kind:ident) => {
        #[cfg(feature = $feature)]
        impl From<$pool> for DatabasePool {
            fn from(pool: $pool) -> Self {
                Self(PoolKind::$kind(pool))
            }
        }

        #[cfg(feature = $feature)]
        impl From<&$pool> for DatabasePool {
            fn from(pool: &$pool) -> Self {
                Self(PoolKind::$kind(pool.clone()))
            }
        }
    };
}

from!("mysql", MySqlPool, MySql);
from!("postgres", PgPool, Postgres);
from!("sqlite", SqlitePool, Sqlite);

/// The options of connections may have a password in them, so only the number of connections is shown.
impl fmt::Debug for DatabasePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = self.max_connections();
        f.debug_struct("DatabasePool")
            .field("max_connections", &connections)
            .finish_non_exhaustive()
    }
}

impl DatabasePool {
    /// How many connections the pool has at most.
    pub(crate) fn max_connections(&self) -> u32 {
        with!(self, pool => pool.options().get_max_connections())
    }

    /// A connection of the pool. Waits until one is free, for as long as the pool lets its users wait.
    pub(crate) async fn borrow(&self) -> Result<Connection, sqlx::Error> {
        let driver = match &self.0 {
            #[cfg(feature = "mysql")]
            PoolKind::MySql(pool) => Driver::BorrowedMySql(Borrowed::from(pool).await?),
            #[cfg(feature = "postgres")]
            PoolKind::Postgres(pool) => Driver::BorrowedPostgres(Borrowed::from(pool).await?),
            #[cfg(feature = "sqlite")]
            PoolKind::Sqlite(pool) => Driver::BorrowedSqlite(Borrowed::from(pool).await?),
        };
        Ok(Connection::of(driver))
    }

    /// Whether the pool lets its connections go without TLS.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn may_be_plaintext(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "mysql")]
            PoolKind::MySql(pool) => matches!(
                pool.connect_options().get_ssl_mode(),
                MySqlSslMode::Disabled | MySqlSslMode::Preferred
            ),
            #[cfg(feature = "postgres")]
            PoolKind::Postgres(pool) => matches!(
                pool.connect_options().get_ssl_mode(),
                PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer
            ),
            #[cfg(feature = "sqlite")]
            PoolKind::Sqlite(_) => false,
        }
    }
}

/// A connection of a pool. It is closed when it is dropped, unless it was [given back](Self::give_back) before.
pub(super) struct Borrowed<DB: Database> {
    /// `None` after [`give_back`](Self::give_back) and [`close`](Self::close).
    connection: Option<PoolConnection<DB>>,
}

impl<DB: Database> Borrowed<DB> {
    async fn from(pool: &Pool<DB>) -> Result<Self, sqlx::Error> {
        // In a box: the future of the client library is deep, and each request of a client has one.
        let acquire: BoxFuture<_> = Box::pin(pool.acquire());
        let connection = Some(acquire.await?);
        Ok(Self { connection })
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
        match tokio::runtime::Handle::try_current() {
            Ok(_) => drop(connection.detach()),
            // A pool may open a connection in place of this one, for which it needs a runtime: without one it panics.
            // The runtime of the pool has ended, and the connection ends with the process.
            Err(_) => std::mem::forget(connection),
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
