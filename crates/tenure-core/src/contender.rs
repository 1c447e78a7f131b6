//! One acquisition of a name on behalf of its owner: enters a lock again that the owner has, or asks the store.

use std::sync::Arc;

use crate::driver::{Acquired, Asker, Driver, Held, LastStatus, Together, Until};
use crate::entry::{Entry, EntryOutcome, FirstEntry, LockKey};
use crate::error::{Error, Step};
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;

/// In whose name, and how, an acquisition takes names.
#[derive(Clone, Copy)]
pub(crate) struct Contender<'a> {
    pub(crate) driver: &'a Arc<Driver>,
    pub(crate) options: &'a Options,
    /// The owner that was given.
    pub(crate) owner: Option<&'a Owner>,
    /// The owner if none was given and none is in scope.
    pub(crate) fallback: Option<&'a Owner>,
}

impl Contender<'_> {
    /// Acquires one name, waiting until `until`.
    pub(crate) async fn acquire(
        self,
        name: &LockName,
        until: Until,
    ) -> Result<Acquired<Entry>, Error> {
        let Self {
            driver, options, ..
        } = self;
        let explain = |err| driver.explain(err, name, Step::Acquire);
        let Some(owner) = self.owner_of(name) else {
            let held = driver.acquire(name, options, until).await?;
            return Ok(held.map(Entry::only));
        };
        let key = LockKey {
            client: driver.id(),
            name: name.clone(),
        };
        let entering = owner.enter_lock(key, options.mode, until.waits());
        let wait = until.length(&driver.clock);
        let outcome = match until {
            Until::At(_) => tokio::select! {
                biased;
                outcome = entering => outcome,
                inspected = driver.over(name, until) => {
                    // Another task of the owner asks the store.
                    let last = driver.refuse_silence(inspected, wait, Asker::AnotherTask);
                    return last.map(Acquired::Busy).map_err(explain);
                }
            },
            Until::Once | Until::OnceBy(_) | Until::Forever => entering.await,
        };
        match outcome.map_err(explain)? {
            EntryOutcome::Entered(entry) => Ok(Acquired::Got(entry)),
            EntryOutcome::Busy => {
                let last = Box::pin(driver.busy_behind_task(name, until)).await;
                last.map(Acquired::Busy).map_err(explain)
            }
            EntryOutcome::First(first) => {
                let held = driver.acquire(name, options, until).await?;
                Ok(held.map(|held| first.entered(held)))
            }
        }
    }

    /// Acquires all of `names` with one request to the store, if all are free; none of them otherwise.
    pub(crate) async fn acquire_together(
        self,
        names: &[&LockName],
        until: Until,
    ) -> Result<AtOnce, Error> {
        let Some(openings) = self.open_all(names).await? else {
            return Ok(AtOnce::OneByOne);
        };
        let is_asked =
            |(_, opening): &(&&LockName, &Opening)| !matches!(opening, Opening::Again(_));
        let asked = names.iter().zip(&openings).filter(is_asked);
        let asked: Vec<_> = asked.map(|(name, _)| *name).collect();
        if asked.len() < 2 {
            return Ok(AtOnce::OneByOne);
        }
        let acquiring = self.driver.acquire_together(&asked, self.options, until);
        let mut held = match acquiring.await? {
            Together::Held(held) => held.into_iter(),
            Together::Busy(at, last) => return Ok(AtOnce::Busy(asked[at].clone(), last)),
            Together::OneByOne => return Ok(AtOnce::OneByOne),
        };
        let mut next = || held.next().expect("BUG: there is a hold for each name");
        let entries = openings.into_iter().map(|opening| match opening {
            Opening::Again(entry) => entry,
            opening => opening.entered(next()),
        });
        Ok(AtOnce::All(entries.collect()))
    }

    /// Enters again what the owner has, and says for the other names that they are about to be acquired. `None`: another
    /// task acquires one of them for the same owner.
    async fn open_all(self, names: &[&LockName]) -> Result<Option<Vec<Opening>>, Error> {
        let (driver, mode) = (self.driver, self.options.mode);
        let mut openings = Vec::with_capacity(names.len());
        for name in names {
            let Some(owner) = self.owner_of(name) else {
                openings.push(Opening::WithoutOwner);
                continue;
            };
            let key = LockKey {
                client: driver.id(),
                name: (*name).clone(),
            };
            let outcome = owner.enter_lock(key, mode, false).await;
            match outcome.map_err(|err| driver.explain(err, name, Step::Acquire))? {
                EntryOutcome::Entered(entry) => openings.push(Opening::Again(entry)),
                EntryOutcome::First(first) => openings.push(Opening::First(first)),
                EntryOutcome::Busy => return Ok(None),
            }
        }
        Ok(Some(openings))
    }

    fn owner_of(self, name: &LockName) -> Option<Owner> {
        let given = self.owner.cloned();
        given
            .or_else(|| Owner::implied(self.driver.id(), name))
            .or_else(|| self.fallback.cloned())
    }
}

/// What became of a request for several names at once.
pub(crate) enum AtOnce {
    /// An entry for each name, in the same order.
    All(Vec<Entry>),
    /// The name that is not free.
    Busy(LockName, LastStatus),
    /// The names have to be acquired one by one.
    OneByOne,
}

/// A name that is about to be acquired.
enum Opening {
    /// The owner has it already.
    Again(Entry),
    First(FirstEntry),
    WithoutOwner,
}

impl Opening {
    fn entered(self, held: Arc<Held>) -> Entry {
        match self {
            Self::Again(entry) => entry,
            Self::First(first) => first.entered(held),
            Self::WithoutOwner => Entry::only(held),
        }
    }
}
