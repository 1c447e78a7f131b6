//! The lease of a hold that was detached: it belongs to that hold alone, and no client ends it at its close.
//!
//! Several clients may be attached to the hold and want it to last for different times. None of them may bring the end of the
//! hold nearer. The ttl of a lease cannot be changed, so a client that wants another one moves the key to a new lease.
//! Each request that counts on a lease, or moves the key, puts the key on the condition that the key has not changed since it
//! was read; so each of these requests changes the mod revision, and refuses all that are based on an older look:
//!
//! - A client that keeps the lease alive puts the key *after* that, and counts on the lease only when the put was done.
//! - A client that moves the key reads the key first, then the rest of its lease, and then grants the new one. So if the move is
//!   done, no client has counted on the old lease since the look, and the new lease ends later than the old one.
//!
//! The rule holds for a move that arrives late, too. The create revision of the key, and with it the token and the place in the
//! queue, stay what they were.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::time::Time;

use super::attachment::KnownLease;
use super::connection::Connections;
use super::detach_requests::{self, Changed};
use super::errors::Recovery;
use super::lease_requests;
use super::leases::{Lease, whole_seconds};
use super::record::KeyRecord;
use super::requests;
use super::store::Store;
use super::wire::KeyValue;

/// How often the key may be found changed by other clients before this client gives up.
const ATTEMPTS: usize = 16;

/// How long a hold lasts.
pub(super) struct ExtendedLease {
    /// The key, as it is since this client wrote it.
    pub(super) seen: KeyValue,
    /// The ttl of its lease in seconds.
    pub(super) granted: i64,
    /// The hold lasts for `left` from this instant on.
    pub(super) sent: Time,
    pub(super) left: Duration,
    /// For how long the lease goes on after that (`lock_delay`).
    pub(super) delay: Duration,
}

/// What the hold needs.
struct Wanted {
    record: KeyRecord,
    ttl: Duration,
    delay: i64,
    /// Seconds, with the delay.
    seconds: i64,
    /// The ttl of the lease that the key has, if that lease belongs to this hold alone and the ttl is known.
    granted: Option<i64>,
    /// Whether the lease that the key has belongs to this hold alone.
    has_own_lease: bool,
}

/// What the lease of a key is good for.
enum LeaseTime {
    Enough {
        sent: Time,
        left: i64,
        granted: i64,
    },
    /// The key needs another lease.
    Other,
    /// The lease is over. The key is gone, or has another lease.
    Gone,
    /// The hold has ended, and its key only reserves the name (`lock_delay`).
    OnlyDelay,
}

/// Makes sure that the hold lasts `ttl` from now on at least, under a lease of its own, and marks the hold as detached. `known`:
/// a lease that belongs to this hold alone, although its key may not say that yet. `None`: the hold is over.
pub(super) async fn keep(
    store: &Store,
    mut seen: KeyValue,
    ttl: Duration,
    known: Option<KnownLease>,
) -> Result<Option<ExtendedLease>, Error> {
    for _ in 0..ATTEMPTS {
        let Some(wanted) = Wanted::of(&seen, ttl, known) else {
            return Ok(None);
        };
        match attempt(store, &seen, wanted).await? {
            Changed::Done(kept) => return Ok(Some(kept)),
            Changed::Refused(Some(now)) => seen = now,
            Changed::Refused(None) => return Ok(None),
        }
    }
    Err(Error::new(
        ErrorKind::Indeterminate,
        "other clients go on to change the key of this hold; retry",
    ))
}

impl Wanted {
    /// `None`: the hold is over, and its key reserves the name, or is that of another program.
    fn of(seen: &KeyValue, ttl: Duration, known: Option<KnownLease>) -> Option<Self> {
        let record = KeyRecord::parse(&seen.value).filter(|it| !it.is_reserved())?;
        let delay = i64::try_from(record.lock_delay().as_secs()).unwrap_or(i64::MAX);
        let granted = known.filter(|it| it.id == seen.lease).map(|it| it.granted);
        Some(Self {
            seconds: whole_seconds(ttl).saturating_add(delay),
            has_own_lease: granted.is_some() || record.is_detached(),
            record: record.detached(),
            ttl,
            delay,
            granted,
        })
    }

    fn kept(&self, seen: KeyValue, granted: i64, sent: Time, left: i64) -> ExtendedLease {
        let left = left.saturating_sub(self.delay);
        ExtendedLease {
            seen,
            granted,
            sent,
            left: Duration::from_secs(u64::try_from(left).unwrap_or(0)),
            delay: self.record.lock_delay(),
        }
    }
}

async fn attempt(
    store: &Store,
    seen: &KeyValue,
    wanted: Wanted,
) -> Result<Changed<ExtendedLease>, Error> {
    let connections = &store.connections;
    let time = match wanted.has_own_lease {
        true => lease_time(connections, seen.lease, &wanted).await?,
        false => LeaseTime::Other,
    };
    let (sent, left, granted) = match time {
        LeaseTime::Enough {
            sent,
            left,
            granted,
        } => (sent, left, granted),
        LeaseTime::Other => return move_key(store, seen, &wanted).await,
        LeaseTime::Gone => return read_again(connections, seen).await,
        LeaseTime::OnlyDelay => return Ok(Changed::Refused(None)),
    };
    let value = wanted.record.to_bytes();
    match detach_requests::put(connections, seen, value, seen.lease).await {
        Ok(Changed::Done(now)) => Ok(Changed::Done(wanted.kept(now, granted, sent, left))),
        Ok(Changed::Refused(found)) => Ok(Changed::Refused(found)),
        Err(err) if err.recovery == Recovery::NewLease => read_again(connections, seen).await,
        Err(err) => Err(err.error),
    }
}

/// Finds out how long the lease lasts, and keeps it alive if that is shorter than wanted. A lease that was granted for much
/// longer is not kept alive: the hold would last longer than any client has asked for.
async fn lease_time(
    connections: &Connections,
    lease: i64,
    wanted: &Wanted,
) -> Result<LeaseTime, Error> {
    let seconds = wanted.seconds;
    if wanted.granted != Some(seconds) || wanted.delay > 0 {
        let Some(times) = lease_requests::lease_times(connections, lease).await? else {
            return Ok(LeaseTime::Gone);
        };
        let (sent, granted) = (times.sent, times.granted);
        // A leader that was elected just now may not know the end yet; then the lease lasts its whole ttl.
        let left = times.left.min(granted);
        if wanted.delay > 0 && left <= wanted.delay {
            return Ok(LeaseTime::OnlyDelay);
        }
        if left >= seconds {
            return Ok(LeaseTime::Enough {
                sent,
                left,
                granted,
            });
        }
        if granted < seconds || granted > seconds.saturating_mul(2) {
            return Ok(LeaseTime::Other);
        }
    }
    let reply = lease_requests::keep_alive(connections, &[lease]).await?;
    let granted = reply.ttls.first().copied().unwrap_or(0);
    Ok(match granted {
        ..=0 => LeaseTime::Gone,
        _ if granted < seconds => LeaseTime::Other,
        _ => LeaseTime::Enough {
            sent: reply.sent,
            left: granted,
            granted,
        },
    })
}

/// Moves the key to a new lease. The old one is revoked if it belonged to this hold alone.
async fn move_key(
    store: &Store,
    seen: &KeyValue,
    wanted: &Wanted,
) -> Result<Changed<ExtendedLease>, Error> {
    let (connections, delay) = (&store.connections, wanted.record.lock_delay());
    let seconds = whole_seconds(wanted.ttl);
    let lease = store.leases.grant_with_delay(seconds, delay, false).await?;
    let value = wanted.record.to_bytes();
    let moved = match detach_requests::put(connections, seen, value, lease.id).await {
        Err(err) if err.is_ambiguous() => settle(connections, seen, &lease, err.error).await?,
        Err(err) if err.recovery == Recovery::NewLease => {
            return read_again(connections, seen).await;
        }
        Err(err) => {
            store.leases.revoke_in_background(&lease);
            return Err(err.error);
        }
        Ok(moved) => moved,
    };
    match moved {
        Changed::Done(now) => {
            if wanted.has_own_lease {
                store.leases.revoke_id_in_background(seen.lease);
            }
            let granted = (lease.ttl + lease.delay).as_secs();
            let granted = i64::try_from(granted).unwrap_or(i64::MAX);
            let kept = wanted.kept(now, granted, lease.sent(), granted);
            Ok(Changed::Done(kept))
        }
        Changed::Refused(found) => {
            store.leases.revoke_in_background(&lease);
            Ok(Changed::Refused(found))
        }
    }
}

/// Whether the key was moved, after a request without a reply. A key that was not moved is put as it was, so that the request is
/// refused if it arrives later.
///
/// # Errors
/// The one of the request: whether the key was moved stays unknown. A key that was moved would be deleted with the new lease, so
/// that lease is not revoked; it ends by itself.
async fn settle(
    connections: &Connections,
    seen: &KeyValue,
    lease: &Lease,
    unknown: Error,
) -> Result<Changed<KeyValue>, Error> {
    match detach_requests::put(connections, seen, seen.value.clone(), seen.lease).await {
        Ok(Changed::Refused(Some(now))) if now.lease == lease.id => Ok(Changed::Done(now)),
        Ok(Changed::Done(now)) => Ok(Changed::Refused(Some(now))),
        Ok(Changed::Refused(found)) => Ok(Changed::Refused(found)),
        Err(_) => Err(unknown),
    }
}

async fn read_again<T>(connections: &Connections, seen: &KeyValue) -> Result<Changed<T>, Error> {
    let found = requests::read_key(connections, &seen.key, seen.create_revision).await?;
    Ok(Changed::Refused(found))
}
