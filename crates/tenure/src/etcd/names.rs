//! From the name of a lock to its keys, and back.

use tenure_core::name::LockName;

use super::settings::Settings;

/// Where the keys of a name lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    /// The keys of the lock begin with these bytes.
    start: Vec<u8>,
    /// The records of candidates of an election begin with these bytes. They lie in no directory, because a client that waits
    /// counts all keys of a directory.
    records: Vec<u8>,
}

impl Directory {
    pub(super) fn new(settings: &Settings, name: &LockName) -> Self {
        let (prefix, name) = (&settings.prefix, name.as_str());
        let directory = encoded(name, settings.is_raw);
        // Always encoded: a key without `/` is in no directory.
        let record = encoded(name, false);
        Self {
            start: format!("{prefix}{directory}/").into_bytes(),
            records: format!("{prefix}{RECORD_START}{record}{RECORD_MIDDLE}").into_bytes(),
        }
    }

    pub(super) fn start(&self) -> &[u8] {
        &self.start
    }

    pub(super) fn end(&self) -> Vec<u8> {
        after_prefix(&self.start)
    }

    /// The records of all candidates of the name begin with this.
    pub(super) fn records(&self) -> &[u8] {
        &self.records
    }

    /// The record of the candidate with this key of the directory.
    pub(super) fn record_key(&self, key: &[u8]) -> Vec<u8> {
        let tail = key.get(self.start.len()..).unwrap_or_default();
        [&self.records, tail].concat()
    }

    /// The key of an acquisition. With the number 0 it is the key of etcd's own lock library; other numbers are for
    /// acquisitions under the same lease that want the same name.
    pub(super) fn key(&self, lease: i64, number: u32) -> Vec<u8> {
        let mut key = self.start.clone();
        key.extend(format!("{lease:x}").bytes());
        if number > 0 {
            key.extend(format!("-{number}").bytes());
        }
        key
    }
}

/// The start of a key with the record of a candidate, behind the prefix. No name is encoded like this: only two hexadecimal
/// digits follow a `%`.
const RECORD_START: &str = "%record:";

/// Between the name and the last part of the candidate's key. No encoded name contains it.
const RECORD_MIDDLE: &str = "%:";

/// The start of a key that asks a holder to let go, behind the prefix.
const ASKED_START: &str = "%asked:";

/// The requests to let go for all holds whose keys are named after this lease begin with this.
pub(super) fn asked_start(settings: &Settings, lease: i64) -> Vec<u8> {
    format!("{}{ASKED_START}{lease:x}:", settings.prefix).into_bytes()
}

/// The request to let go for the hold whose key was created at this revision: several keys of one lease may have been created at
/// one revision. `None`: the key is not named after a lease, as all keys of ours are.
pub(super) fn asked_key(settings: &Settings, key: &[u8], created: i64) -> Option<Vec<u8>> {
    let mut asked = asked_start(settings, lease_in(key)?);
    let key = key.strip_prefix(settings.prefix.as_bytes())?;
    // Always encoded: a key without `/` is in no directory.
    let key = encoded(std::str::from_utf8(key).ok()?, false);
    asked.extend(format!("{created}:{key}").bytes());
    Some(asked)
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
    fn the_other_keys_of_an_election_are_in_no_directory() {
        let plain = settings("etcd://h?prefix=locks/");
        let name = LockName::new("a/b").unwrap();
        let directory = Directory::new(&plain, &name);
        let key = directory.key(0x42_aa1f, 1);
        assert_eq!(directory.record_key(&key), b"locks/%record:a%2Fb%:42aa1f-1");
        assert!(directory.record_key(&key).starts_with(directory.records()));
        let asked = asked_key(&plain, &key, 17).unwrap();
        assert_eq!(asked, b"locks/%asked:42aa1f:17:a%252Fb%2F42aa1f-1");
        assert!(asked.starts_with(&asked_start(&plain, 0x42_aa1f)));
        assert_eq!(asked_key(&plain, b"locks/x", 17), None);
        // `lock_all` makes the keys of several names at one revision.
        let other = Directory::new(&plain, &LockName::new("c").unwrap());
        let other = other.key(0x42_aa1f, 1);
        assert_ne!(asked_key(&plain, &other, 17), Some(asked.clone()));
        for other in [&asked, &directory.record_key(&key)] {
            assert_eq!(name_of(&plain, other, 0x42_aa1f), None);
            assert_eq!(lease_in(other), None);
        }
        // With raw names a directory may have any name.
        let raw = settings("etcd://h?names=raw");
        let directory = Directory::new(&raw, &name);
        let record = directory.record_key(&directory.key(7, 0));
        assert_eq!(record, b"%record:a%2Fb%:7");
        assert_eq!(name_of(&raw, &record, 7), None);
    }

    #[test]
    fn the_records_of_two_names_are_apart() {
        let plain = settings("etcd://h");
        let names = ["a", "a:b", "a%:b", "a%", "a/", "a%25", "%record:a", "a:"];
        let records = names.map(|name| {
            let name = LockName::new(name).unwrap();
            Directory::new(&plain, &name).records().to_vec()
        });
        for (at, one) in records.iter().enumerate() {
            for other in &records[at + 1..] {
                assert!(!one.starts_with(other) && !other.starts_with(one));
            }
        }
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
