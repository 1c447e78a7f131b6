//! What goes on between requests: heartbeats of waiters, the end of leases that are not renewed, and of sessions that are not
//! used.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use crate::requests::may_pass;
use crate::sessions::Session;
use crate::store::{Lease, State, Store};

/// The maintenance task has work by `at`.
pub(crate) fn schedule(store: &Arc<Store>, at: Time) {
    let (spawner, clock) = (&store.spawner, &store.clock);
    store.maintenance.start(spawner, clock, store, maintain);
    store.maintenance.due_at(at);
}

/// Sends the heartbeats of waiters and ends what is over, in tasks of their own: each request may hang. Returns when the next
/// work is due.
async fn maintain(store: Arc<Store>) -> Time {
    let now = store.clock.now();
    let mut next = Time::MAX;
    let (mut waiting, mut expired) = (Vec::new(), Vec::new());
    store.leases.for_each(|owner, lease| match lease.state {
        State::Waiting if lease.due() <= now => {
            waiting.push(lease.session.clone());
            next = next.min(now.after(lease.pace() / 4));
        }
        State::Waiting => next = next.min(lease.due()),
        State::Held { until } if until <= now => expired.push(owner),
        State::Held { until } => next = next.min(until),
        State::Unknown => {}
    });
    for session in waiting {
        beat(&store, session);
    }
    for owner in expired {
        // The driver did not renew the hold, so it counts as lost. The session may go on for longer than the lease.
        if let Some(lease) = store.leases.remove(owner) {
            close_in_background(&store, &lease.session);
        }
    }
    let (overdue, idle) = store.sessions.take_overdue(now);
    for session in overdue {
        close_in_background(&store, &session);
    }
    next.min(idle)
}

/// Sends the heartbeat of a waiter in the background.
fn beat(store: &Arc<Store>, session: Arc<Session>) {
    if !session.begin_beat() {
        return;
    }
    let beating = store.clone();
    spawn_until_closed(store, async move {
        if let Err(err) = beating.sessions.heartbeat(&session).await {
            let err = Error::from(err);
            tracing::debug!(
                store = "hazelcast",
                err = format_args!("{err:#}"),
                "no reply to a heartbeat"
            );
        }
        session.end_beat();
        beating.maintenance.wake();
    });
}

/// Ends the session of an acquisition that is over, or keeps it for the next one if nothing of this one can arrive late.
pub(crate) fn end_session(store: &Arc<Store>, lease: &Lease) {
    match lease.is_clean {
        true => give_back(store, &lease.session),
        false => close_in_background(store, &lease.session),
    }
}

/// Keeps a session of which nothing is under way.
pub(crate) fn give_back(store: &Arc<Store>, session: &Arc<Session>) {
    match store.sessions.give_back(session) {
        Some(until) => schedule(store, until),
        None => close_in_background(store, session),
    }
}

/// Closes a session in the background, at the latest when the client closes. A session that cannot be closed ends by itself,
/// because it has no more heartbeats.
pub(crate) fn close_in_background(store: &Arc<Store>, session: &Arc<Session>) {
    store.sessions.begin_to_leave(session);
    let (closer, session) = (store.clone(), session.clone());
    spawn_until_closed(store, async move {
        let mut retries = RetryBudget::until(session.end());
        while let Err(err) = closer.sessions.close(&session).await {
            if !may_pass(&err) || retries.is_spent(&closer.clock) {
                return closer.sessions.forget(&session);
            }
            retries.pause(&closer.clock).await;
        }
    });
}

/// Runs `work` in the background until the client closes.
pub(crate) fn spawn_until_closed(
    store: &Arc<Store>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let closing = store.clone();
    store.background.spawn(&store.spawner, async move {
        tokio::select! {
            biased;
            () = closing.closing.raised() => {}
            () = work => {}
        }
    });
}
