//! Releasing a hold, leaving the queue, deleting what may be put late, and closing the client.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Release};
use tenure_core::time::Time;

use super::attached;
use super::candidate_requests::{self, CandidateKeys};
use super::context::Context;
use super::key_state::KeyState;
use super::lease_requests;
use super::leases::{LatePut, Lease, whole_seconds};
use super::queue::SecondKey;
use super::requests::{self, KeySelector};
use super::store::{AcquisitionState, ContenderKey, Reservation, Store};

/// How many keys the background deletes at the same time.
pub(super) const PARALLEL_DELETIONS: usize = 16;

/// How many leases closing revokes at the same time.
const PARALLEL_REVOKES: usize = 64;

/// Releases what the owner has: the lock, or its place in the queue.
pub(super) async fn release(store: &Store, hold: &Hold) -> Result<Release, Error> {
    let Some(entry) = begin_release(store, hold) else {
        return Ok(Release::NotHeld);
    };
    if hold.unclean && !hold.unused && !entry.lease.delay.is_zero() && entry.attachment.is_none() {
        reserve_after_end(store, hold, &entry).await?;
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
    Ok(Release::of(released? || entry.may_be_released))
}

/// From now on the hold is about to be released. Returns its entry.
fn begin_release(store: &Store, hold: &Hold) -> Option<ContenderKey> {
    let now = store.context.now();
    store.holds.update(hold.owner, |entry| {
        let until = now.after(entry.lease.ttl.max(hold.ttl) * 2);
        entry.state = AcquisitionState::Releasing { until };
        // The request that made the key got no reply.
        entry.is_ambiguous |= hold.token == 0;
        if let Some(reservation) = &mut entry.reservation
            && (hold.token == 0 || hold.unused)
        {
            reservation.until = Time::ZERO;
        }
        entry.clone()
    })
}

/// `false`: the key is not in the store.
async fn send_release(store: &Store, hold: &Hold, entry: &ContenderKey) -> Result<bool, Error> {
    if let Some(attachment) = entry.attachment {
        return attached::delete(store, entry, attachment).await;
    }
    let lease = &entry.lease;
    if hold.token == 0 && !lease.is_shared && entry.created == 0 {
        // Without its lease even a late request for the key is refused.
        lease.gone.raise();
        return lease_requests::revoke_lease(&store.connections, lease.id).await;
    }
    delete_keys(store, entry).await
}

/// Deletes the key of an acquisition, and the second key if the name does not stay taken. `false`: the key is not in the
/// store.
async fn delete_keys(store: &Store, entry: &ContenderKey) -> Result<bool, Error> {
    fn selector(created: i64, value: &[u8]) -> KeySelector<'_> {
        match created {
            0 => KeySelector::WithValue(value),
            created => KeySelector::Created(created),
        }
    }
    let connections = &store.connections;
    if let Some(Reservation {
        second_key, until, ..
    }) = &entry.reservation
        && *until == Time::ZERO
    {
        let SecondKey { key, value } = second_key;
        requests::delete_key(connections, key, &selector(entry.created, value)).await?;
    }
    delete_key(
        store,
        &entry.key,
        entry.record_key(),
        &selector(entry.created, &entry.value),
    )
    .await
}

/// Deletes the first key of an acquisition, and those of a candidate together. `false`: the key is not in the store.
pub(super) async fn delete_key(
    store: &Store,
    key: &[u8],
    record_key: Option<&[u8]>,
    selector: &KeySelector<'_>,
) -> Result<bool, Error> {
    let connections = &store.connections;
    let Some(record_key) = record_key else {
        return requests::delete_key(connections, key, selector).await;
    };
    let keys = CandidateKeys {
        settings: &store.context.settings,
        key,
        record_key,
    };
    candidate_requests::delete(connections, keys, selector).await
}

/// Leaves the key in its place for that long, without a holder. `mode`: that of the hold that has ended.
pub(super) async fn reserve_name(
    store: &Store,
    state: &KeyState,
    mode: Mode,
    reservation: Duration,
) -> Result<bool, Error> {
    let seconds = whole_seconds(reservation);
    let lease = store.leases.grant(seconds, false).await?;
    let reserved = requests::reserve_name(&store.connections, state, mode, lease.id);
    let reserved = reserved.await?;
    if !reserved {
        store.leases.revoke_in_background(&lease);
    }
    Ok(reserved)
}

/// The hold has ended without a release: its key reserves the name for the `lock_delay`.
async fn reserve_after_end(store: &Store, hold: &Hold, entry: &ContenderKey) -> Result<(), Error> {
    let (lease, now) = (&entry.lease, store.context.now());
    // The lease goes on for the `lock_delay` after its own end. The hold ended earlier if its renewals stopped
    // (`max_hold`) or the store said so.
    let is_early = lease.end().since(now) > lease.ttl / 8;
    if is_early {
        let state = entry.key_state();
        reserve_name(store, &state, hold.mode, lease.delay).await?;
        store.leases.revoke_in_background(lease);
    }
    store.holds.remove(hold.owner);
    forget_requests(store, entry);
    let reserved_until = entry.reserved_until().max(lease.end_in_store());
    store.keys.reserve(&entry.key, reserved_until);
    Ok(())
}

/// Leaves the queue. A lock that was granted meanwhile is released.
pub(super) async fn leave_queue(store: &Store, owner: OwnerId) -> Result<(), Error> {
    let Some(entry) = store.holds.get(owner) else {
        return Ok(());
    };
    // A key is gone with its lease. That of a reservation may have another lease.
    if entry.reservation.is_some() || !entry.lease.gone.is_raised() {
        delete_keys(store, &entry).await?;
    }
    remove(store, owner);
    Ok(())
}

/// Ends the bookkeeping of an acquisition whose key is gone, or nearly so.
pub(super) fn remove(store: &Store, owner: OwnerId) {
    let Some(entry) = store.holds.remove(owner) else {
        return;
    };
    forget_requests(store, &entry);
    let (now, reserved_until) = (store.context.now(), entry.reserved_until());
    if reserved_until > now {
        // The second key stays in the store until then.
        store.keys.reserve(&entry.key, reserved_until);
    } else {
        store.keys.free(&entry.key);
        let lease = entry.reservation.as_ref().and_then(|it| it.lease.as_ref());
        if let Some(lease) = lease.filter(|lease| lease.end() > now) {
            store.leases.revoke_in_background(lease);
        }
    }
    if !entry.lease.is_shared {
        store.leases.revoke_in_background(&entry.lease);
    } else if entry.is_ambiguous && !entry.lease.gone.is_raised() {
        let ContenderKey { key, value, .. } = &entry;
        let second_key = entry.reservation.as_ref().map(|it| &it.second_key);
        let record_key = entry.record_key();
        add_late_puts(store, &entry.lease, (key, value, record_key), second_key);
    }
}

/// The hold is over, and so are the requests to let go.
fn forget_requests(store: &Store, entry: &ContenderKey) {
    let ContenderKey { key, created, .. } = entry;
    let is_candidate = entry.candidate.is_some();
    let requests = &store.elections.release_requests;
    requests.forget(key, *created, is_candidate);
}

/// From now on the keys of an acquisition may be put late, under a lease that goes on.
pub(super) fn add_late_puts(
    store: &Store,
    lease: &Lease,
    (key, value, record_key): (&[u8], &Arc<[u8]>, Option<&[u8]>),
    second_key: Option<&SecondKey>,
) {
    let now = store.context.now();
    let due = lease.add_late_put(key, value, record_key.map(<[u8]>::to_vec), now);
    if let Some(SecondKey { key, value }) = second_key {
        lease.add_late_put(key, value, None, now);
    }
    store.maintenance.due_at(due);
}

/// Deletes the keys that may have been put late under any of these leases, where that is due, in the background.
pub(super) fn delete_late_puts(store: &Arc<Store>, leases: &[Arc<Lease>]) {
    let now = store.context.now();
    let due = leases.iter().flat_map(|lease| lease.due_late_puts(now));
    let due: Vec<_> = due.collect();
    if due.is_empty() {
        return;
    }
    let deleter = store.clone();
    spawn_until_closed(store, async move {
        let delete = async |put: LatePut| {
            let selector = KeySelector::WithValue(&put.value);
            delete_key(&deleter, &put.key, put.record_key.as_deref(), &selector).await
        };
        // The next time each key is deleted again, whether it was there or not.
        let puts = stream::iter(due.into_iter().map(Ok));
        let _ = puts
            .try_for_each_concurrent(PARALLEL_DELETIONS, async |put| delete(put).await.map(drop))
            .await;
    });
}

/// Runs `work` in the background until the client closes. Then the leases are revoked, which deletes their keys.
pub(super) fn spawn_until_closed(
    store: &Arc<Store>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let context = store.context.clone();
    let Context {
        background,
        spawner,
        ..
    } = &*store.context;
    background.spawn(spawner, async move {
        tokio::select! {
            biased;
            () = context.closing.raised() => {}
            () = work => {}
        }
    });
}

/// Revokes all leases of the client, which deletes their keys, and ends the connection.
pub(super) async fn close(store: &Store) {
    store.context.closing.raise();
    store.maintenance.stop();
    // Leases of single locks are revoked in the background, and a lease that is being granted is not known yet.
    store.context.background.all_done().await;
    let shared = store.leases.all_shared();
    let mut ids: Vec<_> = shared.iter().map(|lease| lease.id).collect();
    ids.extend(store.holds.select(|_, entry| entry.lease_of_client()));
    ids.extend(store.holds.select(|_, entry| entry.unused_reservation()));
    ids.sort_unstable();
    ids.dedup();
    // A lease that cannot be revoked expires.
    let revoke = async |id| drop(lease_requests::revoke_lease(&store.connections, id).await);
    let revokes = stream::iter(ids).for_each_concurrent(PARALLEL_REVOKES, revoke);
    revokes.await;
}

/// Ends what is left without waiting, also of a node of a majority that was silent before `close` came to it.
pub(super) fn abandon(store: &Store) {
    store.context.closing.raise();
    store.maintenance.stop();
    store.connections.close();
}
