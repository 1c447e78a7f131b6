//! The same locks without async.
//!
//! Each client has a runtime of its own: one thread that renews leases and reports when a lock is lost.
//! Everything else happens in the calling thread. Re-entrance depends on the thread, as in
//! `java.util.concurrent`: a thread that holds a lock enters it again at once.
//!
//! A thread of an async runtime, also one of `tokio::task::spawn_blocking`, is refused with
//! [`Closed`](ErrorKind::Closed): use the async client there, or a thread of `std::thread`.
//!
//! ```
//! # fn main() -> Result<(), tenure::Error> {
//! let client = tenure::blocking::connect("memory:")?;
//! let guard = client.lock("orders/42").acquire()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//! # Ok(()) }
//! ```

pub mod buckets;
mod detached;
pub mod election;
mod runtime;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};
use tenure_core::fence::{EtcdLock, FencingToken, OwnerId, ZooKeeperLock};
use tenure_core::guarantees::Guarantees;
use tenure_core::guard_traits::{self, EtcdGuard, ZooKeeperGuard};
use tenure_core::holder::{LockStatus, WaitReport};
use tenure_core::lost::{Loss, LostReason};
use tenure_core::name::LockName;
use tenure_core::options::{Fairness, Mode, Options, Renew};
use tenure_core::rt::Flag;
use tenure_core::store::{Finding, Store};
use tenure_core::{CallbackHandle, ClientBuilder, GuardUntilOutcome, HoldState, Owner};

use self::runtime::OwnRuntime;

thread_local! {
    /// The owner that the calling thread is for re-entrant locks.
    static THREAD: Owner = Owner::new();
}

/// Connects to the store that `url` names; see [`tenure::connect`](crate::connect()).
///
/// # Errors
/// The errors of [`tenure::connect`](crate::connect()), and [`Closed`](ErrorKind::Closed) when called
/// from async code, which would block its runtime.
pub fn connect(url: &str) -> Result<Client, Error> {
    Client::open(|| crate::connect(url))
}

/// As [`connect`], without a connection until the first request; see [`tenure::connect_lazy`](crate::connect_lazy()).
///
/// # Errors
/// The errors of [`tenure::connect_lazy`](crate::connect_lazy()), and [`Closed`](ErrorKind::Closed) when called
/// from async code.
pub fn connect_lazy(url: &str) -> Result<Client, Error> {
    Client::open(|| async { crate::connect_lazy(url) })
}

/// Connects to the store of these settings: `tenure::redis::Settings`, for example.
///
/// # Errors
/// The errors of [`connect`].
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
pub fn connect_with(settings: &impl crate::StoreSettings) -> Result<Client, Error> {
    connect(&settings.url_with_secrets()?)
}

/// A client of a store, for threads. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Client {
    inner: crate::Client,
    runtime: Arc<OwnRuntime>,
}

impl Client {
    /// A client of a store that you made; see [`Client::from_store`](crate::Client::from_store).
    ///
    /// # Errors
    /// As [`connect`].
    pub fn from_store(store: impl Store) -> Result<Self, Error> {
        Self::open(|| async { crate::Client::from_store(store) })
    }

    /// See [`Client::from_dyn_store`](crate::Client::from_dyn_store).
    ///
    /// # Errors
    /// As [`connect`].
    pub fn from_dyn_store(store: Arc<dyn Store>) -> Result<Self, Error> {
        Self::open(|| async { crate::Client::from_dyn_store(store) })
    }

    /// The client of a [builder](crate::Client::builder): a store that you made, with defaults for its locks.
    ///
    /// # Errors
    /// The errors of [`ClientBuilder::build`], and those of [`connect`].
    pub fn from_builder(builder: ClientBuilder) -> Result<Self, Error> {
        Self::open(|| async { builder.build() })
    }

    fn open<F: Future<Output = Result<crate::Client, Error>>>(
        connect: impl FnOnce() -> F,
    ) -> Result<Self, Error> {
        let runtime = OwnRuntime::new().map_err(|err| {
            Error::new(ErrorKind::Store, "cannot start the client's thread")
                .with_step(Step::Connect)
                .with_source(err)
        })?;
        let runtime = Arc::new(runtime);
        let inner = block_on(&runtime, connect())??;
        Ok(Self { inner, runtime })
    }

    /// See [`Client::with_address`](crate::Client::with_address).
    #[must_use]
    pub fn with_address(mut self, address: impl Into<String>) -> Self {
        self.inner = self.inner.with_address(address);
        self
    }

    /// See [`Client::with_defaults`](crate::Client::with_defaults).
    #[must_use]
    pub fn with_defaults(mut self, options: Options) -> Self {
        self.inner = self.inner.with_defaults(options);
        self
    }

    /// See [`Client::with_prefix`](crate::Client::with_prefix).
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.inner = self.inner.with_prefix(prefix);
        self
    }

    fn wrap(&self, inner: crate::Lock) -> Lock {
        Lock {
            inner,
            runtime: self.runtime.clone(),
            other_runtime: None,
            by_thread: true,
            interrupt: None,
        }
    }

    /// See [`Client::lock`](crate::Client::lock).
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.wrap(self.inner.lock(name))
    }

    /// See [`Client::lock_all`](crate::Client::lock_all).
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.wrap(self.inner.lock_all(names))
    }

    /// See [`Client::lock_any`](crate::Client::lock_any).
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.wrap(self.inner.lock_any(names))
    }

    /// See [`Client::is_held_here`](crate::Client::is_held_here).
    pub fn is_held_here(&self, name: impl AsRef<str>) -> bool {
        self.inner.is_held_here(name)
    }

    /// See [`Client::inspect`](crate::Client::inspect).
    ///
    /// # Errors
    /// As there.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockStatus, Error> {
        block_on(&self.runtime, self.inner.inspect(name))?
    }

    /// See [`Client::list`](crate::Client::list).
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: impl Into<String>) -> Result<Vec<LockStatus>, Error> {
        block_on(&self.runtime, self.inner.list(prefix))?
    }

    /// See [`Client::break_lock`](crate::Client::break_lock).
    ///
    /// # Errors
    /// As there.
    pub fn break_lock(&self, name: impl AsRef<str>, token: impl Into<u64>) -> Result<bool, Error> {
        block_on(&self.runtime, self.inner.break_lock(name, token))?
    }

    /// How many times the calling thread has entered the lock `name`; see [`Owner::holds`].
    pub fn holds(&self, name: impl AsRef<str>) -> u32 {
        THREAD.with(|owner| owner.holds(&self.inner, name))
    }

    /// How many times `owner` has entered the lock `name`, for locks with [an owner of their own](Lock::owner); see
    /// [`Owner::holds`].
    pub fn holds_by(&self, owner: &Owner, name: impl AsRef<str>) -> u32 {
        owner.holds(&self.inner, name)
    }

    /// See [`Client::on_lost`](crate::Client::on_lost). `callback` is called in a thread that is neither the thread of the
    /// client, so `callback` may block, nor one that holds a lock.
    pub fn on_lost(&self, callback: impl Fn(&Loss) + Send + Sync + 'static) -> CallbackHandle {
        self.inner.on_lost(callback)
    }

    /// See [`Client::on_wait`](crate::Client::on_wait). `callback` is called as one of [`on_lost`](Client::on_lost).
    pub fn on_wait(
        &self,
        callback: impl Fn(&WaitReport) + Send + Sync + 'static,
    ) -> CallbackHandle {
        self.inner.on_wait(callback)
    }

    /// See [`Client::guarantees`](crate::Client::guarantees).
    pub fn guarantees(&self) -> &Guarantees {
        self.inner.guarantees()
    }

    /// See [`Client::ping`](crate::Client::ping).
    ///
    /// # Errors
    /// As there.
    pub fn ping(&self) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.ping())?
    }

    /// See [`Client::check`](crate::Client::check).
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<Vec<Finding>, Error> {
        block_on(&self.runtime, self.inner.check())?
    }

    /// See [`Client::init`](crate::Client::init).
    ///
    /// # Errors
    /// As there.
    pub fn init(&self) -> Result<Vec<String>, Error> {
        block_on(&self.runtime, self.inner.init())?
    }

    /// See [`Client::close`](crate::Client::close).
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) when called from async code.
    pub fn close(&self) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.close())
    }
}

/// One or more names, and the options with which they are locked; see [`Lock`](crate::Lock).
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    inner: crate::Lock,
    runtime: Arc<OwnRuntime>,
    /// The runtime of the other client, of [`Lock::both`].
    other_runtime: Option<Arc<OwnRuntime>>,
    by_thread: bool,
    interrupt: Option<Interrupt>,
}

macro_rules! same_options {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty)?);)*) => {
        /// The options of [`tenure::Lock`](crate::Lock).
        impl Lock {
            $(
                #[doc = concat!("See [`Lock::", stringify!($name), "`](crate::Lock::", stringify!($name), ").")]
                pub fn $name(mut self $(, $arg: $type)?) -> Self {
                    self.inner = self.inner.$name($($arg)?);
                    self
                }
            )*
        }
    };
}

same_options! {
    wait(wait: Duration);
    ttl(ttl: Duration);
    drift(drift: Duration);
    max_hold(max_hold: Duration);
    renew(renew: Renew);
    shared();
    upgradable();
    permits(limit: u32);
    fair(fair: impl Into<Fairness>);
    min_hold(min_hold: Duration);
    min_lease(min_lease: Duration);
    lock_delay(lock_delay: Duration);
    local_hand_overs(local_hand_overs: u32);
    label(label: impl Into<String>);
    metrics_name(name: impl Into<Cow<'static, str>>);
    options(options: Options);
}

impl Lock {
    /// Two locks of two stores as one lock; see [`Lock::both`](crate::Lock::both). Re-entrance depends on the thread
    /// unless one of the two has an [owner](Lock::owner). An [interrupt](Lock::interrupted_by) is set on the result.
    pub fn both(a: Self, b: Self) -> Self {
        Self {
            inner: crate::Lock::both(a.inner, b.inner),
            runtime: a.runtime,
            other_runtime: Some(b.runtime),
            by_thread: a.by_thread && b.by_thread,
            interrupt: None,
        }
    }

    /// See [`Lock::k_of`](crate::Lock::k_of).
    pub fn k_of<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>, k: usize) -> Self {
        self.inner = self.inner.k_of(names, k);
        self
    }

    /// Makes the lock re-entrant for `owner` instead of for the calling thread.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.inner = self.inner.owner(owner);
        self.by_thread = false;
        self
    }

    /// Ends waits with [`Interrupted`](ErrorKind::Interrupted) when `interrupt` is raised.
    pub fn interrupted_by(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Waits in the queue and acquires the lock; see [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Errors
    /// The errors of [`Lock::acquire`](crate::Lock::acquire), and [`Interrupted`](ErrorKind::Interrupted).
    pub fn acquire(&self) -> Result<Guard, Error> {
        let lock = self.for_this_thread();
        let acquired = until_interrupted(self.interrupt.as_ref(), lock.acquire());
        let inner = block_on(&self.runtime, acquired)???;
        Ok(self.guard(inner))
    }

    /// One attempt; see [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        let inner = block_on(&self.runtime, self.for_this_thread().try_acquire())??;
        Ok(inner.map(|inner| self.guard(inner)))
    }

    fn guard(&self, inner: crate::Guard) -> Guard {
        Guard {
            inner,
            runtime: self.runtime.clone(),
            _other_runtime: self.other_runtime.clone(),
        }
    }

    /// Acquires, runs `body`, releases. A thread cannot be stopped from outside, so `body` should check
    /// [`Guard::is_held`] from time to time. When the lock was lost before `body` ended, the result is an error.
    ///
    /// # Errors
    /// The errors of [`acquire`](Lock::acquire), and [`Lost`](ErrorKind::Lost) when the lock ended before
    /// `body` did.
    pub fn run<T>(&self, body: impl FnOnce(&Guard) -> T) -> Result<T, Error> {
        run_under(self.acquire()?, body)
    }

    /// One attempt: `Ok(None)` when another holder has the lock, and `body` is not called. Otherwise as
    /// [`run`](Lock::run).
    ///
    /// # Errors
    /// The errors of [`run`](Lock::run) but `WaitElapsed`.
    pub fn try_run<T>(&self, body: impl FnOnce(&Guard) -> T) -> Result<Option<T>, Error> {
        match self.try_acquire()? {
            Some(guard) => run_under(guard, body).map(Some),
            None => Ok(None),
        }
    }

    fn for_this_thread(&self) -> crate::Lock {
        if self.by_thread {
            THREAD.with(|owner| self.inner.clone().owner(owner))
        } else {
            self.inner.clone()
        }
    }
}

/// What [`Lock::run`] does once the lock is acquired.
fn run_under<T>(guard: Guard, body: impl FnOnce(&Guard) -> T) -> Result<T, Error> {
    // The process may have been stopped since the grant: nothing begins after the deadline.
    if let HoldState::Lost(reason) = guard.state() {
        let message = format!("the lock was lost before the work began: {reason}");
        return Err(Error::new(ErrorKind::Lost, message).with_name(guard.name()));
    }
    let value = body(&guard);
    let held_to_the_end = guard.is_held();
    match guard.release() {
        Err(err) if err.is_lost() || !held_to_the_end => Err(err),
        // The work was done while the lock was held; the release is repeated in the background.
        _ => Ok(value),
    }
}

/// A lock that is held; see [`Guard`](crate::Guard), also for the effect of dropping it.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    inner: crate::Guard,
    runtime: Arc<OwnRuntime>,
    /// The runtime that renews the other lock; it must live as long as the guard.
    _other_runtime: Option<Arc<OwnRuntime>>,
}

impl Guard {
    /// See [`Guard::name`](crate::Guard::name).
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// See [`Guard::mode`](crate::Guard::mode).
    pub fn mode(&self) -> Mode {
        self.inner.mode()
    }

    /// See [`Guard::token`](crate::Guard::token).
    pub fn token(&self) -> FencingToken {
        self.inner.token()
    }

    /// The async guards of the two locks of [`Lock::both`], for their tokens; see [`Guard::both`](crate::Guard::both).
    pub fn both(&self) -> Option<(&crate::Guard, &crate::Guard)> {
        self.inner.both()
    }

    /// See [`Guard::names`](crate::Guard::names).
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.names()
    }

    /// See [`Guard::tokens`](crate::Guard::tokens).
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.inner.tokens()
    }

    /// See [`Guard::owner_id`](crate::Guard::owner_id).
    pub fn owner_id(&self) -> OwnerId {
        self.inner.owner_id()
    }

    /// See [`Guard::owner_ids`](crate::Guard::owner_ids).
    pub fn owner_ids(&self) -> impl Iterator<Item = OwnerId> {
        self.inner.owner_ids()
    }

    /// See [`Guard::remaining`](crate::Guard::remaining).
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// See [`Guard::state`](crate::Guard::state).
    pub fn state(&self) -> HoldState {
        self.inner.state()
    }

    /// See [`Guard::is_held`](crate::Guard::is_held).
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Calls `listener` in the client's thread when the hold is lost; never after a normal release.
    /// `listener` must return quickly, because renewals wait for it.
    pub fn on_lost(&self, listener: impl FnOnce(LostReason) + Send + 'static) {
        self.runtime.call_when_lost(self.inner.lost(), listener);
    }

    /// Waits until another client asks the holder to let go, and returns `true`; `false`: the hold has ended before. See
    /// [`Guard::asked_to_release`](crate::Guard::asked_to_release).
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) when called from async code.
    pub fn asked_to_release(&self) -> Result<bool, Error> {
        block_on(&self.runtime, self.inner.asked_to_release())
    }

    /// The same without a wait; see [`Guard::is_asked_to_release`](crate::Guard::is_asked_to_release).
    pub fn is_asked_to_release(&self) -> bool {
        self.inner.is_asked_to_release()
    }

    /// Calls `end`, which ends a transaction, and releases the lock only then; see
    /// [`Guard::after`](crate::Guard::after): `Ok` means that its outcome is known, and after `Err`, or a panic,
    /// the lock is kept until its lease ends. `end` cannot be stopped from outside when the lock is lost meanwhile.
    ///
    /// # Errors
    /// As there, and [`Closed`](ErrorKind::Closed) when called from async code: then `end` was not called.
    pub fn after<T, E>(self, end: impl FnOnce() -> Result<T, E>) -> Result<T, Error>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        block_on(&self.runtime, std::future::ready(()))?;
        let kept = GuardUntilOutcome::new(self.inner);
        let ended = end();
        block_on(&self.runtime, kept.settle(ended))?
    }

    /// Makes an upgradable hold exclusive, and waits for the other holders; see [`Guard::upgrade`](crate::Guard::upgrade).
    ///
    /// # Errors
    /// As there.
    pub fn upgrade(&self) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.upgrade())?
    }

    /// The same without a wait; see [`Guard::try_upgrade`](crate::Guard::try_upgrade).
    ///
    /// # Errors
    /// As there.
    pub fn try_upgrade(&self) -> Result<bool, Error> {
        block_on(&self.runtime, self.inner.try_upgrade())?
    }

    /// Makes the hold shared; see [`Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Errors
    /// As there.
    pub fn downgrade(&self) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.downgrade())?
    }

    /// Releases the lock; see [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.release())?
    }
}

/// Single writes into the store that keeps the lock, which take effect only while the lock is held; see
/// [`KeyValueGuard`](tenure_core::guard_traits::KeyValueGuard).
pub trait KeyValueGuard {
    /// See [`KeyValueGuard::put`](tenure_core::guard_traits::KeyValueGuard::put).
    ///
    /// # Errors
    /// As there.
    fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error>;

    /// See [`KeyValueGuard::delete`](tenure_core::guard_traits::KeyValueGuard::delete).
    ///
    /// # Errors
    /// As there.
    fn delete(&self, key: &str) -> Result<(), Error>;
}

impl KeyValueGuard for Guard {
    fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let written = guard_traits::KeyValueGuard::put(&self.inner, key, value);
        block_on(&self.runtime, written)?
    }

    fn delete(&self, key: &str) -> Result<(), Error> {
        let deleted = guard_traits::KeyValueGuard::delete(&self.inner, key);
        block_on(&self.runtime, deleted)?
    }
}

/// See [`EtcdGuard`].
impl EtcdGuard for Guard {
    fn etcd(&self) -> Option<EtcdLock> {
        self.inner.etcd()
    }
}

/// See [`ZooKeeperGuard`].
impl ZooKeeperGuard for Guard {
    fn zookeeper(&self) -> Option<ZooKeeperLock> {
        self.inner.zookeeper()
    }
}

/// Ends waits from another thread; see [`Lock::interrupted_by`].
///
/// An interrupt that was raised stays raised: later waits end at once. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Flag>);

impl Interrupt {
    /// An interrupt that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all waits that were given this interrupt, now and later.
    pub fn raise(&self) {
        self.0.raise();
    }
}

/// Awaits `wait` until `interrupt` is raised.
async fn until_interrupted<T>(
    interrupt: Option<&Interrupt>,
    wait: impl Future<Output = T>,
) -> Result<T, Error> {
    let Some(interrupt) = interrupt else {
        return Ok(wait.await);
    };
    tokio::select! {
        biased;
        () = interrupt.0.raised() => {
            Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"))
        }
        output = wait => Ok(output),
    }
}

fn block_on<T>(runtime: &OwnRuntime, future: impl Future<Output = T>) -> Result<T, Error> {
    runtime.block_on(future).ok_or_else(|| {
        Error::new(
            ErrorKind::Closed,
            "`tenure::blocking` was called in a thread of an async runtime, which includes `spawn_blocking`; use the async client there, or a thread of `std::thread`",
        )
    })
}
