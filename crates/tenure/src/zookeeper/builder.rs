//! Settings of ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::Connector;

use tenure_core::error::{Error, ErrorParts as _, Step};

use crate::store_url::{self, StoreUrl};

use super::settings::Settings as InternalSettings;
use super::store::Store;

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

    /// A store whose sessions are opened with the settings of `zookeeper-client` 0.11 in `connector`: authentication by any
    /// scheme, and SASL. This client sets the timeouts of its sessions itself, because the lease of a lock depends on them.
    /// Hosts, root and options are those of these settings; the nodes can be accessed by everybody unless
    /// `option("acl", "creator")` is set.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let connector = zookeeper_client::Client::connector().with_auth("digest", b"app:secret");
    /// let store = tenure::zookeeper::Settings::new()
    ///     .host("zk-1.internal")
    ///     .option("acl", "creator")
    ///     .store_with(connector)
    ///     .await?;
    /// let client = tenure::Client::builder(store).build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Store::connect`]; `Invalid` for a user, a password or TLS in these settings: TLS of a connector cannot be seen, so
    /// TLS is set up with [`tls`](Self::tls) and [`connect`](crate::connect()).
    pub async fn store_with(self, connector: Connector) -> Result<Arc<Store>, Error> {
        let connect = async {
            let url = self.0.checked()?;
            Store::with(InternalSettings::with_connector(&url, Some(connector))?).await
        };
        connect.await.map_err(|err| err.with_step(Step::Connect))
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        Ok(Self(url))
    }
}
