//! Settings of etcd.

use std::sync::Arc;

use tonic::transport::Channel;
use tonic::{Request, Status};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};

use crate::store_url::{self, StoreUrl};

use super::callers_channel::CallersChannel;
use super::settings::Settings as InternalSettings;
use super::store::Store;

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

    /// A store over a channel of `tonic` 0.14: see [`Store::from_channel`], which has the defaults of all options.
    ///
    /// # Errors
    /// As [`Store::from_channel`]; `Invalid` for settings that say where etcd is, which the channel knows.
    pub async fn store_with(self, channel: Channel) -> Result<Arc<Store>, Error> {
        self.connect_over(CallersChannel::new(channel)).await
    }

    /// The same with an interceptor, which may add to each request, a token for example, or refuse it.
    ///
    /// # Errors
    /// As [`store_with`](Self::store_with).
    pub async fn store_with_interceptor<F>(
        self,
        channel: Channel,
        interceptor: F,
    ) -> Result<Arc<Store>, Error>
    where
        F: Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync + 'static,
    {
        let channel = CallersChannel::with_interceptor(channel, interceptor);
        self.connect_over(channel).await
    }

    async fn connect_over(self, channel: CallersChannel) -> Result<Arc<Store>, Error> {
        let options = self.0.options_only().ok_or_else(|| {
            let message = "the channel says where etcd is; leave out hosts, user and password";
            Error::new(ErrorKind::Invalid, message)
        })?;
        let connect = async { Store::with(InternalSettings::of_channel(channel, &options)?).await };
        connect.await.map_err(|err| err.with_step(Step::Connect))
    }

    fn accept(url: StoreUrl) -> Result<Self, Error> {
        Ok(Self(url))
    }
}
