//! The queue of a lock: the keys of its directory, in the order of their creation. Plain decisions, no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::logic::queue::{
    Contender, Turn, Upgrading, count_holders, decide, decide_while_upgrading,
};
use tenure_core::options::Mode;
use tenure_core::queue::Position;

use super::candidate::Candidate;
use super::names::{Directory, reserving_key};
use super::record::KeyRecord;
use super::subscribe::Reports;
use super::wire::KeyValue;

/// A waiter with at most this many keys ahead of its own watches the whole directory and counts the deletions: each
/// release is reported to that many waiters, and none of them needs a further request. A waiter farther back
/// watches only the key just ahead of its own.
pub(super) const WATCH_FANOUT: usize = 8;

/// How many keys a waiter asks for: enough to see its own key, and whether all others are counted.
pub(super) const RANGE_LIMIT: usize = WATCH_FANOUT + 2;

/// What our key waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The turn of our key, in this mode.
    Turn(Mode),
    /// The end of all other holds, as far as they were created up to this revision: our key is upgradable and is to
    /// become exclusive.
    EndOfOthers { last_holder: i64 },
}

impl Goal {
    /// Whether a position depends on the values of all keys ahead.
    pub(super) fn needs_values(self) -> bool {
        match self {
            Self::Turn(mode) => mode != Mode::Exclusive,
            Self::EndOfOthers { .. } => false,
        }
    }

    /// The create revision of the last key that matters to our key, which was created at `created`.
    pub(super) fn youngest(self, created: i64) -> i64 {
        match self {
            Self::Turn(_) => created,
            Self::EndOfOthers { last_holder } => last_holder,
        }
    }
}

/// The second key of an acquisition with `min_hold`, which reserves the name.
#[derive(Clone)]
pub(super) struct SecondKey {
    pub(super) key: Vec<u8>,
    /// The value with which the key is made; no other acquisition has the same. At the grant the key gets another value.
    pub(super) value: Arc<[u8]>,
}

/// A key of ours in a queue, or on its way to the queue.
pub(super) struct QueueEntry {
    pub(super) directory: Directory,
    pub(super) key: Vec<u8>,
    /// No other acquisition has the same value.
    pub(super) value: Arc<[u8]>,
    /// The second key, if the name stays taken for `min_hold`; it is made together with `key`.
    pub(super) second_key: Option<SecondKey>,
    pub(super) lease: i64,
    pub(super) goal: Goal,
    /// What a candidate of an election has beside `key`. Then `value` is that of the second key.
    pub(super) candidate: Option<Candidate>,
}

impl QueueEntry {
    /// The key that has `value`: no other acquisition has the same.
    pub(super) fn unique_key(&self) -> &[u8] {
        match &self.candidate {
            None => &self.key,
            Some(candidate) => &candidate.record_key,
        }
    }

    /// How many keys have to be read; 0: all of them.
    pub(super) fn range_limit(&self) -> i64 {
        match self.goal {
            // One more, because our second key is among them and does not count.
            Goal::Turn(Mode::Exclusive) => {
                RANGE_LIMIT as i64 + i64::from(self.second_key.is_some())
            }
            _ => 0,
        }
    }

    /// What a watch has to report to a waiter.
    pub(super) fn reports(&self) -> Reports {
        match self.goal.needs_values() {
            true => Reports::Changes,
            false => Reports::Deletions,
        }
    }
}

/// A position in a queue, and when it was read.
pub(super) struct QueueSnapshot {
    pub(super) position: QueuePosition,
    /// The store's revision at which the queue was read.
    pub(super) revision: i64,
    pub(super) early_token: EarlyToken,
}

/// Whether our token has to be early, see [`KeyRecord::is_token_early`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlyToken {
    NotNeeded,
    Free,
    /// Another key of the directory was put at that revision, so that the revision may be a token already.
    Taken,
}

/// What the queue says about our key.
pub(super) type QueuePosition = Position<Predecessors>;

/// Our key holds. Its create revision is greater than each token that was granted before.
const HELD: QueuePosition = Position::Held { last_token: 0 };

/// The keys that our key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Predecessors {
    /// Keys whose deletion may make it our turn.
    keys: BTreeSet<Vec<u8>>,
    /// Whether our key holds as soon as all of `keys` are deleted. If not, the queue has to be read again when one of
    /// them is deleted.
    are_all: bool,
    /// The one key to watch; `None`: watch the directory.
    pub(super) only: Option<Vec<u8>>,
}

/// What an event means for our key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventEffect {
    None,
    /// Our key holds.
    Held,
    /// Our key was deleted.
    Gone,
    /// The queue has to be read again.
    ReadQueue,
}

impl Predecessors {
    /// The effect of a new value of `key`.
    pub(super) fn changed(&self, key: &[u8]) -> EventEffect {
        match self.are_all || !self.keys.contains(key) {
            true => EventEffect::None,
            false => EventEffect::ReadQueue,
        }
    }

    /// Takes note of the deletion of `key`.
    pub(super) fn deleted(&mut self, key: &[u8], own: &[u8]) -> EventEffect {
        if key == own {
            return EventEffect::Gone;
        }
        if !self.keys.remove(key) {
            return EventEffect::None;
        }
        match (self.are_all, self.keys.is_empty()) {
            (true, true) => EventEffect::Held,
            (true, false) => EventEffect::None,
            (false, _) => EventEffect::ReadQueue,
        }
    }
}

/// Removes the second key of the acquisition with the key `own`: nothing of ours waits for that key.
pub(super) fn remove_own_reservation(keys: &mut Vec<KeyValue>, own: &[u8]) {
    keys.retain(|kv| reserving_key(&kv.key) != Some(own));
}

/// Removes the second keys of acquisitions whose first keys are there: a reservation begins when its hold has ended.
pub(super) fn remove_early_reservations(keys: &mut Vec<KeyValue>) {
    let reserving = |kv: &KeyValue| {
        let key = reserving_key(&kv.key)?.to_vec();
        KeyRecord::read(&kv.value).is_reserved().then_some(key)
    };
    let first_keys: BTreeSet<_> = keys.iter().filter_map(reserving).collect();
    if first_keys.is_empty() {
        return;
    }
    let is_there = |key: &Vec<u8>| keys.iter().any(|kv| kv.key == *key);
    let first_keys: BTreeSet<_> = first_keys.into_iter().filter(is_there).collect();
    keys.retain(|kv| reserving(kv).is_none_or(|key| !first_keys.contains(&key)));
}

/// The position of the key `own` among `keys`, which are sorted by creation. For an exclusive key the last
/// [`RANGE_LIMIT`] of them are enough.
pub(super) fn position(goal: Goal, own: &[u8], keys: &[KeyValue]) -> QueuePosition {
    let Some(me) = keys.iter().position(|kv| kv.key == own) else {
        return Position::Gone;
    };
    match goal {
        Goal::Turn(Mode::Exclusive) => exclusive_position(&keys[..me]),
        Goal::Turn(_) => position_by_mode(&keys[..=me]),
        Goal::EndOfOthers { last_holder } => {
            let others = keys.iter().filter(|kv| kv.key != own);
            let others = others.filter(|kv| kv.create_revision <= last_holder);
            let keys: BTreeSet<_> = others.map(|kv| kv.key.clone()).collect();
            match keys.is_empty() {
                true => HELD,
                false => Position::Behind(Predecessors {
                    keys,
                    are_all: true,
                    only: None,
                }),
            }
        }
    }
}

/// The position of an exclusive key behind these keys.
fn exclusive_position(ahead: &[KeyValue]) -> QueuePosition {
    let Some(last) = ahead.last() else {
        return HELD;
    };
    let are_all = ahead.len() <= WATCH_FANOUT;
    let watched = match are_all {
        true => ahead,
        false => std::slice::from_ref(last),
    };
    Position::Behind(Predecessors {
        keys: watched.iter().map(|kv| kv.key.clone()).collect(),
        are_all,
        only: (!are_all).then(|| last.key.clone()),
    })
}

/// The position of the last of these keys, whose modes decide.
fn position_by_mode(keys: &[KeyValue]) -> QueuePosition {
    let me = keys.len() - 1;
    let records: Vec<_> = keys.iter().map(|kv| KeyRecord::read(&kv.value)).collect();
    let contenders = contenders(&records);
    let turn = match upgrading(keys, &records) {
        Some(upgrading) => decide_while_upgrading(&contenders, upgrading, me),
        None => decide(&contenders, me),
    };
    let watched = match turn {
        Turn::Held => return HELD,
        Turn::WatchOne(at) => at..at + 1,
        Turn::WatchAll(range) => range,
    };
    Position::Behind(Predecessors {
        keys: keys[watched].iter().map(|kv| kv.key.clone()).collect(),
        are_all: false,
        only: None,
    })
}

/// The upgradable holder among these keys that waits to become exclusive.
fn upgrading(keys: &[KeyValue], records: &[KeyRecord]) -> Option<Upgrading> {
    let at = records.iter().position(KeyRecord::is_upgrading)?;
    let index_of = |created| keys.iter().rposition(|kv| kv.create_revision <= created);
    Some(Upgrading {
        at,
        last_holder: records[at].last_holder().and_then(index_of),
    })
}

/// Which of these keys, which are all keys of a directory, hold.
pub(super) fn are_held(keys: &[KeyValue]) -> Vec<bool> {
    let records: Vec<_> = keys.iter().map(|kv| KeyRecord::read(&kv.value)).collect();
    let contenders = contenders(&records);
    let upgrading = keys.iter().zip(&records).find_map(|(kv, record)| {
        let limit = record.last_holder().unwrap_or(kv.mod_revision);
        record.is_upgrading().then_some(limit)
    });
    // What was created after the request to upgrade does not hold.
    let limit = upgrading.unwrap_or(i64::MAX);
    let is_held = |(me, kv): (usize, &KeyValue)| {
        kv.create_revision <= limit && decide(&contenders, me) == Turn::Held
    };
    keys.iter().enumerate().map(is_held).collect()
}

/// Whether the token of the key `own`, which is not exclusive, has to be early, and can be. `keys` are all keys of the
/// directory at the moment when `own` was created.
///
/// The token of an upgradable hold is early, and so is the token of each shared hold that is granted after it. If an
/// upgrade follows, the create revision of the last key that holds is not the token of any hold, and is smaller than each
/// token that is granted later.
pub(super) fn early_token(own: &[u8], keys: &[KeyValue]) -> EarlyToken {
    let Some(me) = keys.iter().position(|kv| kv.key == own) else {
        return EarlyToken::NotNeeded;
    };
    let record = |kv: &KeyValue| KeyRecord::read(&kv.value);
    let is_needed =
        record(&keys[me]).is_token_early() || keys[..me].iter().any(|kv| record(kv).may_upgrade());
    let early = keys[me].create_revision - 1;
    let is_taken = |kv: &KeyValue| kv.create_revision == early || kv.mod_revision == early;
    match (is_needed, keys[..me].iter().any(is_taken)) {
        (false, _) => EarlyToken::NotNeeded,
        (true, false) => EarlyToken::Free,
        (true, true) => EarlyToken::Taken,
    }
}

/// The first key of a queue that waits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FirstWaiter {
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    /// Whether its client makes the key again if its early token is taken, see [`early_token`].
    pub(super) may_be_made_again: bool,
}

/// What an upgrade has to wait for, and the token that it leads to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UpgradePlan {
    /// The create revision of the last key that holds.
    pub(super) last_holder: i64,
    /// Whether other keys hold.
    pub(super) has_others: bool,
    /// The first key that waits.
    pub(super) first_waiter: Option<FirstWaiter>,
    /// When the queue was read.
    pub(super) read_at: i64,
    /// Greater than all tokens that were granted, and smaller than all that will be.
    pub(super) token: u64,
}

/// The plan of the upgradable key `own`. `keys`: the directory at `revision`, without keys that were created later.
/// `None`: the key is not there, or does not hold.
pub(super) fn plan_upgrade(own: &[u8], keys: &[KeyValue], revision: i64) -> Option<UpgradePlan> {
    let records: Vec<_> = keys.iter().map(|kv| KeyRecord::read(&kv.value)).collect();
    let holders = count_holders(&contenders(&records));
    keys[..holders].iter().position(|kv| kv.key == own)?;
    let last_holder = keys[holders - 1].create_revision;
    let first_waiter = keys.get(holders).map(|kv| FirstWaiter {
        key: kv.key.clone(),
        created: kv.create_revision,
        may_be_made_again: records[holders].mode() != Mode::Exclusive,
    });
    // The token of a waiter is its create revision, or one less (see `early_token`).
    let next = first_waiter.as_ref();
    let next = next.map(|it| it.created - i64::from(it.may_be_made_again));
    let token = next.map_or(revision, |next| (next - 1).min(revision));
    Some(UpgradePlan {
        last_holder,
        has_others: holders > 1,
        first_waiter,
        read_at: revision,
        token: u64::try_from(token.max(last_holder)).ok()?,
    })
}

/// The contenders that these records stand for, in the same order.
fn contenders(records: &[KeyRecord]) -> Vec<Contender> {
    let contender = |record: &KeyRecord| Contender {
        mode: record.mode(),
    };
    records.iter().map(contender).collect()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tenure_core::fence::OwnerId;
    use tenure_core::holder::Holder;

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
        match position(Goal::Turn(mode), own.as_bytes(), keys) {
            Position::Behind(ahead) => ahead,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_oldest_key_holds_and_a_key_that_is_not_there_is_gone() {
        let keys = names(3);
        let mode = Goal::Turn(Mode::Exclusive);
        assert_eq!(position(mode, b"000", &keys), HELD);
        assert_eq!(position(mode, b"x", &keys), Position::Gone);
        assert_eq!(position(mode, b"x", &[]), Position::Gone);
    }

    #[test]
    fn a_waiter_with_few_ahead_counts_deletions_in_any_order() {
        let keys = names(WATCH_FANOUT + 1);
        let mut ahead = behind(Mode::Exclusive, "008", &keys);
        assert_eq!(ahead.only, None);
        for i in [3, 0, 7, 1, 2, 6, 5] {
            let effect = ahead.deleted(&keys[i].key, b"008");
            assert_eq!(effect, EventEffect::None, "{i}");
            assert_eq!(ahead.deleted(&keys[i].key, b"008"), EventEffect::None);
        }
        assert_eq!(
            ahead.deleted(b"a key behind ours", b"008"),
            EventEffect::None
        );
        assert_eq!(ahead.clone().deleted(b"008", b"008"), EventEffect::Gone);
        assert_eq!(ahead.deleted(b"004", b"008"), EventEffect::Held);
    }

    #[test]
    fn a_waiter_with_many_ahead_watches_only_the_key_just_ahead() {
        let keys = names(WATCH_FANOUT + 2);
        assert_eq!(keys.len(), RANGE_LIMIT);
        let mut ahead = behind(Mode::Exclusive, "009", &keys);
        assert_eq!(ahead.only.as_deref(), Some(&b"008"[..]));
        assert_eq!(ahead.deleted(b"003", b"009"), EventEffect::None);
        assert_eq!(ahead.deleted(b"008", b"009"), EventEffect::ReadQueue);
    }

    #[test]
    fn shared_keys_hold_together_and_wait_for_an_exclusive_key() {
        let keys = [
            key("a", Mode::Shared),
            key("b", Mode::Exclusive),
            key("c", Mode::Shared),
            key("d", Mode::Shared),
        ];
        assert_eq!(position(Goal::Turn(Mode::Shared), b"a", &keys), HELD);
        let mut ahead = behind(Mode::Shared, "d", &keys);
        assert_eq!(ahead.deleted(b"c", b"d"), EventEffect::None);
        assert_eq!(ahead.deleted(b"b", b"d"), EventEffect::ReadQueue);
        let without = [keys[0].clone(), keys[2].clone(), keys[3].clone()];
        assert_eq!(position(Goal::Turn(Mode::Shared), b"d", &without), HELD);
    }

    /// A key that was created at `created`, and last changed at `modified`.
    fn key_at(created: i64, modified: i64, record: &KeyRecord) -> KeyValue {
        KeyValue {
            key: format!("{created}").into_bytes(),
            create_revision: created,
            mod_revision: modified,
            value: record.to_bytes(),
            ..KeyValue::default()
        }
    }

    fn record(mode: Mode) -> KeyRecord {
        KeyRecord::new(&Holder::new("h", 1), mode, OwnerId::random(), UNIX_EPOCH)
    }

    #[test]
    fn readers_behind_an_upgrade_wait_for_a_change() {
        let upgradable = record(Mode::Upgradable);
        let goal = Goal::Turn(Mode::Shared);
        let keys = |upgrading: KeyRecord| {
            let shared = record(Mode::Shared);
            [
                key_at(10, 10, &shared),
                key_at(20, 45, &upgrading),
                key_at(30, 30, &shared),
                key_at(40, 40, &shared),
                key_at(50, 50, &shared),
            ]
        };
        for (last_holder, held) in [(Some(30), 3), (Some(40), 4), (None, 2)] {
            let keys = keys(upgradable.clone().upgrading(last_holder));
            for (me, kv) in keys.iter().enumerate() {
                match position(goal, &kv.key, &keys[..=me]) {
                    Position::Held { .. } => assert!(me < held, "{me}"),
                    Position::Behind(ahead) => {
                        assert!(me >= held, "{me}");
                        assert_eq!(ahead.changed(b"20"), EventEffect::ReadQueue);
                        assert_eq!(ahead.changed(b"10"), EventEffect::None);
                    }
                    Position::Gone => panic!("{me} is gone"),
                }
            }
            // To others it shows that keys older than the request hold, also before that is said.
            let shown = are_held(&keys).iter().filter(|held| **held).count();
            assert_eq!(shown, last_holder.map_or(4, |_| held));
        }
        let keys = keys(upgradable);
        assert!(are_held(&keys).iter().all(|held| *held));
        let goal = Goal::EndOfOthers { last_holder: 30 };
        let Position::Behind(mut ahead) = position(goal, b"20", &keys) else {
            panic!("others hold");
        };
        assert_eq!(ahead.deleted(b"40", b"20"), EventEffect::None);
        assert_eq!(ahead.deleted(b"30", b"20"), EventEffect::None);
        assert_eq!(ahead.deleted(b"10", b"20"), EventEffect::Held);
    }

    #[test]
    fn the_token_beside_an_upgradable_holder_is_early() {
        let (shared, upgradable) = (record(Mode::Shared), record(Mode::Upgradable));
        let before = [key_at(10, 10, &shared), key_at(20, 25, &upgradable)];
        for (created, record, expected) in [
            (30, &shared, EarlyToken::Free),
            (30, &upgradable, EarlyToken::Free),
            (26, &shared, EarlyToken::Taken),
            (21, &shared, EarlyToken::Taken),
            (11, &upgradable, EarlyToken::Taken),
        ] {
            let own = key_at(created, created, record);
            let keys = [before[0].clone(), before[1].clone(), own.clone()];
            assert_eq!(early_token(&own.key, &keys), expected, "{created}");
        }
        let own = key_at(30, 30, &shared);
        let keys = [before[0].clone(), own.clone()];
        assert_eq!(early_token(&own.key, &keys), EarlyToken::NotNeeded);
    }

    #[test]
    fn the_token_of_an_upgrade_is_between_the_holders_and_the_waiters() {
        let upgradable = key_at(20, 20, &record(Mode::Upgradable));
        let reader = key_at(22, 22, &record(Mode::Shared).with_early_token());
        for (first_waiter, token) in [
            (None, 100),
            (Some(key_at(23, 23, &record(Mode::Exclusive))), 22),
            (Some(key_at(24, 24, &record(Mode::Upgradable))), 22),
            (Some(key_at(90, 90, &record(Mode::Exclusive))), 89),
        ] {
            let mut keys = vec![upgradable.clone(), reader.clone()];
            keys.extend(first_waiter.clone());
            let plan = plan_upgrade(b"20", &keys, 100).unwrap();
            assert_eq!((plan.last_holder, plan.has_others), (22, true));
            assert_eq!(plan.token, token);
            let granted = KeyRecord::read(&reader.value).token(22).unwrap();
            assert!(granted < token);
            if let Some(kv) = first_waiter {
                assert!(
                    token
                        < KeyRecord::read(&kv.value)
                            .token(kv.create_revision)
                            .unwrap()
                );
            }
        }
        assert_eq!(plan_upgrade(b"21", &[upgradable], 100), None);
    }
}
