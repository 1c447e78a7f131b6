//! One call of `acquire` or `try_acquire` on a lock in one store: what observers see of the call, the short way of a free
//! name, and one name or several.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use crate::driver::{AcquireObservation, Acquired, Until};
use crate::entry::Entry;
use crate::error::{Error, Step};
use crate::guard::Guard;
use crate::owner::Owner;
use crate::several;
use crate::store_lock::StoreLock;
use crate::target::Target;

impl StoreLock {
    /// Acquires the lock; waits for up to `wait`, or for ever. `fallback` is the owner if none was given and none is in scope.
    pub(crate) async fn acquire(
        &self,
        wait: Option<Duration>,
        fallback: Option<&Owner>,
    ) -> Result<Acquired<Guard>, Error> {
        match self.begin(wait, fallback)? {
            Begun::Acquired(guard) => Ok(Acquired::Got(guard)),
            Begun::Waits(acquisition) => self.go_on(acquisition, wait, fallback).await,
        }
    }

    /// The first step, which acquires a free name in a store on this machine.
    pub(crate) fn begin(
        &self,
        wait: Option<Duration>,
        fallback: Option<&Owner>,
    ) -> Result<Begun, Error> {
        let target = self.checked()?;
        let is_one_try = wait == Some(Duration::ZERO);
        let (driver, names) = (&self.driver, target.names());
        let acquisition = AcquireObservation::begin(driver, names, &self.options, is_one_try);
        match acquisition.in_span(|| self.acquire_now(target, fallback)) {
            Ok(Some(guard)) => {
                acquisition.granted(guard.token().get(), false);
                Ok(Begun::Acquired(guard))
            }
            Ok(None) => Ok(Begun::Waits(acquisition)),
            Err(err) => {
                acquisition.failed(&err);
                Err(err)
            }
        }
    }

    /// The rest of an acquisition that has begun.
    pub(crate) async fn go_on(
        &self,
        mut acquisition: AcquireObservation,
        wait: Option<Duration>,
        fallback: Option<&Owner>,
    ) -> Result<Acquired<Guard>, Error> {
        let target = self.names()?;
        let until = Until::from_wait(wait, &self.driver.clock);
        if until != Until::Once {
            acquisition.wait();
        }
        // `Instrumented` would move the future, which is large.
        let mut acquire = pin!(async {
            match target {
                Target::One(name) => {
                    let entry = self.acquire_name(name, until, fallback).await?;
                    Ok(entry.map(Guard::one))
                }
                Target::Several { names, wanted } => {
                    let acquire = several::acquire(self, names, *wanted, until, fallback);
                    Ok(acquire.await?.map(Guard::of))
                }
            }
        });
        let outcome = poll_fn(|cx| acquisition.in_span(|| acquire.as_mut().poll(cx))).await;
        match &outcome {
            Ok(Acquired::Got(guard)) => {
                acquisition.granted(guard.token().get(), guard.is_reentry());
            }
            Ok(Acquired::Busy(_)) => acquisition.busy(),
            Err(err) => acquisition.failed(err),
        }
        outcome
    }

    /// Acquires without a future in the most frequent case: one name that is free, no owner, and a store on this machine.
    /// `None`: not that case.
    fn acquire_now(
        &self,
        target: &Target,
        fallback: Option<&Owner>,
    ) -> Result<Option<Guard>, Error> {
        let Target::One(name) = target else {
            return Ok(None);
        };
        let driver = &self.driver;
        let has_owner = fallback.is_some() || self.owner.is_some();
        if has_owner || Owner::implied(driver.id(), name).is_some() {
            return Ok(None);
        }
        let held = driver.acquire_now(name, &self.options);
        let held = held.map_err(|err| driver.explain(err, name, Step::Acquire))?;
        Ok(held.map(|held| Guard::one(Entry::only(held))))
    }
}

/// An acquisition after its first step.
pub(crate) enum Begun {
    Acquired(Guard),
    /// Call [`StoreLock::go_on`]: the store has to be asked, or a task waits for its turn.
    Waits(AcquireObservation),
}
