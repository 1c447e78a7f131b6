//! What a directory of keys means to one of those that have a key there. Plain decisions, no I/O.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use tenure_core::fence::OwnerId;
use tenure_core::holder::Holder;
use tenure_core::logic::queue::{Contender, Turn, decide};
use tenure_core::options::Mode;
use tenure_core::support::HolderRecord;

use super::wire::KeyValue;

/// With at most this many ahead a waiter watches the whole directory and counts them down by itself. Each release
/// is told to that many waiters, and each of them needs no further request. Farther back a waiter watches
/// only the one just ahead.
pub(super) const WATCH_FANOUT: usize = 8;

/// Keys to ask for, to see our own and whether all of the others are near.
pub(super) const RANGE_LIMIT: usize = WATCH_FANOUT + 2;

/// What is written about a holder or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KeyRecord {
    /// `shared`, `permits` or `reserved`; empty: exclusive.
    #[serde(skip_serializing_if = "String::is_empty")]
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<NonZeroU32>,
    #[serde(flatten)]
    holder: HolderRecord,
    /// Tells acquisitions apart that use one key after each other.
    #[serde(skip_serializing_if = "String::is_empty")]
    owner: String,
    /// In µs since 1970, on the clock of the client.
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

    /// Nobody's any more, and not free yet.
    pub(super) fn reserved() -> Self {
        Self {
            mode: "reserved".to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be written")
    }

    /// A stranger's value says nothing: it holds alone.
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

/// Where one stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum QueuePosition {
    Held,
    /// Our own key is not there.
    Gone,
    Behind(Predecessors),
}

/// What has to happen before we can hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Predecessors {
    /// Keys whose end concerns us.
    keys: BTreeSet<Vec<u8>>,
    /// They are all that are ahead, and when all of them are gone, we hold. Else the directory has to be read
    /// again when any of them is.
    are_all: bool,
    /// The one key to be watched; `None`: the directory.
    pub(super) only: Option<Vec<u8>>,
}

/// What the end of a key comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionEffect {
    None,
    Held,
    Gone,
    /// Read the directory again.
    ReadQueue,
}

impl Predecessors {
    /// That key was deleted.
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

/// Whether one that wants it in this mode needs to see the whole directory, with values.
pub(super) fn needs_values(mode: Mode) -> bool {
    mode != Mode::Exclusive
}

/// Where `own` stands among these keys, of which none is younger. In the order of their creation; for
/// [`Mode::Exclusive`] the last [`RANGE_LIMIT`] of them will do.
pub(super) fn standing(mode: Mode, own: &[u8], keys: &[KeyValue]) -> QueuePosition {
    let Some(me) = keys.iter().position(|kv| kv.key == own) else {
        return QueuePosition::Gone;
    };
    let ahead = &keys[..me];
    if !needs_values(mode) {
        let Some(last) = ahead.last() else {
            return QueuePosition::Held;
        };
        let is_near = ahead.len() <= WATCH_FANOUT;
        let nearest = if is_near {
            ahead
        } else {
            std::slice::from_ref(last)
        };
        return QueuePosition::Behind(Predecessors {
            keys: nearest.iter().map(|kv| kv.key.clone()).collect(),
            are_all: is_near,
            only: (!is_near).then(|| last.key.clone()),
        });
    }
    let contenders = contenders(&keys[..=me]);
    let watched = match decide(&contenders, me) {
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

/// Keys in the order of their creation, as contenders.
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

    fn waits(mode: Mode, own: &str, keys: &[KeyValue]) -> Predecessors {
        match standing(mode, own.as_bytes(), keys) {
            QueuePosition::Behind(waits) => waits,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_oldest_holds_and_one_that_is_not_there_is_gone() {
        let keys = names(3);
        let mode = Mode::Exclusive;
        assert_eq!(standing(mode, b"000", &keys), QueuePosition::Held);
        assert_eq!(standing(mode, b"x", &keys), QueuePosition::Gone);
        assert_eq!(standing(mode, b"x", &[]), QueuePosition::Gone);
    }

    #[test]
    fn a_near_one_counts_down_whatever_the_order() {
        let keys = names(WATCH_FANOUT + 1);
        let mut waits = waits(Mode::Exclusive, "008", &keys);
        assert_eq!(waits.only, None);
        for i in [3, 0, 7, 1, 2, 6, 5] {
            let news = waits.deleted(&keys[i].key, b"008");
            assert_eq!(news, DeletionEffect::None, "{i}");
            assert_eq!(waits.deleted(&keys[i].key, b"008"), DeletionEffect::None);
        }
        assert_eq!(
            waits.deleted(b"stranger behind us", b"008"),
            DeletionEffect::None
        );
        assert_eq!(waits.clone().deleted(b"008", b"008"), DeletionEffect::Gone);
        assert_eq!(waits.deleted(b"004", b"008"), DeletionEffect::Held);
    }

    #[test]
    fn a_far_one_looks_at_its_neighbour_only() {
        let keys = names(WATCH_FANOUT + 2);
        assert_eq!(keys.len(), RANGE_LIMIT);
        let mut waits = waits(Mode::Exclusive, "009", &keys);
        assert_eq!(waits.only.as_deref(), Some(&b"008"[..]));
        assert_eq!(waits.deleted(b"003", b"009"), DeletionEffect::None);
        assert_eq!(waits.deleted(b"008", b"009"), DeletionEffect::ReadQueue);
    }

    #[test]
    fn shared_ones_go_together_behind_one_that_holds_alone() {
        let keys = [
            key("a", Mode::Shared),
            key("b", Mode::Exclusive),
            key("c", Mode::Shared),
            key("d", Mode::Shared),
        ];
        assert_eq!(standing(Mode::Shared, b"a", &keys), QueuePosition::Held);
        let mut waits = waits(Mode::Shared, "d", &keys);
        assert_eq!(waits.deleted(b"c", b"d"), DeletionEffect::None);
        assert_eq!(waits.deleted(b"b", b"d"), DeletionEffect::ReadQueue);
        let without = [keys[0].clone(), keys[2].clone(), keys[3].clone()];
        assert_eq!(standing(Mode::Shared, b"d", &without), QueuePosition::Held);
    }

    #[test]
    fn a_stranger_holds_alone_and_nobody_knows_it() {
        for value in ["", "x", "{}", r#"{"mode":"permits"}"#, r#"{"mode":7}"#] {
            let written = KeyRecord::read(value.as_bytes());
            assert_eq!(written.mode(), Mode::Exclusive, "{value}");
            assert_eq!(written.holder().label, "another program", "{value}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut holder = Holder::new("host", 42);
        holder.label = "why \"ü\"".into();
        holder.client = "c".into();
        holder.since = UNIX_EPOCH.checked_add(Duration::from_micros(1_234_567));
        let limit = NonZeroU32::new(3).unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { limit }] {
            let written = KeyRecord::new(&holder, mode, OwnerId::random(), holder.since.unwrap());
            let read = KeyRecord::read(&written.to_bytes());
            assert_eq!((read.mode(), read.is_reserved()), (mode, false));
            assert_eq!(read.holder(), holder);
        }
        assert!(KeyRecord::read(&KeyRecord::reserved().to_bytes()).is_reserved());
    }
}
