//! The keys that other sessions had a moment ago. A request that may wait for such a key waits at once, without a try.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::rt::lock;
use tenure_core::time::Time;

use super::key::Key;

/// How long a key is remembered. The try after that finds out whether the key is still contended.
const CONTENTION_MEMORY: Duration = Duration::from_millis(100);

/// How many keys are remembered. Each request scans them, as long as there are any, so there are few.
const CAPACITY: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ContendedKeys {
    /// Until when each key is remembered.
    keys: Mutex<HashMap<Key, Time>>,
    /// Whether any key is remembered. Nearly always none is, and every request reads this.
    is_any: AtomicBool,
}

impl ContendedKeys {
    /// Another session has that key.
    pub(super) fn add(&self, key: &Key, now: Time) {
        let mut keys = lock(&self.keys);
        if keys.len() < CAPACITY {
            keys.insert(key.clone(), now.after(CONTENTION_MEMORY));
            self.is_any.store(true, Ordering::Relaxed);
        }
    }

    /// Whether another session had that key a moment ago.
    pub(super) fn contains(&self, key: &Key, now: impl FnOnce() -> Time) -> bool {
        if !self.is_any.load(Ordering::Relaxed) {
            return false;
        }
        let now = now();
        let mut keys = lock(&self.keys);
        keys.retain(|_, until| *until > now);
        self.is_any.store(!keys.is_empty(), Ordering::Relaxed);
        keys.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_contended_for_a_moment() {
        let contended = ContendedKeys::default();
        let (one, other) = (Key::One(1), Key::One(2));
        let start = Time::from_nanos(1);
        let has = |key, now| contended.contains(key, || now);
        assert!(!has(&one, start));
        contended.add(&one, start);
        assert!(has(&one, start));
        assert!(!has(&other, start));
        let later = start.after(CONTENTION_MEMORY / 2);
        contended.add(&other, later);
        let over = start.after(CONTENTION_MEMORY);
        assert!(!has(&one, over));
        assert!(has(&other, over));
        assert!(!has(&other, later.after(CONTENTION_MEMORY)));
        assert!(!contended.is_any.load(Ordering::Relaxed));
    }

    #[test]
    fn a_full_map_takes_no_further_key() {
        let contended = ContendedKeys::default();
        let start = Time::from_nanos(1);
        for number in 0..i64::try_from(CAPACITY).unwrap() {
            contended.add(&Key::One(number), start);
        }
        let one_more = Key::One(-1);
        contended.add(&one_more, start);
        assert!(contended.contains(&Key::One(0), || start));
        assert!(!contended.contains(&one_more, || start));
    }
}
