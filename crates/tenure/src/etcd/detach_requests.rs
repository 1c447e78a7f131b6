//! The requests about the key of a hold that several clients may be attached to: each counts only while the key is as it was
//! read last, and tells otherwise what the key is by now.

use super::connection::Connections;
use super::errors::RequestError;
use super::requests;
use super::wire::{self, KeyValue};

/// What became of a request about a key.
pub(super) enum Changed<T> {
    Done(T),
    /// The key is not as it was read, and nothing was done. `None`: the key of this hold is gone.
    Refused(Option<KeyValue>),
}

/// Puts the key under this lease. Returns the key as it is then.
pub(super) async fn put(
    connections: &Connections,
    seen: &KeyValue,
    value: Vec<u8>,
    lease: i64,
) -> Result<Changed<KeyValue>, RequestError> {
    let put = wire::Put {
        key: seen.key.clone(),
        value: value.clone(),
        lease,
    };
    let reply = requests::send_txn(connections, if_unchanged(seen, put.into())).await?;
    if reply.value.succeeded {
        let modified = reply.value.header.map_or(0, |header| header.revision);
        return Ok(Changed::Done(KeyValue {
            mod_revision: modified,
            value,
            lease,
            ..seen.clone()
        }));
    }
    Ok(match found(reply.value, seen) {
        // An earlier attempt of this request was applied: no other request knows a lease that is new.
        Some(kv) if kv.lease == lease && lease != seen.lease => Changed::Done(kv),
        found => Changed::Refused(found),
    })
}

/// Deletes the key.
pub(super) async fn delete(
    connections: &Connections,
    seen: &KeyValue,
) -> Result<Changed<()>, RequestError> {
    let delete = wire::Delete {
        key: seen.key.clone(),
    };
    let reply = requests::send_txn(connections, if_unchanged(seen, delete.into())).await?;
    if reply.value.succeeded {
        return Ok(Changed::Done(()));
    }
    Ok(match found(reply.value, seen) {
        // An earlier attempt of this request may have deleted the key.
        None if reply.is_repeated => Changed::Done(()),
        found => Changed::Refused(found),
    })
}

fn if_unchanged(seen: &KeyValue, operation: wire::RequestOp) -> wire::Txn {
    let own = wire::Range {
        key: seen.key.clone(),
        ..wire::Range::default()
    };
    wire::Txn {
        compare: vec![wire::Compare::modified(&seen.key, seen.mod_revision)],
        success: vec![operation],
        failure: vec![own.into()],
    }
}

/// The key of the same hold in the answer of a refused request.
fn found(response: wire::TxnResponse, seen: &KeyValue) -> Option<KeyValue> {
    let range = response.responses.into_iter().next()?.range?;
    let kv = range.kvs.into_iter().next()?;
    (kv.create_revision == seen.create_revision).then_some(kv)
}
