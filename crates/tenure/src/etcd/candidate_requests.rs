//! The requests about the keys of a candidate, one function each.

use tenure_core::error::{Error, ErrorKind};

use super::connection::Connections;
use super::errors::{Recovery, RequestError, unexpected_reply};
use super::names;
use super::record::KeyRecord;
use super::requests::{self, KeySelector};
use super::settings::Settings;
use super::wire::{self, KeyValue};

/// The keys of one candidate.
#[derive(Clone, Copy)]
pub(super) struct CandidateKeys<'a> {
    pub(super) settings: &'a Settings,
    pub(super) key: &'a [u8],
    pub(super) record_key: &'a [u8],
}

/// Deletes the keys of the selected candidate, and a request to let go with them. `false`: there is no such key.
/// [`KeySelector::WithValue`] is about the record.
pub(super) async fn delete(
    connections: &Connections,
    keys: CandidateKeys<'_>,
    selector: &KeySelector<'_>,
) -> Result<bool, Error> {
    let CandidateKeys {
        settings,
        key,
        record_key,
    } = keys;
    let created = match selector {
        KeySelector::Created(created) => *created,
        KeySelector::WithValue(value) => {
            let record = requests::read(connections, record_key).await?;
            match record.filter(|kv| kv.value == *value) {
                Some(kv) => kv.create_revision,
                None => return Ok(false),
            }
        }
    };
    let delete = |key: &[u8]| wire::RequestOp::from(wire::Delete { key: key.to_vec() });
    let asked = names::asked_key(settings, key, created);
    let mut others = vec![delete(record_key)];
    others.extend(asked.as_deref().map(delete));
    let mut all = vec![delete(key)];
    all.extend(others.iter().cloned());
    let txn = wire::Txn {
        compare: vec![wire::Compare::created(key, created)],
        success: all,
        failure: Vec::new(),
    };
    let reply = requests::send_txn(connections, txn).await?;
    if reply.value.succeeded {
        return Ok(true);
    }
    // The key is gone. If another client deleted it, the other keys are left. Both were created together, so a record of a later
    // candidate stays.
    let txn = wire::Txn {
        compare: vec![wire::Compare::created(record_key, created)],
        success: others,
        failure: Vec::new(),
    };
    requests::send_txn(connections, txn).await?;
    // If the first request was sent twice, its first attempt may have deleted the keys.
    Ok(reply.is_repeated)
}

/// What became of a request to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// The value is in the store. The mod revision of the key.
    Done(i64),
    /// The key was changed before, at this revision, and nothing was written.
    Changed(i64),
    /// The candidate has no key any more.
    Gone,
}

/// A value that a candidate publishes.
pub(super) struct Publication<'a> {
    pub(super) key: &'a [u8],
    pub(super) created: i64,
    pub(super) lease: i64,
    pub(super) value: &'a str,
    pub(super) record_key: &'a [u8],
    /// Its number decides which of two values is the later one.
    pub(super) record: &'a KeyRecord,
}

/// Writes value and record, if the key was put at `modified` for the last time. So a request that arrives late changes
/// nothing.
pub(super) async fn publish(
    connections: &Connections,
    publication: &Publication<'_>,
    modified: i64,
) -> Result<Published, Error> {
    let Publication {
        key,
        lease,
        value,
        record_key,
        record,
        ..
    } = publication;
    let put = |key: &[u8], value: Vec<u8>| {
        let lease = *lease;
        let key = key.to_vec();
        wire::RequestOp::from(wire::Put { key, value, lease })
    };
    let range = |key: &[u8]| {
        wire::RequestOp::from(wire::Range {
            key: key.to_vec(),
            ..wire::Range::default()
        })
    };
    let txn = wire::Txn {
        compare: vec![wire::Compare::modified(key, modified)],
        success: vec![
            put(key, value.as_bytes().to_vec()),
            put(record_key, record.to_bytes()),
        ],
        failure: vec![range(key), range(record_key)],
    };
    let reply = match requests::send_txn(connections, txn).await {
        Ok(reply) => reply,
        Err(err) if err.recovery == Recovery::NewLease => return Ok(Published::Gone),
        Err(err) => return Err(err.error),
    };
    let wire::TxnResponse {
        header,
        succeeded,
        responses,
    } = reply.value;
    if succeeded {
        let revision = header.map_or(0, |header| header.revision);
        return Ok(Published::Done(revision));
    }
    let found = responses
        .into_iter()
        .map(|it| it.range.unwrap_or_default().kvs.into_iter().next());
    let found: Vec<_> = found.collect();
    match &found[..] {
        [kv, record] => {
            let found = (kv.as_ref(), record.as_ref());
            outcome(publication, found, reply.is_repeated)
        }
        _ => Err(unexpected_reply()),
    }
}

/// What the keys say after a request was refused. `is_repeated`: an attempt before it got no reply.
fn outcome(
    publication: &Publication<'_>,
    (kv, record): (Option<&KeyValue>, Option<&KeyValue>),
    is_repeated: bool,
) -> Result<Published, Error> {
    let is_own =
        |kv: &&KeyValue| (kv.create_revision, kv.lease) == (publication.created, publication.lease);
    let Some(kv) = kv.filter(is_own) else {
        return match is_repeated {
            true => Err(Error::new(
                ErrorKind::Lost,
                "the term ended before the store answered, and observers may have seen the value",
            )),
            false => Ok(Published::Gone),
        };
    };
    // A first attempt of this request was applied, or this request is late.
    let is_known = record.is_some_and(|record| {
        KeyRecord::read(&record.value).number() >= publication.record.number()
    });
    Ok(match is_known {
        true => Published::Done(kv.mod_revision),
        false => Published::Changed(kv.mod_revision),
    })
}

/// Stores a request to let go, if that key was created at this revision. `false`: there is no such key.
pub(super) async fn ask_to_release(
    connections: &Connections,
    asked: Vec<u8>,
    holder: &KeyValue,
) -> Result<bool, RequestError> {
    let put = wire::Put {
        key: asked,
        value: Vec::new(),
        // The request ends with the session of the holder.
        lease: holder.lease,
    };
    let txn = wire::Txn {
        compare: vec![wire::Compare::created(&holder.key, holder.create_revision)],
        success: vec![put.into()],
        failure: Vec::new(),
    };
    match requests::send_txn(connections, txn).await {
        Ok(reply) => Ok(reply.value.succeeded),
        Err(err) if err.recovery == Recovery::NewLease => Ok(false),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tenure_core::fence::OwnerId;
    use tenure_core::holder::{Holder, PublishedValue};
    use tenure_core::options::Mode;

    use super::*;

    #[test]
    fn a_request_to_publish_that_was_refused_is_done_or_late_or_to_be_sent_again() {
        let owner = OwnerId::random();
        let record = KeyRecord::new(&Holder::new("h", 1), Mode::Exclusive, owner, UNIX_EPOCH);
        let numbered = |number| {
            let mut holder = Holder::new("h", 1);
            holder.value = Some(PublishedValue::new("v", number));
            record.clone().with_holder(&holder)
        };
        let second = numbered(2);
        let publication = Publication {
            key: b"k",
            created: 10,
            lease: 7,
            value: "v",
            record_key: b"r",
            record: &second,
        };
        let kv = |created, lease| KeyValue {
            create_revision: created,
            mod_revision: 15,
            lease,
            ..KeyValue::default()
        };
        let stored = |number| KeyValue {
            value: numbered(number).to_bytes(),
            ..KeyValue::default()
        };
        for (kv, record, expected) in [
            (None, Some(stored(1)), Published::Gone),
            (Some(kv(11, 7)), Some(stored(1)), Published::Gone),
            // The name is reserved after the end of the hold.
            (Some(kv(10, 8)), None, Published::Gone),
            (Some(kv(10, 7)), Some(stored(2)), Published::Done(15)),
            (Some(kv(10, 7)), Some(stored(3)), Published::Done(15)),
            (Some(kv(10, 7)), Some(stored(1)), Published::Changed(15)),
            (Some(kv(10, 7)), None, Published::Changed(15)),
        ] {
            for is_repeated in [false, true] {
                let found = (kv.as_ref(), record.as_ref());
                let found = outcome(&publication, found, is_repeated);
                if is_repeated && expected == Published::Gone {
                    // Observers may have seen the value of the first attempt.
                    assert_eq!(found.unwrap_err().kind(), ErrorKind::Lost);
                } else {
                    assert_eq!(found.unwrap(), expected);
                }
            }
        }
    }
}
