//! Settings of ZooKeeper.

use std::time::Duration;

use tenure_core::error::Error;

use crate::store_url::{self, StoreUrl};

/// Where ZooKeeper is, and how to use it: what a URL `zookeeper://` says, with a method for each part.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::zookeeper::Settings::new()
///     .host("zk-1.internal")
///     .host("zk-2.internal")
///     .host("zk-3.internal")
///     .root("/locks/billing")
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
    const SCHEMES: &[&str] = &["zookeeper"];

    /// No server yet; [`host`](Self::host) adds one.
    pub fn new() -> Self {
        Self(StoreUrl::new("zookeeper"))
    }

    /// The node under which the locks are; it is made if it is missing.
    pub fn root(mut self, path: impl AsRef<str>) -> Self {
        path.as_ref()
            .trim_start_matches('/')
            .clone_into(&mut self.0.path);
        self
    }

    store_url::host_setters!();
    store_url::login_setters!();
    store_url::tls_setters!();
    store_url::setters! {
        /// For this ttl the client opens a session when it connects. Default: 30 s.
        session_ttl(ttl: Duration) => "ttl", store_url::duration(ttl);
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        Ok(Self(url))
    }
}
