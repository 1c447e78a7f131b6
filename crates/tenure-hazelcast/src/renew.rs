//! Renewal of holds, heartbeats of waiters, and the end of holds that are not renewed.

use std::sync::Arc;

use futures_util::future;
use futures_util::stream::{self, StreamExt as _};

use tenure_core::error::Error;
use tenure_core::lost::LostReason;
use tenure_core::store::{Hold, Renewal};
use tenure_core::time::Time;

use crate::messages;
use crate::release;
use crate::requests::{ask_once, within};
use crate::sessions::Session;
use crate::store::{Lease, State, Store, is_over};
use crate::wait;

/// So many holds are renewed at the same time.
const PARALLEL: usize = 64;

/// Renews each hold by a heartbeat of its session, and asks whether the hold is there.
pub(crate) async fn renew(store: &Arc<Store>, holds: &[Hold]) -> Vec<Renewal> {
    let renewals = holds.iter().cloned().enumerate();
    let renewals = renewals.map(|(at, hold)| async move { (at, renew_one(store, &hold).await) });
    let answers: Vec<_> = stream::iter(renewals)
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    Renewal::in_order(holds.len(), answers)
}

async fn renew_one(store: &Arc<Store>, hold: &Hold) -> Renewal {
    let held = |lease: &Lease| matches!(lease.state, State::Held { .. });
    let Some(lease) = store.leases.get(hold.owner).filter(held) else {
        return Renewal::Lost(LostReason::StoreSaysNo);
    };
    let session = &lease.session;
    let call = messages::ownership(lease.target());
    let owner = ask_once(&store.sessions.members, within(&session.group, call));
    let (confirmed, owner) = future::join(store.sessions.heartbeat(session), owner).await;
    match (confirmed, owner) {
        (Err(err), _) | (_, Err(err)) if is_over(&err) => Renewal::Lost(LostReason::SessionGone),
        (_, Ok(owner)) if owner.endpoint != lease.endpoint() => {
            Renewal::Lost(match owner.is_held() {
                true => LostReason::TakenOver,
                false => LostReason::StoreSaysNo,
            })
        }
        (Err(err), _) | (_, Err(err)) => Renewal::Unknown(Error::from(err)),
        (Ok(sent), Ok(_)) => {
            let ttl = store.lease_for(hold.ttl);
            let until = sent.after(ttl);
            store.set_state(hold, State::Held { until });
            Renewal::Renewed {
                sent,
                ttl: Some(ttl),
            }
        }
    }
}

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
        State::Waiting if lease.session.due() <= now => waiting.push(lease.session.clone()),
        State::Waiting => next = next.min(lease.session.due()),
        State::Held { until } if until <= now => expired.push(owner),
        State::Held { until } => next = next.min(until),
        State::Unknown => {}
    });
    for session in waiting {
        next = next.min(wait::retry_at(now, session.ttl));
        beat(&store, session);
    }
    for owner in expired {
        // The driver did not renew the hold, so it counts as lost. The session may go on for longer than the lease.
        if let Some(lease) = store.leases.remove(owner) {
            release::close_in_background(&store, &lease.session);
        }
    }
    let (overdue, idle) = store.sessions.take_overdue(now);
    for session in overdue {
        release::close_in_background(&store, &session);
    }
    next.min(idle)
}

/// Sends the heartbeat of a waiter in the background.
fn beat(store: &Arc<Store>, session: Arc<Session>) {
    if !session.begin_beat() {
        return;
    }
    let beating = store.clone();
    release::spawn_until_closed(store, async move {
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
