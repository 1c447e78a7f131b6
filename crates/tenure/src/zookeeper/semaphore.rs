//! Permits in the layout of Curator's `InterProcessSemaphoreV2` (`dialect=curator-semaphore`).
//!
//! A contender first takes a mutex, the *gate*. Then it makes a node for its permit, waits until there are no more of these
//! nodes than permits, and leaves the gate. So at most one contender waits among the permits, and all others at the gate.

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::queue::{self, Acquisition as _, Waited};
use tenure_core::store::Answer;
use tenure_core::support::{RetryBudget, closed, not_left};

use super::enqueue::create_node;
use super::names;
use super::renew;
use super::requests;
use super::wait::{Goal, Operation, QueueEntry};

/// Takes a permit for the contender at the gate, and leaves the gate. `None`: the node of the permit is gone.
pub(super) async fn take_permit(
    operation: &Operation<'_>,
    gate: &QueueEntry,
) -> Result<Option<Answer>, Error> {
    let Operation { store, request, .. } = operation;
    let Mode::Permits { limit } = request.mode else {
        unreachable!("BUG: `check_mode` lets permits through only")
    };
    let permits = usize::try_from(limit.get()).unwrap_or(usize::MAX);
    let dir = names::semaphore_leases(&store.directory(&request.name)?);
    let held = store.holds.update(request.owner, |held| {
        held.gate = Some(gate.node.path.clone());
        held.dir = dir;
        held.node = None;
        held.clone()
    });
    let held = held.ok_or_else(closed)?;
    let mut entry = create_node(request, &held, &names::semaphore_lease(request.owner)).await?;
    let node = Some(entry.node.clone());
    store.holds.update(request.owner, |held| held.node = node);
    entry.goal = Goal::Permit { permits };
    let mut limit = store.clock.now().after(request.ttl);
    match queue::wait(operation, &entry, None, &mut limit).await? {
        Waited::Held { .. } => leave_gate(operation, &entry, gate).await,
        Waited::EntryLost => Ok(None),
        Waited::Stopped => {
            let left = operation.leave().await;
            left.map(|()| Some(Answer::Busy)).map_err(not_left)
        }
    }
}

/// Deletes the node at the gate: the next contender comes in.
async fn leave_gate(
    operation: &Operation<'_>,
    entry: &QueueEntry,
    gate: &QueueEntry,
) -> Result<Option<Answer>, Error> {
    let Operation { store, request, .. } = operation;
    let (session, clock) = (&entry.session, &store.clock);
    // Node and session are there still, and the lease is long enough.
    let Some(lease) = operation.confirm_turn(entry).await? else {
        return Ok(None);
    };
    let mut retries = RetryBudget::until(clock.now().after(request.ttl));
    while let Err(err) = requests::delete_node(session, &gate.node.path).await {
        if !err.is_ambiguous() || retries.is_spent(clock) {
            return Err(session.explain(err));
        }
        retries.pause(clock).await;
    }
    store.holds.update(request.owner, |held| held.gate = None);
    Ok(Some(renew::granted(store, request, &entry.node, lease)))
}
