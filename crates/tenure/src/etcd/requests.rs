//! The requests to the store, one function each.

use std::time::Duration;

use futures_util::future;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::queue::Replaced;

use super::candidate::Candidate;
use super::connection::{Connections, Reply};
use super::errors::{self, Recovery, RequestError};
use super::key_state::KeyState;
use super::names::Directory;
use super::queue::{self, EarlyToken, QueueEntry, QueueSnapshot, SecondKey};
use super::record::KeyRecord;
use super::wire::{self, KeyValue, SortOrder, SortTarget, path};

/// Operations in one transaction: the server's limit, if `--max-txn-ops` has its default.
const MAX_TXN_OPS: usize = 128;

/// How many keys one request of [`list_keys`] reads.
const SCAN_COUNT: i64 = 1_000;

/// The reply to [`acquire`] or [`acquire_all`].
pub(super) struct AcquireReply<T> {
    pub(super) outcome: T,
    pub(super) round_trip: Duration,
    /// An earlier attempt got no reply, and may be applied later.
    pub(super) is_repeated: bool,
}

pub(super) enum AcquireOutcome {
    /// The request made our key, at the revision of this snapshot.
    Created(QueueSnapshot),
    /// An earlier attempt of the same request made our key, at this revision.
    CreatedBefore(i64),
    /// The lock is taken, and the request does not wait.
    Busy,
    /// The key of a former acquisition is in the store.
    KeyInUse,
}

/// Which key is meant, if there are several of this name one after the other.
pub(super) enum KeySelector<'a> {
    /// The key that was created at this revision.
    Created(i64),
    /// The key with this value.
    WithValue(&'a [u8]),
}

/// Makes our key, and reads the keys ahead of it. A request may be sent again: the result is the same.
pub(super) async fn acquire(
    connections: &Connections,
    entry: &QueueEntry,
    waits: bool,
) -> Result<AcquireReply<AcquireOutcome>, RequestError> {
    let reply = send_txn(connections, acquire_txn(entry, waits)).await?;
    let (round_trip, is_repeated) = (reply.round_trip, reply.is_repeated);
    let wire::TxnResponse {
        header,
        succeeded,
        mut responses,
    } = reply.value;
    let range = responses.pop().and_then(|it| it.range);
    let kvs = range.unwrap_or_default().kvs;
    let outcome = if succeeded {
        AcquireOutcome::Created(snapshot(entry, header, kvs))
    } else {
        match kvs.first() {
            Some(own) if *own.value == *entry.value => {
                AcquireOutcome::CreatedBefore(own.create_revision)
            }
            _ if is_try(entry, waits) => AcquireOutcome::Busy,
            _ => AcquireOutcome::KeyInUse,
        }
    };
    Ok(AcquireReply {
        outcome,
        round_trip,
        is_repeated,
    })
}

/// Whether the request writes nothing when the lock is taken: one for an exclusive lock that does not wait.
fn is_try(entry: &QueueEntry, waits: bool) -> bool {
    !waits && !entry.goal.needs_values()
}

fn acquire_txn(entry: &QueueEntry, waits: bool) -> wire::Txn {
    let put = |key: &[u8], value: &[u8]| wire::Put {
        key: key.to_vec(),
        value: value.to_vec(),
        lease: entry.lease,
    };
    let own = wire::Range {
        key: entry.unique_key().to_vec(),
        ..wire::Range::default()
    };
    let (start, end) = (entry.directory.start(), entry.directory.end());
    let compare = match is_try(entry, waits) {
        true => wire::Compare::is_empty(start, &end),
        false => wire::Compare::created(&entry.key, 0),
    };
    let mut txn = wire::Txn {
        compare: vec![compare],
        success: vec![put(entry.unique_key(), &entry.value).into()],
        failure: vec![own.into()],
    };
    if let Some(Candidate { first_value, .. }) = &entry.candidate {
        let is_new = wire::Compare::created(entry.unique_key(), 0);
        txn.compare.push(is_new);
        let bare = put(&entry.key, first_value.as_bytes());
        txn.success.insert(0, bare.into());
    }
    if let Some(SecondKey { key, value }) = &entry.second_key {
        // The name may still be reserved by a former acquisition that had the same keys.
        txn.compare.push(wire::Compare::created(key, 0));
        txn.success.push(put(key, value).into());
    }
    txn.success.push(keys_ahead(entry, 0).into());
    txn
}

pub(super) enum AcquireAllOutcome {
    /// Each of our keys is the first in its directory; the revision at which each was created.
    Held(Vec<i64>),
    /// The lock at this position is taken.
    Busy(usize),
    /// An earlier attempt made our keys, and some of them are gone.
    Incomplete,
}

/// How many names one request of [`acquire_all`] may have.
pub(super) const MAX_ALL: usize = MAX_TXN_OPS;

/// Makes a key in each of these directories if all of them are empty. A request may be sent again: the result is the
/// same.
pub(super) async fn acquire_all(
    connections: &Connections,
    entries: &[QueueEntry],
) -> Result<AcquireReply<AcquireAllOutcome>, RequestError> {
    let is_empty = |entry: &QueueEntry| {
        wire::Compare::is_empty(entry.directory.start(), &entry.directory.end())
    };
    let put = |entry: &QueueEntry| {
        let put = wire::Put {
            key: entry.key.clone(),
            value: entry.value.to_vec(),
            lease: entry.lease,
        };
        put.into()
    };
    let first_key = |entry: &QueueEntry| {
        let range = wire::Range {
            key: entry.directory.start().to_vec(),
            range_end: entry.directory.end(),
            limit: 1,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..wire::Range::default()
        };
        range.into()
    };
    let txn = wire::Txn {
        compare: entries.iter().map(is_empty).collect(),
        success: entries.iter().map(put).collect(),
        failure: entries.iter().map(first_key).collect(),
    };
    let reply = send_txn(connections, txn).await?;
    let (round_trip, is_repeated) = (reply.round_trip, reply.is_repeated);
    let response = reply.value;
    let outcome = if response.succeeded {
        let revision = response.header.map_or(0, |header| header.revision);
        AcquireAllOutcome::Held(vec![revision; entries.len()])
    } else {
        let ranges = response.responses.into_iter();
        let firsts = ranges.map(|it| it.range.unwrap_or_default().kvs.into_iter().next());
        all_or_busy(entries, firsts.collect())
    };
    Ok(AcquireReply {
        outcome,
        round_trip,
        is_repeated,
    })
}

/// What the first key of each directory says.
fn all_or_busy(entries: &[QueueEntry], firsts: Vec<Option<KeyValue>>) -> AcquireAllOutcome {
    let (mut own, mut taken) = (Vec::new(), None);
    for (at, (entry, first)) in entries.iter().zip(firsts).enumerate() {
        match first {
            Some(first) if *first.value == *entry.value => own.push(first.create_revision),
            Some(_) => taken = taken.or(Some(at)),
            None => {}
        }
    }
    match taken {
        _ if own.len() == entries.len() => AcquireAllOutcome::Held(own),
        Some(at) if own.is_empty() => AcquireAllOutcome::Busy(at),
        _ => AcquireAllOutcome::Incomplete,
    }
}

/// Reads the queue as it was at revision `at_least` or later; with 0 as it is now. `created` is the create revision of
/// our key.
pub(super) async fn read_queue(
    connections: &Connections,
    entry: &QueueEntry,
    created: i64,
    at_least: i64,
) -> Result<QueueSnapshot, RequestError> {
    let mut range = keys_ahead(entry, created);
    // The member that reported a change has that change, so it need not ask the other members.
    range.serializable = at_least > 0;
    loop {
        let is_serializable = range.serializable;
        let reply = connections.call(path::RANGE, range.clone()).await?;
        let response: wire::RangeResponse = reply.value;
        let snapshot = snapshot(entry, response.header, response.kvs);
        if !is_serializable || snapshot.revision >= at_least {
            return Ok(snapshot);
        }
        range.serializable = false;
    }
}

/// Selects the keys of the directory that are not younger than `created` (0: all keys), or than the last key that our
/// goal depends on, the youngest first.
fn keys_ahead(entry: &QueueEntry, created: i64) -> wire::Range {
    wire::Range {
        key: entry.directory.start().to_vec(),
        range_end: entry.directory.end(),
        limit: entry.range_limit(),
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Create.into(),
        keys_only: !entry.goal.needs_values(),
        max_create_revision: entry.goal.youngest(created),
        ..wire::Range::default()
    }
}

/// What [`keys_ahead`] has found.
fn snapshot(
    entry: &QueueEntry,
    header: Option<wire::Header>,
    mut kvs: Vec<KeyValue>,
) -> QueueSnapshot {
    kvs.reverse();
    queue::remove_own_reservation(&mut kvs, &entry.key);
    queue::remove_early_reservations(&mut kvs);
    let early_token = match entry.goal {
        goal if goal.needs_values() => queue::early_token(&entry.key, &kvs),
        _ => EarlyToken::NotNeeded,
    };
    QueueSnapshot {
        position: queue::position(entry.goal, &entry.key, &kvs),
        revision: header.map_or(0, |header| header.revision),
        early_token,
    }
}

/// Whether these keys exist. One answer for each key.
pub(super) async fn keys_exist(
    connections: &Connections,
    keys: &[&KeyState],
) -> Vec<Result<bool, Error>> {
    let batches = keys.chunks(MAX_TXN_OPS);
    let batches = batches.map(|batch| batch_exists(connections, batch));
    let batches = future::join_all(batches).await;
    batches.into_iter().flatten().collect()
}

async fn batch_exists(connections: &Connections, batch: &[&KeyState]) -> Vec<Result<bool, Error>> {
    let range = |state: &&KeyState| {
        let range = wire::Range {
            key: state.key.clone(),
            keys_only: true,
            ..wire::Range::default()
        };
        range.into()
    };
    // The keys are read only if one of them is gone.
    let txn = wire::Txn {
        compare: batch.iter().map(|state| state.condition()).collect(),
        success: Vec::new(),
        failure: batch.iter().map(range).collect(),
    };
    let response = match send_txn(connections, txn).await {
        Ok(reply) => reply.value,
        Err(err) => return batch.iter().map(|_| Err(err.error.clone())).collect(),
    };
    if response.succeeded {
        return batch.iter().map(|_| Ok(true)).collect();
    }
    if response.responses.len() != batch.len() {
        return batch
            .iter()
            .map(|_| Err(errors::unexpected_reply()))
            .collect();
    }
    let exists = |(response, state): (wire::ResponseOp, &&KeyState)| {
        let kvs = response.range.unwrap_or_default().kvs;
        Ok(kvs.first().is_some_and(|kv| state.is(kv)))
    };
    let responses = response.responses.into_iter();
    responses.zip(batch).map(exists).collect()
}

/// Deletes the selected key. `false`: there is no such key.
pub(super) async fn delete_key(
    connections: &Connections,
    key: &[u8],
    selector: &KeySelector<'_>,
) -> Result<bool, Error> {
    let delete = wire::Delete { key: key.to_vec() };
    let txn = wire::Txn {
        compare: vec![match selector {
            KeySelector::Created(revision) => wire::Compare::created(key, *revision),
            KeySelector::WithValue(value) => wire::Compare::has_value(key, value),
        }],
        success: vec![delete.into()],
        failure: Vec::new(),
    };
    let reply = send_txn(connections, txn).await?;
    let response = reply.value.responses.into_iter().next();
    let deleted = response.and_then(|it| it.delete).map_or(0, |it| it.deleted);
    // If the request was sent twice, the first one may have deleted the key.
    Ok(deleted > 0 || reply.is_repeated)
}

/// Moves the key to `lease`, with a value that reserves the name after a hold in this mode, and deletes the second key of a
/// candidate. The key keeps its position. If the lease is over, so is the reservation, and the key is deleted. `false`: there
/// is no such key.
pub(super) async fn reserve_name(
    connections: &Connections,
    state: &KeyState,
    mode: Mode,
    lease: i64,
) -> Result<bool, Error> {
    let put = wire::Put {
        key: state.key.clone(),
        value: KeyRecord::reserved(mode).to_bytes(),
        lease,
    };
    let mut txn = wire::Txn {
        compare: vec![state.condition()],
        success: vec![put.into()],
        failure: Vec::new(),
    };
    if let Some(key) = state.record_key.clone() {
        txn.success.push(wire::Delete { key }.into());
    }
    match send_txn(connections, txn).await {
        // If the request was sent twice, the first one may have moved the key.
        Ok(reply) => Ok(reply.value.succeeded || reply.is_repeated && state.lease.is_some()),
        Err(err) if err.recovery == Recovery::NewLease => {
            let selector = KeySelector::Created(state.created);
            if let Some(record_key) = &state.record_key {
                delete_key(connections, record_key, &selector).await?;
            }
            delete_key(connections, &state.key, &selector).await
        }
        Err(err) => Err(err.error),
    }
}

/// Gives a new value to a key, and does `also` in the same step, if all of `conditions` hold. The key keeps its position. A
/// request may be sent again, if no other request puts the same value under the same lease. Returns the revision since which
/// the key has the value.
pub(super) async fn replace(
    connections: &Connections,
    put: wire::Put,
    also: Vec<wire::RequestOp>,
    conditions: Vec<wire::Compare>,
) -> Result<Replaced<i64>, RequestError> {
    let own = wire::Range {
        key: put.key.clone(),
        ..wire::Range::default()
    };
    let (value, lease) = (put.value.clone(), put.lease);
    let mut success = vec![put.into()];
    success.extend(also);
    let txn = wire::Txn {
        compare: conditions,
        success,
        failure: vec![own.into()],
    };
    let reply = send_txn(connections, txn).await?;
    let wire::TxnResponse {
        header,
        succeeded,
        mut responses,
    } = reply.value;
    if succeeded {
        return Ok(Replaced::Done(header.map_or(0, |header| header.revision)));
    }
    let range = responses.pop().and_then(|it| it.range);
    Ok(match range.unwrap_or_default().kvs.first() {
        // An earlier attempt of this request was applied.
        Some(kv) if reply.is_repeated && kv.value == value && kv.lease == lease => {
            Replaced::Done(kv.mod_revision)
        }
        // An earlier attempt may be applied later.
        Some(_) if reply.is_repeated => {
            return Err(RequestError::new(
                ErrorKind::Indeterminate,
                Recovery::None,
                "a member went away while it wrote; whether it was written cannot be told",
            ));
        }
        Some(_) => Replaced::Refused,
        None => Replaced::Gone,
    })
}

/// Puts or deletes a key of the user's, if all of `holds` exist.
/// `false`: one of them does not exist, and nothing was written.
pub(super) async fn write(
    connections: &Connections,
    holds: &[KeyState],
    key: String,
    value: Option<Vec<u8>>,
) -> Result<bool, Error> {
    let key = key.into_bytes();
    let write = match value {
        Some(value) => wire::Put {
            key,
            value,
            lease: 0,
        }
        .into(),
        None => wire::Delete { key }.into(),
    };
    let txn = wire::Txn {
        compare: holds.iter().map(KeyState::condition).collect(),
        success: vec![write],
        failure: Vec::new(),
    };
    let reply = send_txn(connections, txn).await?;
    // If the second attempt is refused, the first may have been applied.
    if reply.is_repeated && !reply.value.succeeded {
        return Err(Error::new(
            ErrorKind::Indeterminate,
            "a member went away while it wrote; whether it was written cannot be told",
        ));
    }
    Ok(reply.value.succeeded)
}

pub(super) async fn send_txn(
    connections: &Connections,
    txn: wire::Txn,
) -> Result<Reply<wire::TxnResponse>, RequestError> {
    connections.call(path::TXN, txn).await
}

/// A transaction of one operation without a condition.
pub(super) async fn try_operation(
    connections: &Connections,
    operation: wire::RequestOp,
) -> Result<(), Error> {
    let txn = wire::Txn {
        success: vec![operation],
        ..wire::Txn::default()
    };
    Ok(send_txn(connections, txn).await.map(drop)?)
}

/// All keys of a directory, and when they were read.
pub(super) struct DirectorySnapshot {
    /// With their values, the oldest first.
    pub(super) keys: Vec<KeyValue>,
    pub(super) revision: i64,
}

pub(super) async fn read_directory(
    connections: &Connections,
    directory: &Directory,
) -> Result<DirectorySnapshot, Error> {
    Ok(read_directory_at(connections, directory, 0).await?)
}

/// The directory as it was at that revision; 0: as it is.
pub(super) async fn read_directory_at(
    connections: &Connections,
    directory: &Directory,
    revision: i64,
) -> Result<DirectorySnapshot, RequestError> {
    let range = wire::Range {
        key: directory.start().to_vec(),
        range_end: directory.end(),
        revision,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..wire::Range::default()
    };
    let reply = connections.call(path::RANGE, range).await?;
    let response: wire::RangeResponse = reply.value;
    Ok(DirectorySnapshot {
        keys: response.kvs,
        revision: response.header.map_or(0, |header| header.revision),
    })
}

/// The key with its value, if it was created at this revision.
pub(super) async fn read_key(
    connections: &Connections,
    key: &[u8],
    created: i64,
) -> Result<Option<KeyValue>, Error> {
    let kv = read(connections, key).await?;
    Ok(kv.filter(|kv| kv.create_revision == created))
}

/// The key with its value, if there is one.
pub(super) async fn read(connections: &Connections, key: &[u8]) -> Result<Option<KeyValue>, Error> {
    let range = wire::Range {
        key: key.to_vec(),
        ..wire::Range::default()
    };
    let reply = connections.call(path::RANGE, range).await?;
    let response: wire::RangeResponse = reply.value;
    Ok(response.kvs.into_iter().next())
}

/// The keys from `start` up to `end`, with their values.
pub(super) async fn read_range(
    connections: &Connections,
    start: &[u8],
    end: &[u8],
) -> Result<Vec<KeyValue>, RequestError> {
    let range = wire::Range {
        key: start.to_vec(),
        range_end: end.to_vec(),
        ..wire::Range::default()
    };
    let reply = connections.call(path::RANGE, range).await?;
    let response: wire::RangeResponse = reply.value;
    Ok(response.kvs)
}

/// The keys from `from` up to `end` without their values, [`SCAN_COUNT`] in each request.
pub(super) async fn list_keys(
    connections: &Connections,
    mut from: Vec<u8>,
    end: Vec<u8>,
) -> Result<Vec<KeyValue>, Error> {
    let mut keys: Vec<KeyValue> = Vec::new();
    loop {
        let range = wire::Range {
            key: from,
            range_end: end.clone(),
            limit: SCAN_COUNT,
            keys_only: true,
            ..wire::Range::default()
        };
        let reply = connections.call(path::RANGE, range).await?;
        let response: wire::RangeResponse = reply.value;
        keys.extend(response.kvs);
        match keys.last() {
            Some(last) if response.more => {
                from = last.key.clone();
                from.push(0);
            }
            _ => return Ok(keys),
        }
    }
}

/// How many members of the cluster vote.
pub(super) async fn count_voters(connections: &Connections) -> Result<usize, RequestError> {
    let reply = connections.call(path::MEMBER_LIST, wire::Empty {}).await?;
    let response: wire::MemberListResponse = reply.value;
    Ok(response.members.iter().filter(|it| !it.is_learner).count())
}

/// The alarms of all members.
pub(super) async fn alarms(connections: &Connections) -> Result<Vec<wire::MemberAlarm>, Error> {
    let get = wire::AlarmRequest { action: 0 };
    let reply = connections.call(path::ALARM, get).await?;
    let response: wire::AlarmResponse = reply.value;
    Ok(response.alarms)
}
