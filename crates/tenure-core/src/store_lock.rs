//! The part of a lock that is about one store: names, options and owner, and how each name is acquired.

use std::sync::Arc;
use std::time::Duration;

use crate::defaults::{Defaults, Prefix};
use crate::driver::{Acquired, AcquiredAll, Asker, BusyName, Driver, Until};
use crate::entry::{Entry, EntryOutcome, FirstEntry, LockKey};
use crate::error::{Error, Step};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::target::{InvalidTarget, Target};

/// A lock in one store.
#[derive(Clone, Debug)]
pub(crate) struct StoreLock {
    pub(crate) driver: Arc<Driver>,
    pub(crate) target: Result<Target, InvalidTarget>,
    pub(crate) options: Options,
    pub(crate) owner: Option<Owner>,
    /// Put before every name that is given to this lock.
    pub(crate) prefix: Prefix,
}

/// In each of these functions `fallback` is the owner if none was given and none is in scope.
impl StoreLock {
    pub(crate) fn new(
        driver: Arc<Driver>,
        defaults: &Defaults,
        target: Result<Target, InvalidTarget>,
    ) -> Self {
        Self {
            driver,
            target,
            options: defaults.options.clone(),
            owner: None,
            prefix: defaults.prefix.clone(),
        }
    }

    /// The names, if they and the options can be used with this store; asks no store.
    pub(crate) fn checked(&self) -> Result<&Target, Error> {
        let target = self.names()?;
        self.driver.check_support(&self.options)?;
        Ok(target)
    }

    /// The names, if they are valid.
    pub(crate) fn names(&self) -> Result<&Target, Error> {
        self.target.as_ref().map_err(InvalidTarget::error)
    }

    /// The error of a wait that ended without a grant.
    pub(crate) async fn wait_elapsed(&self, busy: BusyName, waited: Duration) -> Error {
        self.driver
            .wait_elapsed(busy, waited, self.options.ttl)
            .await
    }

    /// Acquires one name, waiting until `until`: enters it again if the owner has it, or asks the store.
    pub(crate) async fn acquire_name(
        &self,
        name: &LockName,
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<Acquired<Entry>, Error> {
        let driver = &self.driver;
        let acquire = async {
            let entering = self.enter(name, until.waits(), fallback);
            let wait = until.length(&driver.clock);
            let outcome = match until {
                Until::At(_) => tokio::select! {
                    biased;
                    outcome = entering => outcome,
                    inspected = driver.over(name, until) => {
                        // Another task of the owner asks the store.
                        let asker = Asker::AnotherTask;
                        let busy = driver.refuse_silence(name, inspected, wait, asker)?;
                        return Ok(Acquired::Busy(busy));
                    }
                },
                Until::Once | Until::OnceBy(_) | Until::Forever => entering.await,
            };
            match outcome? {
                EntryOutcome::Entered(entry) => Ok(Acquired::Got(entry)),
                EntryOutcome::First(first) => {
                    let held = driver.acquire(name, &self.options, until).await?;
                    Ok(held.map(|held| first.entered(held)))
                }
                EntryOutcome::Busy => {
                    // In a box: few tries meet another task of the same owner.
                    let busy = Box::pin(driver.busy_behind_task(name, until)).await?;
                    Ok(Acquired::Busy(busy))
                }
            }
        };
        let acquired = acquire.await;
        acquired.map_err(|err| driver.explain(err, name, Step::Acquire))
    }

    /// Acquires all of `names` with one request to the store, if all are free; none of them otherwise.
    pub(crate) async fn acquire_together(
        &self,
        names: &[&LockName],
        until: Until,
        fallback: Option<&Owner>,
    ) -> Result<AcquiredAll<Entry>, Error> {
        let driver = &self.driver;
        let explain = |err, name| driver.explain(err, name, Step::Acquire);
        let (mut entries, mut asked, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            let outcome = self.enter(name, false, fallback).await;
            match outcome.map_err(|err| explain(err, name))? {
                EntryOutcome::Entered(entry) => entries.push(Some(entry)),
                EntryOutcome::First(first) => {
                    entries.push(None);
                    asked.push(*name);
                    firsts.push(first);
                }
                EntryOutcome::Busy => return Ok(AcquiredAll::OneByOne),
            }
        }
        if asked.len() < 2 {
            return Ok(AcquiredAll::OneByOne);
        }
        let acquired = driver.acquire_together(&asked, &self.options, until).await;
        let held = match acquired.map_err(|err| explain(err, asked[0]))? {
            AcquiredAll::All(held) => held,
            AcquiredAll::Busy(busy) => return Ok(AcquiredAll::Busy(busy)),
            AcquiredAll::OneByOne => return Ok(AcquiredAll::OneByOne),
        };
        let mut new = firsts.into_iter().zip(held);
        let mut next = || new.next().map(|(first, held)| first.entered(held));
        let entries = entries.into_iter();
        let entries = entries.filter_map(|entry| entry.or_else(&mut next));
        Ok(AcquiredAll::All(entries.collect()))
    }

    /// Enters the name again if the owner has it. Otherwise says how to make the first entry; waits for that, if `wait` is
    /// set, while another task acquires the name for the same owner. Cancel safe.
    async fn enter(
        &self,
        name: &LockName,
        wait: bool,
        fallback: Option<&Owner>,
    ) -> Result<EntryOutcome, Error> {
        let client = self.driver.id();
        let given = self.owner.clone();
        let owner = given.or_else(|| Owner::implied(client, name));
        let Some(owner) = owner.or_else(|| fallback.cloned()) else {
            return Ok(EntryOutcome::First(FirstEntry::without_owner()));
        };
        let name = name.clone();
        let key = LockKey { client, name };
        owner.0.enter(key, self.options.mode, wait).await
    }
}
