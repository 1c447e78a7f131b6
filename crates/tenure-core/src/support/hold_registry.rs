//! The acquisitions of one client that a store has to remember, by their owner.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use crate::fence::{OwnerId, RandomAlready};
use crate::rt::lock;

/// Remembers a `T` for each owner that holds, waits, or has a request of unknown outcome.
///
/// Functions that are passed in run under a mutex: they must neither block nor call the registry.
pub struct HoldRegistry<T>(Mutex<HashMap<OwnerId, T, RandomAlready>>);

impl<T> Default for HoldRegistry<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for HoldRegistry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HoldRegistry").field(&self.len()).finish()
    }
}

impl<T> HoldRegistry<T> {
    /// Remembers `entry` for `owner`, instead of what was remembered for it before.
    pub fn insert(&self, owner: OwnerId, entry: T) {
        lock(&self.0).insert(owner, entry);
    }

    /// Forgets `owner`, and returns what was remembered.
    pub fn remove(&self, owner: OwnerId) -> Option<T> {
        lock(&self.0).remove(&owner)
    }

    /// Sends the release of what `owner` has. While `send` is under way nothing else finds the entry, so nothing else is asked
    /// about the hold. After an error the entry is back: the driver sends the release again, and it has to be the same request.
    pub async fn release<R, E>(
        &self,
        owner: OwnerId,
        send: impl AsyncFnOnce(Option<&mut T>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut entry = self.remove(owner);
        let outcome = send(entry.as_mut()).await;
        if outcome.is_err()
            && let Some(entry) = entry
        {
            self.insert(owner, entry);
        }
        outcome
    }

    /// How many owners are remembered.
    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Whether no owner is remembered.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Whether `owner` is remembered.
    pub fn contains(&self, owner: OwnerId) -> bool {
        lock(&self.0).contains_key(&owner)
    }

    /// A copy of what is remembered for `owner`.
    pub fn get(&self, owner: OwnerId) -> Option<T>
    where
        T: Clone,
    {
        lock(&self.0).get(&owner).cloned()
    }

    /// What `read` returns for the entry of `owner`.
    pub fn read<R>(&self, owner: OwnerId, read: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.0).get(&owner).map(read)
    }

    /// Changes the entry of `owner`, if there is one.
    pub fn update<R>(&self, owner: OwnerId, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        lock(&self.0).get_mut(&owner).map(change)
    }

    /// What `select` returns for each entry, without the entries for which it returns `None`.
    pub fn select<R>(&self, mut select: impl FnMut(OwnerId, &T) -> Option<R>) -> Vec<R> {
        let entries = lock(&self.0);
        let selected = entries.iter().map(|(owner, entry)| select(*owner, entry));
        selected.flatten().collect()
    }

    /// Calls `visit` for each entry, which may change it.
    pub fn for_each(&self, mut visit: impl FnMut(OwnerId, &mut T)) {
        for (owner, entry) in lock(&self.0).iter_mut() {
            visit(*owner, entry);
        }
    }

    /// Forgets the entries for which `keep` returns `false`.
    pub fn retain(&self, mut keep: impl FnMut(OwnerId, &T) -> bool) {
        lock(&self.0).retain(|owner, entry| keep(*owner, entry));
    }

    /// Forgets everything, and returns it.
    pub fn take_all(&self) -> Vec<(OwnerId, T)> {
        std::mem::take(&mut *lock(&self.0)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::poll_now;

    #[test]
    fn an_entry_is_found_under_its_owner_until_it_is_removed() {
        let registry = HoldRegistry::default();
        let (one, two) = (OwnerId::random(), OwnerId::random());
        registry.insert(one, 1);
        registry.insert(two, 2);
        registry.insert(one, 3);
        assert_eq!(registry.len(), 2);
        assert!(!registry.is_empty());
        assert_eq!(registry.get(one), Some(3));
        assert_eq!(registry.update(two, |it| std::mem::replace(it, 5)), Some(2));
        assert_eq!(registry.read(two, |it| *it + 1), Some(6));
        let greater = |owner, it: &i32| (*it > 4).then_some(owner);
        assert_eq!(registry.select(greater), [two]);
        registry.for_each(|_, it| *it = 0);
        assert_eq!(registry.remove(one), Some(0));
        assert!(!registry.contains(one) && registry.contains(two));
        assert_eq!(registry.len(), 1);
        registry.insert(one, 7);
        registry.retain(|owner, it| owner == two && *it == 0);
        assert!(!registry.contains(one) && registry.contains(two));
        assert_eq!(registry.take_all(), [(two, 0)]);
        assert!(registry.is_empty() && registry.take_all().is_empty());
    }

    #[test]
    fn an_entry_is_away_during_its_release_and_back_after_an_error() {
        let (registry, owner) = (HoldRegistry::default(), OwnerId::random());
        let release = |outcome: Result<(), ()>| {
            let releasing = registry.release(owner, async |entry: Option<&mut i32>| {
                assert!(registry.is_empty());
                let known = entry.as_deref().copied();
                entry.into_iter().for_each(|it| *it += 1);
                outcome.map(|()| known).map_err(|()| known)
            });
            poll_now(Box::pin(releasing)).ok()
        };
        assert_eq!(release(Err(())), Some(Err(None)));
        assert!(registry.is_empty());
        registry.insert(owner, 1);
        assert_eq!(release(Err(())), Some(Err(Some(1))));
        assert_eq!(registry.get(owner), Some(2));
        assert_eq!(release(Ok(())), Some(Ok(Some(2))));
        assert!(registry.is_empty());
    }
}
