//! Entries into a hold: how one owner enters a lock several times, and the last entry to end releases the lock.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::driver::{EntryEnd, Held};
use crate::error::{Error, ErrorKind};
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::sync::{Mutex, lock};

/// The locks that one owner holds or acquires.
#[derive(Debug, Default)]
pub(crate) struct OwnedLocks {
    by_key: Mutex<HashMap<LockKey, Listed>>,
}

/// A lock in the list of its owner.
#[derive(Debug)]
struct Listed {
    owned: Arc<OwnedLock>,
    /// How many [`OwnedLockRef`] there are. The last one removes the lock from the list.
    refs: usize,
}

/// A lock of one client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockKey {
    pub(crate) client: usize,
    pub(crate) name: LockName,
}

/// One lock, for one owner.
#[derive(Debug)]
struct OwnedLock {
    /// One task of the owner acquires at a time; the other tasks of the owner wait for the outcome.
    gate: Arc<Semaphore>,
    hold: Mutex<Option<OwnedHold>>,
}

#[derive(Debug)]
struct OwnedHold {
    held: Weak<Held>,
    entries: u32,
}

impl OwnedLocks {
    /// How many entries into the lock the owner has; 0 if the hold is lost.
    pub(crate) fn entries(&self, key: &LockKey) -> u32 {
        let entered = {
            let by_key = lock(&self.by_key);
            let hold = by_key.get(key).map(|listed| lock(&listed.owned.hold));
            hold.and_then(|hold| {
                let hold = hold.as_ref()?;
                Some((hold.held.upgrade()?, hold.entries))
            })
        };
        match entered {
            Some((held, entries)) if !matches!(held.state(), HoldState::Lost(_)) => entries,
            _ => 0,
        }
    }

    /// Whether the owner has an entry into the lock, perhaps of a hold that is lost.
    pub(crate) fn is_entered(&self, key: &LockKey) -> bool {
        let owned = lock(&self.by_key).get(key).map(|it| it.owned.clone());
        owned.is_some_and(|owned| lock(&owned.hold).is_some())
    }

    /// Enters the lock again if the owner holds it. Otherwise says how to make the first entry.
    ///
    /// Waits, if `wait` is set, while another task acquires the lock for the same owner. Cancel safe.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: LockKey,
        mode: Mode,
        wait: bool,
    ) -> Result<EntryOutcome, Error> {
        let owned = OwnedLockRef::new(self.clone(), key);
        if let Some(entry) = owned.enter_again(mode)? {
            return Ok(EntryOutcome::Entered(entry));
        }
        let gate = owned.owned.gate.clone();
        let permit = if wait {
            gate.acquire_owned()
                .await
                .expect("BUG: the gate is never closed")
        } else {
            match gate.try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => return Ok(EntryOutcome::Busy),
            }
        };
        match owned.enter_again(mode)? {
            Some(entry) => Ok(EntryOutcome::Entered(entry)),
            None => Ok(EntryOutcome::First(FirstEntry {
                owned: Some(owned),
                _permit: Some(permit),
            })),
        }
    }
}

/// What a task finds that enters a lock.
pub(crate) enum EntryOutcome {
    /// The owner held the lock already, and has entered once more.
    Entered(Entry),
    /// The owner does not hold the lock, or there is no owner: acquire, then call [`FirstEntry::entered`].
    First(FirstEntry),
    /// Another task acquires the lock for the same owner, and this task does not wait.
    Busy,
}

/// The right of one task to acquire a lock, for its owner if there is one.
pub(crate) struct FirstEntry {
    owned: Option<OwnedLockRef>,
    /// No other task of the owner acquires the lock meanwhile.
    _permit: Option<OwnedSemaphorePermit>,
}

impl FirstEntry {
    /// The right to acquire a lock that cannot be entered again.
    pub(crate) fn without_owner() -> Self {
        Self {
            owned: None,
            _permit: None,
        }
    }

    /// The lock was granted: from now on the owner may enter it again.
    pub(crate) fn entered(self, held: Arc<Held>) -> Entry {
        if let Some(owned) = &self.owned {
            *lock(&owned.owned.hold) = Some(OwnedHold {
                held: Arc::downgrade(&held),
                entries: 1,
            });
        }
        Entry::new(held, self.owned, false)
    }
}

/// A reference to a lock of an owner. The last one removes the lock from the list of the owner.
#[derive(Debug)]
struct OwnedLockRef {
    locks: Arc<OwnedLocks>,
    key: LockKey,
    owned: Arc<OwnedLock>,
}

impl OwnedLockRef {
    fn new(locks: Arc<OwnedLocks>, key: LockKey) -> Self {
        let owned = {
            let mut by_key = lock(&locks.by_key);
            let listed = by_key.entry(key.clone()).or_insert_with(|| Listed {
                owned: Arc::new(OwnedLock {
                    gate: Arc::new(Semaphore::new(1)),
                    hold: Mutex::default(),
                }),
                refs: 0,
            });
            listed.refs += 1;
            listed.owned.clone()
        };
        Self { locks, key, owned }
    }

    fn enter_again(&self, mode: Mode) -> Result<Option<Entry>, Error> {
        let mut hold = lock(&self.owned.hold);
        let Some(entered) = hold.as_mut() else {
            return Ok(None);
        };
        let Some(held) = entered.held.upgrade() else {
            return Ok(None);
        };
        if let HoldState::Lost(reason) = held.state() {
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
        entered.entries = entered.entries.checked_add(1).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "entered 4,294,967,295 times; is a guard leaked in a loop?",
            )
        })?;
        drop(hold);
        let owned = Self::new(self.locks.clone(), self.key.clone());
        Ok(Some(Entry::new(held, Some(owned), true)))
    }

    /// Ends this entry if the owner has no other. Whether it did.
    fn leave_if_alone(&self) -> bool {
        let mut hold = lock(&self.owned.hold);
        let is_alone = hold.as_ref().is_none_or(|entered| entered.entries == 1);
        if is_alone {
            *hold = None;
        }
        is_alone
    }

    /// Ends one entry. Returns whether the owner has no other.
    fn leave(&self) -> bool {
        let mut hold = lock(&self.owned.hold);
        let Some(entered) = hold.as_mut() else {
            return true;
        };
        entered.entries -= 1;
        if entered.entries > 0 {
            return false;
        }
        *hold = None;
        true
    }
}

impl Drop for OwnedLockRef {
    fn drop(&mut self) {
        // Counted in the list and not by `Arc::strong_count`: of two references that are dropped at once, each would count
        // the other one, because the `Arc` is dropped only after this.
        let mut by_key = lock(&self.locks.by_key);
        if let Some(listed) = by_key.get_mut(&self.key) {
            listed.refs -= 1;
            if listed.refs == 0 {
                by_key.remove(&self.key);
            }
        }
    }
}

/// One entry into a hold. The last entry to end releases the lock; without an owner there is only one.
///
/// Small, because it moves with the guard through each layer of an acquisition.
#[derive(Debug)]
pub(crate) struct Entry {
    held: Arc<Held>,
    owned: Option<Box<OwnedEntry>>,
    is_over: bool,
    /// The owner held the lock before this entry.
    is_reentry: bool,
}

/// What an entry has more if the hold has an owner.
#[derive(Debug)]
struct OwnedEntry {
    lock: OwnedLockRef,
    /// For the futures of this entry. Made when there is the first one.
    end: OnceLock<EntryEnd>,
}

impl Entry {
    /// The only entry into a hold that has no owner.
    pub(crate) fn only(held: Arc<Held>) -> Self {
        Self::new(held, None, false)
    }

    fn new(held: Arc<Held>, owned: Option<OwnedLockRef>, is_reentry: bool) -> Self {
        let owned = owned.map(|lock| {
            let end = OnceLock::new();
            Box::new(OwnedEntry { lock, end })
        });
        Self {
            held,
            owned,
            is_over: false,
            is_reentry,
        }
    }

    /// Resolves when the hold is lost, and with `None` when the entry has ended without a loss. Keeps nothing alive.
    pub(crate) fn lost(&self) -> impl Future<Output = Option<LostReason>> + use<> {
        self.held.hold_state().clone().lost(self.end_for_futures())
    }

    /// Resolves when the hold is at risk, and with `None` when the entry has ended without a loss. Keeps nothing alive.
    pub(crate) fn at_risk(&self) -> impl Future<Output = Option<Duration>> + use<> {
        let state = self.held.hold_state().clone();
        state.at_risk(self.end_for_futures())
    }

    /// Resolves when another client asks the holder to let go, and with `None` when the entry has ended. Keeps nothing alive.
    pub(crate) fn asked_to_release(&self) -> impl Future<Output = Option<()>> + use<> {
        self.held.listen_for_requests();
        let state = self.held.hold_state().clone();
        state.asked_to_release(self.end_for_futures())
    }

    /// Whether another client has asked the holder to let go.
    pub(crate) fn is_asked_to_release(&self) -> bool {
        self.held.listen_for_requests();
        self.held.hold_state().is_asked()
    }

    fn end_for_futures(&self) -> EntryEnd {
        match &self.owned {
            Some(owned) => owned.end.get_or_init(EntryEnd::of_entry).clone(),
            None => EntryEnd::default(),
        }
    }

    pub(crate) fn is_reentry(&self) -> bool {
        self.is_reentry
    }

    /// Calls `change` if this is the only entry into the hold; the owner makes no other entry meanwhile. Whether it was.
    pub(crate) fn change_alone(&self, change: impl FnOnce()) -> bool {
        let owned = self.owned.as_ref();
        let hold = owned.map(|it| lock(&it.lock.owned.hold));
        let entries = hold.as_ref().and_then(|hold| Some(hold.as_ref()?.entries));
        let is_alone = entries.is_none_or(|entries| entries == 1);
        if is_alone {
            change();
        }
        is_alone
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// Ends this entry, once. Returns whether the hold ends with it.
    fn end(&mut self) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return false;
        }
        let Some(owned) = self.owned.take() else {
            return true;
        };
        let is_last = owned.lock.leave();
        if !is_last && let Some(end) = owned.end.get() {
            end.set_over();
            self.held.hold_state().notify();
        }
        is_last
    }

    /// Ends this entry and returns its hold, which is not released. `None`: the owner has other entries, and this one has ended.
    pub(crate) fn into_hold(mut self) -> Option<Arc<Held>> {
        if let Some(owned) = &self.owned
            && !owned.lock.leave_if_alone()
        {
            return None;
        }
        self.is_over = true;
        self.owned = None;
        Some(self.held.clone())
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

impl Drop for Entry {
    fn drop(&mut self) {
        if self.end() {
            self.held.release_in_background();
        }
    }
}

/// Resolves as soon as one of `futures` has an output, and with `None` when all have ended without one. May be polled again
/// after that, as a loop around `select!` does.
pub(crate) fn first_of<T, F>(
    futures: Vec<F>,
) -> impl Future<Output = Option<T>> + Send + Sync + 'static
where
    T: Copy + Send + Sync + 'static,
    F: Future<Output = Option<T>> + Send + Sync + 'static,
{
    let mut pending: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut first = None;
    std::future::poll_fn(move |cx| {
        pending.retain_mut(|one| match one.as_mut().poll(cx) {
            Poll::Ready(output) => {
                first = first.or(output);
                false
            }
            Poll::Pending => true,
        });
        match (first, pending.is_empty()) {
            (None, false) => Poll::Pending,
            (first, _) => Poll::Ready(first),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_count_that_would_overflow_is_refused_and_the_last_exit_releases() {
        let store = crate::memory::Store::new();
        let client = crate::Client::from_store(store).unwrap();
        let owner = Owner::new();
        let guard = client.lock("a").owner(&owner).acquire().await.unwrap();
        let owned = lock(&owner.0.by_key).values().next().unwrap().owned.clone();
        lock(&owned.hold).as_mut().unwrap().entries = u32::MAX;
        let err = client.lock("a").owner(&owner).acquire().await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
        lock(&owned.hold).as_mut().unwrap().entries = 1;
        drop(owned);
        guard.release().await.unwrap();
        assert!(lock(&owner.0.by_key).is_empty());
        assert!(client.lock("a").try_acquire().await.unwrap().is_some());
    }

    /// One thread looks at the lock while the last entry ends, as a second entry that ends at the same moment does.
    #[tokio::test]
    async fn an_entry_that_ends_while_another_task_looks_at_it_leaves_nothing() {
        let client = crate::Client::from_store(crate::memory::Store::new()).unwrap();
        let owner = Owner::new();
        let guard = client.lock("a").owner(&owner).acquire().await.unwrap();
        let looked_at = lock(&owner.0.by_key).values().next().unwrap().owned.clone();
        drop(guard);
        drop(looked_at);
        assert!(lock(&owner.0.by_key).is_empty());
    }

    #[tokio::test]
    async fn entries_that_end_at_once_leave_nothing() {
        let client = crate::Client::from_store(crate::memory::Store::new()).unwrap();
        let owner = Owner::new();
        for _ in 0..2_000 {
            let lock_of_owner = client.lock("a").owner(&owner);
            let guards = [
                lock_of_owner.acquire().await.unwrap(),
                lock_of_owner.acquire().await.unwrap(),
            ];
            let start = std::sync::Barrier::new(guards.len());
            std::thread::scope(|scope| {
                for guard in guards {
                    scope.spawn(|| {
                        start.wait();
                        drop(guard);
                    });
                }
            });
            assert!(lock(&owner.0.by_key).is_empty());
        }
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::rt::sync::{AtomicUsize, check, spawn};

    fn key() -> LockKey {
        let name = LockName::new("n").unwrap();
        LockKey { client: 0, name }
    }

    #[test]
    fn references_that_end_at_once_leave_nothing() {
        check(|| {
            let locks = Arc::<OwnedLocks>::default();
            let first = OwnedLockRef::new(locks.clone(), key());
            let second = spawn({
                let locks = locks.clone();
                async move { drop(OwnedLockRef::new(locks, key())) }
            });
            drop(first);
            second.join().unwrap();
            assert!(lock(&locks.by_key).is_empty());
        });
    }

    #[test]
    fn one_task_of_an_owner_acquires_at_a_time() {
        check(|| {
            let locks = Arc::<OwnedLocks>::default();
            let acquiring = Arc::new(AtomicUsize::new(0));
            let tasks = [(); 2].map(|()| {
                let (locks, acquiring) = (locks.clone(), acquiring.clone());
                spawn(async move {
                    let entry = locks.enter(key(), Mode::Exclusive, true).await.unwrap();
                    assert!(matches!(entry, EntryOutcome::First(_)));
                    assert_eq!(acquiring.fetch_add(1, Ordering::SeqCst), 0);
                    acquiring.fetch_sub(1, Ordering::SeqCst);
                    // The store refused: the next task acquires.
                    drop(entry);
                })
            });
            for task in tasks {
                task.join().unwrap();
            }
            assert!(lock(&locks.by_key).is_empty());
        });
    }
}
