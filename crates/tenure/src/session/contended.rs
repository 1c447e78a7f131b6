//! Which keys were somebody else's a moment ago: whoever wants to wait for one need not look at it first.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::rt::lock;
use tenure_core::time::Time;

use super::names::Key;

/// How long a moment is. A look now and then finds out that a key is wanted by nobody else any more.
const MOMENT: Duration = Duration::from_millis(100);

/// So many are remembered; each request goes through them, as long as there are any.
const MOST: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Contended {
    /// Until when each is remembered.
    keys: Mutex<HashMap<Key, Time>>,
    /// There are any. Nearly always there are none, and every request asks.
    is_any: AtomicBool,
}

impl Contended {
    pub(super) fn was_busy(&self, key: &Key, now: Time) {
        let mut keys = lock(&self.keys);
        if keys.len() < MOST {
            keys.insert(key.clone(), now.after(MOMENT));
            self.is_any.store(true, Ordering::Relaxed);
        }
    }

    /// Whether that key was somebody else's a moment ago.
    pub(super) fn has(&self, key: &Key, now: impl FnOnce() -> Time) -> bool {
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
        let contended = Contended::default();
        let (one, other) = (Key::One(1), Key::One(2));
        let start = Time::from_nanos(1);
        let has = |key, now| contended.has(key, || now);
        assert!(!has(&one, start));
        contended.was_busy(&one, start);
        assert!(has(&one, start));
        assert!(!has(&other, start));
        let later = start.after(MOMENT / 2);
        contended.was_busy(&other, later);
        let over = start.after(MOMENT);
        assert!(!has(&one, over));
        assert!(has(&other, over));
        assert!(!has(&other, later.after(MOMENT)));
        assert!(!contended.is_any.load(Ordering::Relaxed));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let contended = Contended::default();
        let start = Time::from_nanos(1);
        for number in 0..i64::try_from(MOST).unwrap() {
            contended.was_busy(&Key::One(number), start);
        }
        let one_more = Key::One(-1);
        contended.was_busy(&one_more, start);
        assert!(contended.has(&Key::One(0), || start));
        assert!(!contended.has(&one_more, || start));
    }
}
