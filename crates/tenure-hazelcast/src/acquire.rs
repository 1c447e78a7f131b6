//! Acquisition: a session, the request to lock in it, and the lease that follows from both.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::store::{Answer, Grant, Hold, Request};
use tenure_core::support::closed;
use tenure_core::time::Time;

use crate::errors::{Refusal, RequestError};
use crate::messages;
use crate::release;
use crate::renew;
use crate::requests::{ask, within};
use crate::sessions::Session;
use crate::store::{Lease, State, Store, is_over};
use crate::wait;

/// So many sessions may be over, one after the other, before an acquisition gives up. One of them may have ended unnoticed
/// before its use; the next one is new.
const MAX_SESSIONS: usize = 4;

/// How one attempt with one session ended.
pub(crate) enum Attempt {
    Granted(Grant),
    Busy,
    /// The session was over. Nothing is left of the attempt.
    SessionOver,
}

pub(crate) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    for _ in 0..MAX_SESSIONS {
        if store.closing.is_raised() {
            return Err(closed());
        }
        let Some(session) = session_for(store, request).await? else {
            continue;
        };
        if request.stop.is_raised() {
            release::give_back(store, &session);
            return Ok(Answer::Busy);
        }
        let lease = Lease::new(request, &session);
        store.leases.insert(request.owner, lease.clone());
        let attempt = match request.wait {
            true => wait::wait(store, request, &lease).await?,
            false => try_once(store, request, &lease).await?,
        };
        match attempt {
            Attempt::Granted(grant) => return Ok(Answer::Granted(grant)),
            Attempt::Busy => return Ok(Answer::Busy),
            Attempt::SessionOver => {}
        }
    }
    let message = "the members end each session at once; are their wall clocks right?";
    Err(Error::new(ErrorKind::Unreachable, message))
}

/// A session that lasts for the lease, if the request is granted at once. `None`: the one that was kept is over.
async fn session_for(store: &Arc<Store>, request: &Request) -> Result<Option<Arc<Session>>, Error> {
    let began = store.clock.now();
    let session = store.sessions.get().await?;
    let is_new = session.confirmed() >= began;
    if is_new || session.end() >= began.after(store.lease_for(request.ttl)) {
        return Ok(Some(session));
    }
    match store.sessions.heartbeat(&session).await {
        Ok(_) => Ok(Some(session)),
        Err(err) if is_over(&err) => Ok(None),
        Err(err) => {
            release::close_in_background(store, &session);
            Err(err.without_effect())
        }
    }
}

async fn try_once(store: &Arc<Store>, request: &Request, lease: &Lease) -> Result<Attempt, Error> {
    let session = &lease.session;
    let sent = store.clock.now();
    let call = messages::try_lock(lease.target(), lease.endpoint(), lease.uids[0]);
    let members = &store.sessions.members;
    match ask(members, within(&session.group, call)).await {
        Ok(reply) => {
            if !reply.is_first {
                mark_unclean(store, request);
            }
            if reply.value > 0 {
                return grant(store, request, session, (reply.value, sent)).await;
            }
            session.count_refused();
            finish(store, request);
            Ok(Attempt::Busy)
        }
        Err(err) => fail(store, request, err),
    }
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
        release::end_session(store, &lease);
    }
}

/// The members have granted the lock under this fence. `sent`: from when on the lease may count.
pub(crate) async fn grant(
    store: &Arc<Store>,
    request: &Request,
    session: &Session,
    (fence, sent): (i64, Time),
) -> Result<Attempt, Error> {
    let lease = store.lease_for(request.ttl);
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
    renew::schedule(store, until);
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
