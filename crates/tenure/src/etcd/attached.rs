//! The holds that a client is attached to: their renewal and their end.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::store::{Hold, Renewal};

use super::attachment::{Attachment, KnownLease};
use super::detach_requests::{self, Changed};
use super::detached_lease::{self, ExtendedLease};
use super::leases::Lease;
use super::record::KeyRecord;
use super::requests;
use super::store::{AcquisitionState, ContenderKey, Store};
use super::wire::KeyValue;

/// How many attached holds a client renews at the same time.
const PARALLEL_RENEWALS: usize = 32;

/// Whether this client is attached to a hold of that owner.
pub(super) fn is_attached(store: &Store, owner: OwnerId) -> bool {
    let is_attached = |entry: &ContenderKey| entry.attachment.is_some();
    store.holds.read(owner, is_attached) == Some(true)
}

/// Gives the hold a lease of its own for its ttl, unless it has one. `None`: the hold is over.
pub(super) async fn keep(
    store: &Store,
    entry: &ContenderKey,
    hold: &Hold,
) -> Result<Option<ExtendedLease>, Error> {
    let known = entry.own_lease();
    let seen = match entry.attachment {
        Some(attachment) => Some(entry.seen(attachment)),
        None => requests::read_key(&store.connections, &entry.key, entry.created).await?,
    };
    match seen {
        Some(seen) => detached_lease::keep(store, seen, hold.ttl, known).await,
        None => Ok(None),
    }
}

/// Renews holds that this client is attached to. The answers have the numbers of their holds.
pub(super) async fn renew_all(store: &Store, holds: Vec<(usize, Hold)>) -> Vec<(usize, Renewal)> {
    let renew = async |(at, hold): (usize, Hold)| (at, renew_attached(store, &hold).await);
    let renewals = stream::iter(holds).map(renew);
    renewals.buffer_unordered(PARALLEL_RENEWALS).collect().await
}

async fn renew_attached(store: &Store, hold: &Hold) -> Renewal {
    let entry = store.holds.get(hold.owner);
    let is_held = |it: &ContenderKey| matches!(it.state, AcquisitionState::Held { .. });
    let Some(entry) = entry.filter(is_held) else {
        return Renewal::Lost(LostReason::StoreSaysNo);
    };
    match keep(store, &entry, hold).await {
        Ok(Some(kept)) => {
            let renewal = answer(&kept, hold);
            store.holds.update(hold.owner, |entry| entry.follow(kept));
            renewal
        }
        ended => answer_without_lease(ended),
    }
}

/// The lease may last longer than this client has asked for, and then the client renews as often as it wanted to.
pub(super) fn answer(kept: &ExtendedLease, hold: &Hold) -> Renewal {
    Renewal::Renewed {
        sent: kept.sent,
        ttl: Some(kept.left.min(hold.ttl)),
    }
}

pub(super) fn answer_without_lease(ended: Result<Option<ExtendedLease>, Error>) -> Renewal {
    match ended {
        Ok(_) => Renewal::Lost(LostReason::StoreSaysNo),
        Err(err) => Renewal::Unknown(err),
    }
}

/// Deletes the key of a hold that this client is attached to. `false`: the key is not in the store. A lease to which another
/// client has moved the key is revoked; the one that this client knows is revoked by its caller.
pub(super) async fn delete(
    store: &Store,
    entry: &ContenderKey,
    attachment: Attachment,
) -> Result<bool, Error> {
    let mut seen = entry.seen(attachment);
    loop {
        match detach_requests::delete(&store.connections, &seen).await? {
            Changed::Done(()) => {
                if seen.lease != entry.lease.id {
                    store.leases.revoke_id_in_background(seen.lease);
                }
                return Ok(true);
            }
            Changed::Refused(Some(now)) if !KeyRecord::read(&now.value).is_reserved() => seen = now,
            Changed::Refused(_) => return Ok(false),
        }
    }
}

/// Looks which leases the keys of these holds have by now. `false`: each is where this client has seen it last.
///
/// A key with a `lock_delay` stays after the end of its hold, under another lease; so a request that counts only during the hold
/// has to name the lease, and another attached client may have moved the key.
pub(super) async fn look_for_moved_keys(store: &Store, holds: &[Hold]) -> Result<bool, Error> {
    let mut has_moved = false;
    for hold in holds {
        let entry = store.holds.get(hold.owner);
        let Some(entry) = entry.filter(|it| it.attachment.is_some()) else {
            continue;
        };
        let read = requests::read_key(&store.connections, &entry.key, entry.created).await?;
        let is_moved = |kv: &KeyValue| kv.lease != entry.lease.id;
        let Some(kv) = read.filter(is_moved) else {
            continue;
        };
        if KeyRecord::read(&kv.value).is_reserved() {
            return Ok(false);
        }
        let Lease { ttl, delay, .. } = *entry.lease;
        let lease = Lease::new(kv.lease, ttl, delay, false, entry.lease.sent());
        let attachment = Attachment {
            modified: kv.mod_revision,
            granted: 0,
        };
        store.holds.update(hold.owner, |entry| {
            entry.lease = Arc::new(lease);
            entry.value = kv.value.into();
            entry.attachment = Some(attachment);
        });
        has_moved = true;
    }
    Ok(has_moved)
}

impl ContenderKey {
    /// A hold of another client that this client is attached to.
    pub(super) fn attached(kept: ExtendedLease) -> Self {
        let lease = Lease::new(kept.seen.lease, kept.left, kept.delay, false, kept.sent);
        Self {
            lease: Arc::new(lease),
            key: kept.seen.key,
            value: kept.seen.value.into(),
            created: kept.seen.create_revision,
            state: AcquisitionState::Held { renewed: kept.sent },
            reservation: None,
            is_ambiguous: false,
            may_be_released: false,
            candidate: None,
            attachment: Some(Attachment {
                modified: kept.seen.mod_revision,
                granted: kept.granted,
            }),
        }
    }

    /// The same after a renewal, unless the client has begun to release the hold. Its release deletes the key whatever the
    /// lease is.
    fn follow(&mut self, kept: ExtendedLease) {
        if let (Some(_), AcquisitionState::Held { .. }) = (self.attachment, self.state) {
            *self = Self::attached(kept);
        }
    }

    /// The key, as this client wrote it last.
    fn seen(&self, attachment: Attachment) -> KeyValue {
        KeyValue {
            key: self.key.clone(),
            create_revision: self.created,
            mod_revision: attachment.modified,
            value: self.value.to_vec(),
            lease: self.lease.id,
        }
    }

    /// The lease of the hold, if no other hold has it.
    fn own_lease(&self) -> Option<KnownLease> {
        let lease = &self.lease;
        let granted = match self.attachment {
            Some(attachment) => attachment.granted,
            None => i64::try_from((lease.ttl + lease.delay).as_secs()).unwrap_or(i64::MAX),
        };
        (!lease.is_shared).then_some(KnownLease {
            id: lease.id,
            granted,
        })
    }
}
