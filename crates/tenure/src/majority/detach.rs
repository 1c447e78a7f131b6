//! Holds that go on without their client, on a majority of the nodes, and other clients that are attached to them.
//!
//! A client that is attached has not acquired the hold: it repairs nothing, because a node that has no hold may be one where
//! another attached client has released it.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::lost::LostReason;
use tenure_core::rt::Clock;
use tenure_core::store::{BoxFuture, Detach, Hold, Renewal, Request};
use tenure_core::time::Time;

use super::find::{attach_on, forget_if_left, forget_on};
use super::holds::QuorumHold;
use super::renew::RenewalVotes;
use super::requests::NodeRequests;
use super::store::Store;

/// Whether every node detaches holds.
pub(super) fn is_there(store: &Store) -> bool {
    let detaches = |node: &Arc<dyn tenure_core::store::Store>| node.clone().as_detach().is_some();
    store.nodes.iter().all(detaches)
}

impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { detach(&self, &hold).await })
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { attach(&self, &hold).await })
    }

    fn forget(&self, hold: &Hold) {
        if let Some(held) = self.holds.get(hold.owner) {
            leave(self, &held);
        }
    }
}

/// Detaches the hold on every node; a majority decides. A node that is not reached keeps the lease of the last renewal.
async fn detach(store: &Arc<Store>, hold: &Hold) -> Renewal {
    let Some(held) = store.holds.get(hold.owner) else {
        return Renewal::Lost(LostReason::StoreSaysNo);
    };
    let nodes = store.nodes.len();
    let sent = store.clock.now();
    let timeout = store.settings.hold_timeout_for(hold.ttl);
    let until = sent.after(timeout);
    let to_withdraw: Vec<_> = (0..nodes).filter(|it| !held.is_detachable(*it)).collect();
    let mut requests =
        NodeRequests::new((0..nodes).map(|node| match to_withdraw.contains(&node) {
            true => withdraw(store, &held, node),
            false => detach_on(store, &held, node, hold),
        }));
    let mut votes = RenewalVotes::new(nodes);
    while (!is_decided(&votes.tally) || to_withdraw.iter().any(|node| requests.is_open(*node)))
        && let Some((node, renewal)) = requests.next_until(&store.clock, until).await
    {
        votes.count(&held, node, renewal);
    }
    while let Some((node, renewal)) = requests.next_arrived() {
        votes.count(&held, node, renewal);
    }
    requests.finish_in(&store.background);
    let tally = votes.tally.clone();
    let may_have = tally.to_release();
    let renewal = votes.renewal(nodes, sent, timeout);
    if !matches!(renewal, Renewal::Renewed { .. }) {
        return renewal;
    }
    if to_withdraw.iter().any(|node| may_have.contains(node)) {
        let message = "a node where another client could not tell the mode of the hold, or not find it, did not give it back";
        return Renewal::Unknown(Error::new(ErrorKind::Indeterminate, message));
    }
    let now = store.clock.now();
    held.leave(now);
    // Remembered for a release: of several names that are detached together, the next one may fail.
    store.holds.remove(&held);
    store.holds.insert(held.owner, &held, now);
    for node in may_have.into_iter().filter(|node| !tally.said_yes(*node)) {
        forget_on(store, &held, node);
    }
    renewal
}

/// Whether the answers of other nodes change nothing any more.
fn is_decided(tally: &Tally) -> bool {
    tally.verdict() == Verdict::Won || tally.is_refused()
}

fn detach_on(
    store: &Arc<Store>,
    held: &Arc<QuorumHold>,
    node: usize,
    hold: &Hold,
) -> BoxFuture<Renewal> {
    let mut on_node = held.on_node(node, false);
    (on_node.mode, on_node.ttl) = (hold.mode, hold.ttl);
    let detaching = store.nodes[node].clone().detach_hold(on_node);
    let (store, held) = (store.clone(), held.clone());
    Box::pin(async move {
        let renewal = detaching.await;
        if !matches!(renewal, Renewal::Renewed { .. }) {
            forget_if_left(&store, &held, node);
        }
        renewal
    })
}

/// Releases the hold on a node that must not count for another client.
fn withdraw(store: &Arc<Store>, held: &Arc<QuorumHold>, node: usize) -> BoxFuture<Renewal> {
    let releasing = store.nodes[node].clone().release(held.on_node(node, false));
    Box::pin(async move {
        match releasing.await {
            Ok(_) => Renewal::Lost(LostReason::StoreSaysNo),
            Err(err) => Renewal::Unknown(err),
        }
    })
}

/// Looks for the hold on every node; a majority decides. Without one the nodes that have it are left as they are.
async fn attach(store: &Arc<Store>, hold: &Hold) -> Renewal {
    let nodes = store.nodes.len();
    let sent = store.clock.now();
    let mut request = Request::new(hold.name.clone(), hold.owner, hold.ttl);
    request.mode = hold.mode;
    request.is_renewed = true;
    let held = QuorumHold::attached(&Arc::new(request), hold.token, nodes);
    store.holds.insert(held.owner, &held, sent);
    // As an acquisition, which its caller waits for.
    let timeout = store.settings.node_timeout_for(hold.ttl);
    let until = sent.after(timeout);
    let mut requests = NodeRequests::new((0..nodes).map(|node| attach_on(store, &held, node)));
    let votes = attach_votes(&store.clock, &held, &mut requests, until, nodes).await;
    let renewal = votes.renewal(nodes, sent, timeout);
    if !matches!(renewal, Renewal::Renewed { .. }) {
        leave(store, &held);
    }
    requests.finish_in(&store.background);
    renewal
}

async fn attach_votes(
    clock: &Clock,
    held: &QuorumHold,
    requests: &mut NodeRequests<Renewal>,
    until: Time,
    nodes: usize,
) -> RenewalVotes {
    let mut votes = RenewalVotes::new(nodes);
    while !is_decided(&votes.tally)
        && let Some((node, renewal)) = requests.next_until(clock, until).await
    {
        votes.count(held, node, renewal);
    }
    while let Some((node, renewal)) = requests.next_arrived() {
        votes.count(held, node, renewal);
    }
    votes
}

/// This client has nothing to do with the hold any more, which goes on under its receipt.
fn leave(store: &Store, held: &QuorumHold) {
    held.leave(store.clock.now());
    store.holds.remove(held);
    (0..store.nodes.len()).for_each(|node| forget_on(store, held, node));
}
