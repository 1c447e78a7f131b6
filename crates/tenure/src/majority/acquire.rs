//! One acquisition: the name is obtained from a majority of the nodes, at once or after a wait.
//!
//! All nodes are asked at once. Where a wait is allowed, each node puts the request into its queue, and hands the name
//! over in its own order; see `wait` for what happens when the orders differ.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum_acquisition::{Next, QuorumAcquisition};
use tenure_core::logic::{lease, quorum};
use tenure_core::options::Mode;
use tenure_core::store::{Answer, Grant, Renewal, Request};
use tenure_core::time::Time;

use super::errors::{no_majority, still_granted};
use super::holds::QuorumHold;
use super::release::{finish_request, release_until_answered};
use super::renew::{MajorityLease, majority_lease, renew_holds};
use super::store::Store;
use super::vote::{NodeReply, Vote, VoteEvent};
use super::wait::Shortage;

/// A node that did not grant while others were given back so often may be dead: another one counts as the first.
const MAX_PASSED_OVER: u32 = 3;

struct MajorityAcquisition {
    vote: Vote,
    asked: Vec<Asked>,
    shortage: Shortage,
}

/// What was asked of one node, and what it granted.
#[derive(Default)]
struct Asked {
    request: Option<Arc<Request>>,
    grant: Option<Grant>,
    /// The node was refused because of another contender, or given back to one.
    is_busy: bool,
    /// How often other nodes were given back because this one, the first, had not granted; since its last grant.
    passed_over: u32,
}

impl Asked {
    /// Whether the node has answered this acquisition, and counts as one of which a grant can be expected.
    fn is_expected(&self) -> bool {
        let is_queued = self.request.as_ref().is_some_and(|it| it.is_taken());
        let has_answered = self.grant.is_some() || self.is_busy || is_queued;
        has_answered && self.passed_over < MAX_PASSED_OVER
    }
}

pub(super) async fn acquire(store: &Arc<Store>, request: &Arc<Request>) -> Result<Answer, Error> {
    let nodes = store.nodes.len();
    let hold = QuorumHold::new(request, nodes);
    store.holds.insert(hold.owner, &hold, store.clock.now());
    let quorum = match request.mode {
        Mode::Exclusive => QuorumAcquisition::new(nodes),
        _ => QuorumAcquisition::shared(nodes),
    };
    let acquisition = MajorityAcquisition {
        vote: Vote::new(store, request, hold, quorum),
        asked: (0..nodes).map(|_| Asked::default()).collect(),
        shortage: Shortage::default(),
    };
    acquisition.run().await
}

impl MajorityAcquisition {
    async fn run(mut self) -> Result<Answer, Error> {
        let proposal = self.vote.store.proposal();
        for node in 0..self.vote.nodes() {
            self.ask(node, proposal);
        }
        loop {
            match self.vote.verdict() {
                Next::Won { token } => return self.won(token).await,
                Next::Raise { token, nodes } => self.vote.raise(token, &nodes),
                Next::Lost if !self.vote.request.wait || self.vote.is_cut_off() => {
                    return self.lost();
                }
                Next::Lost | Next::Wait => self.watch_shortage(),
            }
            let look_at = self.look_at();
            match self.vote.next(look_at).await {
                VoteEvent::Reply(node, reply) => self.apply(node, reply),
                VoteEvent::Stopped => return self.stopped().await,
                VoteEvent::Due(now) => self.do_what_is_due(now),
            }
        }
    }

    fn ask(&mut self, node: usize, proposal: u64) {
        let Vote { store, hold, .. } = &self.vote;
        let (mode, wait) = (self.vote.request.mode, self.vote.request.wait);
        let request = hold.request_to(node, mode, wait, proposal);
        if request.owner != hold.owner {
            store.holds.insert(request.owner, hold, store.clock.now());
        }
        let asked = &mut self.asked[node];
        asked.is_busy = false;
        asked.request = Some(request.clone());
        let answer = store.nodes[node].clone().acquire(request);
        self.vote.ask(node, answer);
    }

    /// Takes the reply of a node into account.
    fn apply(&mut self, node: usize, reply: NodeReply) {
        self.vote.has_answered(node);
        match reply {
            NodeReply::Answered(Ok(Answer::Granted(grant))) => self.granted(node, grant),
            NodeReply::Answered(Ok(_)) => {
                self.asked[node].is_busy = true;
                self.refused(node);
            }
            NodeReply::Answered(Err(err)) => self.failed(node, err),
            NodeReply::Raised(Ok(token)) => {
                if token.is_none() {
                    self.asked[node].grant = None;
                }
                self.vote.raised(node, token);
            }
            NodeReply::Raised(Err(err)) => {
                // The node has the hold, or had it; without the token it has no vote.
                self.failed(node, err);
                self.give_back(node);
            }
        }
    }

    fn granted(&mut self, node: usize, grant: Grant) {
        let Vote { store, hold, .. } = &self.vote;
        hold.set_held(node, self.vote.request.mode);
        store.note_token(grant.token);
        self.shortage.note_round_trip(grant.round_trip);
        let now = store.clock.now();
        self.vote.quorum.granted(node, grant.token);
        self.asked[node].grant = Some(grant);
        self.asked[node].passed_over = 0;
        // Another contender has given this node back, and may have given back those that we do not ask now.
        for node in 0..self.vote.nodes() {
            if self.asked[node].is_busy {
                self.vote.ask_again_at(node, now);
            }
        }
    }

    /// The node has nothing of us.
    fn refused(&mut self, node: usize) {
        self.asked[node].grant = None;
        self.vote.refused(node);
    }

    fn failed(&mut self, node: usize, err: Error) {
        self.asked[node].grant = None;
        self.asked[node].passed_over = MAX_PASSED_OVER;
        self.vote.failed(node, err);
    }

    fn watch_shortage(&mut self) {
        let Vote { store, request, .. } = &self.vote;
        if !request.wait || self.vote.quorum.held().is_empty() {
            self.shortage.end();
        } else {
            self.shortage.begin(&store.clock);
        }
    }

    /// When the nodes are given back, with the first node or without it.
    fn give_back_at(&self, has_first: bool) -> Time {
        let held = self.vote.quorum.held().len();
        let ttl = self.vote.request.ttl;
        self.shortage.give_back_at(held, has_first, ttl)
    }

    fn has_first_node(&self) -> bool {
        let first = self.asked.iter().find(|node| node.is_expected());
        first.is_some_and(|first| first.grant.is_some())
    }

    /// When it is to be decided whether nodes are given back. A node says that the request has a place in its queue, and that
    /// wakes no task: so the time without the first node counts, too.
    fn look_at(&self) -> Time {
        let soon = self.give_back_at(false);
        match soon > self.vote.store.clock.now() {
            true => soon,
            false => self.give_back_at(self.has_first_node()),
        }
    }

    fn do_what_is_due(&mut self, now: Time) {
        for node in self.vote.give_up_silent_nodes(now) {
            self.asked[node].grant = None;
            if let Some(request) = &self.asked[node].request {
                request.stop.raise();
            }
        }
        if self.give_back_at(self.has_first_node()) <= now {
            self.make_room();
        }
        let proposal = self.vote.store.proposal();
        for node in 0..self.vote.nodes() {
            if self.vote.is_due(node, now) {
                if self.vote.is_unclear(node) {
                    // The earlier request may have been granted, or may still be: its owner id is given up.
                    self.give_back(node);
                }
                self.ask(node, proposal);
            }
        }
    }

    /// Gives all nodes back, so that another contender can have them, unless they are a majority.
    fn make_room(&mut self) {
        self.shortage.end();
        let held = self.vote.quorum.held();
        if held.is_empty() || held.len() >= self.vote.store.majority() {
            return;
        }
        let mut nodes = self.asked.iter_mut();
        if let Some(first) = nodes.find(|node| node.is_expected())
            && first.grant.is_none()
        {
            first.passed_over += 1;
        }
        for node in held {
            self.give_back(node);
            self.asked[node].is_busy = true;
            self.refused(node);
        }
    }

    /// Releases what the node has or may have of us. The next request to the node has another owner id.
    fn give_back(&mut self, node: usize) {
        let is_granted = self.asked[node].grant.is_some();
        let held = self.vote.hold.clone();
        let mut hold = held.replace_owner(node);
        // A name that was not obtained does not stay reserved.
        hold.unused = true;
        let store = self.vote.store.clone();
        store.holds.remove_alias(hold.owner, &held);
        let owner = hold.owner;
        let release = release_until_answered(store.clone(), node, hold);
        store.background.run(Box::pin(async move {
            // Each request under this owner id was answered, so none can arrive late.
            if release.await && is_granted {
                held.give_owner_back(node, owner);
            }
        }));
    }

    /// A majority has granted the name and knows the token.
    async fn won(mut self, token: u64) -> Result<Answer, Error> {
        let now = self.vote.store.clock.now();
        self.vote.hold.set_granted(token, now);
        self.vote.store.note_token(token);
        while let Some((node, reply)) = self.vote.requests.next_arrived() {
            self.apply(node, reply);
        }
        self.vote.tell_token(token);
        let held = self.vote.quorum.held().into_iter();
        let grants = held.filter_map(|node| self.asked[node].grant.take());
        let grants: Vec<_> = grants.collect();
        let mut lease = self.lease_of(&grants);
        if lease.is_some_and(|lease| is_over(lease, now)) {
            self.give_up();
            return Err(Error::new(
                ErrorKind::Indeterminate,
                "the lease was over before a majority had granted it; retry, or raise `ttl`",
            ));
        }
        let (store, hold, min_lease) = (
            self.vote.store.clone(),
            self.vote.hold.clone(),
            self.vote.request.min_lease,
        );
        let round_trip = self.shortage.round_trip();
        self.finish_other_requests();
        // The part of the lease that passed while other nodes had not granted yet is renewed. The time that one attempt
        // takes is not worth a renewal.
        let is_too_short = |lease: MajorityLease| {
            let timeout = store.settings.node_timeout_for(lease.ttl);
            lease.end().since(now) + timeout < min_lease
        };
        if lease.is_some_and(is_too_short)
            && let [
                Renewal::Renewed {
                    sent,
                    ttl: Some(ttl),
                },
            ] = renew_holds(&store, std::slice::from_ref(&hold)).await[..]
        {
            lease = Some(MajorityLease { sent, ttl });
        }
        let mut grant = match lease {
            Some(MajorityLease { sent, ttl }) => Grant::new(token, sent, round_trip, Some(ttl)),
            None => Grant::new(token, now, round_trip, None),
        };
        grant.watched = grants.iter().all(|grant| grant.watched);
        Ok(Answer::Granted(grant))
    }

    /// The lease that a majority of these grants gives; `None`: the hold has no end.
    fn lease_of(&self, grants: &[Grant]) -> Option<MajorityLease> {
        let lease = |grant: &Grant| {
            let (sent, ttl) = (grant.sent, grant.ttl?);
            Some(MajorityLease { sent, ttl })
        };
        let leases: Vec<_> = grants.iter().filter_map(lease).collect();
        let without_lease = grants.len() - leases.len();
        majority_lease(leases, without_lease, self.vote.store.majority())
    }

    /// Finishes in the background what is under way after the verdict.
    fn finish_other_requests(mut self) {
        let has_ended = self.vote.hold.ended.is_raised();
        for node in 0..self.vote.nodes() {
            let Some(request) = self.asked[node].request.take() else {
                continue;
            };
            let Some(pending) = self.vote.requests.take(node) else {
                continue;
            };
            let answer = Box::pin(async move {
                match pending.await {
                    NodeReply::Answered(answer) => answer,
                    // The node has granted before it was asked to raise the token. A hold that was given up is released
                    // there now; a hold that lasts is released there when it is released on the other nodes.
                    NodeReply::Raised(..) if has_ended => Err(still_granted()),
                    NodeReply::Raised(..) => Ok(Answer::Busy),
                }
            });
            let (store, hold) = (self.vote.store.clone(), self.vote.hold.clone());
            self.vote.store.background.run(Box::pin(async move {
                finish_request(&store, &hold, node, request, answer).await;
            }));
        }
    }

    /// Ends the attempt: whatever there is goes back, on all nodes that did not definitely refuse.
    fn give_up(mut self) {
        self.vote.hold.end(self.vote.store.clock.now());
        self.vote.store.holds.remove(&self.vote.hold);
        while let Some((node, reply)) = self.vote.requests.next_arrived() {
            self.apply(node, reply);
        }
        for node in self.vote.quorum.to_release() {
            if !self.vote.requests.is_open(node) {
                self.give_back(node);
            }
        }
        self.finish_other_requests();
    }

    /// There is no majority, and nothing to wait for.
    fn lost(mut self) -> Result<Answer, Error> {
        let nodes = self.vote.nodes();
        let is_cut_off = self.vote.is_cut_off();
        let errors = self.vote.take_errors();
        self.give_up();
        match is_cut_off {
            true => Err(no_majority(errors, nodes, "could not be asked")),
            false => Ok(Answer::Busy),
        }
    }

    /// The caller gave up. Returns when every node has answered what became of its request, or was silent for too long.
    async fn stopped(mut self) -> Result<Answer, Error> {
        self.vote.hold.end(self.vote.store.clock.now());
        for asked in &self.asked {
            if let Some(request) = &asked.request {
                request.stop.raise();
                if request.is_taken() || asked.is_busy {
                    self.vote.request.report_taken();
                }
            }
        }
        for node in self.vote.quorum.held() {
            self.give_back(node);
            self.vote.quorum.refused(node);
        }
        let until = self.vote.store.node_deadline(self.vote.request.ttl);
        let store = self.vote.store.clone();
        while let Some((node, reply)) = self.vote.requests.next_until(&store.clock, until).await {
            self.apply(node, reply);
        }
        self.give_up();
        Ok(Answer::Busy)
    }
}

/// Whether the holder's deadline has passed already.
fn is_over(MajorityLease { sent, ttl }: MajorityLease, now: Time) -> bool {
    quorum::validity(ttl, now.since(sent), lease::margin(ttl, Duration::ZERO)).is_none()
}
