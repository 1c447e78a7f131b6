//! Which keys the acquisitions of one client use.
//!
//! Keys are used again and again: etcd remembers each key that ever existed until it compacts its history. A key is
//! used by one acquisition at a time.

use std::collections::HashMap;
use std::sync::Mutex;

use tenure_core::rt::lock;
use tenure_core::time::Time;

use super::names::Directory;

/// Keys that no other acquisition may use, and until when.
#[derive(Default)]
pub(super) struct KeysInUse(Mutex<HashMap<Vec<u8>, Time>>);

impl KeysInUse {
    /// The first key of this directory and lease that no acquisition uses; it is in use from now on.
    pub(super) fn claim(&self, directory: &Directory, lease: i64, now: Time) -> Vec<u8> {
        let mut in_use = lock(&self.0);
        let mut keys = (0..).map(|number| directory.key(lease, number));
        let free = keys.find(|key| in_use.get(key).is_none_or(|until| *until <= now));
        let key = free.expect("numbers do not run out");
        in_use.insert(key.clone(), Time::MAX);
        key
    }

    /// The next acquisition may use this key.
    pub(super) fn free(&self, key: &[u8]) {
        lock(&self.0).remove(key);
    }

    /// No acquisition may use this key before `until`.
    pub(super) fn reserve(&self, key: &[u8], until: Time) {
        lock(&self.0).insert(key.to_vec(), until);
    }

    /// Removes reservations that are over.
    pub(super) fn remove_expired(&self, now: Time) {
        lock(&self.0).retain(|_, until| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::name::LockName;

    use super::super::settings::Settings;
    use super::*;

    #[test]
    fn a_key_has_one_user_at_a_time_and_is_used_again() {
        let settings = Settings::new("etcd://h").unwrap();
        let directory = Directory::new(&settings, &LockName::new("a").unwrap());
        let at = Time::from_nanos;
        let keys = KeysInUse::default();
        let claim = |now| String::from_utf8(keys.claim(&directory, 0x2a, at(now))).unwrap();
        assert_eq!([claim(0), claim(0), claim(0)], ["a/2a", "a/2a-1", "a/2a-2"]);
        keys.free(b"a/2a-1");
        assert_eq!(claim(0), "a/2a-1");
        // After a release with `min_hold` the key stays in the store for a while.
        keys.reserve(b"a/2a", at(5));
        keys.remove_expired(at(4));
        assert_eq!([claim(4), claim(5)], ["a/2a-3", "a/2a"]);
        // A reservation that is over takes no memory; a key in use stays in use.
        keys.reserve(b"a/2a", at(6));
        keys.remove_expired(at(6));
        assert_eq!(lock(&keys.0).len(), 3);
        assert_eq!([claim(6), claim(6)], ["a/2a", "a/2a-4"]);
    }
}
