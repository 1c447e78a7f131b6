//! Release on all nodes, the end of requests whose caller has left, and closing.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::store::{Answer, BoxFuture, Hold, Release, Request};
use tenure_core::support::RetryBudget;

use super::errors::{no_answer, no_majority};
use super::holds::QuorumHold;
use super::requests::NodeRequests;
use super::store::Store;
use super::tokens;

/// Releases a hold on all nodes. The name was ours, and is free, when a majority answers so; it was not ours when
/// a majority definitely did not have the hold.
pub(super) async fn release(store: &Arc<Store>, hold: &Hold) -> Result<Release, Error> {
    let Some(held) = store.holds.get(hold.owner) else {
        return Ok(Release::NotHeld);
    };
    let now = store.clock.now();
    held.start_release(now);
    let nodes = store.nodes.len();
    let timeout = store.settings.hold_timeout_for(hold.ttl);
    let until = now.after(timeout);
    let before_next = token_before_next(store, &held);
    release_where_not_found(store, &held, before_next, hold.unclean);
    let on_node = |node| {
        let mut on_node = held.on_node(node, hold.unclean);
        on_node.unused = hold.unused;
        on_node.token = before_next;
        on_node
    };
    let mut requests =
        NodeRequests::new((0..nodes).map(|node| store.nodes[node].clone().release(on_node(node))));
    let mut votes = ReleaseVotes {
        tally: Tally::new(nodes),
        errors: Vec::new(),
    };
    while votes.tally.verdict() != Verdict::Won
        && let Some((node, reply)) = requests.next_until(&store.clock, until).await
    {
        votes.count(store, &held, node, reply);
    }
    while let Some((node, reply)) = requests.next_arrived() {
        votes.count(store, &held, node, reply);
    }
    let silent = (0..nodes).filter(|node| requests.is_open(*node)).count();
    match votes.outcome(nodes, (0..silent).map(|_| no_answer(timeout))) {
        ReleaseOutcome::Known {
            release,
            unfinished,
        } => {
            store.holds.remove(&held);
            for node in unfinished {
                let hold = on_node(node);
                let pending = requests.take(node);
                let work = finish_release(store.clone(), held.clone(), node, hold, pending);
                store.background.run(Box::pin(work));
            }
            Ok(release)
        }
        ReleaseOutcome::Ambiguous(err) => {
            requests.finish_in(&store.background);
            Err(err)
        }
    }
}

/// The nodes that hand the name over to a waiter do so under the token that follows this one; 0 if the hold has none.
///
/// A node that the waiter's request reaches after the release grants it under the number that the waiter has proposed. That
/// number is less than this one, unless the clocks of the clients differ, so the next hold has the greater token, and tells it
/// to that node. With the token of this hold, which may be hours old, the next hold would have two tokens for its whole life,
/// of which the lower one counts.
fn token_before_next(store: &Store, held: &QuorumHold) -> u64 {
    match held.token() {
        0 => 0,
        token => token.max(store.proposal().saturating_sub(1)),
    }
}

/// What the nodes answered to a release.
struct ReleaseVotes {
    tally: Tally,
    errors: Vec<Error>,
}

enum ReleaseOutcome {
    Known {
        release: Release,
        /// Nodes that may still have the hold.
        unfinished: Vec<usize>,
    },
    Ambiguous(Error),
}

impl ReleaseVotes {
    fn count(
        &mut self,
        store: &Arc<Store>,
        held: &QuorumHold,
        node: usize,
        reply: Result<Release, Error>,
    ) {
        match reply {
            Ok(release) => {
                if held.finish_release(node, release) {
                    let mut late_grant = held.on_node(node, false);
                    late_grant.unused = true;
                    release_in_background(store, node, late_grant);
                }
                // The node may have released the hold at an earlier release, which too few other nodes answered.
                match held.is_released(node) {
                    true => self.tally.yes(node),
                    false => self.tally.no(node),
                };
            }
            Err(err) => {
                self.errors.push(err);
                self.tally.unknown(node);
            }
        }
    }

    /// `silent` has an error for each of the `nodes` that did not answer.
    fn outcome(mut self, nodes: usize, silent: impl Iterator<Item = Error>) -> ReleaseOutcome {
        let release = match self.tally.verdict() {
            Verdict::Won => Release::Released,
            _ if self.tally.is_refused() => Release::NotHeld,
            _ => {
                self.errors.extend(silent);
                let what = "gave no clear answer to the release";
                return ReleaseOutcome::Ambiguous(no_majority(self.errors, nodes, what));
            }
        };
        let mut unfinished = self.tally.to_release();
        unfinished.retain(|node| !self.tally.said_yes(*node));
        ReleaseOutcome::Known {
            release,
            unfinished,
        }
    }
}

/// Releases on a node whose answer was not needed: awaits the release that is `pending`, and sends another one unless
/// that was answered.
async fn finish_release(
    store: Arc<Store>,
    held: Arc<QuorumHold>,
    node: usize,
    hold: Hold,
    pending: Option<BoxFuture<Result<Release, Error>>>,
) {
    if let Some(pending) = pending
        && let Ok(release) = pending.await
        && !held.finish_release(node, release)
    {
        return;
    }
    held.repeat_release(node);
    release_until_answered(store, node, hold).await;
}

/// Releases an attached hold on the nodes that have not said yet under which owner id they have it, under each other one than
/// that of the hold.
fn release_where_not_found(
    store: &Arc<Store>,
    held: &QuorumHold,
    before_next: u64,
    is_unclean: bool,
) {
    for node in (0..store.nodes.len()).filter(|node| !held.is_found(*node)) {
        let all = held.all_on_node(node).into_iter();
        for mut other in all.filter(|it| it.owner != held.owner) {
            other.unclean = is_unclean;
            other.token = before_next;
            release_in_background(store, node, other);
        }
    }
}

fn release_in_background(store: &Arc<Store>, node: usize, hold: Hold) {
    let release = release_until_answered(store.clone(), node, hold);
    store.background.run(Box::pin(async move {
        release.await;
    }));
}

/// Releases on one node until the node has answered definitely, the lease is over, or the client closes. Whether the node has
/// answered the first request, so that no other one was sent.
pub(super) async fn release_until_answered(store: Arc<Store>, node: usize, hold: Hold) -> bool {
    let mut retries = RetryBudget::until(store.clock.now().after(hold.ttl));
    let mut is_first = true;
    while store.nodes[node]
        .clone()
        .release(hold.clone())
        .await
        .is_err()
    {
        is_first = false;
        if store.closing.is_raised() || retries.is_spent(&store.clock) {
            return false;
        }
        tokio::select! {
            // One attempt more, the last one.
            () = store.closing.raised() => {}
            () = retries.pause(&store.clock) => {}
        }
    }
    is_first
}

/// Awaits the answer to one request of a hold whose outcome is decided. A grant is kept while the hold lasts, and is
/// told the token; after the end of the hold it is released, unless the hold goes on without this client. Without an answer
/// the node is given back.
pub(super) async fn finish_request(
    store: &Arc<Store>,
    held: &Arc<QuorumHold>,
    node: usize,
    request: Arc<Request>,
    mut pending: BoxFuture<Result<Answer, Error>>,
) {
    let until = store.node_deadline(held.request.ttl);
    let answer = tokio::select! {
        biased;
        answer = &mut pending => answer,
        () = held.ended_without_release(node) => {
            request.stop.raise();
            pending.await
        }
        () = store.clock.sleep_until(until) => {
            request.stop.raise();
            pending.await
        }
    };
    let mut hold = Hold::new(&request, 0);
    hold.unused = true;
    let may_be_granted = match answer {
        Ok(Answer::Granted(grant)) => {
            store.note_token(grant.token);
            hold.token = grant.token;
            if !held.ended.is_raised() {
                tokens::tell(store, held, node, hold.clone()).await;
            }
            held.set_held(node, request.mode);
            true
        }
        Ok(_) => false,
        Err(err) if err.kind() != ErrorKind::Indeterminate => false,
        Err(_) if held.ended.is_raised() => true,
        Err(_) => return give_back_unclear(store, held, node, &request).await,
    };
    if may_be_granted
        && held.ended.is_raised()
        && !held.keeps_late_grant(node)
        && held.note_late_grant(node, hold.owner)
    {
        release_until_answered(store.clone(), node, hold).await;
    }
}

/// Releases what the node may have of a request without an answer. The request was ended by a release that may arrive late,
/// so the node is asked again under another owner id.
async fn give_back_unclear(
    store: &Arc<Store>,
    held: &Arc<QuorumHold>,
    node: usize,
    request: &Request,
) {
    let owner = || held.on_node(node, false).owner;
    if owner() != request.owner {
        return;
    }
    let mut before = held.replace_owner(node);
    before.unused = true;
    store.holds.remove_alias(before.owner, held);
    store.holds.insert(owner(), held, store.clock.now());
    release_until_answered(store.clone(), node, before).await;
}

/// Finishes the releases that are under way, and closes the nodes. A node that does not answer is not asked again.
pub(super) async fn close(store: &Arc<Store>) {
    store.closing.raise();
    let now = store.clock.now();
    store.holds.all().iter().for_each(|hold| hold.end(now));
    store.background.all_done().await;
    let mut closing = NodeRequests::new(store.nodes.iter().map(|node| node.clone().close()));
    while closing.next().await.is_some() {}
}
