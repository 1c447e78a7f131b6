//! A pool of the program that uses this library.

use std::fmt;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::time::Duration;

#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlPool, MySqlSslMode};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgPool, PgSslMode};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqlitePool;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::url::Host;

use super::borrowed::Borrowed;
use super::connection::{Connection, Driver};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::server::{Kind, Server, Tls};

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

    /// Whether all connections that the pool may have are in use.
    pub(crate) fn is_used_up(&self) -> bool {
        let (open, idle) = with!(self, pool => (pool.size(), pool.num_idle()));
        open >= self.max_connections() && idle == 0
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

    /// Lets a pool of SQLite that has not connected yet make its file, if that is its setting. An error is one of the first
    /// request, too.
    pub(crate) async fn make_file(&self) {
        #[cfg(feature = "sqlite")]
        match &self.0 {
            PoolKind::Sqlite(pool) if pool.size() == 0 => {
                if let Ok(connection) = self.borrow().await {
                    connection.give_back();
                }
            }
            _ => {}
        }
    }

    /// The server to which the pool leads. `None`: the pool opens a file.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn server(&self, timeout: Duration) -> Option<Server> {
        let parts = match &self.0 {
            #[cfg(feature = "mysql")]
            PoolKind::MySql(pool) => {
                let options = pool.connect_options();
                let host = (options.get_host().to_owned(), options.get_port());
                let socket = options.get_socket().map(|path| path.display().to_string());
                let database = options.get_database().map(str::to_owned);
                let user = options.get_username().to_owned();
                (Kind::MySql, host, socket, user, database)
            }
            #[cfg(feature = "postgres")]
            PoolKind::Postgres(pool) => {
                let options = pool.connect_options();
                let host = (options.get_host().to_owned(), options.get_port());
                let socket = options.get_socket().map(|path| path.display().to_string());
                let user = options.get_username().to_owned();
                // A server takes the name of the user for that of the database.
                let database = options.get_database().unwrap_or(&user).to_owned();
                (Kind::Postgres, host, socket, user, Some(database))
            }
            #[cfg(feature = "sqlite")]
            PoolKind::Sqlite(_) => return None,
        };
        let (kind, (name, port), socket, user, database) = parts;
        Some(Server {
            kind,
            host: Host { name, port },
            socket,
            user: Some(user),
            password: None,
            database,
            tls: match self.may_be_plaintext() {
                true => Tls::Off,
                false => Tls::Prefer,
            },
            timeout,
        })
    }

    /// Whether the pool lets its connections go without TLS.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    fn may_be_plaintext(&self) -> bool {
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
