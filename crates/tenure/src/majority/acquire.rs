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

use super::errors::{no_answer, no_majority, still_granted};
use super::holds::QuorumHold;
use super::release::{finish_request, release_until_answered};
use super::renew::{Lease, majority_lease, renew_holds};
use super::requests::NodeRequests;
use super::store::Store;
use super::wait::{self, Shortage, sleep_until};

/// What a node answered.
enum Reply {
    Acquired(Result<Answer, Error>),
    /// The token that the hold has after it was to be raised.
    Raised(Result<Option<u64>, Error>),
}

struct Acquisition {
    store: Arc<Store>,
    request: Arc<Request>,
    hold: Arc<QuorumHold>,
    quorum: QuorumAcquisition,
    requests: NodeRequests<Reply>,
    nodes: Vec<NodeState>,
    shortage: Shortage,
}

/// Where the acquisition stands with one node.
struct NodeState {
    request: Option<Arc<Request>>,
    /// When the request that is under way is given up; never for a request that waits.
    give_up_at: Time,
    grant: Option<Grant>,
    /// The node was refused because of another contender, or given back to one.
    is_busy: bool,
    error: Option<Error>,
    /// When to ask again; `MAX` while the node has our hold or our place in its queue.
    ask_again_at: Time,
}

pub(super) async fn acquire(store: &Arc<Store>, request: &Arc<Request>) -> Result<Answer, Error> {
    let nodes = store.nodes.len();
    let hold = QuorumHold::new(request, nodes);
    store.holds.insert(hold.owner, &hold, store.clock.now());
    let node = |_| NodeState {
        request: None,
        give_up_at: Time::MAX,
        grant: None,
        is_busy: false,
        error: None,
        ask_again_at: Time::MAX,
    };
    let acquisition = Acquisition {
        store: store.clone(),
        request: request.clone(),
        hold,
        quorum: match request.mode {
            Mode::Exclusive => QuorumAcquisition::new(nodes),
            _ => QuorumAcquisition::beside_others(nodes),
        },
        requests: NodeRequests::none(nodes),
        nodes: (0..nodes).map(node).collect(),
        shortage: Shortage::default(),
    };
    acquisition.run().await
}

impl Acquisition {
    async fn run(mut self) -> Result<Answer, Error> {
        let proposal = self.store.proposal();
        for node in 0..self.nodes.len() {
            self.ask(node, proposal);
        }
        loop {
            match self.quorum.verdict(|| self.store.next_choice()) {
                Next::Won { token } => return self.won(token).await,
                Next::Raise { token, nodes } => self.raise(token, &nodes),
                Next::Lost if !self.request.wait || self.is_cut_off() => return self.lost(),
                Next::Lost | Next::Wait => self.watch_shortage(),
            }
            let store = self.store.clone();
            let next = self.next_due();
            tokio::select! {
                biased;
                reply = self.requests.next(), if self.requests.is_any_open() => {
                    if let Some((node, reply)) = reply {
                        self.apply(node, reply);
                    }
                }
                () = self.request.stop.raised() => return self.stopped().await,
                () = sleep_until(&store.clock, next) => self.do_what_is_due(store.clock.now()),
            }
        }
    }

    fn ask(&mut self, node: usize, proposal: u64) {
        let (mode, wait) = (self.request.mode, self.request.wait);
        let request = self.hold.request_to(node, mode, wait, proposal);
        if request.owner != self.hold.owner {
            let now = self.store.clock.now();
            self.store.holds.insert(request.owner, &self.hold, now);
        }
        self.quorum.asked(node);
        let state = &mut self.nodes[node];
        state.give_up_at = match self.request.wait {
            true => Time::MAX,
            false => self.store.node_deadline(request.ttl),
        };
        state.ask_again_at = Time::MAX;
        state.is_busy = false;
        state.error = None;
        state.request = Some(request.clone());
        let answer = self.store.nodes[node].clone().acquire(request);
        let reply = Box::pin(async { Reply::Acquired(answer.await) });
        self.requests.send(node, reply);
    }

    /// The second round: these nodes granted a smaller token than another node of the majority.
    fn raise(&mut self, token: u64, nodes: &[usize]) {
        for &node in nodes {
            if self.requests.is_open(node) {
                continue;
            }
            let raising = self.store.nodes[node]
                .clone()
                .raise(self.hold.on_node(node, false), token);
            self.nodes[node].give_up_at = self.store.node_deadline(self.request.ttl);
            let reply = Box::pin(async move { Reply::Raised(raising.await) });
            self.requests.send(node, reply);
        }
    }

    /// Takes the reply of a node into account.
    fn apply(&mut self, node: usize, reply: Reply) {
        let state = &mut self.nodes[node];
        state.give_up_at = Time::MAX;
        match reply {
            Reply::Acquired(Ok(Answer::Granted(grant))) => {
                self.quorum.granted(node, grant.token);
                self.hold.set_held(node, self.request.mode);
                self.store.note_token(grant.token);
                self.shortage.note_round_trip(grant.round_trip);
                state.grant = Some(grant);
                // Another contender has given this node back, and may have given back those that we do not ask now.
                let now = self.store.clock.now();
                let busy = self.nodes.iter_mut().filter(|state| state.is_busy);
                busy.for_each(|state| state.ask_again_at = now);
            }
            Reply::Acquired(Ok(_)) => {
                state.is_busy = true;
                self.refused(node);
            }
            Reply::Acquired(Err(err)) => self.failed(node, err),
            Reply::Raised(Ok(Some(token))) => {
                self.store.note_token(token);
                self.quorum.raised(node, token);
            }
            Reply::Raised(Ok(None)) => {
                self.hold.set_lost(node);
                self.refused(node);
            }
            Reply::Raised(Err(err)) => {
                // The node has the hold, or had it; without the token it has no vote.
                self.failed(node, err);
                self.give_back(node);
            }
        }
    }

    /// The node has nothing of us.
    fn refused(&mut self, node: usize) {
        self.quorum.refused(node);
        self.nodes[node].grant = None;
        self.nodes[node].ask_again_at = self.cooldown();
    }

    fn failed(&mut self, node: usize, err: Error) {
        if err.kind() == ErrorKind::Indeterminate {
            self.quorum.unclear(node);
        } else {
            self.quorum.refused(node);
        }
        self.nodes[node].grant = None;
        self.nodes[node].error = Some(err);
        self.nodes[node].ask_again_at = self.cooldown();
    }

    fn cooldown(&self) -> Time {
        match self.request.wait {
            true => wait::ask_again_at(&self.store.clock, self.request.ttl),
            false => Time::MAX,
        }
    }

    fn watch_shortage(&mut self) {
        if !self.request.wait || self.quorum.held().is_empty() {
            self.shortage.end();
        } else {
            self.shortage.begin(&self.store.clock, self.request.ttl);
        }
    }

    /// Whether so many nodes fail that no contender can have a majority.
    fn is_cut_off(&self) -> bool {
        let failed = self.nodes.iter().filter(|state| state.error.is_some());
        failed.count() + self.store.majority() > self.nodes.len()
    }

    /// When [`do_what_is_due`](Self::do_what_is_due) has something to do.
    fn next_due(&self) -> Time {
        let times = self.nodes.iter().enumerate().map(|(node, state)| {
            // A node that has not answered the last request is not asked again before it has.
            match self.requests.is_open(node) {
                true => state.give_up_at,
                false => state.give_up_at.min(state.ask_again_at),
            }
        });
        times.fold(self.give_back_at(), Time::min)
    }

    fn give_back_at(&self) -> Time {
        self.shortage.give_back_at(self.quorum.held().len())
    }

    fn do_what_is_due(&mut self, now: Time) {
        self.give_up_silent_nodes(now);
        if self.give_back_at() <= now {
            self.make_room();
        }
        let proposal = self.store.proposal();
        for node in 0..self.nodes.len() {
            if self.nodes[node].ask_again_at <= now && !self.requests.is_open(node) {
                let error = self.nodes[node].error.as_ref();
                if error.is_some_and(|err| err.kind() == ErrorKind::Indeterminate) {
                    // The earlier request may have been granted, or may still be: its owner id is given up.
                    self.give_back(node);
                }
                self.ask(node, proposal);
            }
        }
    }

    fn give_up_silent_nodes(&mut self, now: Time) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].give_up_at <= now {
                self.nodes[node].give_up_at = Time::MAX;
                if let Some(request) = &self.nodes[node].request {
                    request.stop.raise();
                }
                let timeout = self.store.settings.node_timeout_for(self.request.ttl);
                self.failed(node, no_answer(timeout));
            }
        }
    }

    /// Gives all nodes back, so that another contender can have them, unless they are a majority.
    fn make_room(&mut self) {
        self.shortage.end();
        let held = self.quorum.held();
        if held.is_empty() || held.len() >= self.store.majority() {
            return;
        }
        self.shortage.note_given_back();
        for node in held {
            self.give_back(node);
            self.nodes[node].is_busy = true;
            self.refused(node);
        }
    }

    /// Releases what the node has or may have of us. The next request to the node has another owner id.
    fn give_back(&mut self, node: usize) {
        let mut hold = self.hold.replace_owner(node);
        // A name that was not obtained does not stay reserved.
        hold.unused = true;
        self.store.holds.remove_alias(hold.owner, &self.hold);
        let release = release_until_answered(self.store.clone(), node, hold);
        self.store.background.run(Box::pin(release));
    }

    /// A majority has granted the name and knows the token.
    async fn won(mut self, token: u64) -> Result<Answer, Error> {
        let now = self.store.clock.now();
        self.hold.set_granted(token, now);
        self.store.note_token(token);
        while let Some((node, reply)) = self.requests.next_arrived() {
            self.apply(node, reply);
        }
        for node in self.quorum.behind(token) {
            self.tell_token(node, token);
        }
        let held = self.quorum.held().into_iter();
        let grants = held.filter_map(|node| self.nodes[node].grant.take());
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
            self.store.clone(),
            self.hold.clone(),
            self.request.min_lease,
        );
        let round_trip = self.shortage.round_trip();
        self.finish_other_requests();
        // The part of the lease that passed while other nodes had not granted yet is renewed. The time that one attempt
        // takes is not worth a renewal.
        let is_too_short = |lease: Lease| {
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
            lease = Some(Lease { sent, ttl });
        }
        let mut grant = match lease {
            Some(Lease { sent, ttl }) => Grant::new(token, sent, round_trip, Some(ttl)),
            None => Grant::new(token, now, round_trip, None),
        };
        grant.watched = grants.iter().all(|grant| grant.watched);
        Ok(Answer::Granted(grant))
    }

    /// The lease that a majority of these grants gives; `None`: the hold has no end.
    fn lease_of(&self, grants: &[Grant]) -> Option<Lease> {
        let lease = |grant: &Grant| {
            let (sent, ttl) = (grant.sent, grant.ttl?);
            Some(Lease { sent, ttl })
        };
        let leases: Vec<_> = grants.iter().filter_map(lease).collect();
        let without_lease = grants.len() - leases.len();
        majority_lease(leases, without_lease, self.store.majority())
    }

    /// Tells the token to a node that granted a smaller one. If that fails, the majority that knows the token is enough.
    fn tell_token(&self, node: usize, token: u64) {
        let raising = self.store.nodes[node]
            .clone()
            .raise(self.hold.on_node(node, false), token);
        self.store.background.run(Box::pin(async {
            let _ = raising.await;
        }));
    }

    /// Finishes in the background what is under way after the verdict.
    fn finish_other_requests(mut self) {
        let has_ended = self.hold.ended.is_raised();
        for node in 0..self.nodes.len() {
            let Some(request) = self.nodes[node].request.take() else {
                continue;
            };
            let Some(pending) = self.requests.take(node) else {
                continue;
            };
            let answer = Box::pin(async move {
                match pending.await {
                    Reply::Acquired(answer) => answer,
                    // The node has granted before it was asked to raise the token. A hold that was given up is released
                    // there now; a hold that lasts is released there when it is released on the other nodes.
                    Reply::Raised(..) if has_ended => Err(still_granted()),
                    Reply::Raised(..) => Ok(Answer::Busy),
                }
            });
            let (store, hold) = (self.store.clone(), self.hold.clone());
            self.store.background.run(Box::pin(async move {
                finish_request(&store, &hold, node, request, answer).await;
            }));
        }
    }

    /// Ends the attempt: whatever there is goes back, on all nodes that did not definitely refuse.
    fn give_up(mut self) {
        self.hold.end(self.store.clock.now());
        self.store.holds.remove(&self.hold);
        while let Some((node, reply)) = self.requests.next_arrived() {
            self.apply(node, reply);
        }
        for node in self.quorum.to_release() {
            if !self.requests.is_open(node) {
                self.give_back(node);
            }
        }
        self.finish_other_requests();
    }

    /// There is no majority, and nothing to wait for.
    fn lost(mut self) -> Result<Answer, Error> {
        let nodes = self.nodes.len();
        let is_cut_off = self.is_cut_off();
        let errors = self.nodes.iter_mut().filter_map(|state| state.error.take());
        let errors: Vec<_> = errors.collect();
        self.give_up();
        match is_cut_off {
            true => Err(no_majority(errors, nodes, "could not be asked")),
            false => Ok(Answer::Busy),
        }
    }

    /// The caller gave up. Returns when every node has answered what became of its request, or was silent for too long.
    async fn stopped(mut self) -> Result<Answer, Error> {
        self.hold.end(self.store.clock.now());
        for state in &self.nodes {
            if let Some(request) = &state.request {
                request.stop.raise();
                if request.is_taken() || state.is_busy {
                    self.request.report_taken();
                }
            }
        }
        for node in self.quorum.held() {
            self.give_back(node);
            self.quorum.refused(node);
        }
        let until = self.store.node_deadline(self.request.ttl);
        let store = self.store.clone();
        while let Some((node, reply)) = self.requests.next_until(&store.clock, until).await {
            self.apply(node, reply);
        }
        self.give_up();
        Ok(Answer::Busy)
    }
}

/// Whether the holder's deadline has passed already.
fn is_over(Lease { sent, ttl }: Lease, now: Time) -> bool {
    quorum::validity(ttl, now.since(sent), lease::margin(ttl, Duration::ZERO)).is_none()
}
