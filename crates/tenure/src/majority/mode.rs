//! Changing the mode of a hold on one node. What the node has at least is noted before a request is sent, or after it was
//! answered; see `logic::quorum_mode`.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::rt::Flag;
use tenure_core::store::{Answer, Request};
use tenure_core::support::RetryBudget;

use super::holds::QuorumHold;
use super::store::Store;

/// Makes the hold exclusive on one node. The answer is `Busy` after `stop`, or if the node has other holders and the
/// request does not wait.
pub(super) async fn make_exclusive(
    store: Arc<Store>,
    hold: Arc<QuorumHold>,
    node: usize,
    request: Arc<Request>,
    stop: Arc<Flag>,
) -> Result<Answer, Error> {
    let _turn = hold.turn(node).await;
    if stop.is_raised() {
        return Ok(Answer::Busy);
    }
    let mut asking = store.nodes[node]
        .clone()
        .upgrade(hold.on_node(node, false), request.clone());
    let answer = tokio::select! {
        biased;
        answer = &mut asking => answer,
        () = stop.raised() => {
            request.stop.raise();
            asking.await
        }
    };
    match &answer {
        Ok(Answer::Granted(grant)) => {
            store.note_token(grant.token);
            hold.set_held(node, Mode::Exclusive);
            if grant.token < hold.token() {
                // The majority that knows the token is enough.
                let on_node = hold.on_node(node, false);
                let _ = store.nodes[node].clone().raise(on_node, hold.token()).await;
            }
        }
        // A request that waits and was not stopped is refused only by a node that has no such hold.
        Ok(_) => {
            if request.wait && !request.stop.is_raised() {
                hold.set_lost(node);
            }
        }
        Err(err) => {
            if err.kind() == ErrorKind::Lost {
                hold.set_lost(node);
            }
        }
    }
    answer
}

/// Makes the hold weaker on one node: asks until the node has answered, a ttl has passed, or the change is over.
pub(super) async fn weaken(
    store: Arc<Store>,
    hold: Arc<QuorumHold>,
    node: usize,
    mode: Mode,
    stop: Arc<Flag>,
) -> Result<bool, Error> {
    let _turn = hold.turn(node).await;
    let mut retries = RetryBudget::until(store.clock.now().after(hold.request.ttl));
    while !stop.is_raised() {
        hold.with_mode(|known| known.weakens(node, mode));
        let on_node = hold.on_node(node, false);
        match store.nodes[node].clone().downgrade(on_node, mode).await {
            Ok(true) => {
                hold.set_held(node, mode);
                return Ok(true);
            }
            Ok(false) => {
                hold.set_lost(node);
                return Ok(false);
            }
            Err(err) if store.closing.is_raised() || retries.is_spent(&store.clock) => {
                return Err(err);
            }
            Err(_) => {}
        }
        tokio::select! {
            () = stop.raised() => {}
            () = store.closing.raised() => {}
            () = retries.pause(&store.clock) => {}
        }
    }
    Err(Error::new(
        ErrorKind::Indeterminate,
        "the hold is over, or its mode was to change again",
    ))
}
