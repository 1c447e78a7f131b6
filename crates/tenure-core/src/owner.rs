//! Re-entrance: who may enter a lock again that it already holds.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::Client;
use crate::driver::held::Held;
use crate::error::{Error, ErrorKind};
use crate::logic::lease::State;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::lock;

/// An identity that may enter its own locks again.
///
/// Locks are not re-entrant by default: a second acquisition of the same name waits for the first one.
/// With the same `Owner`, given to [`Lock::owner`](crate::Lock::owner) or by
/// [`Owner::scope`], the second acquisition enters the lock at once, without a request to the store. Entries are
/// counted, and the last one to end releases the lock. All entries share one hold: one token, one deadline, one loss.
///
/// Ownership belongs to the `Owner`, not to a thread or task: two tasks with clones of one `Owner`
/// do not exclude each other. A task that is spawned inside a scope is outside of the scope, unless it gets the owner.
#[derive(Clone, Debug, Default)]
pub struct Owner(Arc<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_lock: Mutex<HashMap<Key, Arc<Entry>>>,
}

/// Which client's lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    client: usize,
    name: LockName,
}

#[derive(Debug)]
struct Entry {
    /// One acquisition at a time; whoever comes meanwhile with the same owner waits for its outcome.
    gate: Arc<Semaphore>,
    entered: Mutex<Option<Entered>>,
}

#[derive(Debug)]
struct Entered {
    held: Weak<Held>,
    count: u32,
}

tokio::task_local! {
    static SCOPE: Scope;
}

/// What the current task is inside of.
#[derive(Clone, Debug)]
struct Scope {
    owner: Owner,
    /// New acquisitions belong to the owner too. Closed scopes, those of `run`, only let in again
    /// where the lock is held already: anything more would let two branches of one task, say of a
    /// `join!`, both into a lock that neither held before.
    open: bool,
    outer: Option<Arc<Scope>>,
}

impl Owner {
    /// A new identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `future` as one owner: every lock that `future` acquires without an owner of its own is re-entrant.
    ///
    /// Inside another scope the outer owner is kept, so that library code may use scopes of its own.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    pub async fn scope<F: Future>(future: F) -> F::Output {
        let owner = Self::of_scope().unwrap_or_default();
        owner.enter_scope(future).await
    }

    /// Runs `future` with this owner. A spawned task needs this to have the same owner as its parent.
    ///
    /// # Cancel safety
    /// As cancel safe as `future`.
    pub async fn enter_scope<F: Future>(&self, future: F) -> F::Output {
        self.enter(true, future).await
    }

    /// Runs the body of a template: it may enter again what this owner holds, and nothing else changes.
    pub(crate) async fn enter_body<F: Future>(&self, future: F) -> F::Output {
        self.enter(false, future).await
    }

    async fn enter<F: Future>(&self, open: bool, future: F) -> F::Output {
        let outer = SCOPE.try_with(|scope| Arc::new(scope.clone())).ok();
        SCOPE
            .scope(
                Scope {
                    owner: self.clone(),
                    open,
                    outer,
                },
                future,
            )
            .await
    }

    /// The owner of the scope in which the current task runs, if there is one.
    pub fn current() -> Option<Self> {
        Self::of_scope()
    }

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
        // What cannot be a name is not held.
        let Ok(name) = LockName::new(name) else {
            return 0;
        };
        let key = Key {
            client: client.id(),
            name,
        };
        let inside = {
            let by_lock = lock(&self.0.by_lock);
            let entered = by_lock.get(&key).map(|entry| lock(&entry.entered));
            entered.and_then(|entered| {
                let inside = entered.as_ref()?;
                Some((inside.held.upgrade()?, inside.count))
            })
        };
        match inside {
            Some((held, count)) if !matches!(held.state(), State::Lost(_)) => count,
            _ => 0,
        }
    }

    fn of_scope() -> Option<Self> {
        SCOPE
            .try_with(|scope| {
                scope
                    .chain()
                    .find(|scope| scope.open)
                    .map(|scope| scope.owner.clone())
            })
            .ok()
            .flatten()
    }

    /// The owner that an acquisition of `name` belongs to when none was given.
    pub(crate) fn implied(client: usize, name: &LockName) -> Option<Self> {
        SCOPE
            .try_with(|scope| {
                scope
                    .chain()
                    .find(|scope| scope.open || scope.owner.has_entered(client, name))
                    .map(|scope| scope.owner.clone())
            })
            .ok()
            .flatten()
    }

    fn has_entered(&self, client: usize, name: &LockName) -> bool {
        let key = Key {
            client,
            name: name.clone(),
        };
        let entry = lock(&self.0.by_lock).get(&key).cloned();
        entry.is_some_and(|entry| lock(&entry.entered).is_some())
    }

    /// Enters again where this owner holds `name` already; otherwise says how to make the first entry.
    ///
    /// Waits while another task acquires for the same owner. Cancel safe.
    pub(crate) async fn approach(
        &self,
        client: usize,
        name: &LockName,
        mode: Mode,
        wait: bool,
    ) -> Result<Approach, Error> {
        let key = Key {
            client,
            name: name.clone(),
        };
        let entry = lock(&self.0.by_lock)
            .entry(key.clone())
            .or_insert_with(|| {
                Arc::new(Entry {
                    gate: Arc::new(Semaphore::new(1)),
                    entered: Mutex::default(),
                })
            })
            .clone();
        let place = Place {
            owner: self.clone(),
            key,
            entry,
        };
        if let Some(entered) = place.enter_again(mode)? {
            return Ok(Approach::Entered(entered));
        }
        let gate = place.entry.gate.clone();
        let gate = if wait {
            gate.acquire_owned()
                .await
                .expect("BUG: the gate is never closed")
        } else {
            match gate.try_acquire_owned() {
                Ok(gate) => gate,
                Err(_) => return Ok(Approach::Busy),
            }
        };
        match place.enter_again(mode)? {
            Some(entered) => Ok(Approach::Entered(entered)),
            None => Ok(Approach::First(First { place, _gate: gate })),
        }
    }
}

impl Scope {
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |scope| scope.outer.as_deref())
    }
}

/// What an owner finds at a lock.
pub(crate) enum Approach {
    /// It was inside already and has entered once more.
    Entered(Entrance),
    /// It is outside: acquire, then [`First::entered`].
    First(First),
    /// Another task is acquiring for the same owner, and we do not wait.
    Busy,
}

/// The right of one task to acquire for its owner.
pub(crate) struct First {
    place: Place,
    _gate: OwnedSemaphorePermit,
}

impl First {
    /// It was granted: from now on the owner may enter again.
    pub(crate) fn entered(self, held: Arc<Held>) -> Entrance {
        *lock(&self.place.entry.entered) = Some(Entered {
            held: Arc::downgrade(&held),
            count: 1,
        });
        Entrance::of(held, self.place)
    }
}

#[derive(Debug)]
struct Place {
    owner: Owner,
    key: Key,
    entry: Arc<Entry>,
}

impl Place {
    fn enter_again(&self, mode: Mode) -> Result<Option<Entrance>, Error> {
        let mut entered = lock(&self.entry.entered);
        let Some(inside) = entered.as_mut() else {
            return Ok(None);
        };
        let Some(held) = inside.held.upgrade() else {
            return Ok(None);
        };
        if let State::Lost(reason) = held.state() {
            return Err(Error::new(
                ErrorKind::Lost,
                format!(
                    "this owner's hold has ended ({reason}); release it before you acquire again"
                ),
            ));
        }
        if held.mode() != mode && held.mode() != Mode::Exclusive {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "this owner holds it already ({}) and cannot enter it as {mode}: two that try would wait for each other; acquire the stronger mode first",
                    held.mode()
                ),
            ));
        }
        inside.count = inside.count.checked_add(1).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "entered 4,294,967,295 times; is a guard leaked in a loop?",
            )
        })?;
        drop(entered);
        let place = Self {
            owner: self.owner.clone(),
            key: self.key.clone(),
            entry: self.entry.clone(),
        };
        let mut entrance = Entrance::of(held, place);
        entrance.is_reentry = true;
        Ok(Some(entrance))
    }

    /// Whether this was the last exit.
    fn leave(&self) -> bool {
        let mut entered = lock(&self.entry.entered);
        let Some(inside) = entered.as_mut() else {
            return true;
        };
        inside.count -= 1;
        if inside.count > 0 {
            return false;
        }
        *entered = None;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nobody else is at this lock for this owner: forget about it.
        let mut by_lock = lock(&self.owner.0.by_lock);
        if Arc::strong_count(&self.entry) == 2 && lock(&self.entry.entered).is_none() {
            by_lock.remove(&self.key);
        }
    }
}

/// One entry into a hold; the last one out releases. Without an owner: the only one.
#[derive(Debug)]
pub(crate) struct Entrance {
    held: Arc<Held>,
    place: Option<Place>,
    ended: bool,
    /// The owner held the lock before this entry.
    is_reentry: bool,
}

impl Entrance {
    /// A hold that nobody enters again.
    pub(crate) fn only(held: Arc<Held>) -> Self {
        Self {
            held,
            place: None,
            ended: false,
            is_reentry: false,
        }
    }

    fn of(held: Arc<Held>, place: Place) -> Self {
        Self {
            held,
            place: Some(place),
            ended: false,
            is_reentry: false,
        }
    }

    pub(crate) fn is_reentry(&self) -> bool {
        self.is_reentry
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// Ends this entry, once; says whether the hold ends with it.
    fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.ended, true)
            && self.place.take().is_none_or(|place| place.leave())
    }

    /// Ends this entry; the last one releases.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        if self.end() {
            self.held.clone().release().await
        } else {
            Ok(())
        }
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        if self.end() {
            self.held.release_in_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_count_that_would_overflow_is_refused_and_the_last_exit_releases() {
        let store = crate::memory::Backend::new();
        let client = crate::Client::from_backend(store).unwrap();
        let owner = Owner::new();
        let guard = client.lock("a").owner(&owner).acquire().await.unwrap();
        let entry = lock(&owner.0.by_lock).values().next().unwrap().clone();
        lock(&entry.entered).as_mut().unwrap().count = u32::MAX;
        let err = client.lock("a").owner(&owner).acquire().await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
        lock(&entry.entered).as_mut().unwrap().count = 1;
        drop(entry);
        guard.release().await.unwrap();
        assert!(lock(&owner.0.by_lock).is_empty());
        assert!(client.lock("a").try_acquire().await.unwrap().is_some());
    }
}
