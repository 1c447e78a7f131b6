//! Permits in the layout of Curator's `InterProcessSemaphoreV2` (`dialect=curator-semaphore`).
//!
//! A contender first takes a mutex, the *gate*. Then it makes a node for its permit, waits until there are no more of these
//! nodes than permits, and leaves the gate. So at most one contender waits among the permits, and all others at the gate.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::store::{Answer, Request};
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::enqueue::create_node;
use super::errors::RequestError;
use super::names;
use super::release;
use super::renew;
use super::requests;
use super::store::Store;
use super::wait::{self, QueueEntry, WaitOutcome, WakeUp};

/// Takes a permit for the contender at the gate, and leaves the gate.
pub(super) async fn take_permit(
    store: &Arc<Store>,
    request: &Request,
    gate: QueueEntry,
    retry_until: Time,
) -> Result<Answer, Error> {
    let Mode::Permits { limit } = request.mode else {
        unreachable!("BUG: `check_mode` lets permits through only")
    };
    let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
    let session = gate.session.clone();
    let dir = names::semaphore_leases(&store.directory(&request.name)?);
    let held = store.holds.update(request.owner, |held| {
        held.gate = Some(gate.node.path.clone());
        held.dir = dir;
        held.path = None;
        held.clone()
    });
    let Some(held) = held else {
        let what = "the client was closed";
        return Err(Error::new(ErrorKind::Closed, what));
    };
    let created = create_node(request, &held, &names::semaphore_lease(request.owner)).await;
    let mut entry = match created {
        Ok(entry) => entry,
        Err(err) => return Err(release::give_up(store, request, err).await),
    };
    store.holds.update(request.owner, |held| {
        held.path = Some(entry.node.path.clone());
        held.number = entry.node.number;
    });
    let outcome = wait(request, &entry, limit, retry_until).await;
    match outcome {
        Ok(WaitOutcome::Granted { lease, .. }) => {
            entry.lease = lease;
            leave_gate(store, request, &entry, &gate, retry_until).await
        }
        Ok(WaitOutcome::Stopped) => {
            let left = release::leave_queue(store, request).await;
            left.map(|()| Answer::Busy)
        }
        Ok(WaitOutcome::NodeGone) => {
            let what = "our node among the permits was deleted; retry";
            let err = Error::new(ErrorKind::Unreachable, what);
            Err(release::give_up(store, request, err).await)
        }
        Err(err) => Err(release::give_up(store, request, session.explain(err)).await),
    }
}

/// Waits until there are no more nodes than permits.
async fn wait(
    request: &Request,
    entry: &QueueEntry,
    limit: usize,
    retry_until: Time,
) -> Result<WaitOutcome, RequestError> {
    let (session, clock) = (&entry.session, entry.session.clock());
    let mut retries = RetryBudget::until(retry_until);
    loop {
        let (children, watcher) = match requests::watch_children(session, &entry.dir).await {
            Ok(Some(watched)) => watched,
            Ok(None) => return Ok(WaitOutcome::NodeGone),
            Err(err) if err.is_ambiguous() && request.wait && !retries.is_spent(clock) => {
                if request.unless_stopped(retries.pause(clock)).await.is_none() {
                    return Ok(WaitOutcome::Stopped);
                }
                continue;
            }
            Err(err) => return Err(err),
        };
        if !children.contains(&entry.node.name) {
            return Ok(WaitOutcome::NodeGone);
        }
        if children.len() <= limit {
            // Node and session are there still, and the lease is long enough.
            return Ok(match wait::confirm_turn(request, entry).await? {
                Some(lease) => WaitOutcome::Granted {
                    lease,
                    last_token: 0,
                },
                None => WaitOutcome::NodeGone,
            });
        }
        if !request.wait {
            return Ok(WaitOutcome::Stopped);
        }
        request.report_taken();
        retries = RetryBudget::until(wait::retry_until(request, session));
        match wait::next_wake_up(request, session, vec![watcher]).await {
            WakeUp::Stopped => return Ok(WaitOutcome::Stopped),
            WakeUp::QueueChanged => {}
            WakeUp::SafetyPoll => {
                // A write, which shows that our session is there. Whether the node is, the list tells.
                let _ = requests::check_nodes(session, &[&*entry.node.path]).await;
            }
        }
    }
}

/// Deletes the node at the gate: the next contender comes in.
async fn leave_gate(
    store: &Arc<Store>,
    request: &Request,
    entry: &QueueEntry,
    gate: &QueueEntry,
    retry_until: Time,
) -> Result<Answer, Error> {
    let (session, clock) = (&entry.session, &store.clock);
    let mut retries = RetryBudget::until(retry_until);
    while let Err(err) = requests::delete_node(session, &gate.node.path).await {
        if !err.is_ambiguous() || retries.is_spent(clock) {
            return Err(release::give_up(store, request, session.explain(err)).await);
        }
        retries.pause(clock).await;
    }
    store.holds.update(request.owner, |held| held.gate = None);
    Ok(renew::granted(store, request, entry, entry.lease))
}
