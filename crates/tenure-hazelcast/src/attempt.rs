//! How one attempt to lock with one session ends: with a lease, with nothing left of the attempt, or in doubt.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::store::{Grant, Hold, Request};
use tenure_core::time::Time;

use crate::errors::{Refusal, RequestError};
use crate::sessions::Session;
use crate::store::{State, Store, is_over};
use crate::upkeep;

/// How one attempt with one session ended.
pub(crate) enum Attempt {
    Granted(Grant),
    Busy,
    /// The session was over. Nothing is left of the attempt.
    SessionOver,
}

/// What becomes of an attempt without a grant.
pub(crate) fn fail(
    store: &Arc<Store>,
    request: &Request,
    err: RequestError,
) -> Result<Attempt, Error> {
    match err {
        err if is_over(&err) => {
            store.leases.remove(request.owner);
            Ok(Attempt::SessionOver)
        }
        RequestError::Unknown(err) => {
            store.set_state(&Hold::new(request, 0), State::Unknown);
            Err(err)
        }
        RequestError::NotSent(err) => {
            finish(store, request);
            Err(err)
        }
        RequestError::Refused(refusal) => {
            // An operator may have cancelled the wait.
            if let Refusal::WaitCancelled = refusal {
                mark_unclean(store, request);
            }
            finish(store, request);
            Err(refusal.into())
        }
    }
}

/// A request about the lease was sent more than once, or its reply is not known.
pub(crate) fn mark_unclean(store: &Store, request: &Request) {
    store
        .leases
        .update(request.owner, |lease| lease.is_clean = false);
}

/// Ends an acquisition that has no lock. Its session is used again if nothing of the acquisition can arrive late.
pub(crate) fn finish(store: &Arc<Store>, request: &Request) {
    if let Some(lease) = store.leases.remove(request.owner) {
        upkeep::end_session(store, &lease);
    }
}

/// The members have granted the lock under this fence. `sent`: from when on the lease may count.
pub(crate) async fn grant(
    store: &Arc<Store>,
    request: &Request,
    session: &Session,
    (fence, sent): (i64, Time),
) -> Result<Attempt, Error> {
    let lease = session.lease_for(request.ttl);
    let now = store.clock.now();
    let mut begin = begin_of_lease(session.confirmed(), session.ttl, lease, sent);
    let mut round_trip = now.since(sent);
    let left = begin.after(lease).since(now);
    let least = match request.is_renewed {
        true => request.min_lease.max(lease / 2),
        // No renewal will make the lease longer.
        false => lease,
    };
    // Some time has always passed since the session was confirmed.
    if left + lease / 16 < least.min(lease) {
        // The request has waited for its turn.
        begin = match store.sessions.heartbeat(session).await {
            Ok(confirmed) => begin_of_lease(confirmed, session.ttl, lease, confirmed),
            Err(err) => return unconfirmed(store, request, err),
        };
        round_trip = store.clock.now().since(now);
    }
    let until = begin.after(lease);
    store.set_state(&Hold::new(request, 0), State::Held { until });
    upkeep::schedule(store, until);
    let token = u64::try_from(fence).unwrap_or(0);
    Ok(Attempt::Granted(Grant::new(
        token,
        begin,
        round_trip,
        Some(lease),
    )))
}

/// The lock was granted, and the session may have ended meanwhile.
fn unconfirmed(store: &Arc<Store>, request: &Request, err: RequestError) -> Result<Attempt, Error> {
    if is_over(&err) {
        store.leases.remove(request.owner);
        return Ok(Attempt::SessionOver);
    }
    store.set_state(&Hold::new(request, 0), State::Unknown);
    let message =
        "the lock was granted, and the members do not confirm its session; it is released";
    Err(Error::new(ErrorKind::Indeterminate, message).with_source(Error::from(err)))
}

/// From when on a lease counts that a session carries: from `sent` on, or earlier if the session would end before the lease.
fn begin_of_lease(confirmed: Time, session_ttl: Duration, lease: Duration, sent: Time) -> Time {
    confirmed.after(session_ttl.saturating_sub(lease)).min(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_before_its_session() {
        let second = Duration::from_secs;
        let start = Time::from_nanos(1_000_000_000_000);
        let begin = |lease, sent| {
            begin_of_lease(start, second(30), second(lease), start.after(second(sent)))
        };
        assert_eq!(begin(30, 0), start);
        assert_eq!(begin(30, 7), start);
        assert_eq!(begin(10, 7), start.after(second(7)));
        assert_eq!(begin(10, 25), start.after(second(20)));
    }
}
