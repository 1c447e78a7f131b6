//! The contenders of a name, as others see them: the keys of its directory, with the records of candidates.

use tenure_core::error::Error;
use tenure_core::holder::Holder;

use super::candidate::published;
use super::connection::Connections;
use super::errors::{Recovery, RequestError};
use super::names::{Directory, after_prefix};
use super::queue::{are_held, remove_early_reservations};
use super::record::KeyRecord;
use super::requests;
use super::wire::{self, KeyValue, path};

/// A key of the directory, and what it stands for.
pub(super) struct Contender {
    pub(super) kv: KeyValue,
    pub(super) kind: ContenderKind,
    /// Empty for another program.
    pub(super) record: KeyRecord,
    pub(super) is_held: bool,
}

/// Whose key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContenderKind {
    /// Ours, for a lock: its value is the record.
    Lock,
    /// Ours, for an election: its value is bare, and the record has a key of its own.
    Candidate,
    /// That of another program.
    Foreign,
}

impl Contender {
    /// `record`: what the second key of a candidate has, if there is one.
    pub(super) fn new(kv: KeyValue, record: Option<&KeyValue>) -> Self {
        let (kind, record) = match (KeyRecord::parse(&kv.value), record) {
            (Some(record), _) => (ContenderKind::Lock, record),
            (None, Some(record)) => (ContenderKind::Candidate, KeyRecord::read(&record.value)),
            (None, None) => (ContenderKind::Foreign, KeyRecord::default()),
        };
        Self {
            kv,
            kind,
            record,
            is_held: false,
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        self.record.token(self.kv.create_revision)
    }

    /// A key of another program that has no value may be that of a lock.
    pub(super) fn holder(&self) -> Holder {
        let is_lock = match self.kind {
            ContenderKind::Lock => true,
            ContenderKind::Candidate => false,
            ContenderKind::Foreign => self.kv.value.is_empty(),
        };
        let mut holder = self.record.clone().holder();
        holder.value = (!is_lock).then(|| published(&self.kv));
        holder
    }
}

/// All contenders of a name, the oldest first, and the revision at which they were read.
pub(super) async fn read(
    connections: &Connections,
    directory: &Directory,
) -> Result<(Vec<Contender>, i64), Error> {
    let snapshot = requests::read_directory(connections, directory).await?;
    let (mut keys, revision) = (snapshot.keys, snapshot.revision);
    remove_early_reservations(&mut keys);
    let are_held = are_held(&keys);
    let are_locks = keys.iter().all(|kv| KeyRecord::parse(&kv.value).is_some());
    let records = match are_locks {
        true => Vec::new(),
        false => read_records(connections, directory, revision).await?,
    };
    let contender = |(kv, is_held): (KeyValue, bool)| {
        let record = record_of(directory, &kv, &records);
        Contender {
            is_held,
            ..Contender::new(kv.clone(), record)
        }
    };
    let contenders = keys.into_iter().zip(are_held).map(contender).collect();
    Ok((contenders, revision))
}

/// The record of the candidate with this key. It was created together with the key.
pub(super) fn record_of<'a>(
    directory: &Directory,
    kv: &KeyValue,
    records: &'a [KeyValue],
) -> Option<&'a KeyValue> {
    let key = directory.record_key(&kv.key);
    let mut records = records.iter();
    records.find(|record| record.key == key && record.create_revision == kv.create_revision)
}

/// The records of all candidates, as they were at that revision, so that they match the keys; as they are, if the server has
/// compacted that revision away.
async fn read_records(
    connections: &Connections,
    directory: &Directory,
    revision: i64,
) -> Result<Vec<KeyValue>, RequestError> {
    let mut range = wire::Range {
        key: directory.records().to_vec(),
        range_end: after_prefix(directory.records()),
        revision,
        ..wire::Range::default()
    };
    let reply = match connections.call(path::RANGE, range.clone()).await {
        Err(err) if err.recovery == Recovery::ReadPresent => {
            range.revision = 0;
            connections.call(path::RANGE, range).await
        }
        reply => reply,
    };
    let response: wire::RangeResponse = reply?.value;
    Ok(response.kvs)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tenure_core::fence::OwnerId;
    use tenure_core::name::LockName;
    use tenure_core::options::Mode;

    use super::super::settings::Settings;
    use super::*;

    fn kv(key: &[u8], value: &[u8], created: i64) -> KeyValue {
        KeyValue {
            key: key.to_vec(),
            value: value.to_vec(),
            create_revision: created,
            mod_revision: created + 1,
            lease: 7,
        }
    }

    #[test]
    fn a_candidate_has_the_record_that_was_created_with_its_key() {
        let settings = Settings::new("etcd://h").unwrap();
        let directory = Directory::new(&settings, &LockName::new("a").unwrap());
        let record = KeyRecord::new(
            &Holder::new("h", 1),
            Mode::Exclusive,
            OwnerId::random(),
            UNIX_EPOCH,
        );
        let record = record.to_bytes();
        let key = directory.key(7, 0);
        let records = [
            kv(&directory.record_key(&directory.key(8, 0)), &record, 5),
            kv(&directory.record_key(&key), &record, 5),
        ];
        for (value, created, kind, host, shown) in [
            (&b"v"[..], 5, ContenderKind::Candidate, "h", Some("v")),
            (b"", 5, ContenderKind::Candidate, "h", Some("")),
            (b"v", 6, ContenderKind::Foreign, "", Some("v")),
            (b"", 6, ContenderKind::Foreign, "", None),
            (&record, 5, ContenderKind::Lock, "h", None),
        ] {
            let own = kv(&key, value, created);
            let found = record_of(&directory, &own, &records);
            let contender = Contender::new(own, found);
            assert_eq!(contender.kind, kind);
            assert_eq!(contender.token(), Some(created.unsigned_abs()));
            let holder = contender.holder();
            assert_eq!(holder.host, host);
            let text = holder.value.as_ref().map(|it| (&*it.text, it.number));
            assert_eq!(text, shown.map(|it| (it, created.unsigned_abs() + 1)));
        }
    }
}
