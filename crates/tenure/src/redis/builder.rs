//! Settings of Redis, of its clusters and sentinels, and of Redlock.

use std::path::Path;

use tenure_core::error::Error;

use crate::store_url::{self, StoreUrl};

/// Where Redis or Valkey is, and how to use it: what a URL `redis://` says, with a method for each part.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::redis::Settings::new()
///     .host("redis.internal")
///     .user("app")
///     .password("p@ss/w:rd")
///     .database(2)
///     .tls(true)
///     .ca("/etc/ssl/our-authority.pem")
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "there is no client before `connect`"]
pub struct Settings(StoreUrl);

store_url::url_form!(Settings);

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    const SCHEMES: &[&str] = &[
        "redis",
        "rediss",
        "redis+unix",
        "redis+sentinel",
        "redis+cluster",
        #[cfg(feature = "redlock")]
        "redlock",
    ];

    /// One server; [`host`](Self::host) says where.
    pub fn new() -> Self {
        Self(StoreUrl::new("redis"))
    }

    /// A server by a socket of this machine.
    pub fn socket(path: impl AsRef<Path>) -> Self {
        let mut url = StoreUrl::new("redis+unix");
        store_url::file(path)
            .trim_start_matches('/')
            .clone_into(&mut url.path);
        Self(url)
    }

    /// The primary of `service`, which sentinels name; each [`host`](Self::host) is a sentinel.
    pub fn sentinel(service: impl Into<String>) -> Self {
        let mut url = StoreUrl::new("redis+sentinel");
        url.path = service.into();
        Self(url)
    }

    /// A Redis Cluster; each [`host`](Self::host) is a node of it.
    pub fn cluster() -> Self {
        Self(StoreUrl::new("redis+cluster"))
    }

    /// A majority of independent servers (Redlock); each [`host`](Self::host) is one of them.
    #[cfg(feature = "redlock")]
    pub fn independent() -> Self {
        Self(StoreUrl::new("redlock"))
    }

    /// The number of the database. Default: 0. A cluster has no other.
    pub fn database(mut self, number: u32) -> Self {
        match self.0.scheme.as_str() {
            "redis+unix" => self.0.set("db", number.to_string()),
            "redis+sentinel" => {
                let service = self.0.path.split('/').next().unwrap_or_default();
                self.0.path = format!("{service}/{number}");
            }
            _ => self.0.path = number.to_string(),
        }
        self
    }

    store_url::host_setters!();
    store_url::login_setters!();
    store_url::tls_setters!();
    store_url::restart_guard_setters!();
    store_url::setters! {
        /// A text before every key.
        key_prefix(text: impl Into<String>) => "prefix", text;
        /// A grant counts only after that many replicas have it. Default: 0.
        wait_replicas(count: u32) => "wait_replicas", count.to_string();
        /// The user for the sentinels themselves.
        sentinel_user(user: impl Into<String>) => "sentinel_user", user;
        /// The password for the sentinels themselves.
        sentinel_password(password: impl Into<String>) => "sentinel_password", password;
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        Ok(Self(url))
    }
}
