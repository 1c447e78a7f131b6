//! Release, and the end of requests that nobody waits for.

use std::sync::Arc;

use tenure_core::backend::{Answer, BoxFuture, Hold, Release, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::rt::lock;

use super::claim::Claim;
use super::errors::{merged, no_answer};
use super::requests::Crowd;
use super::store::Core;

/// Brings one request of a hold that is decided to its end: what it brings is kept while the hold lasts,
/// told the token, and given back otherwise.
pub(super) async fn see_out(
    core: &Arc<Core>,
    claim: &Arc<Claim>,
    node: usize,
    ask: Arc<Request>,
    mut asking: BoxFuture<Result<Answer, Error>>,
) {
    let limit = core.node_limit(claim.request.ttl);
    let until = core.clock.now().after(limit);
    let answer = tokio::select! {
        biased;
        answer = &mut asking => answer,
        () = claim.unwanted(node) => {
            ask.stop.raise();
            asking.await
        }
        () = core.clock.sleep_until(until) => {
            ask.stop.raise();
            asking.await
        }
    };
    let mut hold = Hold::new(&ask, 0);
    let mut unclear = matches!(&answer, Err(err) if err.kind() == ErrorKind::Indeterminate);
    if let Ok(Answer::Granted(grant)) = answer {
        core.saw(grant.token);
        hold.token = grant.token;
        let token = claim.token();
        if grant.token < token && !claim.ended.is_raised() {
            // If it fails: the token is safe with the majority that knows it.
            let _ = core.nodes[node].raise(hold.clone(), token).await;
        }
        claim.held(node);
        unclear = true;
    }
    if unclear && claim.ended.is_raised() && claim.is_orphan(node, hold.owner) {
        give_back(core.clone(), node, hold).await;
    }
}

/// Releases on one node until it has answered definitely, the lease is over, or the client closes.
pub(super) async fn give_back(core: Arc<Core>, node: usize, hold: Hold) {
    let give_up = core.clock.now().after(hold.ttl);
    for attempt in 0.. {
        if core.nodes[node].release(hold.clone()).await.is_ok() {
            return;
        }
        if core.closing.is_raised() {
            return;
        }
        let left = give_up.since(core.clock.now());
        let Some(pause) = pace::next(attempt, rand::random(), None, Some(left)) else {
            return;
        };
        tokio::select! {
            // Once more, and that is all.
            () = core.closing.raised() => {}
            () = core.clock.sleep_until(core.clock.now().after(pause)) => {}
        }
    }
}

/// Gives back on all nodes. It was ours, and is free, when a majority says so; it was not ours when
/// a majority definitely did not have it.
pub(super) async fn release(core: Arc<Core>, hold: Hold) -> Result<Release, Error> {
    let Some(claim) = core.claim(hold.owner) else {
        return Ok(Release::NotHeld);
    };
    let now = core.clock.now();
    claim.leave(now);
    let nodes = core.nodes.len();
    let limit = core.hold_limit(hold.ttl);
    let until = now.after(limit);
    let mut crowd =
        Crowd::new((0..nodes).map(|node| core.nodes[node].release(claim.on(node, hold.unclean))));
    let mut tally = Tally::new(nodes);
    let mut errors = Vec::new();
    let mut hear = |node: usize, answer| match answer {
        Ok(release) => {
            if claim.left(node, release) {
                let again = give_back(core.clone(), node, claim.on(node, false));
                core.see_to(Box::pin(again));
            }
            // It may have said so before, when too few others did.
            if lock(&claim.seats).of_node[node].released {
                tally.yes(node)
            } else {
                tally.no(node)
            }
        }
        Err(err) => {
            errors.push(err);
            tally.unknown(node)
        }
    };
    while let Some((node, answer)) = crowd.next_until(&core.clock, until).await {
        if hear(node, answer) == Verdict::Won {
            break;
        }
    }
    while let Some((node, answer)) = crowd.landed() {
        hear(node, answer);
    }
    let outcome = if tally.verdict() == Verdict::Won {
        Ok(Release::Released)
    } else if tally.is_refused() {
        Ok(Release::NotHeld)
    } else {
        let silent = (0..nodes).filter(|node| crowd.is_flying(*node));
        errors.extend(silent.map(|_| no_answer(limit)));
        Err(merged(errors, nodes, "gave no clear answer to the release"))
    };
    if outcome.is_ok() {
        core.forget(&claim);
        // The others are told until they have heard it.
        for node in tally.to_release() {
            if tally.said_yes(node) {
                continue;
            }
            let (of_core, of_claim) = (core.clone(), claim.clone());
            let (hold, flight) = (claim.on(node, hold.unclean), crowd.take(node));
            core.see_to(Box::pin(async move {
                if let Some(flight) = flight
                    && let Ok(release) = flight.await
                    && !of_claim.left(node, release)
                {
                    return;
                }
                // What is granted from now on may come after what is sent from now on.
                lock(&of_claim.seats).of_node[node].leaving = false;
                give_back(of_core, node, hold).await;
            }));
        }
    } else {
        crowd.leave(&core);
    }
    outcome
}
