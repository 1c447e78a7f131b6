//! The acquisitions on one session, found by who asked and by what for: neither takes longer when there are many.

use std::collections::HashMap;

use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::time::Time;

use super::names::Key;

/// One acquisition on a session.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) is_shared: bool,
    pub(super) stage: Stage,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A request for it may be under way.
    Asking,
    /// The same, and nobody wants it any more.
    Unwanted,
    /// It holds. Unless it is renewed it is given back then.
    Held { token: u64, until: Time },
    /// It is being given back; without an answer by then, once more.
    Giving { again: Time },
}

impl Stage {
    /// Nobody wants it, and soon it will not be there.
    fn is_leaving(self) -> bool {
        self.is_unwanted() || matches!(self, Self::Giving { .. })
    }

    fn is_unwanted(self) -> bool {
        self == Self::Unwanted
    }
}

/// How a session has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Not,
    Shared,
    Alone,
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    all: HashMap<OwnerId, Entry, RandomAlready>,
    keys: HashMap<Key, Count>,
    unwanted: usize,
    leaving: usize,
}

/// Acquisitions of one key.
#[derive(Debug, Default)]
struct Count {
    all: usize,
    shared: usize,
    leaving: usize,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn get(&self, owner: &OwnerId) -> Option<&Entry> {
        self.all.get(owner)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OwnerId, &Entry)> {
        self.all.iter()
    }

    /// A new one. Nobody asks twice under the same owner.
    pub(super) fn insert(&mut self, owner: OwnerId, entry: Entry) {
        self.remove(&owner);
        self.count(&entry, 1);
        self.all.insert(owner, entry);
    }

    pub(super) fn remove(&mut self, owner: &OwnerId) -> Option<Entry> {
        let entry = self.all.remove(owner)?;
        self.count(&entry, -1);
        Some(entry)
    }

    /// All of them, and none is left.
    pub(super) fn take(&mut self) -> Vec<(OwnerId, Entry)> {
        std::mem::take(self).all.into_iter().collect()
    }

    /// It goes on to that stage, if it is there.
    pub(super) fn set(&mut self, owner: &OwnerId, stage: Stage) {
        let Some(entry) = self.all.get_mut(owner) else {
            return;
        };
        let before = std::mem::replace(&mut entry.stage, stage);
        let change = |is: fn(Stage) -> bool| isize::from(is(stage)) - isize::from(is(before));
        let leaving = change(Stage::is_leaving);
        add(&mut self.unwanted, change(Stage::is_unwanted));
        add(&mut self.leaving, leaving);
        if leaving != 0
            && let Some(count) = self.keys.get_mut(&entry.key)
        {
            add(&mut count.leaving, leaving);
        }
    }

    /// Whether the session has the key, or may have it.
    pub(super) fn has(&self, key: &Key) -> Has {
        match self.keys.get(key) {
            None => Has::Not,
            Some(count) if count.shared == count.all => Has::Shared,
            Some(_) => Has::Alone,
        }
    }

    /// Whether the key is being given back.
    pub(super) fn is_given(&self, key: &Key) -> bool {
        self.keys.get(key).is_some_and(|count| count.leaving > 0)
    }

    /// Whether anything is being given back.
    pub(super) fn are_in_flux(&self) -> bool {
        self.leaving > 0
    }

    /// Those that nobody wants any more.
    pub(super) fn unwanted(&self) -> Vec<OwnerId> {
        if self.unwanted == 0 {
            return Vec::new();
        }
        let unwanted = self.iter().filter(|(_, it)| it.stage.is_unwanted());
        unwanted.map(|(owner, _)| *owner).collect()
    }

    /// Counts it, once or back.
    fn count(&mut self, entry: &Entry, once: isize) {
        let if_so = |is_so: bool| once * isize::from(is_so);
        let leaving = if_so(entry.stage.is_leaving());
        add(&mut self.unwanted, if_so(entry.stage.is_unwanted()));
        add(&mut self.leaving, leaving);
        let count = self.keys.entry(entry.key.clone()).or_default();
        add(&mut count.all, once);
        add(&mut count.shared, if_so(entry.is_shared));
        add(&mut count.leaving, leaving);
        if count.all == 0 {
            self.keys.remove(&entry.key);
        }
    }
}

/// Never below zero: what is taken away was added.
fn add(count: &mut usize, change: isize) {
    *count = count.saturating_add_signed(change);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn stage(number: u8) -> Stage {
        match number % 4 {
            0 => Stage::Asking,
            1 => Stage::Unwanted,
            2 => Stage::Held {
                token: 1,
                until: Time::MAX,
            },
            _ => Stage::Giving { again: Time::MAX },
        }
    }

    proptest! {
        /// Whatever is done to them, the answers are those of somebody who looks at all of them.
        #[test]
        fn what_was_counted_is_what_is_there(steps in prop::collection::vec((0_u8..4, 0_u8..6, 0_i64..3, any::<bool>(), any::<u8>()), 0..60)) {
            let mut entries = Entries::default();
            let mut model: HashMap<OwnerId, Entry> = HashMap::new();
            for (step, owner, key, is_shared, number) in steps {
                let owner = OwnerId::from_bytes([owner; 16]);
                match step {
                    0 => {
                        let entry = Entry { key: Key::One(key), is_shared, stage: stage(number) };
                        entries.insert(owner, entry.clone());
                        model.insert(owner, entry);
                    }
                    1 => prop_assert_eq!(entries.remove(&owner).is_some(), model.remove(&owner).is_some()),
                    2 => {
                        entries.set(&owner, stage(number));
                        if let Some(entry) = model.get_mut(&owner) {
                            entry.stage = stage(number);
                        }
                    }
                    _ if number < 8 => {
                        prop_assert_eq!(entries.take().len(), model.len());
                        model.clear();
                    }
                    _ => {}
                }
                prop_assert_eq!(entries.len(), model.len());
                prop_assert_eq!(entries.are_in_flux(), model.values().any(|it| it.stage.is_leaving()));
                let mut unwanted = entries.unwanted();
                let mut expected: Vec<_> = model.iter().filter(|(_, it)| it.stage.is_unwanted()).map(|(owner, _)| *owner).collect();
                unwanted.sort();
                expected.sort();
                prop_assert_eq!(unwanted, expected);
                for key in (0..3).map(Key::One) {
                    let of_it: Vec<_> = model.values().filter(|it| it.key == key).collect();
                    let has = match of_it.as_slice() {
                        [] => Has::Not,
                        all if all.iter().all(|it| it.is_shared) => Has::Shared,
                        _ => Has::Alone,
                    };
                    prop_assert_eq!(entries.has(&key), has);
                    prop_assert_eq!(entries.is_given(&key), of_it.iter().any(|it| it.stage.is_leaving()));
                }
            }
            for owner in model.keys() {
                entries.remove(owner);
            }
            prop_assert!(entries.keys.is_empty() && entries.is_empty());
        }
    }
}
