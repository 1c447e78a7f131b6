//! A client: one process's link to a store.

use std::borrow::Borrow;
use std::sync::{Arc, Weak};

use crate::defaults::{Defaults, Prefix};
use crate::driver::{Driver, Held};
use crate::election::Election;
use crate::entry::{Entry, LockKey};
use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::guarantees::{Capability, Guarantees};
use crate::guard::Guard;
use crate::holder::{LockStatus, WaitReport};
use crate::lock::Lock;
use crate::lost::Loss;
use crate::name::{Escaped, LockName};
use crate::options::Options;
use crate::owner::Owner;
#[cfg(all(feature = "conformance", unix))]
use crate::receipt::StoreAddress;
use crate::receipt::{Receipt, ReceiptHold};
use crate::store::{Finding, Hold, Store};
use crate::target::{InvalidTarget, Target};

/// One process's link to a store. A clone is cheap; all clones share one link, one renewal task and one
/// queue per name.
///
/// The link ends when the last clone and the last guard are dropped, or with [`close`](Client::close).
#[derive(Clone, Debug)]
pub struct Client {
    driver: Arc<Driver>,
    defaults: Arc<Defaults>,
}

impl Client {
    /// A client of a store that you made: a [`memory::Store`](crate::memory::Store) shared by several clients,
    /// or a store of your own.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) outside a tokio runtime.
    pub fn from_store(store: impl Store) -> Result<Self, Error> {
        Self::from_dyn_store(Arc::new(store))
    }

    /// The same for a store that is in an `Arc` already, or whose type is known at run time only.
    ///
    /// A store of a server belongs to one client: when that client closes, what the store holds ends, and losses are reported
    /// to it alone. Where another client is needed, clone this one, or make another store. Only
    /// [`memory::Store`](crate::memory::Store) may have several clients.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) outside a tokio runtime.
    pub fn from_dyn_store(store: Arc<dyn Store>) -> Result<Self, Error> {
        Ok(Self {
            driver: Driver::new(store)?,
            defaults: Arc::default(),
        })
    }

    /// The options with which each lock of the returned client begins; what is set on a lock counts more. Other clones of
    /// this client keep their defaults, and share the link to the store. An option that is out of its bounds is reported when a
    /// lock is acquired.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// use std::time::Duration;
    ///
    /// let options = tenure::Options::new().max_hold(Duration::from_secs(10)).label("nightly");
    /// let client = tenure::connect("memory:").await?.with_defaults(options);
    /// let guard = client.lock("report").acquire().await?;
    /// assert!(guard.remaining() <= Duration::from_secs(10));
    /// guard.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    #[must_use]
    pub fn with_defaults(mut self, options: Options) -> Self {
        Arc::make_mut(&mut self.defaults).options = options;
        self
    }

    /// A text that the returned client puts before every name, of locks and of what is asked about them. A client without it
    /// sees the whole names. Default: none. It replaces the prefix that this client has.
    ///
    /// The option `prefix` of a URL is about the keys of one store; this is about the names themselves, in every store.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl AsRef<str>) -> Self {
        Arc::make_mut(&mut self.defaults).prefix = Prefix::new(prefix.as_ref());
        self
    }

    /// Says where the store is, in the same words in every process that uses it: [`Lock::both`] takes the locks of two
    /// stores in the order of their addresses. Only the first address counts. `tenure::connect` says the address; a client
    /// of a store that you made has none, and is ordered by the scheme of its store: `both` then refuses two locks of the
    /// same name in two stores of the same kind.
    #[must_use]
    pub fn with_address(self, address: impl Into<String>) -> Self {
        self.driver.set_address(address.into());
        self
    }

    /// Calls `callback` for every lock that this client or a clone of it loses: one place for alarms and logs.
    /// The callback runs once for each lost hold, whether its guard waits for [`lost`](crate::Guard::lost), learns of
    /// the loss at its [`release`](crate::Guard::release), or is dropped by then. It does not run for a hold that was
    /// released in time.
    ///
    /// The callbacks run one after the other on a thread where they may block; deadlines and renewals of other locks
    /// do not wait for them. A callback runs after the loss: work that must stop at once listens to
    /// [`lost`](crate::Guard::lost) or runs in [`run`](Lock::run).
    /// A panic in a callback is logged; the callback stays registered.
    ///
    /// Several callbacks may be registered; all of them run. A callback stays registered until it is
    /// [unregistered](CallbackHandle::unregister), until [`close`](Client::close), or as long as the client lives;
    /// dropping the handle changes nothing. A callback that owns a clone of the client keeps the client alive until then.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// client.on_lost(|loss| eprintln!("{loss}"));
    /// # client.close().await;
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn on_lost(&self, callback: impl Fn(&Loss) + Send + Sync + 'static) -> CallbackHandle {
        CallbackHandle {
            driver: Arc::downgrade(&self.driver),
            id: self.driver.register_loss_callback(callback),
        }
    }

    /// Calls `callback` for every acquisition of this client or a clone of it that waits for long: after 5 s, and then
    /// after intervals that double up to 5 minutes, until the wait ends. The report says who holds the lock and how many
    /// wait before this client, where the store knows it. The same is logged as an event of `tracing` with the level `INFO`.
    ///
    /// For each report the store gets one request that reads. A client without a callback and without a subscriber for
    /// the event sends no such request; what counts is what was registered when the wait began. Of several names
    /// ([`lock_all`](Client::lock_all), [`lock_any`](Client::lock_any)), each name that is waited for has reports of its own.
    ///
    /// The callbacks are called, and stay registered, as those of [`on_lost`](Client::on_lost).
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// client.on_wait(|waiting| eprintln!("{waiting}"));
    /// # client.close().await;
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn on_wait(
        &self,
        callback: impl Fn(&WaitReport) + Send + Sync + 'static,
    ) -> CallbackHandle {
        CallbackHandle {
            driver: Arc::downgrade(&self.driver),
            id: self.driver.register_wait_callback(callback),
        }
    }

    /// The lock of that name. Sends nothing; acquire the lock with the methods of [`Lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        let name = self.defaults.prefix.join(name.as_ref());
        self.lock_of(Target::one(&name))
    }

    /// Several locks at once: all or none, acquired in byte order of their names (which keeps clients
    /// from waiting for each other in a circle), under one guard and one `wait`.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.lock_of(Target::all(self.defaults.prefix.before(names)))
    }

    /// Any one of these locks (buckets): the one that is free first. The search starts at a random place.
    /// [`Guard::name`](crate::Guard::name) is the name that was acquired.
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.lock_of(Target::any(self.defaults.prefix.before(names)))
    }

    /// The election of that name: one leader at a time among all clients that campaign, and everybody can know who. Sends
    /// nothing; see [`Election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let name = self.defaults.prefix.join(name.as_ref());
        let lock = self.lock_of(Target::one(&name));
        Election::new(self.driver.clone(), LockName::new(&name), lock)
    }

    pub(crate) fn check_options(&self, options: &Options) -> Result<(), Error> {
        self.driver.check_support(options)
    }

    fn lock_of(&self, target: Result<Target, InvalidTarget>) -> Lock {
        Lock::new(self.driver.clone(), &self.defaults, target)
    }

    /// Whether this client or a clone of it holds `name`, in any mode and for any owner. No request is sent; so the answer
    /// is as exact as [`Guard::is_held`](crate::Guard::is_held), and says nothing about other clients, for which there is
    /// [`inspect`](Client::inspect). `false` for a text that cannot be a name.
    ///
    /// Looks through the holds of the client.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let guard = client.lock("orders/42").acquire().await?;
    /// assert!(client.is_held_here("orders/42"));
    /// guard.release().await?;
    /// assert!(!client.is_held_here("orders/42"));
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn is_held_here(&self, name: impl AsRef<str>) -> bool {
        let name = self.defaults.prefix.name(name);
        name.is_ok_and(|name| self.driver.is_held(&name))
    }

    /// Attaches this client to a hold that was [detached](crate::Guard::detach), by this process or another one: renews it at
    /// once for the [ttl](Receipt::ttl) of the receipt, and from then on as every hold. The deadline of the guard counts from
    /// this request, and never from a clock of another machine.
    ///
    /// Takes no lock: if the hold is over, there is no guard. A hold never ends earlier by this, so a ttl that is shorter than
    /// what is left of the lease is the ttl of this guard alone.
    ///
    /// Several clients may be attached at the same time. They are one holder with one token: the first that releases ends the
    /// hold for all, and the others lose it at their next renewal, which comes every third of their ttl. A client that has lost
    /// the hold, by its own deadline or because it was [closed](Client::close), does not touch it any more, for the others may
    /// still have it. A guard that is dropped releases; [`detach`](crate::Guard::detach) leaves the hold as it is.
    ///
    /// The prefix of the client does not count; the receipt has the whole names.
    ///
    /// # Cancel safety
    /// Cancel safe: the hold stays what it is, or is renewed once.
    ///
    /// # Errors
    /// `Lost`: the hold has ended; of several names, one of them. `Invalid`: the receipt is one of another store, its ttl is out
    /// of the bounds, or this client is attached already. `Unsupported`: the store has no detached holds. `Indeterminate`,
    /// `Unreachable`, `Denied` from the store: the hold is as it was, or was renewed once.
    pub async fn attach(&self, receipt: impl Borrow<Receipt>) -> Result<Guard, Error> {
        let receipt = receipt.borrow();
        let explain = |err: Error| self.driver.explain(err, receipt.name(), Step::Attach);
        let here = self.driver.store_address();
        if *receipt.address() != here {
            let (there, here) = (Escaped(receipt.store()), Escaped(here.as_str()));
            let message = format!(
                "the receipt is one of another store, \"{there}\", and this client is one of \"{here}\""
            );
            return Err(explain(Error::new(ErrorKind::Invalid, message)));
        }
        let options = Options {
            mode: receipt.mode(),
            ttl: receipt.ttl(),
            value: None,
            ..self.defaults.options.clone()
        };
        options.validate().map_err(explain)?;
        let mut attached = AttachedSoFar::default();
        for ReceiptHold { name, token, owner } in receipt.holds() {
            let hold = Hold {
                mode: receipt.mode(),
                token: token.get(),
                ttl: receipt.ttl(),
                ..Hold::of(name.clone(), *owner)
            };
            attached.0.push(self.driver.attach(hold, &options).await?);
        }
        let entries = std::mem::take(&mut attached.0);
        Ok(Guard::of(entries.into_iter().map(Entry::only).collect()))
    }

    /// Where the store is, without user and password: what [`Receipt::store`] says in the receipts of this client. See
    /// [`with_address`](Client::with_address).
    pub fn address(&self) -> String {
        self.driver.store_address().as_str().to_owned()
    }

    /// Where the store is, as a receipt has it.
    #[cfg(all(feature = "conformance", unix))]
    pub(crate) fn store_address(&self) -> StoreAddress {
        self.driver.store_address()
    }

    /// Refuses, with the names of the stores that have it, what this store does not have: a program can say so before it acquires
    /// a lock for it. A client of `tenure::connect_lazy` knows it once it has connected.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn require(&self, capability: Capability) -> Result<(), Error> {
        self.driver.require(capability)
    }

    /// Who holds `name`, since when, with which fencing token, and who waits.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be; `Unreachable` and `Denied` from the store.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockStatus, Error> {
        let name = self.defaults.prefix.name(name)?;
        let status = self.driver.read(|store| store.inspect(name.clone())).await;
        status.map_err(|err| err.with_name(&name))
    }

    /// All held names that start with `prefix`, sorted. A prefix of the client stands before it.
    ///
    /// # Errors
    /// `Unreachable` and `Denied` from the store.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<LockStatus>, Error> {
        let prefix = self.defaults.prefix.join(&prefix.into()).into_owned();
        self.driver.read(|store| store.list_held(prefix)).await
    }

    /// Ends the hold of `name` that has this token, and no other. `false`: there is no such hold (any more).
    ///
    /// [`inspect`](Client::inspect) says the tokens: `HoldInfo::token` is `None` for a hold of another library that has no
    /// token, and such a hold is ended with the tools of its store.
    ///
    /// For operators who know that the holder is dead. The name is granted to the next waiter at once.
    /// A holder that is alive is told that it lost the lock, and its work may continue until then.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be; `Unreachable` and `Denied` from the store.
    pub async fn break_lock(
        &self,
        name: impl AsRef<str>,
        token: impl Into<u64>,
    ) -> Result<bool, Error> {
        let name = self.defaults.prefix.name(name)?;
        let broken = self
            .driver
            .ask(|store| store.break_lock(name.clone(), token.into()));
        broken.await.map_err(|err| err.with_name(&name))
    }

    /// Whether the store answers this client: one request that reads, for a readiness probe. A client of
    /// `tenure::connect_lazy` that has no connection yet connects for it. The request says nothing about what the user may
    /// write; [`check`](Client::check) does, for people.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// `Unreachable`: the store did not answer within a second, which is what Kubernetes gives a probe by default; or within
    /// the option `timeout` of its URL, if that is shorter. `Denied` from the store, and the errors of `tenure::connect`
    /// when the client connects for the first time.
    pub async fn ping(&self) -> Result<(), Error> {
        self.driver.ping().await
    }

    /// What this store, with these settings, can do and guarantees. Before a client of `tenure::connect_lazy` has
    /// connected, they are not known: the modes are those that any store may have, and no fault has a cell.
    pub fn guarantees(&self) -> &Guarantees {
        self.driver.store.guarantees()
    }

    /// Checks the store and its settings: what weakens the guarantees, and how to correct that.
    ///
    /// # Errors
    /// `Unreachable` and `Denied` from the store.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        self.driver.ask(|store| store.check()).await
    }

    /// Makes what locks need and the store lacks, for example the tables of a database. Returns one line for each
    /// thing made, none when everything exists. On a server nothing else makes the tables; a file of `sqlite:` gets its
    /// tables at the first request.
    ///
    /// # Errors
    /// `Unreachable` and `Denied` from the store.
    pub async fn init(&self) -> Result<Vec<String>, Error> {
        self.driver.ask(|store| store.init()).await
    }

    /// Ends all waits (with [`Closed`](crate::ErrorKind::Closed)) and the link to the store; each later request is refused with
    /// the same error.
    /// Holds that are left are lost, with the reason [`SessionGone`](crate::LostReason::SessionGone);
    /// release them before.
    /// What is being released in the background, for guards that were dropped, and callbacks of
    /// [`on_lost`](Client::on_lost) are waited for, at most a second: so a program may end right after this.
    ///
    /// # Cancel safety
    /// If this future is dropped, the link to the store ends at once. What was still being released in the background is free
    /// when its lease or its session has ended.
    pub async fn close(&self) {
        self.driver.close().await;
    }
}

/// The holds of a receipt that the client is attached to by now. If they are dropped without a guard, they stay as they are.
#[derive(Default)]
struct AttachedSoFar(Vec<Arc<Held>>);

impl Drop for AttachedSoFar {
    fn drop(&mut self) {
        self.0.iter().for_each(Held::leave);
    }
}

/// A callback that was registered with [`Client::on_lost`] or [`Client::on_wait`]. To drop the handle changes nothing.
#[derive(Clone, Debug)]
pub struct CallbackHandle {
    driver: Weak<Driver>,
    id: u64,
}

impl CallbackHandle {
    /// The callback does not run any more, except for what is being reported at this moment.
    pub fn unregister(&self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.unregister_callback(self.id);
        }
    }
}

/// What an owner says about a client. The method stands here because a client returns locks, and a lock has an owner:
/// `owner.rs` knows neither.
impl Owner {
    /// How many times this owner has entered the lock `name` of this client: the number of guards of it that it has
    /// now. 0: it does not hold the lock, or has lost it.
    ///
    /// The count is kept in this process, and no request is sent; so the answer is as exact as
    /// [`Guard::is_held`](crate::Guard::is_held). Clones of a client are the same client.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let (client, owner) = (tenure::connect("memory:").await?, tenure::Owner::new());
    /// let lock = client.lock("orders/42").owner(&owner);
    /// let (outer, inner) = (lock.acquire().await?, lock.acquire().await?);
    /// assert_eq!(owner.holds(&client, "orders/42"), 2);
    /// inner.release().await?;
    /// outer.release().await?;
    /// assert_eq!(owner.holds(&client, "orders/42"), 0);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn holds(&self, client: &Client, name: impl AsRef<str>) -> u32 {
        // A text that cannot be a name is not held.
        let Ok(name) = client.defaults.prefix.name(name) else {
            return 0;
        };
        self.entries(&LockKey {
            client: client.driver.id(),
            name,
        })
    }
}
