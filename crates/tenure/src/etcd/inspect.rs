//! Who holds, who waits; for people, and for nothing that decides.

use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::backend::{Finding, Severity};
use tenure_core::error::Error;
use tenure_core::holder::{HoldInfo, Status};
use tenure_core::logic::queue::{Turn, decide};
use tenure_core::name::{Escaped, LockName};

use crate::tls;

use super::names::{after_prefix, encoded, name_of};
use super::queue::{KeyRecord, contenders};
use super::store::{KeySelector, Store, signed};
use super::wire::{self, KeyValue, SortOrder, SortTarget, path};

/// Keys that one request of a search looks at.
const SCAN_COUNT: i64 = 1_000;

/// Locks that are looked at at the same time.
const PARALLEL_INSPECTIONS: usize = 32;

/// Versions with known bugs that concern locks: below these an old leader may end leases (etcd-io/etcd#15247), and
/// revisions may go backward.
const FIXED_VERSIONS: &[(u32, u32, u32)] = &[(3, 4, 32), (3, 5, 14)];

/// The quota of a server that sets none is 2 GB.
const NEARLY_FULL: i64 = 1_700 << 20;

impl Store {
    /// The keys of a lock, oldest first, and how many of them hold.
    async fn read(&self, name: &LockName) -> Result<(Vec<KeyValue>, Vec<bool>), Error> {
        let directory = self.directory(name);
        let range = wire::Range {
            key: directory.start().to_vec(),
            range_end: directory.end(),
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..wire::Range::default()
        };
        let reply = self.link.call(path::RANGE, range).await?;
        let answer: wire::RangeResponse = reply.value;
        let contenders = contenders(&answer.kvs);
        let holds = |me| decide(&contenders, me) == Turn::Held;
        let holds = (0..contenders.len()).map(holds).collect();
        Ok((answer.kvs, holds))
    }

    pub(super) async fn inspect(&self, name: LockName) -> Result<Status, Error> {
        let (keys, holds) = self.read(&name).await?;
        let mut status = Status::free(name);
        let mut queue = Vec::new();
        for (kv, holds) in keys.iter().zip(holds) {
            let written = KeyRecord::read(&kv.value);
            let mode = written.mode();
            if written.is_reserved() {
                status.reserved = self.left(kv.lease).await?;
            } else if holds {
                let left = self.left(kv.lease).await?;
                let token = u64::try_from(kv.create_revision).ok();
                status
                    .holds
                    .push(HoldInfo::new(written.holder(), mode, token, left));
            } else {
                queue.push(written.holder());
            }
        }
        status.queue = Some(queue);
        Ok(status)
    }

    /// What is left of a lease, in whole seconds; `None`: it has none.
    async fn left(&self, lease: i64) -> Result<Option<Duration>, Error> {
        if lease == 0 {
            return Ok(None);
        }
        let asked = wire::LeaseId { id: lease };
        let reply = self.link.call(path::LEASE_TIME_TO_LIVE, asked).await?;
        let answer: wire::LeaseResponse = reply.value;
        let left = u64::try_from(answer.ttl).unwrap_or(0);
        Ok(Some(Duration::from_secs(left)))
    }

    /// Looks at every key that begins like a lock of that prefix, step by step.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Status>, Error> {
        let mut from = self.settings.prefix.clone();
        from += &encoded(prefix, self.settings.is_raw);
        let end = after_prefix(from.as_bytes());
        // An empty key means no key.
        let mut from = if from.is_empty() {
            vec![0]
        } else {
            from.into_bytes()
        };
        let mut names = Vec::new();
        loop {
            let range = wire::Range {
                key: from,
                range_end: end.clone(),
                limit: SCAN_COUNT,
                keys_only: true,
                ..wire::Range::default()
            };
            let reply = self.link.call(path::RANGE, range).await?;
            let answer: wire::RangeResponse = reply.value;
            let name = |kv: &KeyValue| name_of(&self.settings, &kv.key, kv.lease);
            names.extend(answer.kvs.iter().filter_map(name));
            match answer.kvs.last() {
                Some(last) if answer.more => {
                    from = last.key.clone();
                    from.push(0);
                }
                _ => break,
            }
        }
        names.sort();
        names.dedup();
        let mut held = Vec::new();
        for some in names.chunks(PARALLEL_INSPECTIONS) {
            let looks = some.iter().map(|name| self.inspect(name.clone()));
            for status in join_all(looks).await {
                held.extend(Some(status?).filter(Status::is_held));
            }
        }
        Ok(held)
    }

    pub(super) async fn break_lock(&self, name: LockName, token: u64) -> Result<bool, Error> {
        let (keys, holds) = self.read(&name).await?;
        let token = signed(token);
        let is_it = |kv: &KeyValue| kv.create_revision == token;
        let found = keys
            .iter()
            .zip(holds)
            .find(|(kv, holds)| *holds && is_it(kv));
        match found {
            Some((kv, _)) => self.delete(&kv.key, &KeySelector::Created(token)).await,
            None => Ok(false),
        }
    }

    pub(super) async fn check(&self) -> Result<Vec<Finding>, Error> {
        let is_tls = self.settings.tls.is_some();
        let plain = |host| tls::plaintext(host, is_tls, "etcds://");
        let mut findings: Vec<_> = self.settings.hosts.iter().filter_map(plain).collect();
        let mut find = |severity, text: String| findings.push(Finding::new(severity, text));
        for (host, status) in self.link.status().await {
            let status = match status {
                Ok(status) => status,
                Err(err) => {
                    find(Severity::Warning, err.to_string());
                    continue;
                }
            };
            let version = Escaped(&status.version).to_string();
            match is_sound(&status.version) {
                true => find(Severity::Good, format!("{host}: etcd {version}")),
                false => find(
                    Severity::Warning,
                    format!(
                        "{host}: etcd {version} has known bugs in leases and revisions, fixed in 3.4.32 and 3.5.14; update it"
                    ),
                ),
            }
            if status.is_learner {
                let text = format!("{host} is a learner and serves no locks; name voting members");
                find(Severity::Bad, text);
            }
            if status.leader == 0 {
                let text = format!("{host} has no leader: half of the members or more are away");
                find(Severity::Bad, text);
            }
            if status.db_size > NEARLY_FULL {
                let size = status.db_size >> 20;
                let text = format!(
                    "{host}: the database has {size} MB, and 2 GB unless the quota was raised; when it is full nothing is granted"
                );
                find(Severity::Warning, text);
            }
        }
        let asked = self.link.call(path::MEMBER_LIST, wire::Empty {});
        let members: wire::MemberListResponse = asked.await?.value;
        let votes = members.members.iter().filter(|it| !it.is_learner).count();
        match votes {
            1 => find(
                Severity::Warning,
                "there is one member: while it is away nothing is granted and nothing renewed"
                    .to_owned(),
            ),
            votes if votes % 2 == 0 => find(
                Severity::Warning,
                format!("there are {votes} members: they survive no more failures than one less"),
            ),
            votes => find(Severity::Good, format!("there are {votes} members")),
        }
        let asked = self
            .link
            .call(path::ALARM, wire::AlarmRequest { action: 0 });
        let alarms: wire::AlarmResponse = asked.await?.value;
        for alarm in alarms.alarms {
            let member = alarm.member;
            let text = match alarm.alarm {
                1 => format!(
                    "member {member:x} has the alarm NOSPACE: nothing is granted; compact and defragment, then disarm it"
                ),
                _ => format!("member {member:x} has the alarm CORRUPT"),
            };
            find(Severity::Bad, text);
        }
        Ok(findings)
    }
}

fn is_sound(version: &str) -> bool {
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
        for (version, sound) in [
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
            assert_eq!(is_sound(version), sound, "{version}");
        }
    }
}
