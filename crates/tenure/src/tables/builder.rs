//! Settings of tables.

#[cfg(feature = "sqlite")]
use std::path::Path;

use tenure_core::error::Error;
use tenure_core::url::invalid;

use crate::store_url::{self, StoreUrl};

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
