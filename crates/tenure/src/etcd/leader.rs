//! Who leads, by one read, and what an event of a watch changes about it.

use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::holder::HoldInfo;
use tenure_core::leader::Sighting;
use tenure_core::options::Mode;

use super::candidate::published;
use super::connection::Connections;
use super::contenders::{self, Contender, ContenderKind, record_of};
use super::errors::RequestError;
use super::lease_requests;
use super::names::{Directory, after_prefix};
use super::queue::remove_early_reservations;
use super::record::KeyRecord;
use super::requests;
use super::wire::{self, SortOrder, SortTarget};

/// What a read has found.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) sighting: Sighting,
    /// What happened up to this revision is known.
    pub(super) revision: i64,
    /// The key of the leader; `None`: nobody leads.
    leader: Option<LeaderKey>,
}

#[derive(Clone, Debug)]
struct LeaderKey {
    key: Vec<u8>,
    created: i64,
    /// With another lease the key may have another `lock_delay`, or reserve the name.
    lease: i64,
    /// A new value of the key is all that can change, except for its end. Otherwise the key has to be read after each change.
    has_bare_value: bool,
}

/// What an event means for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The leader has published another value.
    Value(Sighting),
    /// The event does not tell who leads.
    Unknown,
}

impl Reading {
    /// Takes note of an event.
    pub(super) fn apply(&mut self, event: &wire::Event) -> Change {
        let Some(kv) = &event.kv else {
            return Change::None;
        };
        if kv.mod_revision <= self.revision {
            return Change::None;
        }
        let Some(leader) = &self.leader else {
            return Change::Unknown;
        };
        // All other keys wait: each of them is younger.
        if leader.key != kv.key {
            return Change::None;
        }
        let is_put = event.kind != 1;
        let is_value = leader.has_bare_value
            && is_put
            && (kv.create_revision, kv.lease) == (leader.created, leader.lease)
            && KeyRecord::parse(&kv.value).is_none();
        match &mut self.sighting.leader {
            Some(seen) if is_value => seen.holder.value = Some(published(kv)),
            _ => return Change::Unknown,
        }
        self.revision = kv.mod_revision;
        Change::Value(self.sighting.clone())
    }

    fn of_nobody(last_token: i64, revision: i64) -> Self {
        Self {
            sighting: Sighting::of_nobody(u64::try_from(last_token).unwrap_or(0)),
            revision,
            leader: None,
        }
    }
}

/// The first keys of a name, all read at one revision.
struct FirstKeys {
    /// The first key of the directory, and the next one: the second key of one acquisition may come before the first one.
    contenders: Vec<wire::KeyValue>,
    /// The first record of a candidate.
    records: Vec<wire::KeyValue>,
    revision: i64,
}

/// Who leads, as it was at revision `at_least` or later; with 0 as it is now.
pub(super) async fn read(
    connections: &Connections,
    directory: &Directory,
    at_least: i64,
) -> Result<Reading, Error> {
    let mut first = read_first(connections, directory, at_least).await?;
    remove_early_reservations(&mut first.contenders);
    let Some(kv) = first.contenders.into_iter().next() else {
        // A key that is created from now on has a greater revision.
        return Ok(Reading::of_nobody(first.revision, first.revision));
    };
    let record = record_of(directory, &kv, &first.records);
    let contender = Contender::new(kv, record);
    let is_exclusive = contender.record.mode() == Mode::Exclusive;
    match is_exclusive && !contender.record.is_reserved() && !is_hidden(&contender, &first.records)
    {
        // The first key holds.
        true => reading(connections, &contender, first.revision).await,
        false => read_all(connections, directory).await,
    }
}

/// Whether the record of this contender may come after the records that were read: the key of an older record may be gone.
fn is_hidden(contender: &Contender, first_records: &[wire::KeyValue]) -> bool {
    let is_older = |record: &wire::KeyValue| record.create_revision < contender.kv.create_revision;
    contender.kind == ContenderKind::Foreign && first_records.iter().any(is_older)
}

async fn read_first(
    connections: &Connections,
    directory: &Directory,
    at_least: i64,
) -> Result<FirstKeys, RequestError> {
    // The member that reported an event has that event, so it need not ask the other members.
    let mut is_serializable = at_least > 0;
    loop {
        let first = |start: &[u8], limit| {
            wire::RequestOp::from(wire::Range {
                key: start.to_vec(),
                range_end: after_prefix(start),
                limit,
                sort_order: SortOrder::Ascend.into(),
                sort_target: SortTarget::Create.into(),
                serializable: is_serializable,
                ..wire::Range::default()
            })
        };
        let txn = wire::Txn {
            compare: Vec::new(),
            success: vec![first(directory.start(), 2), first(directory.records(), 1)],
            failure: Vec::new(),
        };
        let response = requests::send_txn(connections, txn).await?.value;
        let revision = response.header.map_or(0, |header| header.revision);
        if is_serializable && revision < at_least {
            is_serializable = false;
            continue;
        }
        let ranges = response.responses.into_iter();
        let mut ranges = ranges.map(|it| it.range.unwrap_or_default().kvs);
        return Ok(FirstKeys {
            contenders: ranges.next().unwrap_or_default(),
            records: ranges.next().unwrap_or_default(),
            revision,
        });
    }
}

/// The same where the first key does not decide: it is not exclusive, it reserves the name, or its record was not read.
async fn read_all(connections: &Connections, directory: &Directory) -> Result<Reading, Error> {
    let (contenders, revision) = contenders::read(connections, directory).await?;
    let is_leader = |it: &&Contender| {
        it.is_held && it.record.mode() == Mode::Exclusive && !it.record.is_reserved()
    };
    match contenders.iter().find(is_leader) {
        Some(leader) => reading(connections, leader, revision).await,
        None => Ok(Reading::of_nobody(
            last_token(&contenders, revision),
            revision,
        )),
    }
}

/// A number that is not less than any token so far, and less than that of the next leader. `contenders`: all of them, the oldest
/// first, without a leader.
fn last_token(contenders: &[Contender], revision: i64) -> i64 {
    let held = || contenders.iter().filter(|it| it.is_held);
    let may_upgrade = |it: &Contender| it.record.may_upgrade() && !it.record.is_reserved();
    if held().any(may_upgrade) {
        // The token of an upgrade may be the next number.
        return held().map(token_of).max().unwrap_or(0);
    }
    // The keys of the holds do not tell: that of a reservation has no token of an upgrade.
    let waiter = contenders.iter().find(|it| !it.is_held);
    waiter.map_or(revision, |waiter| waiter.kv.create_revision - 1)
}

fn token_of(contender: &Contender) -> i64 {
    let token = contender.token().unwrap_or(0);
    i64::try_from(token).unwrap_or(0)
}

/// What the exclusive holder means for observers. With a `lock_delay` the holder has ended before its key.
async fn reading(
    connections: &Connections,
    holder: &Contender,
    revision: i64,
) -> Result<Reading, Error> {
    let (kv, delay) = (&holder.kv, holder.record.lock_delay());
    let mut ttl_left = None;
    if !delay.is_zero() {
        let left = lease_requests::lease_time_left(connections, kv.lease).await?;
        ttl_left = hold_time_left(left.unwrap_or(Duration::ZERO), delay);
        if ttl_left.is_none() {
            let last_token = kv.create_revision.max(token_of(holder));
            return Ok(Reading::of_nobody(last_token, revision));
        }
    }
    let mut shown = holder.holder();
    if holder.kind == ContenderKind::Foreign {
        // It may be that of an election without a value, of which the next value has a greater number.
        shown.value = Some(published(kv));
    }
    let hold = HoldInfo::new(shown, Mode::Exclusive, holder.token(), ttl_left);
    Ok(Reading {
        sighting: Sighting::of_hold(hold),
        revision,
        leader: Some(LeaderKey {
            key: kv.key.clone(),
            created: kv.create_revision,
            lease: kv.lease,
            has_bare_value: holder.kind != ContenderKind::Lock && delay.is_zero(),
        }),
    })
}

/// How long a hold lasts at most whose lease lasts for `left`, in whole seconds rounded down, and goes on for `delay` after the
/// hold. `None`: the hold has ended.
fn hold_time_left(left: Duration, delay: Duration) -> Option<Duration> {
    let left = left.checked_sub(delay)?;
    Some(left + Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tenure_core::fence::OwnerId;
    use tenure_core::holder::Holder;

    use super::*;

    fn kv(key: &str, value: &str, [created, modified]: [i64; 2]) -> wire::KeyValue {
        wire::KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: created,
            mod_revision: modified,
            lease: 7,
        }
    }

    fn put(kv: wire::KeyValue) -> wire::Event {
        wire::Event {
            kind: 0,
            kv: Some(kv),
        }
    }

    fn deleted(key: &str, at: i64) -> wire::Event {
        wire::Event {
            kind: 1,
            kv: Some(kv(key, "", [0, at])),
        }
    }

    fn led_by(kind: ContenderKind) -> Reading {
        let own = kv("k", "first", [10, 10]);
        let hold = HoldInfo::new(Holder::new("h", 1), Mode::Exclusive, Some(10), None);
        Reading {
            sighting: Sighting::of_hold(hold),
            revision: 20,
            leader: Some(LeaderKey {
                key: own.key,
                created: 10,
                lease: 7,
                has_bare_value: kind != ContenderKind::Lock,
            }),
        }
    }

    #[test]
    fn a_new_value_of_the_leader_is_passed_on_once_and_with_its_holder() {
        let mut reading = led_by(ContenderKind::Candidate);
        let event = put(kv("k", "second", [10, 21]));
        let Change::Value(sighting) = reading.apply(&event) else {
            panic!("it is a value");
        };
        let leader = sighting.leader.unwrap();
        assert_eq!(
            (leader.value(), &*leader.holder.host),
            (Some("second"), "h")
        );
        assert_eq!(leader.holder.value.unwrap().number, 21);
        assert_eq!(reading.apply(&event), Change::None, "it is known");
    }

    #[test]
    fn events_of_other_keys_and_of_the_past_change_nothing_while_there_is_a_leader() {
        let mut reading = led_by(ContenderKind::Candidate);
        for event in [
            put(kv("other", "v", [21, 21])),
            deleted("other", 22),
            put(kv("k", "old", [10, 20])),
            deleted("k", 9),
            wire::Event::default(),
        ] {
            assert_eq!(reading.apply(&event), Change::None, "{event:?}");
        }
    }

    #[test]
    fn what_an_event_does_not_tell_has_to_be_read() {
        let owner = OwnerId::random();
        let record = KeyRecord::new(&Holder::new("h", 1), Mode::Shared, owner, UNIX_EPOCH);
        let record = String::from_utf8(record.to_bytes()).unwrap();
        let mut moved = kv("k", "first", [10, 21]);
        moved.lease = 8;
        for (kind, event) in [
            (ContenderKind::Candidate, deleted("k", 21)),
            // Under this lease the name stays reserved after the term.
            (ContenderKind::Candidate, put(moved)),
            // The key was made anew.
            (ContenderKind::Candidate, put(kv("k", "v", [21, 21]))),
            // The term became a shared hold.
            (ContenderKind::Candidate, put(kv("k", &record, [10, 21]))),
            (ContenderKind::Lock, put(kv("k", &record, [10, 21]))),
            (ContenderKind::Lock, deleted("k", 21)),
        ] {
            assert_eq!(led_by(kind).apply(&event), Change::Unknown, "{event:?}");
        }
        let mut nobody = Reading::of_nobody(20, 20);
        for event in [put(kv("k", "v", [21, 21])), deleted("k", 21)] {
            assert_eq!(nobody.apply(&event), Change::Unknown, "{event:?}");
        }
        assert_eq!(nobody.apply(&deleted("k", 20)), Change::None);
    }

    #[test]
    fn a_lease_in_its_last_second_is_not_over() {
        let secs = Duration::from_secs;
        let delay = secs(30);
        assert_eq!(hold_time_left(secs(31), delay), Some(secs(2)));
        assert_eq!(hold_time_left(secs(30), delay), Some(secs(1)));
        assert_eq!(hold_time_left(secs(29), delay), None);
        assert_eq!(hold_time_left(secs(0), delay), None);
    }

    fn contender(record: &KeyRecord, created: i64, is_held: bool) -> Contender {
        let value = String::from_utf8(record.to_bytes()).unwrap();
        Contender {
            is_held,
            ..Contender::new(kv("k", &value, [created, created]), None)
        }
    }

    #[test]
    fn nobody_leads_with_a_number_between_the_last_token_and_the_next_one() {
        let owner = OwnerId::random();
        let of = |mode| KeyRecord::new(&Holder::new("h", 1), mode, owner, UNIX_EPOCH);
        let shared = of(Mode::Shared);
        let upgradable = of(Mode::Upgradable);
        let again = upgradable
            .clone()
            .upgraded(15)
            .with_mode(Mode::Upgradable, 15);
        // The hold was upgraded under the token 15 and has ended; that token is not in the store any more.
        let reserved = |mode| KeyRecord::reserved(mode);
        let waiting = of(Mode::Exclusive);
        for (held, waiter, expected) in [
            (vec![], None, 40),
            (vec![(&reserved(Mode::Exclusive), 10)], None, 40),
            (vec![(&reserved(Mode::Exclusive), 10)], Some(20), 19),
            (vec![(&reserved(Mode::Upgradable), 10)], Some(20), 19),
            (
                vec![(&reserved(Mode::Shared), 10), (&shared, 18)],
                Some(20),
                19,
            ),
            (vec![(&shared, 18)], None, 40),
            // An upgrade to the token 10 or 16 may be next.
            (vec![(&upgradable, 10)], Some(11), 9),
            (vec![(&again, 10)], Some(17), 15),
            (vec![(&again, 10)], None, 15),
        ] {
            let held = held.into_iter();
            let mut all: Vec<_> = held
                .map(|(it, created)| contender(it, created, true))
                .collect();
            all.extend(waiter.map(|created| contender(&waiting, created, false)));
            assert_eq!(last_token(&all, 40), expected);
        }
    }

    #[test]
    fn an_older_record_may_hide_that_of_the_leader() {
        let record = |created| [kv("%record:a%:7", "{}", [created, created])];
        let theirs = Contender::new(kv("k", "v", [10, 10]), None);
        assert!(is_hidden(&theirs, &record(9)));
        assert!(!is_hidden(&theirs, &record(11)), "that of a waiter");
        assert!(!is_hidden(&theirs, &[]));
        let ours = Contender::new(kv("k", "v", [10, 10]), Some(&record(10)[0]));
        assert!(!is_hidden(&ours, &record(10)));
    }
}
