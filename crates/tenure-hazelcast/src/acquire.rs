//! Acquisition: a session, the request to lock in it, and the lease that follows from both.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::store::{Answer, Request};
use tenure_core::support::closed;

use crate::attempt::{self, Attempt};
use crate::messages;
use crate::requests::{ask, may_pass, within};
use crate::sessions::Session;
use crate::store::{Lease, Store, is_over};
use crate::upkeep;
use crate::wait;

/// So many sessions may be over at once, one after the other, before an acquisition gives up. One of them may have ended
/// unnoticed before its use; the next one is new.
const MAX_SESSIONS: usize = 4;

pub(crate) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let mut ended = 0;
    while ended < MAX_SESSIONS {
        if store.closing.is_raised() {
            return Err(closed());
        }
        let began = store.clock.now();
        let session = match ended {
            0 => session_for(store, request).await?,
            _ => Some(store.sessions.create().await?),
        };
        let Some(session) = session else {
            ended += 1;
            continue;
        };
        if request.stop.is_raised() {
            upkeep::give_back(store, &session);
            return Ok(Answer::Busy);
        }
        session.count_lease();
        let lease = Lease::new(request, &session);
        store.leases.insert(request.owner, lease.clone());
        let attempt = match request.wait {
            true => wait::wait(store, request, &lease).await?,
            false => try_once(store, request, &lease).await?,
        };
        match attempt {
            Attempt::Granted(grant) => return Ok(Answer::Granted(grant)),
            Attempt::Busy => return Ok(Answer::Busy),
            // A waiter may be cut off for longer than its session lasts, more than once.
            Attempt::SessionOver if store.clock.now().since(began) >= session.ttl => ended = 1,
            Attempt::SessionOver => ended += 1,
        }
    }
    let message = "the members end each session at once; are their wall clocks right?";
    Err(Error::new(ErrorKind::Unreachable, message))
}

/// A session that lasts for the lease, if the request is granted at once. `None`: the one that was kept is over, or the members
/// did not say that it goes on.
async fn session_for(store: &Arc<Store>, request: &Request) -> Result<Option<Arc<Session>>, Error> {
    let began = store.clock.now();
    let session = store.sessions.get().await?;
    let is_new = session.confirmed() >= began;
    if is_new || session.end() >= began.after(session.lease_for(request.ttl)) {
        return Ok(Some(session));
    }
    match store.sessions.heartbeat(&session).await {
        Ok(_) => Ok(Some(session)),
        Err(err) if is_over(&err) => Ok(None),
        Err(err) => {
            upkeep::close_in_background(store, &session);
            match may_pass(&err) {
                true => Ok(None),
                false => Err(err.without_effect()),
            }
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
                attempt::mark_unclean(store, request);
            }
            if reply.value > 0 {
                return attempt::grant(store, request, session, (reply.value, sent)).await;
            }
            attempt::finish(store, request);
            Ok(Attempt::Busy)
        }
        Err(err) => attempt::fail(store, request, err),
    }
}
