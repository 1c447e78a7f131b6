//! A lock, and the options with which it is acquired.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Begun;
use crate::both;
use crate::defaults::Defaults;
use crate::driver::{Acquired, Driver};
use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::options::{Fairness, Mode, Options, Renew};
use crate::owner::Owner;
use crate::store_lock::StoreLock;
use crate::target::{InvalidTarget, Target};

/// One or more names, and the options with which they are locked.
///
/// Made by [`Client::lock`](crate::Client::lock), [`Client::lock_all`](crate::Client::lock_all),
/// [`Client::lock_any`](crate::Client::lock_any), [`k_of`](Lock::k_of) or [`both`](Lock::both). Nothing is sent before one of
/// `acquire`, `try_acquire` and `run` is called; a wrong name or option is reported there.
/// A lock may be used any number of times, also at the same time: each call is a new acquisition.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(StoreLocks);

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all locks are in one store, and are made without an allocation"
)]
enum StoreLocks {
    One(StoreLock),
    /// See [`Lock::both`].
    Two(Box<[StoreLock; 2]>),
}

/// Two stores.
impl Lock {
    /// Two locks of two stores as one lock: its guard holds both, and is lost as soon as one of them is lost.
    ///
    /// For work that needs the locks of two stores, for example while programs move from one store to the other.
    /// [`Guard::both`] gives the guard of each lock, with its token. Each lock keeps its own options; what is set on
    /// the lock of both is set on each. There is one [`wait`](Lock::wait) for both, at first the shorter one.
    ///
    /// # Which lock is taken first
    /// The two locks are taken one after the other, in an order that does not depend on which one is `a` and which one is
    /// `b`: first by the address of the store, then by the name. So two programs that name the same two locks do not
    /// wait for each other. The address of a store is the URL of [`connect`](https://docs.rs/tenure/latest/tenure/fn.connect.html)
    /// without user, password and the options that do not choose the locks. Programs must therefore write the URL of a
    /// store in the same way: `redis://localhost` and `redis://127.0.0.1:6379` are two stores for this purpose. For a client
    /// of a store that you made, [`Client::with_address`](crate::Client::with_address) says the address.
    ///
    /// # Errors
    /// Acquiring fails with [`Invalid`](ErrorKind::Invalid), before any request, if both are the same lock, if both are
    /// in one store and one of them has several names ([`lock_all`](crate::Client::lock_all) is for that), or if one of
    /// them is a lock of `both` itself.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// # let (redis, etcd) = (tenure::connect("memory:").await?, tenure::connect("memory:").await?);
    /// use tenure::Lock;
    ///
    /// let both = Lock::both(redis.lock("orders/42"), etcd.lock("orders/42"));
    /// let guard = both.acquire().await?;
    /// let (in_redis, in_etcd) = guard.both().expect("a guard of two locks");
    /// println!("tokens {} and {}", in_redis.token(), in_etcd.token());
    /// guard.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn both(a: Self, b: Self) -> Self {
        let mut is_nested = false;
        let [a, b] = [a, b].map(|lock| match lock.0 {
            StoreLocks::One(part) => part,
            StoreLocks::Two(parts) => {
                is_nested = true;
                let [first, _] = *parts;
                first
            }
        });
        let waits = [a.options.wait, b.options.wait];
        let mut parts = Box::new([a, b]);
        for part in &mut *parts {
            part.options.wait = waits.into_iter().flatten().min();
        }
        if is_nested {
            let message = "`both` takes two locks, and one of them is a lock of `both` itself; take one store less";
            parts[0].target = Err(InvalidTarget(message.into()));
        }
        Self(StoreLocks::Two(parts))
    }
}

/// Options. Each has a default that is safe, or that of the client ([`Client::with_defaults`](crate::Client::with_defaults)).
impl Lock {
    pub(crate) fn new(
        driver: Arc<Driver>,
        defaults: &Defaults,
        target: Result<Target, InvalidTarget>,
    ) -> Self {
        Self(StoreLocks::One(StoreLock::new(driver, defaults, target)))
    }

    /// Any `k` of these names instead of the name of the lock: all `k` or none, under one guard.
    /// [`Guard::tokens`] says which names were acquired.
    ///
    /// The name that this lock has so far names the group for the reader of your code; it is not locked.
    /// While fewer than `k` names are free, the lock waits for all names that it can use, at the same time. It may have
    /// some of them meanwhile, in an order that keeps clients from waiting for each other in a circle; while other
    /// names stay taken, it gives up what it has from time to time and begins again behind the other waiters, so
    /// that clients do not share the last free names with too few for each.
    ///
    /// No name, a name twice, `k` = 0 and a `k` above the number of names are errors of the kind
    /// [`Invalid`](ErrorKind::Invalid), before any request.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let buckets: Vec<_> = (0..10).map(|n| format!("bucket/{n}")).collect();
    /// let guard = client.lock("buckets").k_of(&buckets, 3).acquire().await?;
    /// assert_eq!(guard.names().count(), 3);
    /// guard.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn k_of<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>, k: usize) -> Self {
        match &mut self.0 {
            // An error in the name that was given before stays the error.
            StoreLocks::One(part) if part.target.is_err() => {}
            StoreLocks::One(part) => part.target = Target::k_of(part.prefix.before(names), k),
            StoreLocks::Two(parts) => {
                let message = "`k_of` cannot choose among names for two stores; use it on each lock before `both`";
                parts[0].target = Err(InvalidTarget(message.into()));
            }
        }
        self
    }

    /// How long `acquire` and `run` may wait, for all names together; zero means one try.
    /// Default: for ever.
    ///
    /// The store is asked who holds the lock before the wait is over (in its last quarter, for 300 ms at most), so the error
    /// of a wait that is over comes in time. The store gets at least 100 ms to answer: a wait that is shorter than 200 ms, one
    /// try, and a wait in whose last part the process did not run may end up to 100 ms later.
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|part| part.options.wait = Some(wait))
    }

    /// Length of the lease: how long the store keeps the lock after the holder's last renewal. Default: 30 s.
    ///
    /// The ttl has to be at least ten round trips to the store, or there is no time for renewals: if two round trips
    /// in a row take longer, acquiring fails with [`Invalid`](crate::ErrorKind::Invalid).
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|part| part.options.ttl = ttl)
    }

    /// Makes the local deadline earlier by this much, for stores whose clock may run faster than ours. Default: zero.
    pub fn drift(self, drift: Duration) -> Self {
        self.set(|part| part.options.drift = drift)
    }

    /// Ends the hold (as lost, reason `MaxHold`) this long after it was granted. Default: never.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.set(|part| part.options.max_hold = Some(max_hold))
    }

    /// Whether the lease is renewed. Default: automatically.
    pub fn renew(self, renew: Renew) -> Self {
        self.set(|part| part.options.renew = renew)
    }

    /// The lock is shared: several shared holders may hold it at the same time.
    pub fn shared(self) -> Self {
        self.set(|part| part.options.mode = Mode::Shared)
    }

    /// The lock is held together with shared holders, by at most one upgradable holder at a time, which may become the
    /// exclusive holder: [`Guard::upgrade`].
    pub fn upgradable(self) -> Self {
        self.set(|part| part.options.mode = Mode::Upgradable)
    }

    /// The lock is a semaphore with `limit` permits, and this acquisition takes one of them.
    /// All clients must give the same limit; acquiring with zero fails.
    pub fn permits(self, limit: u32) -> Self {
        self.set(|part| match NonZeroU32::new(limit) {
            Some(limit) => part.options.mode = Mode::Permits { limit },
            None => {
                let message = "`permits` is 0; at least 1 holder must be possible";
                part.target = Err(InvalidTarget(message.into()));
            }
        })
    }

    /// `true` ([`Fairness::Fair`]) demands first come, first served; acquiring fails where the store cannot promise that.
    /// `false` ([`Fairness::Unfair`]) allows new requests to overtake waiters. Default: the order of the store
    /// ([`Fairness::StoreDefault`]).
    pub fn fair(self, fair: impl Into<Fairness>) -> Self {
        let fair = fair.into();
        self.set(|part| part.options.fair = fair)
    }

    /// Keeps the name taken until this long after the grant, even after the release:
    /// at most one holder per interval, by the clock of the store. Default: zero.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.set(|part| part.options.min_hold = min_hold)
    }

    /// The shortest lease with which `acquire` may return. A lock that the last holder passed on directly may begin
    /// with a lease that is shorter than the ttl, until its first renewal. Default: zero. At most the ttl.
    pub fn min_lease(self, min_lease: Duration) -> Self {
        self.set(|part| part.options.min_lease = min_lease)
    }

    /// Keeps the name reserved for this long after a hold that ended without a release, so that requests of the
    /// former holder that are still under way can arrive before the next grant. Default: zero.
    pub fn lock_delay(self, lock_delay: Duration) -> Self {
        self.set(|part| part.options.lock_delay = lock_delay)
    }

    /// How often the lock may pass from one task of this client to the next that waits for it, before it goes back to the
    /// store; zero: never. Default: 32.
    ///
    /// Passing a lock on inside the process needs no request, so it takes microseconds. Each task has a guard and a fencing
    /// token of its own, as if the store had granted it. Tasks of one client have the lock in the order in which they came.
    /// A client that waits elsewhere waits until the lock goes back to the store: after so many tasks, and when a task releases
    /// the lock 20 ms after the grant of the store or later. [`fair(true)`](Lock::fair) keeps the order of the store: then the
    /// lock never passes on.
    ///
    /// Only exclusive locks on `redis:`, `redlock:`, `mysql:`, `postgres:` and `sqlite:` pass on, without `min_hold` and
    /// elections, between tasks that ask for the same `ttl`, `lock_delay` and `label`. The option makes no difference elsewhere.
    pub fn local_hand_overs(self, local_hand_overs: u32) -> Self {
        self.set(|part| part.options.local_hand_overs = local_hand_overs)
    }

    /// The purpose of the lock, shown to people who inspect it. Default: empty.
    ///
    /// Host and process id are shown without it. Which thread or task of the process holds the lock is shown if the label
    /// says so:
    ///
    /// ```
    /// # async fn example(client: &tenure::Client) -> Result<(), tenure::Error> {
    /// let thread = std::thread::current();
    /// let label = format!("export, thread {}", thread.name().unwrap_or("without a name"));
    /// let guard = client.lock("orders/42").label(label).acquire().await?;
    /// # guard.release().await
    /// # }
    /// ```
    pub fn label(self, label: impl Into<String>) -> Self {
        let label = label.into();
        self.set(|part| part.options.label.clone_from(&label))
    }

    /// The value of the label `name` of this lock's metrics (feature `metrics`), for example `orders/*` for the lock
    /// `orders/42`. Default: none; then the metrics do not tell this lock from others of its store.
    ///
    /// Every value makes series of its own, which stay for as long as the program runs: give a pattern with few
    /// values, never a name that contains an id. Without the feature the option has no effect.
    pub fn metrics_name(self, name: impl Into<Cow<'static, str>>) -> Self {
        let name = name.into();
        self.set(|part| part.options.metrics_name.clone_from(&name))
    }

    /// Makes the lock re-entrant for `owner`. Default: the owner of the [scope](Owner::scope), if there is one.
    pub fn owner(self, owner: &Owner) -> Self {
        self.set(|part| part.owner = Some(owner.clone()))
    }

    /// What observers of the election of this name shall see of the holder.
    pub(crate) fn value(self, value: Arc<str>) -> Self {
        self.set(|part| part.options.value = Some(value.clone()))
    }

    /// As a candidate of an election holds it: alone, and after a wait without a limit.
    pub(crate) fn for_election(self) -> Self {
        self.set(|part| {
            part.options.mode = Mode::Exclusive;
            part.options.wait = None;
        })
    }

    /// Sets all options at once.
    pub fn options(self, options: Options) -> Self {
        self.set(|part| part.options.clone_from(&options))
    }

    fn set(mut self, change: impl Fn(&mut StoreLock)) -> Self {
        match &mut self.0 {
            StoreLocks::One(part) => change(part),
            StoreLocks::Two(parts) => parts.iter_mut().for_each(change),
        }
        self
    }
}

/// Acquiring.
impl Lock {
    /// Waits in the queue and acquires the lock.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future leaves the queue, and a grant that arrives later is given back.
    /// The next call of `acquire` starts at the end of the queue.
    ///
    /// # Errors
    /// [`WaitElapsed`](ErrorKind::WaitElapsed): the lock was taken until the end of `wait`; the error names the holder.
    /// [`Unreachable`](ErrorKind::Unreachable): the store cannot be reached, or did not answer within `wait`. A store that was
    /// reached and gives no answer is asked again, for a ttl at least.
    /// [`ErrorKind`] says what the other kinds mean.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_for(None).await
    }

    /// The owner is the given one, else that of the scope, else `fallback`.
    pub(crate) async fn acquire_for(&self, fallback: Option<&Owner>) -> Result<Guard, Error> {
        let wait = self.first_part().options.wait;
        let (part, acquired) = match &self.0 {
            StoreLocks::One(part) => match part.begin(wait, fallback)? {
                Begun::Acquired(guard) => return Ok(guard.delivered()),
                Begun::Waits(acquisition) => (part, part.go_on(acquisition, wait, fallback).await?),
            },
            StoreLocks::Two(parts) => both::acquire(parts, wait, fallback).await?,
        };
        match acquired {
            Acquired::Got(guard) => Ok(guard.delivered()),
            Acquired::Busy(busy) => Err(part.wait_elapsed(busy, wait.unwrap_or_default()).await),
        }
    }

    /// One try: `Ok(None)` when another client holds the lock (or waits for it before us).
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// # Errors
    /// The errors of [`acquire`](Lock::acquire), except `WaitElapsed`.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.try_acquire_for(None).await
    }

    async fn try_acquire_for(&self, fallback: Option<&Owner>) -> Result<Option<Guard>, Error> {
        let wait = Some(Duration::ZERO);
        let acquired = match &self.0 {
            StoreLocks::One(part) => part.acquire(wait, fallback).await?,
            StoreLocks::Two(parts) => {
                let (_, acquired) = both::acquire(parts, wait, fallback).await?;
                acquired
            }
        };
        Ok(acquired.got().map(Guard::delivered))
    }

    fn first_part(&self) -> &StoreLock {
        match &self.0 {
            StoreLocks::One(part) => part,
            StoreLocks::Two(parts) => &parts[0],
        }
    }

    /// Acquires, runs `body`, releases. When the lock is lost before `body` ends, `body` is cancelled
    /// (dropped at its current await) and the result is an error, never a success.
    ///
    /// Inside `body` the lock may be entered again, by `acquire` or a nested `run`.
    ///
    /// # Cancel safety
    /// Cancel safe: `body` is dropped and the lock released.
    ///
    /// # Errors
    /// The errors of [`acquire`](Lock::acquire), and [`Lost`](ErrorKind::Lost) when the lock ended before
    /// `body` did.
    ///
    /// # Examples
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let total = client.lock("orders/42").run(async |guard| {
    ///     println!("token {}", guard.token());
    ///     6 * 7
    /// }).await?;
    /// assert_eq!(total, 42);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn run<T, F>(&self, body: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&Guard) -> T,
    {
        let owner = self.owner_of_body();
        let guard = self.acquire_for(Some(&owner)).await?;
        self.run_under(guard, &owner, body).await
    }

    /// As [`run`](Lock::run), for generic code that spawns: the future is `Send` for every `body`.
    ///
    /// Generic code cannot ask that the future of an async closure is `Send`, which `tokio::spawn` wants. A closure that
    /// returns a boxed future says so in its type.
    ///
    /// # Cancel safety
    /// As [`run`](Lock::run).
    ///
    /// # Errors
    /// As [`run`](Lock::run).
    ///
    /// # Examples
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// use std::pin::Pin;
    /// use tenure::{Error, Guard, Lock};
    /// use tokio::task::JoinHandle;
    ///
    /// type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
    ///
    /// /// Runs any body under any lock in a task.
    /// fn spawn_locked<T, F>(lock: Lock, body: F) -> JoinHandle<Result<T, Error>>
    /// where
    ///     T: Send + 'static,
    ///     F: FnOnce(&Guard) -> Boxed<'_, T> + Send + 'static,
    /// {
    ///     tokio::spawn(async move { lock.run_boxed(body).await })
    /// }
    ///
    /// let client = tenure::connect("memory:").await?;
    /// let task = spawn_locked(client.lock("orders/42"), |guard| Box::pin(async move { guard.is_held() }));
    /// assert!(task.await.unwrap()?);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn run_boxed<T, F>(&self, body: F) -> impl Future<Output = Result<T, Error>> + Send
    where
        T: Send,
        F: FnOnce(&Guard) -> Pin<Box<dyn Future<Output = T> + Send + '_>> + Send,
    {
        self.run(async move |guard: &Guard| body(guard).await)
    }

    /// One try: `Ok(None)` when another client holds the lock (or waits for it before us); then `body` does not run.
    /// Otherwise as [`run`](Lock::run). For work that may be skipped because another instance does it.
    ///
    /// The option `wait` makes no difference.
    ///
    /// # Cancel safety
    /// As [`run`](Lock::run).
    ///
    /// # Errors
    /// The errors of [`run`](Lock::run), except `WaitElapsed`.
    ///
    /// # Examples
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let lock = client.lock("report");
    /// assert_eq!(lock.try_run(async |_| "written").await?, Some("written"));
    /// let guard = lock.acquire().await?;
    /// assert_eq!(lock.try_run(async |_| "written").await?, None); // busy: skipped
    /// guard.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn try_run<T, F>(&self, body: F) -> Result<Option<T>, Error>
    where
        F: AsyncFnOnce(&Guard) -> T,
    {
        let owner = self.owner_of_body();
        match self.try_acquire_for(Some(&owner)).await? {
            Some(guard) => self.run_under(guard, &owner, body).await.map(Some),
            None => Ok(None),
        }
    }

    /// The part of [`run`](Lock::run) after the lock is acquired.
    async fn run_under<T, F>(&self, guard: Guard, owner: &Owner, body: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&Guard) -> T,
    {
        let outcome = {
            let lost = guard.lost();
            tokio::select! {
                biased;
                Some(reason) = lost => Err(reason),
                value = owner.enter_body(body(&guard)) => Ok(value),
            }
        };
        let value = match outcome {
            Ok(value) => value,
            Err(reason) => {
                let err = Error::new(
                    ErrorKind::Lost,
                    format!("the lock was lost while the work ran: {reason}; the work was stopped"),
                );
                // Dropping the guard cleans up in the background: the caller must learn of the loss
                // now, and the store that was lost may be slow to answer.
                return Err(guard.explained(err));
            }
        };
        let held_to_the_end = guard.is_held();
        match guard.release().await {
            // The work was done while the lock was held; the release is repeated in the background.
            Err(err) if !err.is_lost() && held_to_the_end => Ok(value),
            released => released.map(|()| value),
        }
    }

    /// The owner of a body, which may enter the lock again also when no owner was given.
    pub(crate) fn owner_of_body(&self) -> Owner {
        let owner = match &self.0 {
            StoreLocks::One(part) => &part.owner,
            StoreLocks::Two(parts) => match &parts[0].owner {
                None => &parts[1].owner,
                owner => owner,
            },
        };
        owner.clone().unwrap_or_default()
    }
}
