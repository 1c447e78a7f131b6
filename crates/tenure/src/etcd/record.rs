//! The value of a key: what the store shows about a holder or a waiter. `docs/stores/etcd.md` publishes this format.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use tenure_core::fence::OwnerId;
use tenure_core::holder::Holder;
use tenure_core::options::Mode;
use tenure_core::support::{HolderRecord, wall_time};

/// The value of a key: what the store shows about a holder or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KeyRecord {
    /// `shared`, `permits`, `upgradable`, `upgrading`, `upgraded` or `reserved`; empty means exclusive.
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
    /// The fencing token, if it follows from nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// See [`is_token_early`](Self::is_token_early).
    #[serde(skip_serializing_if = "is_false")]
    early: bool,
    /// The create revision of the last key that held when a request to upgrade arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_holder: Option<i64>,
    /// In seconds. After the end of the hold its lease goes on for so long (`lock_delay`).
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_delay: Option<NonZeroU64>,
    /// The hold was not exclusive and has ended; its key reserves the name.
    #[serde(skip_serializing_if = "is_false")]
    reserved: bool,
    /// The hold was detached from its client: the lease of its key belongs to the hold alone, and to no client.
    #[serde(skip_serializing_if = "is_false")]
    detached: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl KeyRecord {
    pub(super) fn new(holder: &Holder, mode: Mode, owner: OwnerId, since: SystemTime) -> Self {
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            mode: mode_text(mode).to_owned(),
            limit: limit_of(mode),
            holder: without_value(holder),
            owner: owner.to_hex(),
            since: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            ..Self::default()
        }
    }

    /// The value of a key that reserves its name after a hold in this mode has ended (`min_hold`, `lock_delay`). The
    /// reservation conflicts with the same modes as the hold did.
    pub(super) fn reserved(mode: Mode) -> Self {
        let is_exclusive = mode == Mode::Exclusive;
        Self {
            mode: match is_exclusive {
                true => "reserved".to_owned(),
                false => mode_text(mode).to_owned(),
            },
            limit: limit_of(mode),
            reserved: !is_exclusive,
            ..Self::default()
        }
    }

    /// The same with an owner, as long as the hold has not begun: no other acquisition has the same value.
    pub(super) fn with_owner(self, owner: OwnerId) -> Self {
        Self {
            owner: owner.to_hex(),
            ..self
        }
    }

    /// The same, under a lease that goes on for `delay`, in whole seconds, after the end of the hold.
    pub(super) fn with_lock_delay(self, delay: Duration) -> Self {
        Self {
            lock_delay: NonZeroU64::new(delay.as_secs()),
            ..self
        }
    }

    /// The same after the candidate has published another value.
    pub(super) fn with_holder(self, holder: &Holder) -> Self {
        Self {
            holder: without_value(holder),
            ..self
        }
    }

    /// The same with an early token.
    pub(super) fn with_early_token(self) -> Self {
        Self {
            early: true,
            ..self
        }
    }

    /// The same in another mode, under that token.
    pub(super) fn with_mode(self, mode: Mode, token: u64) -> Self {
        Self {
            mode: mode_text(mode).to_owned(),
            token: Some(token),
            last_holder: None,
            ..self
        }
    }

    /// The same, while the upgradable holder waits to become exclusive. `last_holder`: the create revision of the last
    /// key that held when the request arrived, if that is known.
    pub(super) fn upgrading(self, last_holder: Option<i64>) -> Self {
        Self {
            mode: "upgrading".to_owned(),
            last_holder,
            ..self
        }
    }

    /// The same, after the upgradable holder has become exclusive.
    pub(super) fn upgraded(self, token: u64) -> Self {
        Self {
            mode: "upgraded".to_owned(),
            ..self.with_mode(Mode::Exclusive, token)
        }
    }

    /// The same after the hold was detached. A request to upgrade is over with that: no client is left that waits.
    pub(super) fn detached(self) -> Self {
        let mode = match self.is_upgrading() {
            true => "upgradable".to_owned(),
            false => self.mode,
        };
        Self {
            mode,
            last_holder: None,
            detached: true,
            ..self
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be written")
    }

    /// The value of another program, and that of a candidate, is not understood; its key counts as exclusive.
    pub(super) fn read(value: &[u8]) -> Self {
        Self::parse(value).unwrap_or_default()
    }

    /// `None`: the value is no record of ours. A record has the id of an owner, or says that it reserves the name.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(value).ok()?;
        // Other programs may write a field of that name, too.
        let is_ours = OwnerId::from_hex(&record.owner).is_some() || record.is_reserved();
        is_ours.then_some(record)
    }

    pub(super) fn mode(&self) -> Mode {
        match (self.mode.as_str(), self.limit) {
            ("shared", _) => Mode::Shared,
            ("upgradable" | "upgrading", _) => Mode::Upgradable,
            ("permits", Some(limit)) => Mode::Permits { limit },
            _ => Mode::Exclusive,
        }
    }

    /// Whether the holder is upgradable, waits to become exclusive, or has become exclusive by an upgrade.
    pub(super) fn may_upgrade(&self) -> bool {
        matches!(self.mode.as_str(), "upgradable" | "upgrading" | "upgraded")
    }

    /// Whether the holder waits to become exclusive.
    pub(super) fn is_upgrading(&self) -> bool {
        self.mode == "upgrading"
    }

    /// The create revision of the last key that held when a request to upgrade arrived; `None`: not said yet.
    pub(super) fn last_holder(&self) -> Option<i64> {
        self.last_holder
    }

    /// Whether the fencing token is the revision before the one at which the key was made. So an upgrade of this hold, or of
    /// one that exists at the same time, finds a greater token that is still smaller than the create revision of each
    /// waiter's key.
    pub(super) fn is_token_early(&self) -> bool {
        self.early || self.may_upgrade()
    }

    /// The fencing token of a key that was created at this revision.
    pub(super) fn token(&self, created: i64) -> Option<u64> {
        let early = i64::from(self.is_token_early());
        self.token.or(u64::try_from(created - early).ok())
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.mode == "reserved" || self.reserved
    }

    /// Whether the hold was detached from its client.
    pub(super) fn is_detached(&self) -> bool {
        self.detached
    }

    /// Whether that owner made the key.
    pub(super) fn is_of(&self, owner: OwnerId) -> bool {
        OwnerId::from_hex(&self.owner) == Some(owner)
    }

    /// The number of the value that the candidate has published last.
    pub(super) fn number(&self) -> u64 {
        self.holder.number.unwrap_or(0)
    }

    /// How long the lease goes on after the end of the hold.
    pub(super) fn lock_delay(&self) -> Duration {
        Duration::from_secs(self.lock_delay.map_or(0, NonZeroU64::get))
    }

    pub(super) fn holder(self) -> Holder {
        let mut holder = Holder::from(self.holder);
        if holder.client.is_empty() {
            holder.label = "another program".to_owned();
        }
        holder.since = wall_time(self.since).filter(|_| self.since > 0);
        holder
    }
}

/// The description of the holder. The value of a candidate is bare, in a key of its own.
fn without_value(holder: &Holder) -> HolderRecord {
    HolderRecord {
        value: None,
        ..holder.into()
    }
}

fn limit_of(mode: Mode) -> Option<NonZeroU32> {
    match mode {
        Mode::Permits { limit } => Some(limit),
        _ => None,
    }
}

fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "",
        Mode::Upgradable => "upgradable",
        Mode::Permits { .. } => "permits",
        // Shared. The driver refuses a mode that our guarantees do not name.
        _ => "shared",
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::holder::PublishedValue;

    use super::*;

    #[test]
    fn the_key_of_another_program_is_exclusive_and_has_no_known_holder() {
        let shared = r#"{"mode":"shared","client":"proposal of an election"}"#;
        for value in [
            "",
            "x",
            "{}",
            r#"{"mode":"permits","owner":"ours"}"#,
            r#"{"mode":7}"#,
            r#"{"mode":"shared","owner":"a team"}"#,
            shared,
        ] {
            assert_eq!(KeyRecord::parse(value.as_bytes()), None, "{value}");
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
        for mode in [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Upgradable,
            Mode::Permits { limit },
        ] {
            let record = KeyRecord::new(&holder, mode, OwnerId::random(), holder.since.unwrap());
            let read = KeyRecord::read(&record.to_bytes());
            assert_eq!((read.mode(), read.is_reserved()), (mode, false));
            assert_eq!(read.lock_delay(), Duration::ZERO);
            assert_eq!(read.holder(), holder);
            let delayed =
                KeyRecord::read(&record.with_lock_delay(Duration::from_secs(7)).to_bytes());
            assert_eq!(delayed.lock_delay(), Duration::from_secs(7));
            let reserved = KeyRecord::read(&KeyRecord::reserved(mode).to_bytes());
            assert_eq!((reserved.mode(), reserved.is_reserved()), (mode, true));
        }
    }

    #[test]
    fn the_record_of_a_candidate_counts_its_values_and_that_of_a_lock_has_no_number() {
        let owner = OwnerId::random();
        let record = KeyRecord::new(&Holder::new("h", 1), Mode::Exclusive, owner, UNIX_EPOCH);
        let text = String::from_utf8(record.to_bytes()).unwrap();
        assert!(!text.contains("number"), "{text}");
        let mut holder = Holder::new("h", 2);
        holder.value = Some(PublishedValue::new("v", 3));
        let later = record.clone().with_holder(&holder);
        let text = String::from_utf8(later.to_bytes()).unwrap();
        assert!(
            !text.contains("value"),
            "the value has a key of its own: {text}"
        );
        let read = KeyRecord::read(text.as_bytes());
        assert_eq!((read.number(), read.owner.clone()), (3, record.owner));
        assert_eq!(read.holder().pid, 2);
    }

    #[test]
    fn an_upgrade_changes_mode_and_token() {
        let record =
            |mode| KeyRecord::new(&Holder::new("h", 1), mode, OwnerId::random(), UNIX_EPOCH);
        let read = |record: &KeyRecord| KeyRecord::read(&record.to_bytes());
        let shared = record(Mode::Shared);
        assert_eq!(read(&shared).token(10), Some(10));
        assert_eq!(read(&shared.with_early_token()).token(10), Some(9));
        let upgradable = record(Mode::Upgradable);
        assert_eq!(read(&upgradable).token(10), Some(9));
        let upgrading = read(&upgradable.upgrading(Some(12)));
        assert_eq!(
            (
                upgrading.mode(),
                upgrading.token(10),
                upgrading.last_holder()
            ),
            (Mode::Upgradable, Some(9), Some(12))
        );
        let upgraded = read(&upgrading.upgraded(15));
        assert_eq!(
            (upgraded.mode(), upgraded.token(10), upgraded.last_holder()),
            (Mode::Exclusive, Some(15), None)
        );
        assert!(upgraded.may_upgrade() && !upgraded.is_upgrading());
        let again = read(&upgraded.clone().with_mode(Mode::Upgradable, 15));
        assert_eq!(
            (again.mode(), again.token(10)),
            (Mode::Upgradable, Some(15))
        );
        let shared = read(&upgraded.with_mode(Mode::Shared, 15));
        assert_eq!((shared.mode(), shared.token(10)), (Mode::Shared, Some(15)));
        assert!(!shared.may_upgrade());
    }
}
