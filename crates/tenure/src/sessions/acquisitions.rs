//! The acquisitions on one session. A query about a key or about all acquisitions takes the same time, however many there
//! are.

use std::collections::HashMap;

use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::time::Time;

use super::key::Key;
use super::mode::KeyMode;

/// One acquisition on a session.
#[derive(Clone, Debug)]
pub(super) struct Acquisition {
    pub(super) key: Key,
    pub(super) mode: KeyMode,
    /// The lock is kept past the end of its hold (`min_hold`).
    pub(super) is_kept: bool,
    pub(super) state: AcquisitionState,
}

/// The state of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquisitionState {
    /// A request for the lock may be under way.
    Requested,
    /// A request for the lock may be under way, and the caller gave up.
    Abandoned,
    /// The lock is held. Unless the hold is renewed before `until`, the lock is released then.
    Held { token: u64, until: Time },
    /// A request to release the lock was sent. Without a reply before `retry_at` it is sent again.
    Releasing { retry_at: Time },
}

impl AcquisitionState {
    /// The caller gave up, or the release was sent. The acquisition is removed with the server's reply.
    fn is_ending(self) -> bool {
        self.is_abandoned() || matches!(self, Self::Releasing { .. })
    }

    fn is_abandoned(self) -> bool {
        self == Self::Abandoned
    }
}

/// How a session has a key, or may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    NotHeld,
    Shared,
    Upgradable,
    Exclusive,
}

#[derive(Debug, Default)]
pub(super) struct Acquisitions {
    by_owner: HashMap<OwnerId, Acquisition, RandomAlready>,
    by_key: HashMap<Key, KeyCounts>,
    abandoned: usize,
    ending: usize,
    /// Acquisitions that need the session for themselves.
    reserving: usize,
}

/// How many acquisitions a key has.
#[derive(Debug, Default)]
struct KeyCounts {
    all: usize,
    shared: usize,
    upgradable: usize,
    ending: usize,
}

impl Acquisitions {
    pub(super) fn len(&self) -> usize {
        self.by_owner.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    pub(super) fn get(&self, owner: &OwnerId) -> Option<&Acquisition> {
        self.by_owner.get(owner)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OwnerId, &Acquisition)> {
        self.by_owner.iter()
    }

    /// Adds an acquisition. An owner is used for one acquisition only.
    pub(super) fn insert(&mut self, owner: OwnerId, acquisition: Acquisition) {
        self.remove(&owner);
        self.count(&acquisition, 1);
        self.by_owner.insert(owner, acquisition);
    }

    pub(super) fn remove(&mut self, owner: &OwnerId) -> Option<Acquisition> {
        let acquisition = self.by_owner.remove(owner)?;
        self.count(&acquisition, -1);
        Some(acquisition)
    }

    pub(super) fn take_all(&mut self) -> Vec<(OwnerId, Acquisition)> {
        std::mem::take(self).by_owner.into_iter().collect()
    }

    /// Changes the state of an acquisition, if it is there.
    pub(super) fn set(&mut self, owner: &OwnerId, state: AcquisitionState) {
        let Some(acquisition) = self.by_owner.get_mut(owner) else {
            return;
        };
        let before = std::mem::replace(&mut acquisition.state, state);
        let change =
            |is: fn(AcquisitionState) -> bool| isize::from(is(state)) - isize::from(is(before));
        let ending = change(AcquisitionState::is_ending);
        add(&mut self.abandoned, change(AcquisitionState::is_abandoned));
        add(&mut self.ending, ending);
        if ending != 0
            && let Some(counts) = self.by_key.get_mut(&acquisition.key)
        {
            add(&mut counts.ending, ending);
        }
    }

    /// Changes the mode of an acquisition, if it is there.
    pub(super) fn set_mode(&mut self, owner: &OwnerId, mode: KeyMode) {
        if let Some(mut acquisition) = self.remove(owner) {
            acquisition.mode = mode;
            self.insert(*owner, acquisition);
        }
    }

    /// Marks an acquisition as being released, and returns it if it is there.
    pub(super) fn begin_release(&mut self, owner: OwnerId, retry_at: Time) -> Option<Acquisition> {
        self.set(&owner, AcquisitionState::Releasing { retry_at });
        self.get(&owner).cloned()
    }

    /// How the session has the key, or may have it.
    pub(super) fn key_state(&self, key: &Key) -> KeyState {
        match self.by_key.get(key) {
            None => KeyState::NotHeld,
            Some(counts) if counts.shared == counts.all => KeyState::Shared,
            Some(counts) if counts.shared + counts.upgradable == counts.all => KeyState::Upgradable,
            Some(_) => KeyState::Exclusive,
        }
    }

    /// Whether an acquisition needs the session for itself.
    pub(super) fn is_reserved(&self) -> bool {
        self.reserving > 0
    }

    /// Whether the session may have the key for more than one acquisition.
    pub(super) fn has_several(&self, key: &Key) -> bool {
        self.by_key.get(key).is_some_and(|counts| counts.all > 1)
    }

    /// Whether an acquisition of the key is ending.
    pub(super) fn is_ending(&self, key: &Key) -> bool {
        self.by_key.get(key).is_some_and(|counts| counts.ending > 0)
    }

    /// Whether any acquisition is ending.
    pub(super) fn is_any_ending(&self) -> bool {
        self.ending > 0
    }

    /// The acquisitions whose caller gave up.
    pub(super) fn abandoned(&self) -> Vec<OwnerId> {
        if self.abandoned == 0 {
            return Vec::new();
        }
        let abandoned = self.iter().filter(|(_, it)| it.state.is_abandoned());
        abandoned.map(|(owner, _)| *owner).collect()
    }

    /// Adds the acquisition to the counts (`by` is 1), or subtracts it (-1).
    fn count(&mut self, acquisition: &Acquisition, by: isize) {
        let if_so = |is_so: bool| by * isize::from(is_so);
        let ending = if_so(acquisition.state.is_ending());
        add(&mut self.abandoned, if_so(acquisition.state.is_abandoned()));
        add(&mut self.ending, ending);
        let counts = self.by_key.entry(acquisition.key.clone()).or_default();
        add(&mut counts.all, by);
        let mode = acquisition.mode;
        add(&mut counts.shared, if_so(mode == KeyMode::Shared));
        add(&mut counts.upgradable, if_so(mode == KeyMode::Upgradable));
        add(
            &mut self.reserving,
            if_so(acquisition.is_kept || mode.reserves_session()),
        );
        add(&mut counts.ending, ending);
        if counts.all == 0 {
            self.by_key.remove(&acquisition.key);
        }
    }
}

/// A count never falls below zero: only what was added is subtracted.
fn add(count: &mut usize, change: isize) {
    *count = count.saturating_add_signed(change);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn state(number: u8) -> AcquisitionState {
        match number % 4 {
            0 => AcquisitionState::Requested,
            1 => AcquisitionState::Abandoned,
            2 => AcquisitionState::Held {
                token: 1,
                until: Time::MAX,
            },
            _ => AcquisitionState::Releasing {
                retry_at: Time::MAX,
            },
        }
    }

    fn mode(number: u8) -> KeyMode {
        match number % 5 {
            0 => KeyMode::Exclusive,
            1 => KeyMode::Shared,
            2 => KeyMode::Upgradable,
            3 => KeyMode::Upgraded,
            _ => KeyMode::Weakening,
        }
    }

    proptest! {
        /// After any steps, the counts are those of a model that looks at all acquisitions.
        #[test]
        fn what_was_counted_is_what_is_there(steps in prop::collection::vec((0_u8..5, 0_u8..6, 0_i64..3, 0_u8..8, any::<u8>()), 0..60)) {
            let mut acquisitions = Acquisitions::default();
            let mut model: HashMap<OwnerId, Acquisition> = HashMap::new();
            for (step, owner, key, mode_number, number) in steps {
                let (mode, is_kept) = (mode(mode_number), mode_number >= 4);
                let owner = OwnerId::from_bytes([owner; 16]);
                match step {
                    0 => {
                        let acquisition = Acquisition { key: Key::One(key), mode, is_kept, state: state(number) };
                        acquisitions.insert(owner, acquisition.clone());
                        model.insert(owner, acquisition);
                    }
                    1 => prop_assert_eq!(acquisitions.remove(&owner).is_some(), model.remove(&owner).is_some()),
                    2 => {
                        acquisitions.set(&owner, state(number));
                        if let Some(acquisition) = model.get_mut(&owner) {
                            acquisition.state = state(number);
                        }
                    }
                    3 => {
                        acquisitions.set_mode(&owner, mode);
                        if let Some(acquisition) = model.get_mut(&owner) {
                            acquisition.mode = mode;
                        }
                    }
                    _ if number < 8 => {
                        prop_assert_eq!(acquisitions.take_all().len(), model.len());
                        model.clear();
                    }
                    _ => {}
                }
                prop_assert_eq!(acquisitions.len(), model.len());
                prop_assert_eq!(acquisitions.is_reserved(), model.values().any(|it| it.is_kept || it.mode.reserves_session()));
                prop_assert_eq!(acquisitions.is_any_ending(), model.values().any(|it| it.state.is_ending()));
                let mut abandoned = acquisitions.abandoned();
                let mut expected: Vec<_> = model.iter().filter(|(_, it)| it.state.is_abandoned()).map(|(owner, _)| *owner).collect();
                abandoned.sort();
                expected.sort();
                prop_assert_eq!(abandoned, expected);
                for key in (0..3).map(Key::One) {
                    let of_it: Vec<_> = model.values().filter(|it| it.key == key).collect();
                    let has = match of_it.as_slice() {
                        [] => KeyState::NotHeld,
                        all if all.iter().all(|it| it.mode == KeyMode::Shared) => KeyState::Shared,
                        all if all.iter().all(|it| matches!(it.mode, KeyMode::Shared | KeyMode::Upgradable)) => KeyState::Upgradable,
                        _ => KeyState::Exclusive,
                    };
                    prop_assert_eq!(acquisitions.key_state(&key), has);
                    prop_assert_eq!(acquisitions.is_ending(&key), of_it.iter().any(|it| it.state.is_ending()));
                    prop_assert_eq!(acquisitions.has_several(&key), of_it.len() > 1);
                }
            }
            for owner in model.keys() {
                acquisitions.remove(owner);
            }
            prop_assert!(acquisitions.by_key.is_empty() && acquisitions.is_empty());
        }
    }
}
