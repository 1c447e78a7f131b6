//! Renewal by a majority, and repair: a node that has lost a hold is asked for it again.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::logic::quorum_mode::Repair;
use tenure_core::lost::LostReason;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Renewal};
use tenure_core::time::Time;

use super::errors::{no_answer, no_majority};
use super::find::look_again;
use super::holds::QuorumHold;
use super::mode::{make_exclusive, weaken};
use super::release::finish_request;
use super::requests::NodeRequests;
use super::store::Store;

/// A lease of `ttl` from `sent` on.
#[derive(Clone, Copy)]
pub(super) struct MajorityLease {
    pub(super) sent: Time,
    pub(super) ttl: Duration,
}

impl MajorityLease {
    pub(super) fn end(self) -> Time {
        self.sent.after(self.ttl)
    }
}

/// The lease that a majority gives: it ends with the first lease of the best majority, and counts from its earliest
/// request. `None`: `without_lease` nodes, whose holds have no end, are a majority by themselves.
///
/// The margin that the driver takes off is what Redlock calls drift, so nothing is taken off for that here.
pub(super) fn majority_lease(
    mut leases: Vec<MajorityLease>,
    without_lease: usize,
    majority: usize,
) -> Option<MajorityLease> {
    leases.sort_unstable_by_key(|lease| std::cmp::Reverse((lease.end(), lease.sent)));
    leases.truncate(majority.saturating_sub(without_lease));
    let end = leases.last()?.end();
    let sent = leases.iter().map(|lease| lease.sent).min()?;
    let ttl = end.since(sent);
    Some(MajorityLease { sent, ttl })
}

/// Renews `holds` with one request to each node. A majority decides, for each hold.
pub(super) async fn renew(store: &Arc<Store>, holds: &[Hold]) -> Vec<Renewal> {
    let found: Vec<_> = holds
        .iter()
        .map(|hold| store.holds.get(hold.owner))
        .collect();
    let known: Vec<_> = found.iter().flatten().cloned().collect();
    let mut renewed = renew_holds(store, &known).await.into_iter();
    let renewals = found.iter().map(|hold| {
        let renewal = hold.as_ref().and_then(|_| renewed.next());
        renewal.unwrap_or(Renewal::Lost(LostReason::StoreSaysNo))
    });
    renewals.collect()
}

/// What the nodes answered about one hold.
pub(super) struct RenewalVotes {
    pub(super) tally: Tally,
    leases: Vec<MajorityLease>,
    /// How many nodes have a hold without an end.
    without_lease: usize,
    /// How many nodes definitely do not have what is claimed.
    missing: usize,
    /// Nodes that have no hold, or one in another mode than the claimed one.
    to_repair: Vec<usize>,
    reason: LostReason,
    errors: Vec<Error>,
}

pub(super) async fn renew_holds(store: &Arc<Store>, holds: &[Arc<QuorumHold>]) -> Vec<Renewal> {
    let nodes = store.nodes.len();
    let sent = store.clock.now();
    let ttl = holds.iter().map(|hold| hold.request.ttl).min();
    let timeout = store.settings.hold_timeout_for(ttl.unwrap_or_default());
    let until = sent.after(timeout);
    let mut requests = NodeRequests::new(store.nodes.iter().enumerate().map(|(node, store)| {
        store
            .clone()
            .renew(holds.iter().map(|hold| hold.on_node(node, false)).collect())
    }));
    let mut votes: Vec<_> = holds.iter().map(|_| RenewalVotes::new(nodes)).collect();
    let is_open = |votes: &RenewalVotes| votes.tally.verdict() == Verdict::Pending;
    while votes.iter().any(is_open)
        && let Some((node, renewals)) = requests.next_until(&store.clock, until).await
    {
        count(&mut votes, holds, node, renewals);
    }
    // Replies that arrived meanwhile tell which nodes to repair, and make a loss definite.
    while let Some((node, renewals)) = requests.next_arrived() {
        count(&mut votes, holds, node, renewals);
    }
    let mut renewed = Vec::new();
    let renewals = votes.into_iter().zip(holds).map(|(votes, hold)| {
        let to_repair = votes.to_repair.clone();
        let renewal = votes.renewal(nodes, sent, timeout);
        let is_renewed = matches!(renewal, Renewal::Renewed { .. });
        if is_renewed {
            to_repair
                .into_iter()
                .for_each(|node| repair(store, hold, node));
        }
        renewed.push(is_renewed.then(|| hold.clone()));
        renewal
    });
    let renewals = renewals.collect();
    if requests.has_pending() {
        let work = repair_by_late_replies(store.clone(), requests, renewed);
        store.background.run(Box::pin(work));
    }
    renewals
}

fn count(
    votes: &mut [RenewalVotes],
    holds: &[Arc<QuorumHold>],
    node: usize,
    renewals: Vec<Renewal>,
) {
    debug_assert_eq!(renewals.len(), votes.len(), "BUG: one answer for each hold");
    for ((votes, hold), renewal) in votes.iter_mut().zip(holds).zip(renewals) {
        votes.count(hold, node, renewal);
    }
}

/// Replies after the majority's decide nothing, but they tell on which nodes a hold is missing.
async fn repair_by_late_replies(
    store: Arc<Store>,
    mut requests: NodeRequests<Vec<Renewal>>,
    renewed: Vec<Option<Arc<QuorumHold>>>,
) {
    while let Some((node, renewals)) = requests.next().await {
        for (hold, renewal) in renewed.iter().zip(renewals) {
            if let (Some(hold), Renewal::Lost(_)) = (hold, renewal)
                && !hold.ended.is_raised()
            {
                hold.set_lost(node);
                repair(&store, hold, node);
            }
        }
    }
}

impl RenewalVotes {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            tally: Tally::new(nodes),
            leases: Vec::new(),
            without_lease: 0,
            missing: 0,
            to_repair: Vec::new(),
            reason: LostReason::StoreSaysNo,
            errors: Vec::new(),
        }
    }

    pub(super) fn count(&mut self, hold: &QuorumHold, node: usize, renewal: Renewal) {
        match renewal {
            Renewal::Renewed { sent, ttl } => {
                if hold.is_attached && !hold.is_found(node) {
                    hold.found(node, hold.owner);
                }
                let (supports, is_as_claimed) = hold.with_mode(|mode| {
                    mode.found(node);
                    (mode.supports_if_held(node), mode.is_as_claimed(node))
                });
                if !is_as_claimed {
                    self.to_repair.push(node);
                }
                if !supports {
                    self.missing += 1;
                    self.tally.unknown(node);
                    return;
                }
                match ttl {
                    Some(ttl) => self.leases.push(MajorityLease { sent, ttl }),
                    None => self.without_lease += 1,
                }
                self.tally.yes(node);
            }
            Renewal::Lost(reason) => {
                self.reason = reason;
                hold.set_lost(node);
                self.missing += 1;
                self.to_repair.push(node);
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

    /// The outcome for the driver. Nodes that did not answer were silent for `timeout`.
    pub(super) fn renewal(self, nodes: usize, sent: Time, timeout: Duration) -> Renewal {
        if self.tally.verdict() == Verdict::Won {
            let majority = self.tally.majority();
            return match majority_lease(self.leases, self.without_lease, majority) {
                Some(MajorityLease { sent, ttl }) => Renewal::Renewed {
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
        let answered = self.leases.len() + self.without_lease + self.missing + errors.len();
        errors.extend((answered..nodes).map(|_| no_answer(timeout)));
        Renewal::Unknown(no_majority(errors, nodes, "gave no clear answer"))
    }
}

/// Asks a node for what the holder claims: for the hold, if the node definitely does not have it, or for another mode.
/// Nothing waits for the hold, because the name may have another holder there. A hold that was attached is never acquired
/// again: where it is missing, another client may have released it.
fn repair(store: &Arc<Store>, hold: &Arc<QuorumHold>, node: usize) {
    if hold.is_attached {
        return look_again(store, hold, node);
    }
    if !hold.start_repair(node) {
        return;
    }
    let (store, hold) = (store.clone(), hold.clone());
    let background = store.clone();
    background.background.run(Box::pin(async move {
        let turn = hold.turn(node).await;
        let repair = hold.repair_of(node);
        match repair.filter(|_| !hold.ended.is_raised()) {
            Some(Repair::Acquire(mode)) => {
                hold.shorten_min_hold(store.clock.now());
                let request = hold.request_to(node, mode, false, hold.token());
                let answer = store.nodes[node].clone().acquire(request.clone());
                finish_request(&store, &hold, node, request, answer).await;
            }
            Some(Repair::Upgrade) => {
                drop(turn);
                let mode = Mode::Exclusive;
                let request = hold.request_to(node, mode, true, hold.token());
                let stop = hold.change_is_over();
                // The hold is repaired by the next renewal if this fails.
                let _ = make_exclusive(store, hold.clone(), node, request, stop).await;
            }
            Some(Repair::Downgrade(mode)) => {
                drop(turn);
                let stop = hold.change_is_over();
                let _ = weaken(store, hold.clone(), node, mode, stop).await;
            }
            None => {}
        }
        hold.finish_repair(node);
    }));
}
