//! From the name of a lock to its keys, and back.

use tenure_core::name::LockName;

use super::settings::Settings;

/// The directory of a name: the keys of the lock begin with these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory(Vec<u8>);

impl Directory {
    pub(super) fn new(settings: &Settings, name: &LockName) -> Self {
        let mut text = settings.prefix.clone();
        text += &encoded(name.as_str(), settings.is_raw);
        text.push('/');
        Self(text.into_bytes())
    }

    pub(super) fn start(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn end(&self) -> Vec<u8> {
        after_prefix(&self.0)
    }

    /// The key of an acquisition. With the number 0 it is the key of etcd's own lock library; other numbers are for
    /// acquisitions under the same lease that want the same name.
    pub(super) fn key(&self, lease: i64, number: u32) -> Vec<u8> {
        let mut key = self.0.clone();
        key.extend(format!("{lease:x}").bytes());
        if number > 0 {
            key.extend(format!("-{number}").bytes());
        }
        key
    }
}

/// A name as it is written in keys. A waiter for `a` waits for all keys that begin with `a/`, so no name may be in the
/// directory of another name.
pub(super) fn encoded(text: &str, is_raw: bool) -> String {
    if is_raw {
        return text.to_owned();
    }
    let mut encoded = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '/' | '%' | '\0'..='\x1f' | '\x7f' => {
                encoded += &format!("%{:02X}", u32::from(c));
            }
            c => encoded.push(c),
        }
    }
    encoded
}

/// The name that [`encoded`] writes as `text`. `None`: no name is written like this.
fn decoded(text: &str, is_raw: bool) -> Option<String> {
    if is_raw {
        return Some(text.to_owned());
    }
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        decoded += before;
        let byte = u8::from_str_radix(after.get(..2)?, 16).ok()?;
        decoded.push(char::from(byte));
        rest = &after[2..];
    }
    decoded += rest;
    (encoded(&decoded, false) == text).then_some(decoded)
}

/// The name whose lock has this key. `None`: this is no key of a lock, whose last part begins with the lease of the key.
pub(super) fn name_of(settings: &Settings, key: &[u8], lease: i64) -> Option<LockName> {
    let key = std::str::from_utf8(key).ok()?;
    let (name, tail) = key.strip_prefix(&settings.prefix)?.rsplit_once('/')?;
    let hex = tail.split('-').next().unwrap_or_default();
    if lease == 0 || hex != format!("{lease:x}") {
        return None;
    }
    LockName::new(decoded(name, settings.is_raw)?).ok()
}

/// The lease that a key is named after. `None`: the last part of the key does not begin with a lease.
pub(super) fn lease_in(key: &[u8]) -> Option<i64> {
    let tail = key.rsplit(|byte| *byte == b'/').next()?;
    let hex = std::str::from_utf8(tail).ok()?.split('-').next()?;
    i64::from_str_radix(hex, 16).ok()
}

/// The end of a key that reserves a name for `min_hold`.
const RESERVATION_END: &[u8] = b"-reserved";

/// The second key of an acquisition with `min_hold`, whose first key is `key`.
pub(super) fn reservation_key(key: &[u8]) -> Vec<u8> {
    [key, RESERVATION_END].concat()
}

/// The first key of the acquisition whose second key may be `key`.
pub(super) fn reserving_key(key: &[u8]) -> Option<&[u8]> {
    key.strip_suffix(RESERVATION_END)
}

/// The end of the range of keys that begin with `prefix`. If no key comes after them, the end is one zero byte, which
/// means "up to the last key".
pub(super) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// For [`crate::fuzzing`]: `text` as a name, and as a name that was read from a store.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(text: &str) {
    let key = encoded(text, false);
    assert_eq!(decoded(&key, false).as_deref(), Some(text));
    assert!(!key.contains('/'));
    if let Some(name) = decoded(text, false) {
        assert_eq!(encoded(&name, false), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings::new(url).unwrap()
    }

    /// The vectors of docs/stores/etcd.md.
    #[test]
    fn the_published_vectors() {
        let page = include_str!("../../../../docs/stores/etcd.md");
        let plain = settings("etcd://h");
        for (name, directory) in [
            ("job1", "job1/"),
            ("orders/42", "orders%2F42/"),
            ("a/", "a%2F/"),
            ("100%", "100%25/"),
            ("Größe 🔒", "Größe 🔒/"),
            ("tab\there", "tab%09here/"),
        ] {
            let lock = LockName::new(name).unwrap();
            assert_eq!(
                Directory::new(&plain, &lock).start(),
                directory.as_bytes(),
                "{name}"
            );
            let shown = name.replace('\t', "\\t");
            assert!(
                page.contains(&format!("| `{shown}` | `{directory}")),
                "{name} is not on the page"
            );
            let key = Directory::new(&plain, &lock).key(0x42aa, 0);
            assert_eq!(name_of(&plain, &key, 0x42aa), Some(lock));
        }
    }

    #[test]
    fn keys_and_back() {
        let plain = settings("etcd://h?prefix=locks/");
        let name = LockName::new("a/b").unwrap();
        let directory = Directory::new(&plain, &name);
        assert_eq!(directory.key(0x42_aa1f, 0), b"locks/a%2Fb/42aa1f");
        let key = directory.key(0x42_aa1f, 2);
        assert_eq!(key, b"locks/a%2Fb/42aa1f-2");
        assert_eq!(name_of(&plain, &key, 0x42_aa1f), Some(name.clone()));
        assert_eq!(
            name_of(&plain, &key, 0x42_aa1e),
            None,
            "the key of another lease"
        );
        assert_eq!(name_of(&plain, b"locks/a/b/1", 1), None, "not our encoding");
        assert_eq!(name_of(&plain, b"other/a/1", 1), None);
        assert_eq!(lease_in(&key), Some(0x42_aa1f));
        assert_eq!([lease_in(b"locks/x"), lease_in(b"")], [None, None]);
        let raw = settings("etcd://h?names=raw");
        let key = Directory::new(&raw, &name).key(7, 0);
        assert_eq!(key, b"a/b/7");
        assert_eq!(name_of(&raw, &key, 7), Some(name));
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(after_prefix(b"a/"), b"a0");
        assert_eq!(after_prefix(b"a\xff"), b"b");
        assert_eq!(after_prefix(b"\xff"), b"\0");
        assert_eq!(after_prefix(b""), b"\0");
    }

    #[test]
    fn no_two_names_share_a_directory() {
        let names = [
            "a/b", "a%2Fb", "a%2fb", "a", "a/", "%", "%25", "a\n", "a%0A",
        ];
        let all: std::collections::BTreeSet<_> =
            names.iter().map(|name| encoded(name, false)).collect();
        assert_eq!(all.len(), names.len());
        assert!(all.iter().all(|name| !name.contains('/')));
        assert_eq!(decoded("a%2fb", false), None, "only upper-case digits");
        assert_eq!(decoded("a%", false), None);
    }

    #[test]
    fn hostile_names_stay_apart_and_in_their_directories() {
        use tenure_core::conformance::hostile::written;
        written::assert_apart(|name| vec![encoded(name, false)]);
        written::assert_read_back(|name| encoded(name, false), |text| decoded(text, false));
        for name in written::many() {
            assert!(!encoded(&name, false).contains('/'), "{name:?}");
        }
    }
}
