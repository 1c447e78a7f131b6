//! A client of a store that the caller made, with defaults for its locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::error::Error;
use crate::options::Options;
use crate::store::{IntoStore, Store};

impl Client {
    /// A client of a store that you made, with defaults for its locks.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// use std::time::Duration;
    /// use tenure::{Client, memory};
    ///
    /// let client = Client::builder(memory::Store::new())
    ///     .prefix("billing/")
    ///     .ttl(Duration::from_secs(10))
    ///     .wait(Duration::from_secs(5))
    ///     .build()?;
    /// let guard = client.lock("invoice/7").acquire().await?;
    /// assert_eq!(guard.name().as_str(), "billing/invoice/7");
    /// guard.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// A store in an `Arc` fits too: `Client::builder(tables::Store::from_pool(&pool).await?)`. A store of a server belongs to
    /// one client, see [`Client::from_dyn_store`].
    pub fn builder(store: impl IntoStore) -> ClientBuilder {
        ClientBuilder::new(store.into_store())
    }
}

/// The defaults of a client to be. Made by [`Client::builder`].
#[must_use = "there is no client before `build`"]
pub struct ClientBuilder {
    store: Arc<dyn Store>,
    options: Options,
    prefix: String,
    address: Option<String>,
}

impl ClientBuilder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            options: Options::default(),
            prefix: String::new(),
            address: None,
        }
    }

    /// Default of [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|options| options.ttl(ttl))
    }

    /// Default of [`Lock::wait`](crate::Lock::wait).
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|options| options.wait(wait))
    }

    /// Default of [`Lock::drift`](crate::Lock::drift).
    pub fn drift(self, drift: Duration) -> Self {
        self.set(|options| options.drift(drift))
    }

    /// Default of [`Lock::label`](crate::Lock::label).
    pub fn label(self, label: impl Into<String>) -> Self {
        self.set(|options| options.label(label))
    }

    /// Defaults of all options; replaces those that were set before.
    pub fn options(self, options: Options) -> Self {
        self.set(|_| options)
    }

    /// See [`Client::with_prefix`].
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        Self { prefix, ..self }
    }

    /// See [`Client::with_address`].
    pub fn address(self, address: impl Into<String>) -> Self {
        let address = Some(address.into());
        Self { address, ..self }
    }

    fn set(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.options = change(self.options);
        self
    }

    /// The client. Sends nothing.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) and [`Unsupported`](crate::ErrorKind::Unsupported) for a default with which no
    /// lock of this store can be acquired; [`Closed`](crate::ErrorKind::Closed) outside a tokio runtime.
    pub fn build(self) -> Result<Client, Error> {
        let mut client = Client::from_dyn_store(self.store)?;
        client.check_options(&self.options)?;
        if let Some(address) = self.address {
            client = client.with_address(address);
        }
        Ok(client.with_defaults(self.options).with_prefix(self.prefix))
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("options", &self.options)
            .field("prefix", &self.prefix)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::memory;
    use crate::owner::Owner;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_lock_begins_with_the_defaults_and_its_own_options_count_more() {
        let store = memory::Store::new();
        let client = Client::builder(store.clone())
            .options(Options::new().max_hold(10 * SECOND))
            .wait(Duration::ZERO)
            .label("nightly")
            .build()
            .unwrap();
        let guard = client.lock("a").acquire().await.unwrap();
        assert!(guard.remaining() <= 10 * SECOND);
        let hold = client.inspect("a").await.unwrap().holds.remove(0);
        assert_eq!(hold.holder.label, "nightly");
        let busy = client.lock("a").acquire().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::WaitElapsed);
        let longer = client.lock("b").max_hold(20 * SECOND);
        let longer = longer.acquire().await.unwrap();
        assert!(longer.remaining() > 10 * SECOND);
        let plain = client.clone().with_defaults(Options::new());
        let default = plain.lock("c").acquire().await.unwrap();
        assert_eq!(default.remaining(), Duration::MAX);
    }

    #[tokio::test]
    async fn the_prefix_stands_before_every_name_and_a_client_without_it_sees_the_whole_names() {
        let whole = Client::from_store(memory::Store::new()).unwrap();
        let client = whole.clone().with_prefix("billing/");
        let owner = Owner::new();
        let guards = [
            client.lock("1").owner(&owner).acquire().await.unwrap(),
            client.lock_all(["2", "3"]).acquire().await.unwrap(),
            client.lock_any(["4"]).acquire().await.unwrap(),
            client.lock("group").k_of(["5"], 1).acquire().await.unwrap(),
        ];
        let names = guards.iter().flat_map(|guard| guard.names());
        let names: Vec<_> = names.map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names, [1, 2, 3, 4, 5].map(|n| format!("billing/{n}")));
        assert!(client.is_held_here("1") && !client.is_held_here("billing/1"));
        assert_eq!(owner.holds(&client, "1"), 1);
        assert_eq!(owner.holds(&whole, "billing/1"), 1);
        assert_eq!(client.inspect("2").await.unwrap().holds.len(), 1);
        assert_eq!(client.list("").await.unwrap().len(), 5);
        assert_eq!(whole.list("").await.unwrap().len(), 5);
        assert!(whole.lock("1").try_acquire().await.unwrap().is_some());
        let token = guards[0].token();
        assert!(!whole.break_lock("1", token).await.unwrap());
        assert!(client.break_lock("1", token).await.unwrap());
    }

    #[tokio::test]
    async fn a_default_that_no_lock_can_have_is_refused() {
        let builder = Client::builder(memory::Store::new()).ttl(Duration::from_millis(1));
        let err = builder.build().unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
    }
}
