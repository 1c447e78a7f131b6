//! Acquiring a name: at once, or as a waiter in the queue of the table.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::disturbance::restarted_lately;
use super::store::{Shared, StoreState};
use super::wait::Queued;
use crate::error::Error;
use crate::logic::table::{Claim, LockRequest, Queueing, Verdict};
use crate::options::Fairness;
use crate::store::{AllAnswer, Answer, Grant, Request};
use crate::time::Time;

/// What the table says to a request.
pub(super) enum TableReply {
    Answered(Result<Answer, Error>),
    Queued(Queued),
}

/// Acquires the name of `request`, which was sent at `sent`, or queues it.
pub(super) fn acquire(store: &Arc<Shared>, request: &Request, sent: Time) -> TableReply {
    store.with_state(|state, now| {
        if let Some(left) = state.guarded(now) {
            return TableReply::Answered(Err(restarted_lately(left)));
        }
        match ask(state, request, request.wait, store.lease(request.ttl), now) {
            Verdict::Busy => TableReply::Answered(Ok(Answer::Busy)),
            Verdict::Granted { token } => {
                let way = now.since(sent);
                let grant = store.grant(token, sent, way, request.ttl);
                TableReply::Answered(Ok(Answer::Granted(grant)))
            }
            Verdict::Queued => {
                request.report_taken();
                let (sender, receiver) = oneshot::channel();
                state.waiting.insert(request.owner, sender);
                TableReply::Queued(Queued(receiver))
            }
        }
    })
}

/// Acquires a name that is free, if no request is disturbed.
pub(super) fn acquire_now(store: &Shared, request: &Request) -> Option<Grant> {
    store.with_state(|state, now| {
        if !state.is_undisturbed() || state.guarded(now).is_some() {
            return None;
        }
        match ask(state, request, false, store.lease(request.ttl), now) {
            Verdict::Granted { token } => {
                state.requests += 1;
                Some(store.grant(token, now, Duration::ZERO, request.ttl))
            }
            Verdict::Queued | Verdict::Busy => None,
        }
    })
}

/// Acquires all names, or none of them, with one request that was sent at `sent`.
pub(super) fn acquire_all(
    store: &Arc<Shared>,
    requests: &[Arc<Request>],
    sent: Time,
) -> Result<AllAnswer, Error> {
    store.with_state(|state, now| {
        if let Some(left) = state.guarded(now) {
            return Err(restarted_lately(left));
        }
        let asked = requests.iter();
        let asked = asked.map(|request| lock_request(request, store.lease(request.ttl)));
        let asked: Vec<_> = asked.collect();
        Ok(match state.table.acquire_all(&asked, now) {
            Err(at) => AllAnswer::Busy(at),
            Ok(tokens) => {
                let grants = requests.iter().zip(tokens).map(|(request, token)| {
                    let holder = request.holder.clone();
                    state.holders.insert(request.owner, holder);
                    store.grant(token, sent, now.since(sent), request.ttl)
                });
                AllAnswer::Granted(grants.collect())
            }
        })
    })
}

/// A request that does not wait, with its name.
fn lock_request(request: &Request, ttl: Option<Duration>) -> LockRequest {
    LockRequest {
        name: request.name.clone(),
        owner: request.owner,
        mode: request.mode,
        ttl,
        wait: false,
        barge: request.fair == Fairness::Unfair,
        min_hold: request.min_hold,
        lock_delay: request.lock_delay,
        waiter_ttl: None,
        propose: request.propose,
    }
}

fn claim_of(request: &Request, ttl: Option<Duration>) -> Claim {
    Claim {
        owner: request.owner,
        mode: request.mode,
        ttl,
        min_hold: request.min_hold,
        lock_delay: request.lock_delay,
        propose: request.propose,
    }
}

fn ask(
    state: &mut StoreState,
    request: &Request,
    wait: bool,
    ttl: Option<Duration>,
    now: Time,
) -> Verdict {
    let queueing = Queueing {
        wait,
        barge: request.fair == Fairness::Unfair,
        waiter_ttl: None,
    };
    let claim = claim_of(request, ttl);
    let verdict = state
        .table
        .acquire_claim(&request.name, claim, queueing, now);
    if verdict != Verdict::Busy {
        state.holders.insert(request.owner, request.holder.clone());
    }
    verdict
}
