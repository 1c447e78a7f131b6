//! Settings of locks of sessions.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};
use tenure_core::url::invalid;

use crate::database::DatabasePool;
use crate::store_url::{self, StoreUrl};

use super::settings::Settings as InternalSettings;
use super::store::Store;

/// Where a database server is, and how to use the locks of its sessions: what a URL `postgres://` or `mysql://` says, with a
/// method for each part.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::sessions::Settings::postgres()
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
    const SCHEMES: &[&str] = &["mysql", "postgres"];

    /// A PostgreSQL server.
    #[cfg(feature = "postgres")]
    pub fn postgres() -> Self {
        Self(StoreUrl::new("postgres"))
    }

    /// A MySQL or MariaDB server.
    #[cfg(feature = "mysql")]
    pub fn mysql() -> Self {
        Self(StoreUrl::new("mysql"))
    }

    /// The sessions of a pool of the program: for [`store_with`](Self::store_with).
    pub fn for_pool() -> Self {
        Self(StoreUrl::new("pool"))
    }

    /// A store that takes its connections out of that pool. See [`Store::from_pool`], which has the defaults of all options.
    ///
    /// # Errors
    /// As [`Store::from_pool`]; `Invalid` for settings that say where the server is, which the pool knows.
    pub async fn store_with(self, pool: impl Into<DatabasePool>) -> Result<Arc<Store>, Error> {
        let options = self.0.options_only().ok_or_else(|| {
            let message = "the pool says where the server is; leave out host, database, user, password and TLS";
            Error::new(ErrorKind::Invalid, message)
        })?;
        let pool = pool.into();
        let connect = async { Store::with(InternalSettings::of_pool(pool, &options)?).await };
        connect.await.map_err(|err| err.with_step(Step::Connect))
    }

    store_url::database_setters!();
    store_url::restart_guard_setters!();
    store_url::setters! {
        /// A text before every name.
        key_prefix(text: impl Into<String>) => "prefix", text;
        /// The largest number of connections of a client for locks. Default: 16.
        connections(count: u32) => "connections", count.to_string();
        /// The longest time until the end of a session is noticed. Default: 1 s.
        validate(length: Duration) => "validate", store_url::duration(length);
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        match url.option("mode") {
            Some("table") => invalid(
                "the URL has mode=table; the settings of a table are tenure::tables::Settings",
            ),
            _ => Ok(Self(url)),
        }
    }
}
