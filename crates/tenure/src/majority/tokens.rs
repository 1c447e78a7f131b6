//! Tokens that are reserved for a hold on a majority of the nodes, so that the tasks of a client can pass it on.

use std::future::ready;
use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::store::{BoxFuture, Hold, ReserveTokens};

use super::holds::QuorumHold;
use super::requests::NodeRequests;
use super::store::Store;
use super::yes_or_no::answers;

/// Whether every node reserves tokens.
pub(super) fn are_reserved(store: &Store) -> bool {
    let mut nodes = store.nodes.iter();
    nodes.all(|node| node.clone().as_reserve_tokens().is_some())
}

impl ReserveTokens for Store {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { reserve(&self, &hold, last).await })
    }
}

/// Reserves the tokens on every node; a majority decides. Every later grant by a majority has a node of that one.
async fn reserve(store: &Store, hold: &Hold, last: u64) -> Result<bool, Error> {
    let Some(held) = store.holds.get(hold.owner) else {
        return Ok(false);
    };
    held.begin_turn(hold.token, last);
    let nodes = 0..store.nodes.len();
    let requests = NodeRequests::new(nodes.map(|node| {
        let on_node = held.on_node(node, false);
        reserve_on(store, node, on_node, hold.token, last)
    }));
    let answers = answers(store, hold.ttl, requests).await;
    answers.outcome("gave no clear answer to the reservation of tokens")
}

fn reserve_on(
    store: &Store,
    node: usize,
    mut on_node: Hold,
    first: u64,
    last: u64,
) -> BoxFuture<Result<bool, Error>> {
    on_node.token = first;
    match store.nodes[node].clone().as_reserve_tokens() {
        Some(node) => node.reserve(on_node, last),
        None => Box::pin(ready(Ok(false))),
    }
}

/// Tells a node that has granted the hold late, as `on_node`, the token of the hold, and which tokens are reserved for it. If
/// that fails, the majority that knows the token is enough.
pub(super) async fn tell(store: &Store, held: &QuorumHold, node: usize, on_node: Hold) {
    match held.tokens() {
        (Some(first), last) => {
            let _ = reserve_on(store, node, on_node, first, last).await;
        }
        (None, token) if on_node.token < token => {
            let _ = store.nodes[node].clone().raise(on_node, token).await;
        }
        _ => {}
    }
}
