//! Settings of etcd.

use tenure_core::error::Error;

use crate::store_url::{self, StoreUrl};

/// Where etcd is, and how to use it: what a URL `etcd://` says, with a method for each part.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::etcd::Settings::new()
///     .host("etcd-1.internal")
///     .host("etcd-2.internal")
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
    const SCHEMES: &[&str] = &["etcd", "etcds"];

    /// No member yet; [`host`](Self::host) adds one.
    pub fn new() -> Self {
        Self(StoreUrl::new("etcd"))
    }

    store_url::host_setters!();
    store_url::login_setters!();
    store_url::certificate_setters!();
    store_url::setters! {
        /// A text before every key.
        key_prefix(text: impl Into<String>) => "prefix", text;
    }

    /// Whether TLS is used. Default: it is not.
    pub fn tls(mut self, is_on: bool) -> Self {
        let scheme = if is_on { "etcds" } else { "etcd" };
        scheme.clone_into(&mut self.0.scheme);
        self
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        Ok(Self(url))
    }
}
