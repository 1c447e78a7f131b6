//! Settings of tables.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};
use tenure_core::url::invalid;

use crate::database::DatabasePool;
use crate::store_url::{self, StoreUrl};

use super::store::Store;

/// Where a table of locks is, and how to use it: what a URL `postgres://` or `mysql://` with `mode=table`, or `sqlite:`, says,
/// with a method for each part.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::tables::Settings::postgres()
///     .host("db.internal")
///     .user("app")
///     .password("p@ss/w:rd")
///     .database("billing")
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "there is no client before `connect`"]
pub struct Settings(StoreUrl);

store_url::url_form!(Settings);

impl Settings {
    const SCHEMES: &[&str] = &["mysql", "postgres", "sqlite"];

    /// A table in PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn postgres() -> Self {
        Self::in_server("postgres")
    }

    /// A table in MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub fn mysql() -> Self {
        Self::in_server("mysql")
    }

    /// A table in the database to which a pool of the program leads: for [`store_with`](Self::store_with).
    pub fn for_pool() -> Self {
        Self(StoreUrl::new("pool"))
    }

    /// A store whose requests borrow connections of that pool. See [`Store::from_pool`], which has the defaults of all
    /// options. Two clients of one table have to be given one address by
    /// [`with_address`](tenure_core::Client::with_address) before [`Lock::both`](tenure_core::Lock::both) can order them.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), tenure::Error> {
    /// let store = tenure::tables::Settings::for_pool()
    ///     .table("ops.locks")
    ///     .store_with(&pool)
    ///     .await?;
    /// let client = tenure::Client::builder(store).build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Store::from_pool`]; `Invalid` for settings that say where the database is, which the pool knows.
    pub async fn store_with(self, pool: impl Into<DatabasePool>) -> Result<Arc<Store>, Error> {
        let options = self.0.options_only().ok_or_else(|| {
            let message = "the pool says where the database is; leave out host, database, user, password and TLS";
            Error::new(ErrorKind::Invalid, message)
        })?;
        let store = Store::of_pool(pool.into(), &options).await;
        store.map_err(|err| err.with_step(Step::Connect))
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    fn in_server(scheme: &str) -> Self {
        let mut url = StoreUrl::new(scheme);
        url.set("mode", "table");
        Self(url)
    }

    /// A table in that file of SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(path: impl AsRef<Path>) -> Self {
        let mut url = StoreUrl::new("sqlite");
        url.path = store_url::file(path);
        Self(url)
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    store_url::database_setters!();
    #[cfg(not(any(feature = "mysql", feature = "postgres")))]
    store_url::timeout_setter!();
    store_url::setters! {
        /// The name of the table. Default: `tenure_locks`.
        table(name: impl Into<String>) => "table", name;
        /// The largest number of connections of this client. Default: 4.
        connections(count: u32) => "connections", count.to_string();
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        match url.option("mode") {
            Some("table") => Ok(Self(url)),
            _ if url.scheme == "sqlite" => Ok(Self(url)),
            _ => invalid(
                "the URL has no mode=table; the settings of locks of sessions are tenure::sessions::Settings",
            ),
        }
    }
}
