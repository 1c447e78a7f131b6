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
            && kv.create_revision == leader.created
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
    let contender = Contender::new(kv.clone(), record);
    let is_exclusive = contender.record.mode() == Mode::Exclusive;
    match is_exclusive && !contender.record.is_reserved() {
        // The first key holds.
        true => reading(connections, &contender, first.revision).await,
        false => read_all(connections, directory).await,
    }
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

/// The same where the first key does not decide: it is not exclusive, or it reserves the name.
async fn read_all(connections: &Connections, directory: &Directory) -> Result<Reading, Error> {
    let (contenders, revision) = contenders::read(connections, directory).await?;
    // A waiter gets a token that is greater than those of all holders.
    let mut last_token = if contenders.is_empty() { revision } else { 0 };
    for contender in contenders.iter().filter(|it| it.is_held) {
        let is_leader = contender.record.mode() == Mode::Exclusive;
        if is_leader && !contender.record.is_reserved() {
            return reading(connections, contender, revision).await;
        }
        let token = contender.token().unwrap_or(0);
        last_token = last_token.max(i64::try_from(token).unwrap_or(0));
    }
    Ok(Reading::of_nobody(last_token, revision))
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
        ttl_left = Some(left.unwrap_or(Duration::ZERO).saturating_sub(delay));
    }
    if ttl_left == Some(Duration::ZERO) {
        return Ok(Reading::of_nobody(kv.create_revision, revision));
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
            has_bare_value: holder.kind != ContenderKind::Lock && delay.is_zero(),
        }),
    })
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
        for (kind, event) in [
            (ContenderKind::Candidate, deleted("k", 21)),
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
}
