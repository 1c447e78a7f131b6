//! The queue of a lock: the keys of its directory, in the order of their creation. Plain decisions, no I/O.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use tenure_core::fence::OwnerId;
use tenure_core::holder::Holder;
use tenure_core::logic::queue::{Contender, Turn, decide};
use tenure_core::options::Mode;
use tenure_core::support::HolderRecord;

use super::names::Directory;
use super::wire::KeyValue;

/// A waiter with at most this many keys ahead of its own watches the whole directory and counts the deletions: each
/// release is reported to that many waiters, and none of them needs a further request. A waiter farther back
/// watches only the key just ahead of its own.
pub(super) const WATCH_FANOUT: usize = 8;

/// How many keys a waiter asks for: enough to see its own key, and whether all others are counted.
pub(super) const RANGE_LIMIT: usize = WATCH_FANOUT + 2;

/// A key of ours in a queue, or on its way to the queue.
pub(super) struct QueueEntry {
    pub(super) directory: Directory,
    pub(super) key: Vec<u8>,
    /// No other acquisition has the same value.
    pub(super) value: Arc<[u8]>,
    pub(super) lease: i64,
    pub(super) mode: Mode,
}

/// A position in a queue, and when it was read.
pub(super) struct QueueSnapshot {
    pub(super) position: QueuePosition,
    /// The store's revision at which the queue was read.
    pub(super) revision: i64,
}

/// The value of a key: what the store shows about a holder or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KeyRecord {
    /// `shared`, `permits` or `reserved`; empty means exclusive.
    #[serde(skip_serializing_if = "String::is_empty")]
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<NonZeroU32>,
    #[serde(flatten)]
    holder: HolderRecord,
    /// Distinguishes acquisitions that use the same key one after the other.
    #[serde(skip_serializing_if = "String::is_empty")]
    owner: String,
    /// In µs since 1970, by the clock of the client.
    since: u64,
}

impl KeyRecord {
    pub(super) fn new(holder: &Holder, mode: Mode, owner: OwnerId, since: SystemTime) -> Self {
        let (mode, limit) = match mode {
            Mode::Exclusive => ("", None),
            Mode::Permits { limit } => ("permits", Some(limit)),
            // Shared. The driver refuses a mode that our guarantees do not name.
            _ => ("shared", None),
        };
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            mode: mode.to_owned(),
            limit,
            holder: holder.into(),
            owner: owner.to_hex(),
            since: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// The value of a key that reserves its name after a release (`min_hold`).
    pub(super) fn reserved() -> Self {
        Self {
            mode: "reserved".to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be written")
    }

    /// The value of another program is not understood; its key counts as exclusive.
    pub(super) fn read(value: &[u8]) -> Self {
        serde_json::from_slice(value).unwrap_or_default()
    }

    pub(super) fn mode(&self) -> Mode {
        match (self.mode.as_str(), self.limit) {
            ("shared", _) => Mode::Shared,
            ("permits", Some(limit)) => Mode::Permits { limit },
            _ => Mode::Exclusive,
        }
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.mode == "reserved"
    }

    pub(super) fn holder(self) -> Holder {
        let since = UNIX_EPOCH.checked_add(Duration::from_micros(self.since));
        let mut holder = Holder::from(self.holder);
        if holder.client.is_empty() {
            holder.label = "another program".to_owned();
        }
        holder.since = since.filter(|_| self.since > 0);
        holder
    }
}

/// What the queue says about our key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum QueuePosition {
    Held,
    /// Our key is not in the queue.
    Gone,
    Behind(Predecessors),
}

/// The keys that our key waits for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Predecessors {
    /// Keys whose deletion may make it our turn.
    keys: BTreeSet<Vec<u8>>,
    /// Whether our key holds as soon as all of `keys` are deleted. If not, the queue has to be read again when one of
    /// them is deleted.
    are_all: bool,
    /// The one key to watch; `None`: watch the directory.
    pub(super) only: Option<Vec<u8>>,
}

/// What the deletion of a key means for our key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionEffect {
    None,
    /// Our key holds.
    Held,
    /// Our key was deleted.
    Gone,
    /// The queue has to be read again.
    ReadQueue,
}

impl Predecessors {
    /// Takes note of the deletion of `key`.
    pub(super) fn deleted(&mut self, key: &[u8], own: &[u8]) -> DeletionEffect {
        if key == own {
            return DeletionEffect::Gone;
        }
        if !self.keys.remove(key) {
            return DeletionEffect::None;
        }
        match (self.are_all, self.keys.is_empty()) {
            (true, true) => DeletionEffect::Held,
            (true, false) => DeletionEffect::None,
            (false, _) => DeletionEffect::ReadQueue,
        }
    }
}

/// Whether a position in this mode depends on the values of all keys ahead.
pub(super) fn needs_values(mode: Mode) -> bool {
    mode != Mode::Exclusive
}

/// The position of the key `own` among `keys`, which are sorted by creation and not younger than `own`. In
/// [`Mode::Exclusive`] the last [`RANGE_LIMIT`] of them are enough.
pub(super) fn position(mode: Mode, own: &[u8], keys: &[KeyValue]) -> QueuePosition {
    let Some(me) = keys.iter().position(|kv| kv.key == own) else {
        return QueuePosition::Gone;
    };
    let ahead = &keys[..me];
    if needs_values(mode) {
        return position_by_mode(&contenders(&keys[..=me]), ahead);
    }
    let Some(last) = ahead.last() else {
        return QueuePosition::Held;
    };
    let are_all = ahead.len() <= WATCH_FANOUT;
    let watched = match are_all {
        true => ahead,
        false => std::slice::from_ref(last),
    };
    QueuePosition::Behind(Predecessors {
        keys: watched.iter().map(|kv| kv.key.clone()).collect(),
        are_all,
        only: (!are_all).then(|| last.key.clone()),
    })
}

/// The position of the last of these contenders, whose modes decide.
fn position_by_mode(contenders: &[Contender], ahead: &[KeyValue]) -> QueuePosition {
    let watched = match decide(contenders, ahead.len()) {
        Turn::Held => return QueuePosition::Held,
        Turn::WatchOne(at) => at..at + 1,
        Turn::WatchAll(range) => range,
    };
    QueuePosition::Behind(Predecessors {
        keys: ahead[watched].iter().map(|kv| kv.key.clone()).collect(),
        are_all: false,
        only: None,
    })
}

/// The contenders that these keys stand for, in the same order.
pub(super) fn contenders(keys: &[KeyValue]) -> Vec<Contender> {
    let contender = |kv: &KeyValue| Contender {
        mode: KeyRecord::read(&kv.value).mode(),
    };
    keys.iter().map(contender).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, mode: Mode) -> KeyValue {
        KeyValue {
            key: name.into(),
            value: KeyRecord::new(&Holder::new("h", 1), mode, OwnerId::random(), UNIX_EPOCH)
                .to_bytes(),
            ..KeyValue::default()
        }
    }

    fn names(count: usize) -> Vec<KeyValue> {
        let key = |i| key(&format!("{i:03}"), Mode::Exclusive);
        (0..count).map(key).collect()
    }

    fn behind(mode: Mode, own: &str, keys: &[KeyValue]) -> Predecessors {
        match position(mode, own.as_bytes(), keys) {
            QueuePosition::Behind(ahead) => ahead,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_oldest_key_holds_and_a_key_that_is_not_there_is_gone() {
        let keys = names(3);
        let mode = Mode::Exclusive;
        assert_eq!(position(mode, b"000", &keys), QueuePosition::Held);
        assert_eq!(position(mode, b"x", &keys), QueuePosition::Gone);
        assert_eq!(position(mode, b"x", &[]), QueuePosition::Gone);
    }

    #[test]
    fn a_waiter_with_few_ahead_counts_deletions_in_any_order() {
        let keys = names(WATCH_FANOUT + 1);
        let mut ahead = behind(Mode::Exclusive, "008", &keys);
        assert_eq!(ahead.only, None);
        for i in [3, 0, 7, 1, 2, 6, 5] {
            let effect = ahead.deleted(&keys[i].key, b"008");
            assert_eq!(effect, DeletionEffect::None, "{i}");
            assert_eq!(ahead.deleted(&keys[i].key, b"008"), DeletionEffect::None);
        }
        assert_eq!(
            ahead.deleted(b"a key behind ours", b"008"),
            DeletionEffect::None
        );
        assert_eq!(ahead.clone().deleted(b"008", b"008"), DeletionEffect::Gone);
        assert_eq!(ahead.deleted(b"004", b"008"), DeletionEffect::Held);
    }

    #[test]
    fn a_waiter_with_many_ahead_watches_only_the_key_just_ahead() {
        let keys = names(WATCH_FANOUT + 2);
        assert_eq!(keys.len(), RANGE_LIMIT);
        let mut ahead = behind(Mode::Exclusive, "009", &keys);
        assert_eq!(ahead.only.as_deref(), Some(&b"008"[..]));
        assert_eq!(ahead.deleted(b"003", b"009"), DeletionEffect::None);
        assert_eq!(ahead.deleted(b"008", b"009"), DeletionEffect::ReadQueue);
    }

    #[test]
    fn shared_keys_hold_together_and_wait_for_an_exclusive_key() {
        let keys = [
            key("a", Mode::Shared),
            key("b", Mode::Exclusive),
            key("c", Mode::Shared),
            key("d", Mode::Shared),
        ];
        assert_eq!(position(Mode::Shared, b"a", &keys), QueuePosition::Held);
        let mut ahead = behind(Mode::Shared, "d", &keys);
        assert_eq!(ahead.deleted(b"c", b"d"), DeletionEffect::None);
        assert_eq!(ahead.deleted(b"b", b"d"), DeletionEffect::ReadQueue);
        let without = [keys[0].clone(), keys[2].clone(), keys[3].clone()];
        assert_eq!(position(Mode::Shared, b"d", &without), QueuePosition::Held);
    }

    #[test]
    fn the_key_of_another_program_is_exclusive_and_has_no_known_holder() {
        for value in ["", "x", "{}", r#"{"mode":"permits"}"#, r#"{"mode":7}"#] {
            let record = KeyRecord::read(value.as_bytes());
            assert_eq!(record.mode(), Mode::Exclusive, "{value}");
            assert_eq!(record.holder().label, "another program", "{value}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut holder = Holder::new("host", 42);
        holder.label = "why \"ü\"".into();
        holder.client = "c".into();
        holder.since = UNIX_EPOCH.checked_add(Duration::from_micros(1_234_567));
        let limit = NonZeroU32::new(3).unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { limit }] {
            let record = KeyRecord::new(&holder, mode, OwnerId::random(), holder.since.unwrap());
            let read = KeyRecord::read(&record.to_bytes());
            assert_eq!((read.mode(), read.is_reserved()), (mode, false));
            assert_eq!(read.holder(), holder);
        }
        assert!(KeyRecord::read(&KeyRecord::reserved().to_bytes()).is_reserved());
    }
}
