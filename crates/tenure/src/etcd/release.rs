//! Releasing a hold, leaving the queue, deleting what may be put late, and closing the client.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::backend::{Hold, Release, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;

use super::leases::{Lease, whole_seconds};
use super::requests::{self, KeySelector};
use super::store::{AcquisitionState, HeldEntry, Store};

/// How long closing may take: the store may be away, and leases end by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Releases what the owner has: the lock, or its place in the queue.
pub(super) async fn release(store: &Store, hold: &Hold) -> Result<Release, Error> {
    store.refuse_without_runtime()?;
    let Some(entry) = begin_release(store, hold) else {
        return Ok(Release::NotHeld);
    };
    if hold.unclean && entry.lease.end_in_store() > entry.lease.end().max(entry.reserved_until) {
        leave_reserved(store, hold.owner);
        return Ok(Release::NotHeld);
    }
    let released = send_release(store, hold, &entry).await;
    match &released {
        Ok(_) => remove(store, hold.owner),
        Err(err) if err.kind() == ErrorKind::Indeterminate => {
            store
                .holds
                .update(hold.owner, |entry| entry.may_be_released = true);
        }
        Err(_) => {}
    }
    Ok(match released? || entry.may_be_released {
        true => Release::Released,
        false => Release::NotHeld,
    })
}

/// From now on the hold is about to be released. Returns its entry.
fn begin_release(store: &Store, hold: &Hold) -> Option<HeldEntry> {
    let now = store.context.now();
    store.holds.update(hold.owner, |entry| {
        let until = now.after(entry.lease.ttl.max(hold.ttl) * 2);
        entry.state = AcquisitionState::Releasing { until };
        // The request that made the key got no reply.
        entry.is_ambiguous |= hold.token == 0;
        entry.clone()
    })
}

/// `false`: the key is not in the store.
async fn send_release(store: &Store, hold: &Hold, entry: &HeldEntry) -> Result<bool, Error> {
    let (connections, lease) = (&store.connections, &entry.lease);
    if hold.token == 0 && !lease.is_shared && entry.created == 0 {
        // Without its lease even a late request for the key is refused.
        lease.gone.raise();
        return requests::revoke_lease(connections, lease.id).await;
    }
    let reservation = entry.reserved_until.since(store.context.now());
    if !entry.min_hold.is_zero() && !reservation.is_zero() {
        let (key, created) = (&entry.key, entry.created);
        return reserve_name(store, key, created, hold.mode, reservation).await;
    }
    let selector = match entry.created {
        0 => KeySelector::WithValue(&entry.value),
        created => KeySelector::Created(created),
    };
    requests::delete_key(connections, &entry.key, &selector).await
}

/// Leaves the key in its place for that long, without a holder. `mode`: that of the hold that has ended.
pub(super) async fn reserve_name(
    store: &Store,
    key: &[u8],
    created: i64,
    mode: Mode,
    reservation: Duration,
) -> Result<bool, Error> {
    let seconds = whole_seconds(reservation);
    let lease = store.leases.grant(seconds, false).await?;
    let reserved = requests::reserve_name(&store.connections, key, created, mode, lease.id);
    let reserved = reserved.await?;
    if !reserved {
        store.leases.revoke_in_background(&lease);
    }
    Ok(reserved)
}

/// Leaves the key to its lease, which goes on for the `lock_delay` of the hold.
fn leave_reserved(store: &Store, owner: OwnerId) {
    if let Some(entry) = store.holds.remove(owner) {
        store.keys.reserve(&entry.key, entry.lease.end_in_store());
    }
}

/// Leaves the queue. A lock that was granted meanwhile is released.
pub(super) async fn leave_queue(
    store: &Store,
    request: &Request,
    key: &[u8],
    created: i64,
) -> Result<(), Error> {
    let selector = KeySelector::Created(created);
    match requests::delete_key(&store.connections, key, &selector).await {
        Ok(_) => {
            remove(store, request.owner);
            Ok(())
        }
        Err(err) => Err(Error::new(
            ErrorKind::Indeterminate,
            "no answer to the request to leave the queue",
        )
        .with_source(err)),
    }
}

/// Ends the bookkeeping of an acquisition whose key is gone, or nearly so.
pub(super) fn remove(store: &Store, owner: OwnerId) {
    let Some(entry) = store.holds.remove(owner) else {
        return;
    };
    let now = store.context.now();
    if entry.reserved_until > now {
        // The key stays in the store until then, without a holder.
        store.keys.reserve(&entry.key, entry.reserved_until);
    } else {
        store.keys.free(&entry.key);
    }
    if !entry.lease.is_shared {
        store.leases.revoke_in_background(&entry.lease);
    } else if entry.is_ambiguous && !entry.lease.gone.is_raised() {
        add_late_put(store, &entry.lease, &entry.key, &entry.value);
    }
}

/// From now on this key may be put late, under a lease that goes on.
pub(super) fn add_late_put(store: &Store, lease: &Lease, key: &[u8], value: &Arc<[u8]>) {
    let due = lease.add_late_put(key, value, store.context.now());
    store.maintenance.due_at(due);
}

/// Deletes the keys that may have been put late under any of these leases, where that is due.
pub(super) async fn delete_late_puts(store: &Store, leases: &[Arc<Lease>]) {
    let now = store.context.now();
    for put in leases.iter().flat_map(|lease| lease.due_late_puts(now)) {
        // The next time the key is deleted again, whether it was there or not.
        let selector = KeySelector::WithValue(&put.value);
        let deleted = requests::delete_key(&store.connections, &put.key, &selector).await;
        if deleted.is_err() {
            return;
        }
    }
}

/// Revokes all leases, which deletes their keys, and ends the connection.
pub(super) async fn close(store: &Store) {
    store.context.closing.raise();
    store.maintenance.stop();
    if store.runtime.is_gone() {
        return;
    }
    let limit = store.context.now().after(CLOSE_TIMEOUT);
    let revoke_all = async {
        // Leases of single locks are revoked in the background, and a lease that is being granted is not known yet.
        store.context.background.all_done().await;
        let shared = store.leases.all_shared();
        let mut ids: Vec<_> = shared.iter().map(|lease| lease.id).collect();
        ids.extend(store.holds.select(|_, entry| Some(entry.lease.id)));
        ids.sort_unstable();
        ids.dedup();
        let revoke = |id| requests::revoke_lease(&store.connections, id);
        join_all(ids.into_iter().map(revoke)).await;
    };
    tokio::select! {
        biased;
        // A lease that cannot be revoked expires.
        () = revoke_all => {}
        () = store.context.clock.sleep_until(limit) => {}
    }
    store.connections.close();
}
