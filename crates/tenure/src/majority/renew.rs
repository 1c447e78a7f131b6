//! Renewal, and repair of holds that a node has lost.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Hold, Renewal};
use tenure_core::error::Error;
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::time::Time;

use super::claim::Claim;
use super::errors::{merged, no_answer};
use super::release::see_out;
use super::requests::Crowd;
use super::store::Core;

/// Renews on all nodes, one request for each. A majority decides, for each hold.
pub(super) async fn renew(core: Arc<Core>, holds: Vec<Hold>) -> Vec<Renewal> {
    let claims: Vec<_> = holds.iter().map(|hold| core.claim(hold.owner)).collect();
    let known: Vec<_> = claims.iter().flatten().cloned().collect();
    let renewed = renew_claims(&core, &known).await;
    let mut renewed = renewed.into_iter();
    claims
        .iter()
        .map(|claim| {
            let of_claim = claim.as_ref().and_then(|_| renewed.next());
            of_claim.unwrap_or(Renewal::Lost(LostReason::StoreSaysNo))
        })
        .collect()
}

/// What the nodes said of one hold.
struct Vote {
    tally: Tally,
    /// Until when each yes is good.
    ends: Vec<(Time, Time)>,
    no_lease: usize,
    /// Nodes that definitely do not have it.
    missing: Vec<usize>,
    reason: LostReason,
    errors: Vec<Error>,
}

pub(super) async fn renew_claims(core: &Arc<Core>, claims: &[Arc<Claim>]) -> Vec<Renewal> {
    let nodes = core.nodes.len();
    let sent = core.clock.now();
    let ttl = claims.iter().map(|claim| claim.request.ttl).min();
    let limit = core.hold_limit(ttl.unwrap_or_default());
    let mut crowd = Crowd::new(core.nodes.iter().enumerate().map(|(node, backend)| {
        backend.renew(claims.iter().map(|claim| claim.on(node, false)).collect())
    }));
    let mut votes: Vec<_> = claims.iter().map(|_| Vote::new(nodes)).collect();
    let until = sent.after(limit);
    while votes
        .iter()
        .any(|vote| vote.tally.verdict() == Verdict::Pending)
        && let Some((node, answers)) = crowd.next_until(&core.clock, until).await
    {
        debug_assert_eq!(answers.len(), votes.len(), "BUG: one answer per hold");
        for (vote, answer) in votes.iter_mut().zip(answers) {
            vote.hear(node, answer);
        }
    }
    // What has landed meanwhile tells what to heal, and makes a loss definite.
    while let Some((node, answers)) = crowd.landed() {
        for (vote, answer) in votes.iter_mut().zip(answers) {
            vote.hear(node, answer);
        }
    }
    let mut renewed = Vec::new();
    let verdicts = votes.into_iter().zip(claims).map(|(vote, claim)| {
        let missing = vote.missing.clone();
        let renewal = vote.verdict(nodes, sent, limit);
        let is_renewed = matches!(renewal, Renewal::Renewed { .. });
        if is_renewed {
            missing.into_iter().for_each(|node| heal(core, claim, node));
        }
        renewed.push(is_renewed.then(|| claim.clone()));
        renewal
    });
    let verdicts = verdicts.collect();
    if crowd.is_any_flying() {
        core.see_to(Box::pin(heal_stragglers(core.clone(), crowd, renewed)));
    }
    verdicts
}

/// The answers that came after the majority's decide nothing, but they say where a hold is missing.
async fn heal_stragglers(
    core: Arc<Core>,
    mut crowd: Crowd<Vec<Renewal>>,
    claims: Vec<Option<Arc<Claim>>>,
) {
    while let Some((node, answers)) = crowd.next().await {
        for (claim, answer) in claims.iter().zip(answers) {
            if let (Some(claim), Renewal::Lost(_)) = (claim, answer)
                && !claim.ended.is_raised()
            {
                heal(&core, claim, node);
            }
        }
    }
}

impl Vote {
    fn new(nodes: usize) -> Self {
        Self {
            tally: Tally::new(nodes),
            ends: Vec::new(),
            no_lease: 0,
            missing: Vec::new(),
            reason: LostReason::StoreSaysNo,
            errors: Vec::new(),
        }
    }

    fn hear(&mut self, node: usize, answer: Renewal) {
        match answer {
            Renewal::Renewed { sent, ttl } => {
                match ttl {
                    Some(ttl) => self.ends.push((sent.after(ttl), sent)),
                    None => self.no_lease += 1,
                }
                self.tally.yes(node);
            }
            Renewal::Lost(reason) => {
                self.reason = reason;
                self.missing.push(node);
                self.tally.no(node);
            }
            Renewal::Unknown(err) => {
                self.errors.push(err);
                self.tally.unknown(node);
            }
            // There is no other answer.
            _ => {
                self.tally.unknown(node);
            }
        }
    }

    fn verdict(self, nodes: usize, sent: Time, limit: Duration) -> Renewal {
        if self.tally.verdict() == Verdict::Won {
            let lease = weakest(self.ends, self.no_lease, self.tally.majority());
            return match lease {
                Some((sent, ttl)) => Renewal::Renewed {
                    sent,
                    ttl: Some(ttl),
                },
                None => Renewal::Renewed { sent, ttl: None },
            };
        }
        if self.tally.is_refused() {
            return Renewal::Lost(self.reason);
        }
        let mut errors = self.errors;
        let answered = self.ends.len() + self.no_lease + self.missing.len() + errors.len();
        errors.extend((answered..nodes).map(|_| no_answer(limit)));
        Renewal::Unknown(merged(errors, nodes, "gave no clear answer"))
    }
}

/// The lease that a majority carries, given until when each node does, and since when: it ends with the
/// weakest node of the best majority. `None` when `no_lease` nodes, where none runs, are a majority by themselves.
///
/// The driver's margin is what Redlock calls drift, so nothing is taken off for that here.
pub(super) fn weakest(
    mut ends: Vec<(Time, Time)>,
    no_lease: usize,
    majority: usize,
) -> Option<(Time, Duration)> {
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.truncate(majority.saturating_sub(no_lease));
    let (end, _) = *ends.last()?;
    let sent = ends.iter().map(|(_, sent)| *sent).min()?;
    Some((sent, end.since(sent)))
}

/// A node that definitely does not have the hold gets it again, unless somebody else has it there.
fn heal(core: &Arc<Core>, claim: &Arc<Claim>, node: usize) {
    {
        let mut seats = lock(&claim.seats);
        let seat = &mut seats.of_node[node];
        seat.held = false;
        if std::mem::replace(&mut seat.healing, true) {
            return;
        }
    }
    let (of_core, of_claim) = (core.clone(), claim.clone());
    core.see_to(Box::pin(async move {
        let (core, claim) = (of_core, of_claim);
        if !claim.ended.is_raised() {
            let ask = claim.ask(node, false, claim.token());
            let asking = core.nodes[node].acquire(ask.clone());
            see_out(&core, &claim, node, ask, asking).await;
        }
        lock(&claim.seats).of_node[node].healing = false;
    }));
}
