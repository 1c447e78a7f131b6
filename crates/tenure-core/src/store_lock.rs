//! The part of a lock that is about one store: names, options and owner, and how they are acquired.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::contender::Contender;
use crate::driver::{self, Acquisition, Driver, Until};
use crate::entry::Entry;
use crate::error::Error;
use crate::guard::Guard;
use crate::options::Options;
use crate::owner::Owner;
use crate::several::{self, BusyName};
use crate::target::{InvalidTarget, Target};

/// A lock in one store.
#[derive(Clone, Debug)]
pub(crate) struct StoreLock {
    pub(crate) driver: Arc<Driver>,
    pub(crate) target: Result<Target, InvalidTarget>,
    pub(crate) options: Options,
    pub(crate) owner: Option<Owner>,
}

/// How an acquisition began.
enum Begun<'a> {
    /// The lock was free and is held.
    AtOnce(Guard),
    /// The store has to be asked with a future.
    UnderWay(&'a Target, Acquisition),
}

/// How a wait for a lock ended.
pub(crate) enum Acquired {
    Guard(Guard),
    /// The name that others held until the end of the wait.
    Busy(BusyName),
}

impl StoreLock {
    pub(crate) fn new(driver: Arc<Driver>, target: Result<Target, InvalidTarget>) -> Self {
        Self {
            driver,
            target,
            options: Options::default(),
            owner: None,
        }
    }

    /// Acquires the lock; waits for up to `wait`, or for ever.
    pub(crate) async fn acquire(
        &self,
        wait: Option<Duration>,
        fallback: Option<&Owner>,
    ) -> Result<Acquired, Error> {
        let is_one_try = wait == Some(Duration::ZERO);
        let (target, acquisition) = match self.begin(is_one_try, fallback)? {
            Begun::AtOnce(guard) => return Ok(Acquired::Guard(guard)),
            Begun::UnderWay(target, acquisition) => (target, acquisition),
        };
        let until = match wait {
            None => Until::Forever,
            Some(wait) => Until::from_wait(wait, self.driver.clock.now()),
        };
        self.acquire_until(target, acquisition, until, fallback)
            .await
    }

    /// The names, if they and the options can be used with this store; asks no store.
    pub(crate) fn checked(&self) -> Result<&Target, Error> {
        let target = self.target.as_ref().map_err(InvalidTarget::error)?;
        self.driver.check_support(&self.options)?;
        Ok(target)
    }

    /// The error of a wait for `name` that ended without a grant.
    pub(crate) async fn wait_elapsed(&self, (name, last): BusyName, waited: Duration) -> Error {
        let ttl = self.options.ttl;
        self.driver.wait_elapsed(&name, waited, ttl, last).await
    }

    fn contender<'a>(&'a self, fallback: Option<&'a Owner>) -> Contender<'a> {
        Contender {
            driver: &self.driver,
            options: &self.options,
            owner: self.owner.as_ref(),
            fallback,
        }
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
        let target = self.checked()?;
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
            Target::One(name) => Ok(match self.contender(fallback).acquire(name, until).await? {
                driver::Acquired::Got(entry) => Acquired::Guard(Guard::one(entry)),
                driver::Acquired::Busy(last) => Acquired::Busy((name.clone(), last)),
            }),
            Target::Several { names, wanted } => {
                let contender = self.contender(fallback);
                let outcome = several::acquire(contender, names, *wanted, until).await?;
                Ok(match outcome {
                    several::Acquired::All(entries) => Acquired::Guard(Guard::of(entries)),
                    several::Acquired::Busy(name) => Acquired::Busy(name),
                })
            }
        }
    }
}
