//! A lock, and the options with which it is acquired.

use std::borrow::Cow;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::driver::{Acquisition, Driver, Until};
use crate::entry::{Entry, EntryOutcome, LockKey};
use crate::error::{Error, ErrorKind, Step};
use crate::guard::Guard;
use crate::name::LockName;
use crate::options::{Mode, Options, Renew};
use crate::owner::Owner;

/// One or more names, and the options with which they are locked.
///
/// Made by [`Client::lock`](crate::Client::lock), [`Client::lock_all`](crate::Client::lock_all) or
/// [`Client::lock_any`](crate::Client::lock_any). Nothing is sent before one of
/// `acquire`, `try_acquire` and `run` is called; a wrong name or option is reported there.
/// A lock may be used any number of times, also at the same time: each call is a new acquisition.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    driver: Arc<Driver>,
    target: Result<Target, InvalidTarget>,
    options: Options,
    owner: Option<Owner>,
}

#[derive(Clone, Debug)]
pub(crate) enum Target {
    One(LockName),
    /// Sorted, no name twice, at least one.
    All(Vec<LockName>),
    /// No name twice, at least one.
    Any(Vec<LockName>),
}

/// How an acquisition began.
enum Begun<'a> {
    /// The lock was free and is held.
    AtOnce(Guard),
    /// The store has to be asked with a future.
    UnderWay(&'a Target, Acquisition),
}

/// How a wait for a lock ended.
enum Acquired {
    Guard(Guard),
    /// This name was held by others until the end of the wait.
    Busy(LockName),
}

/// Kept until an error can be returned.
#[derive(Clone, Debug)]
pub(crate) struct InvalidTarget(String);

impl Target {
    pub(crate) fn one(name: &str) -> Result<Self, InvalidTarget> {
        LockName::new(name)
            .map(Self::One)
            .map_err(|err| InvalidTarget(err.to_string()))
    }

    pub(crate) fn all<N: AsRef<str>>(
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidTarget> {
        let mut names = Self::several(names)?;
        names.sort();
        names.dedup();
        Ok(Self::All(names))
    }

    pub(crate) fn any<N: AsRef<str>>(
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidTarget> {
        let mut names = Self::several(names)?;
        names.sort();
        names.dedup();
        Ok(Self::Any(names))
    }

    fn names(&self) -> &[LockName] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::All(names) | Self::Any(names) => names,
        }
    }

    fn several<N: AsRef<str>>(
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<LockName>, InvalidTarget> {
        let names: Vec<_> = names
            .into_iter()
            .map(|name| LockName::new(name).map_err(|err| InvalidTarget(err.to_string())))
            .collect::<Result<_, _>>()?;
        if names.is_empty() {
            return Err(InvalidTarget(
                "the list of lock names is empty; name at least one".into(),
            ));
        }
        Ok(names)
    }
}

/// Options. Each has a default that is safe.
impl Lock {
    pub(crate) fn new(driver: Arc<Driver>, target: Result<Target, InvalidTarget>) -> Self {
        Self {
            driver,
            target,
            options: Options::default(),
            owner: None,
        }
    }

    /// How long `acquire` and `run` may wait, for all names together; zero means one try.
    /// Default: for ever.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Length of the lease: how long the store keeps the lock after the holder's last sign of life. Default: 30 s.
    ///
    /// The ttl has to be at least ten round trips to the store, or there is no time for renewals: if two round trips
    /// in a row take longer, acquiring fails with [`Invalid`](crate::ErrorKind::Invalid).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Makes the local deadline earlier by this much, for stores whose clock may run faster than ours. Default: zero.
    pub fn drift(mut self, drift: Duration) -> Self {
        self.options.drift = drift;
        self
    }

    /// Ends the hold (as lost, reason `MaxHold`) this long after it was granted. Default: never.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Whether the lease is renewed. Default: automatically.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.options.renew = renew;
        self
    }

    /// The lock is shared: several shared holders may hold it at the same time.
    pub fn shared(mut self) -> Self {
        self.options.mode = Mode::Shared;
        self
    }

    /// The lock is held beside shared holders, by at most one upgradable holder at a time, who may become the exclusive
    /// holder: [`Guard::upgrade`].
    pub fn upgradable(mut self) -> Self {
        self.options.mode = Mode::Upgradable;
        self
    }

    /// The lock is a semaphore with `limit` permits, and this acquisition takes one of them.
    /// All clients must give the same limit; acquiring with zero fails.
    pub fn permits(mut self, limit: u32) -> Self {
        match NonZeroU32::new(limit) {
            Some(limit) => self.options.mode = Mode::Permits { limit },
            None => {
                self.target = Err(InvalidTarget(
                    "`permits` is 0; at least 1 holder must be possible".into(),
                ));
            }
        }
        self
    }

    /// `true` demands first come, first served; acquiring fails where the store cannot promise that.
    /// `false` allows new requests to overtake waiters. Default: the order of the store.
    pub fn fair(mut self, fair: bool) -> Self {
        self.options.fair = Some(fair);
        self
    }

    /// Keeps the name taken until this long after the grant, even after the release:
    /// at most one holder per interval, by the clock of the store. Default: zero.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options.min_hold = min_hold;
        self
    }

    /// The shortest lease with which `acquire` may return. A lock that the last holder passed on directly may begin
    /// with a lease that is shorter than the ttl, until its first renewal. Default: zero. At most the ttl.
    pub fn min_lease(mut self, min_lease: Duration) -> Self {
        self.options.min_lease = min_lease;
        self
    }

    /// Keeps the name reserved for this long after a hold that ended without a release, so that requests of the
    /// former holder that are still under way can arrive before the next grant. Default: zero.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.options.lock_delay = lock_delay;
        self
    }

    /// The purpose of the lock, shown to people who inspect it. Default: empty.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// The value of the label `name` of this lock's metrics (feature `metrics`), for example `orders/*` for the lock
    /// `orders/42`. Default: none; then the metrics do not tell this lock from others of its store.
    ///
    /// Every value makes series of its own, which stay for as long as the program runs: give a pattern with few
    /// values, never a name that contains an id. Without the feature the option has no effect.
    pub fn metrics_name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.options.metrics_name = name.into();
        self
    }

    /// Makes the lock re-entrant for `owner`. Default: the owner of the [scope](Owner::scope), if there is one.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Sets all options at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
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
    /// [`WaitElapsed`](ErrorKind::WaitElapsed): the lock was held for the whole `wait`; the error names the holder.
    /// [`ErrorKind`] says what the other kinds mean.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_for(None).await
    }

    async fn acquire_for(&self, fallback: Option<&Owner>) -> Result<Guard, Error> {
        let is_one_try = self.options.wait == Some(Duration::ZERO);
        let (target, acquisition) = match self.begin(is_one_try, fallback)? {
            Begun::AtOnce(guard) => return Ok(guard),
            Begun::UnderWay(target, acquisition) => (target, acquisition),
        };
        let until = match self.options.wait {
            None => Until::Forever,
            Some(wait) => Until::from_wait(wait, self.driver.clock.now()),
        };
        match self
            .acquire_until(target, acquisition, until, fallback)
            .await?
        {
            Acquired::Guard(guard) => Ok(guard),
            Acquired::Busy(name) => {
                let waited = self.options.wait.unwrap_or_default();
                let ttl = self.options.ttl;
                Err(self.driver.wait_elapsed(&name, waited, ttl).await)
            }
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
        let (target, acquisition) = match self.begin(true, fallback)? {
            Begun::AtOnce(guard) => return Ok(Some(guard)),
            Begun::UnderWay(target, acquisition) => (target, acquisition),
        };
        let acquired = self.acquire_until(target, acquisition, Until::Once, fallback);
        Ok(match acquired.await? {
            Acquired::Guard(guard) => Some(guard),
            Acquired::Busy(_) => None,
        })
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
                reason = lost => Err(reason),
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
                // Dropping the guard cleans up in the background: the caller must hear of the loss
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
        self.owner.clone().unwrap_or_default()
    }

    /// Acquires the lock for a body.
    #[cfg(feature = "sqlx")]
    pub(crate) async fn acquire_for_body(&self, owner: &Owner) -> Result<Guard, Error> {
        self.acquire_for(Some(owner)).await
    }

    /// Acquires without a future in the most frequent case: one name that is free, no owner, and a store on this machine.
    /// `None`: not that case.
    fn acquire_now(&self, target: &Target) -> Result<Option<Guard>, Error> {
        let Target::One(name) = target else {
            return Ok(None);
        };
        if self.owner.is_some() || Owner::implied(self.driver.id(), name).is_some() {
            return Ok(None);
        }
        let held = self.driver.acquire_now(name, &self.options)?;
        Ok(held.map(|held| Guard::one(Entry::only(held))))
    }

    /// Checks everything that needs no store, and acquires at once if that is possible. This is no async function, so that
    /// a free lock costs no future.
    fn begin(&self, is_one_try: bool, fallback: Option<&Owner>) -> Result<Begun<'_>, Error> {
        let target = self
            .target
            .as_ref()
            .map_err(|InvalidTarget(message)| Error::new(ErrorKind::Invalid, message.clone()))?;
        self.driver.check_support(&self.options)?;
        let names = target.names();
        let acquisition = Acquisition::begin(&self.driver, names, &self.options, is_one_try);
        let at_once = match fallback {
            None => acquisition.in_span(|| self.acquire_now(target)),
            Some(_) => Ok(None),
        };
        match at_once {
            Ok(Some(guard)) => {
                acquisition.granted(guard.token().get(), guard.is_reentry());
                Ok(Begun::AtOnce(guard))
            }
            Ok(None) => Ok(Begun::UnderWay(target, acquisition)),
            Err(err) => {
                acquisition.failed(&err);
                Err(err)
            }
        }
    }

    /// The owner is the given one, else that of the scope, else `fallback`.
    async fn acquire_until(
        &self,
        target: &Target,
        mut acquisition: Acquisition,
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<Acquired, Error> {
        if until != Until::Once {
            acquisition.wait();
        }
        // `Instrumented` would move the future, which is large.
        let mut acquire = pin!(self.acquire_target(target, until, fallback));
        let outcome = poll_fn(|cx| acquisition.in_span(|| acquire.as_mut().poll(cx))).await;
        match &outcome {
            Ok(Acquired::Guard(guard)) => {
                acquisition.granted(guard.token().get(), guard.is_reentry())
            }
            Ok(Acquired::Busy(_)) => acquisition.busy(),
            Err(err) => acquisition.failed(err),
        }
        outcome
    }

    async fn acquire_target(
        &self,
        target: &Target,
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<Acquired, Error> {
        match target {
            Target::One(name) => Ok(match self.acquire_one(name, until, fallback).await? {
                Some(entry) => Acquired::Guard(Guard::one(entry)),
                None => Acquired::Busy(name.clone()),
            }),
            Target::All(names) => self.acquire_all(names, until, fallback).await,
            Target::Any(names) => self.acquire_any(names, until, fallback).await,
        }
    }

    async fn acquire_one(
        &self,
        name: &LockName,
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<Option<Entry>, Error> {
        let driver = &self.driver;
        let implied;
        let owner = match &self.owner {
            Some(owner) => Some(owner),
            None => {
                implied = Owner::implied(self.driver.id(), name);
                implied.as_ref().or(fallback)
            }
        };
        let Some(owner) = owner else {
            let held = driver.acquire(name, &self.options, until).await?;
            return Ok(held.map(Entry::only));
        };
        let key = LockKey {
            client: driver.id(),
            name: name.clone(),
        };
        let entering = owner.enter_lock(key, self.options.mode, until != Until::Once);
        let outcome = match until {
            Until::At(time) => tokio::select! {
                biased;
                outcome = entering => outcome,
                () = driver.clock.sleep_until(time) => return Ok(None),
            },
            Until::Once | Until::Forever => entering.await,
        };
        match outcome.map_err(|err| driver.explain(err, name, Step::Acquire))? {
            EntryOutcome::Entered(entry) => Ok(Some(entry)),
            EntryOutcome::Busy => Ok(None),
            EntryOutcome::First(first) => {
                let held = driver.acquire(name, &self.options, until).await?;
                Ok(held.map(|held| first.entered(held)))
            }
        }
    }

    /// One after the other in byte order, which all clients keep, so that no two wait for each other.
    async fn acquire_all(
        &self,
        names: &[LockName],
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<Acquired, Error> {
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let busy = match self.acquire_one(name, until, fallback).await {
                Ok(Some(entry)) => {
                    entries.push(entry);
                    continue;
                }
                Ok(None) => Ok(Acquired::Busy(name.clone())),
                Err(err) => Err(err),
            };
            // All or none. An error of this release is logged where it happens; `busy` is the cause that the caller gets.
            if !entries.is_empty() {
                let _ = Guard::many(entries).release().await;
            }
            return busy;
        }
        let guard = Guard::many(entries);
        // The first lock may have been lost while we waited for the last one.
        if guard.is_held() {
            return Ok(Acquired::Guard(guard));
        }
        let name = guard.name().clone();
        let _ = guard.release().await;
        Err(self.driver.explain(
            Error::new(
                ErrorKind::Lost,
                "one of the locks ended while the others were waited for; retry",
            ),
            &name,
            Step::Acquire,
        ))
    }

    /// Tries each name once, from a random one on so that clients spread out; then waits for all at the same time.
    async fn acquire_any(
        &self,
        names: &[LockName],
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<Acquired, Error> {
        let start = self.driver.clock.random() as usize % names.len();
        let order = || names[start..].iter().chain(&names[..start]);
        for name in order() {
            if let Some(entry) = self.acquire_one(name, Until::Once, fallback).await? {
                return Ok(Acquired::Guard(Guard::one(entry)));
            }
        }
        if until == Until::Once {
            return Ok(Acquired::Busy(names[start].clone()));
        }
        let mut waits: Vec<Pin<Box<_>>> = order()
            .map(|name| Box::pin(self.acquire_one(name, until, fallback)))
            .collect();
        // The first answer decides. Dropping the other waits gives up their places in the queues and
        // gives back what was granted at the same moment.
        let first = poll_fn(|cx| {
            let mut i = 0;
            while i < waits.len() {
                match waits[i].as_mut().poll(cx) {
                    Poll::Ready(Ok(None)) => drop(waits.swap_remove(i)),
                    Poll::Ready(decided) => return Poll::Ready(decided),
                    Poll::Pending => i += 1,
                }
            }
            if waits.is_empty() {
                Poll::Ready(Ok(None))
            } else {
                Poll::Pending
            }
        })
        .await?;
        Ok(match first {
            Some(entry) => Acquired::Guard(Guard::one(entry)),
            None => Acquired::Busy(names[start].clone()),
        })
    }
}
