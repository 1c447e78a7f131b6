//! Inspecting, listing, breaking and checking locks: for operators.

use std::sync::Arc;

use futures_util::future::join_all;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::holder::{HoldInfo, LockStatus};
use tenure_core::name::{Escaped, LockName};
use tenure_core::store::{BoxFuture, Finding, Listed, Operate};
use tenure_core::url::Host;

use crate::tls;

use super::contenders::{self, Contender, ContenderKind};
use super::key_state::KeyState;
use super::lease_requests;
use super::names::{after_prefix, encoded, lease_in, name_of};
use super::record::KeyRecord;
use super::release;
use super::requests::{self, KeySelector};
use super::store::Store;
use super::wire::{self, KeyValue, StatusResponse};

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { break_lock(&self, &name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check(&self).await })
    }
}

/// How many locks are inspected at the same time.
const PARALLEL_INSPECTIONS: usize = 32;

/// The first versions without the known bugs that concern locks: an old leader may end leases (etcd-io/etcd#15247), and
/// revisions may go backward.
const FIXED_VERSIONS: &[(u32, u32, u32)] = &[(3, 4, 32), (3, 5, 14)];

/// In bytes. The quota of a server that sets none is 2 GB.
const NEARLY_FULL: i64 = 1_700 << 20;

pub(super) async fn inspect(store: &Store, name: LockName) -> Result<LockStatus, Error> {
    let (contenders, _) = contenders::read(&store.connections, &store.directory(&name)).await?;
    let mut status = LockStatus::free(name);
    let mut waiting = Vec::new();
    for contender in contenders {
        let Contender { kv, record, .. } = &contender;
        if record.is_reserved() {
            let left = lease_requests::lease_time_left(&store.connections, kv.lease).await?;
            status.reserved = status.reserved.max(left);
        } else if contender.is_held {
            let left = lease_requests::lease_time_left(&store.connections, kv.lease).await?;
            let delay = record.lock_delay();
            let lease = left.map(|left| left.saturating_sub(delay));
            if !delay.is_zero() && lease.is_some_and(|lease| lease.is_zero()) {
                status.reserved = status.reserved.max(left);
                continue;
            }
            let (holder, token) = (contender.holder(), contender.token());
            let hold = HoldInfo::new(holder, record.mode(), token, lease);
            status.holds.push(hold);
        } else {
            waiting.push(contender.holder());
        }
    }
    status.queue = Some(waiting);
    Ok(status)
}

/// The locks whose name begins with `prefix` and that are held.
pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listed, Error> {
    let settings = &store.context.settings;
    let mut start = settings.prefix.clone();
    start += &encoded(prefix, settings.is_raw);
    let end = after_prefix(start.as_bytes());
    // etcd refuses an empty key; the first key that can exist is one zero byte.
    let start = match start.is_empty() {
        true => vec![0],
        false => start.into_bytes(),
    };
    let keys = requests::list_keys(&store.connections, start, end).await?;
    let name = |kv: &KeyValue| name_of(settings, &kv.key, kv.lease);
    let mut names: Vec<_> = keys.iter().filter_map(name).collect();
    names.extend(moved_names(store, &keys).await?);
    Ok(Listed::Names(names))
}

/// The names of the locks with a `lock_delay`, and of those that were detached: their keys are not named after their lease. Many keys of other programs may
/// look like these, so the values decide.
async fn moved_names(store: &Store, keys: &[KeyValue]) -> Result<Vec<LockName>, Error> {
    let settings = &store.context.settings;
    let candidate = |kv: &KeyValue| {
        let lease = lease_in(&kv.key).filter(|lease| kv.lease != 0 && *lease != kv.lease)?;
        Some((name_of(settings, &kv.key, lease)?, kv.clone()))
    };
    let candidates: Vec<_> = keys.iter().filter_map(candidate).collect();
    let mut names = Vec::new();
    for candidates in candidates.chunks(PARALLEL_INSPECTIONS) {
        let read = |(name, kv): &(LockName, KeyValue)| read_record(store, name.clone(), kv.clone());
        let found = join_all(candidates.iter().map(read)).await;
        for ((name, _), record) in candidates.iter().zip(found) {
            let is_moved = |it: KeyRecord| it.is_detached() || !it.lock_delay().is_zero();
            if record?.is_some_and(is_moved) {
                names.push(name.clone());
            }
        }
    }
    Ok(names)
}

/// The record of the contender with this key, which is in its second key if it is a candidate. `None`: it has no record.
async fn read_record(
    store: &Store,
    name: LockName,
    KeyValue {
        key,
        create_revision: created,
        ..
    }: KeyValue,
) -> Result<Option<KeyRecord>, Error> {
    let connections = &store.connections;
    let Some(kv) = requests::read_key(connections, &key, created).await? else {
        return Ok(None);
    };
    if let Some(record) = KeyRecord::parse(&kv.value) {
        return Ok(Some(record));
    }
    let record_key = store.directory(&name).record_key(&key);
    let record = requests::read_key(connections, &record_key, created).await?;
    Ok(record.map(|kv| KeyRecord::read(&kv.value)))
}

pub(super) async fn break_lock(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    let directory = store.directory(name);
    let (contenders, _) = contenders::read(&store.connections, &directory).await?;
    let mut holders = contenders.iter().filter(|it| it.is_held);
    let Some(holder) = holders.find(|it| it.token() == Some(token)) else {
        return Ok(false);
    };
    let Contender {
        kv, kind, record, ..
    } = holder;
    let (mode, delay) = (record.mode(), record.lock_delay());
    let is_candidate = *kind == ContenderKind::Candidate;
    let state = KeyState {
        record_key: is_candidate.then(|| directory.record_key(&kv.key)),
        ..KeyState::created_at(&kv.key, kv.create_revision)
    };
    let has_ended = if delay.is_zero() {
        let selector = KeySelector::Created(state.created);
        release::delete_key(store, &kv.key, state.record_key.as_deref(), &selector).await?
    } else {
        release::reserve_name(store, &state, mode, delay).await?
    };
    if has_ended && record.is_detached() {
        // The key has left its lease, and no client would revoke that.
        store.leases.revoke_id_in_background(kv.lease);
    }
    Ok(has_ended)
}

pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let settings = &store.context.settings;
    let is_tls = settings.tls.is_some();
    let plaintext = |host| tls::plaintext(host, is_tls, "etcds://");
    let mut findings: Vec<_> = settings.hosts.iter().filter_map(plaintext).collect();
    for (host, status) in store.connections.status().await {
        match status {
            Ok(status) => findings.extend(member_findings(&host, &status)),
            Err(err) => findings.push(Finding::warning(format!("{err:#}"))),
        }
    }
    let voters = requests::count_voters(&store.connections).await?;
    findings.push(match voters {
        1 => Finding::warning(
            "there is one member: while it is away nothing is granted and nothing renewed",
        ),
        voters if voters % 2 == 0 => Finding::warning(format!(
            "there are {voters} members: they survive no more failures than one less"
        )),
        voters => Finding::good(format!("there are {voters} members")),
    });
    for alarm in requests::alarms(&store.connections).await? {
        let member = alarm.member;
        let text = match alarm.alarm {
            1 => format!(
                "member {member:x} has the alarm NOSPACE: nothing is granted; compact and defragment, then disarm it"
            ),
            _ => format!("member {member:x} has the alarm CORRUPT"),
        };
        findings.push(Finding::bad(text));
    }
    findings.extend(check_rights(store).await);
    Ok(findings)
}

/// Reads and deletes the keys of a name that no client uses. That changes nothing, and the server refuses it to a user who
/// may not lock.
async fn check_rights(store: &Store) -> Vec<Finding> {
    let name = format!("tenure-check-{}", OwnerId::random().to_hex());
    let Ok(name) = LockName::new(name) else {
        return Vec::new();
    };
    let key = store.directory(&name).start().to_vec();
    let read = wire::Range {
        key: key.clone(),
        ..wire::Range::default()
    };
    let delete = wire::Delete { key };
    let mut findings = Vec::new();
    for (right, operation) in [("read", read.into()), ("write", delete.into())] {
        let tried = requests::try_operation(&store.connections, operation);
        let Err(err) = tried.await else { continue };
        let prefix = Escaped(&store.context.settings.prefix);
        let text = match err.kind() {
            ErrorKind::Denied => format!(
                "no lock can be taken: this user may not {right} the keys under \"{prefix}\"; etcdctl role grant-permission ROLE --prefix=true readwrite \"{prefix}\""
            ),
            _ => format!("no lock can be taken: {err:#}"),
        };
        findings.push(Finding::bad(text));
    }
    findings
}

/// What the status of one member says.
fn member_findings(host: &Host, status: &StatusResponse) -> Vec<Finding> {
    let version = Escaped(&status.version).to_string();
    let mut findings = vec![match is_fixed(&status.version) {
        true => Finding::good(format!("{host}: etcd {version}")),
        false => Finding::warning(format!(
            "{host}: etcd {version} has known bugs in leases and revisions, fixed in 3.4.32 and 3.5.14; update it"
        )),
    }];
    if status.is_learner {
        let text = format!("{host} is a learner and serves no locks; name voting members");
        findings.push(Finding::bad(text));
    }
    if status.leader == 0 {
        let text = format!("{host} has no leader: half of the members or more are away");
        findings.push(Finding::bad(text));
    }
    if status.db_size > NEARLY_FULL {
        let size = status.db_size >> 20;
        let text = format!(
            "{host}: the database has {size} MB, and 2 GB unless the quota was raised; when it is full nothing is granted"
        );
        findings.push(Finding::warning(text));
    }
    findings
}

/// Whether a version has none of the known bugs.
fn is_fixed(version: &str) -> bool {
    let mut parts = version
        .split(['.', '-', '+'])
        .map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let version: (u32, u32, u32) = (next(), next(), next());
    let line = |of: &&(u32, u32, u32)| (of.0, of.1) == (version.0, version.1);
    match FIXED_VERSIONS.iter().find(line) {
        Some(least) => version >= *least,
        None => version > (3, 5, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs() {
        for (version, fixed) in [
            ("3.4.23", false),
            ("3.4.32", true),
            ("3.5.13", false),
            ("3.5.14", true),
            ("3.6.0", true),
            ("3.6.0-rc.1", true),
            ("3.3.10", false),
            ("4.0.0", true),
            ("", false),
        ] {
            assert_eq!(is_fixed(version), fixed, "{version}");
        }
    }
}
