//! Under which owner id each node has a hold that was detached by another client; see `owners`.

use std::sync::Arc;

use futures_util::future::join_all;

use tenure_core::fence::OwnerId;
use tenure_core::store::{BoxFuture, Renewal};

use super::holds::QuorumHold;
use super::owners;
use super::store::Store;

/// Attaches this client to the hold on one node, under the owner id that the hold has there. `Lost`: the node has the hold
/// under none. A node forgets the hold again if this client has left the hold by then.
pub(super) fn attach_on(
    store: &Arc<Store>,
    hold: &Arc<QuorumHold>,
    node: usize,
) -> BoxFuture<Renewal> {
    let (store, hold) = (store.clone(), hold.clone());
    Box::pin(async move {
        let (owner, renewal) = find(&store, &hold, node).await;
        match &renewal {
            Renewal::Renewed { .. } => {
                if owner != hold.owner && !hold.ended.is_raised() {
                    store.holds.insert(owner, &hold, store.clock.now());
                }
                hold.found(node, owner);
                forget_if_left(&store, &hold, node);
            }
            Renewal::Lost(_) => hold.found_missing(node),
            // The owner id stays unknown.
            _ => {}
        }
        renewal
    })
}

/// The answer to the request under the owner id of the hold, or the best answer to those under the others.
async fn find(store: &Store, hold: &QuorumHold, node: usize) -> (OwnerId, Renewal) {
    let first = attach_as(store, hold, node, hold.owner).await;
    if !matches!(first.1, Renewal::Lost(_)) {
        return first;
    }
    // All others at the same time: a request of a store must not be dropped, so each of them is awaited in any case.
    let others = owners::made_of(hold.owner).filter(|owner| *owner != hold.owner);
    let answers = join_all(others.map(|owner| attach_as(store, hold, node, owner))).await;
    let best = answers.into_iter().min_by_key(|(_, answer)| match answer {
        Renewal::Renewed { .. } => 0,
        Renewal::Lost(_) => 2,
        _ => 1,
    });
    best.unwrap_or(first)
}

async fn attach_as(
    store: &Store,
    hold: &QuorumHold,
    node: usize,
    owner: OwnerId,
) -> (OwnerId, Renewal) {
    let mut on_node = hold.on_node(node, false);
    on_node.owner = owner;
    (owner, store.nodes[node].clone().attach_hold(on_node).await)
}

/// Asks a node that has not answered yet under which owner id it has the hold. A node that has no hold gets none.
pub(super) fn look_again(store: &Arc<Store>, hold: &Arc<QuorumHold>, node: usize) {
    if hold.is_found(node) || hold.ended.is_raised() || !hold.start_repair(node) {
        return;
    }
    let (looking, hold) = (attach_on(store, hold, node), hold.clone());
    store.background.run(Box::pin(async move {
        // The next renewal looks again after an unknown outcome.
        let _ = looking.await;
        hold.finish_repair(node);
    }));
}

/// A node has answered after the client has left the hold. A client that was attached again meanwhile keeps what the node knows.
pub(super) fn forget_if_left(store: &Store, hold: &Arc<QuorumHold>, node: usize) {
    let known = store.holds.get(hold.owner);
    if hold.is_left() && known.is_none_or(|known| Arc::ptr_eq(&known, hold)) {
        forget_on(store, hold, node);
    }
}

/// The node forgets the hold, under each owner id that it may have there.
pub(super) fn forget_on(store: &Store, hold: &QuorumHold, node: usize) {
    for on_node in hold.all_on_node(node) {
        store.nodes[node].forget_hold(&on_node);
    }
}
