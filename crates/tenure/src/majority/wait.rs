//! Getting a name from a majority of the nodes, at once or after a wait.
//!
//! All nodes are asked at once. Where a wait is allowed each of them puts us into its queue, and hands the
//! name over in its own order. When those orders differ, several contenders have some nodes each and none
//! has enough. So whoever has some of them without a majority gives them back after a short, random time
//! and queues again; in every such moment the next one may have its majority, and with chance on all
//! sides somebody soon has. (`logic/tests/split_search.rs`: there is a way out of every state.)

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answer, Grant, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum_acquisition::{Next, QuorumAcquisition};
use tenure_core::logic::{lease, pace, quorum};
use tenure_core::time::Time;

use super::crowd::Crowd;
use super::hold::{self, Claim};
use super::{Core, due, merged, no_answer};

/// How long a node that was given back, or did not let us queue, is left alone, as a share of the ttl: a holder
/// that lost this node gets the chance to renew there, which it does every third of its ttl.
const REST: u32 = 8;

/// The longest of these pauses: after that a node that is back is noticed.
const MOST_REST: Duration = Duration::from_secs(2);

/// What a node said.
enum Said {
    Answered(Result<Answer, Error>),
    Raised(u64, Result<bool, Error>),
}

/// One acquisition under way.
struct Contest {
    core: Arc<Core>,
    request: Arc<Request>,
    claim: Arc<Claim>,
    ballot: QuorumAcquisition,
    crowd: Crowd<Said>,
    nodes: Vec<Node>,
    /// The longest round trip seen.
    round_trip: Duration,
    /// How often we made room.
    given_back: u32,
    /// Since when we have some nodes without a majority, and our patience with that for each of them.
    short_since: Option<(Time, Duration)>,
}

/// Where we are with one node.
struct Node {
    ask: Option<Arc<Request>>,
    /// When the request that is under way is to be given up; never for one that waits.
    limit: Time,
    grant: Option<Grant>,
    busy: bool,
    error: Option<Error>,
    /// When to ask again; `MAX` while we hold or queue there.
    again: Time,
}

pub(super) async fn acquire(core: Arc<Core>, request: Arc<Request>) -> Result<Answer, Error> {
    let nodes = core.nodes.len();
    let claim = Claim::new(&request, nodes);
    core.remember(claim.owner, &claim);
    let node = |_| Node {
        ask: None,
        limit: Time::MAX,
        grant: None,
        busy: false,
        error: None,
        again: Time::MAX,
    };
    let contest = Contest {
        ballot: QuorumAcquisition::new(nodes),
        crowd: Crowd::empty(nodes),
        nodes: (0..nodes).map(node).collect(),
        round_trip: Duration::ZERO,
        given_back: 0,
        short_since: None,
        core,
        request,
        claim,
    };
    contest.run().await
}

impl Contest {
    async fn run(mut self) -> Result<Answer, Error> {
        let proposal = self.core.proposal();
        for node in 0..self.nodes.len() {
            self.ask(node, proposal);
        }
        loop {
            match self.ballot.verdict() {
                Next::Won { token } => return self.won(token).await,
                Next::Raise { token, nodes } => self.raise(token, &nodes),
                Next::Lost if !self.request.wait || self.is_cut_off() => return self.lost(),
                Next::Lost | Next::Wait => self.note_shortage(),
            }
            let core = self.core.clone();
            let next = self.next_due();
            tokio::select! {
                biased;
                said = self.crowd.next(), if self.crowd.is_any() => {
                    if let Some((node, said)) = said {
                        self.hear(node, said);
                    }
                }
                () = self.request.stop.raised() => return self.stopped().await,
                () = due(&core.clock, next) => self.on_time(core.clock.now()),
            }
        }
    }

    fn ask(&mut self, node: usize, proposal: u64) {
        let ask = self.claim.ask(node, self.request.wait, proposal);
        if ask.owner != self.claim.owner {
            self.core.remember(ask.owner, &self.claim);
        }
        self.ballot.asked(node);
        let state = &mut self.nodes[node];
        state.limit = match self.request.wait {
            true => Time::MAX,
            false => self.core.clock.now().after(self.core.node_limit(ask.ttl)),
        };
        state.again = Time::MAX;
        state.busy = false;
        state.error = None;
        state.ask = Some(ask.clone());
        let answer = self.core.nodes[node].acquire(ask);
        self.crowd
            .send(node, Box::pin(async { Said::Answered(answer.await) }));
    }

    /// The second round: these nodes granted less than another one of the majority.
    fn raise(&mut self, token: u64, nodes: &[usize]) {
        for &node in nodes {
            if self.crowd.is_flying(node) {
                continue;
            }
            let raising = self.core.nodes[node].raise(self.claim.on(node, false), token);
            self.nodes[node].limit = self.limit_from_now();
            self.crowd.send(
                node,
                Box::pin(async move { Said::Raised(token, raising.await) }),
            );
        }
    }

    fn limit_from_now(&self) -> Time {
        let limit = self.core.node_limit(self.request.ttl);
        self.core.clock.now().after(limit)
    }

    fn hear(&mut self, node: usize, said: Said) {
        let now = self.core.clock.now();
        let state = &mut self.nodes[node];
        state.limit = Time::MAX;
        match said {
            Said::Answered(Ok(Answer::Granted(grant))) => {
                self.ballot.granted(node, grant.token);
                self.claim.held(node);
                self.core.saw(grant.token);
                self.round_trip = self.round_trip.max(grant.round_trip);
                state.grant = Some(grant);
                // Others have made room, and may do so where we only rest.
                let resting = self.nodes.iter_mut().filter(|state| state.busy);
                resting.for_each(|state| state.again = now);
            }
            Said::Answered(Ok(_)) => {
                state.busy = true;
                self.refused(node, now);
            }
            Said::Answered(Err(err)) => self.failed(node, err, now),
            Said::Raised(token, Ok(true)) => self.ballot.raised(node, token),
            Said::Raised(_, Ok(false)) => {
                self.claim.lost_node(node);
                self.refused(node, now);
            }
            Said::Raised(_, Err(err)) => {
                // The hold is there, or was; without the token it has no vote.
                self.failed(node, err, now);
                self.give_back(node);
            }
        }
    }

    /// The first grants have come: the rest should, soon.
    fn note_shortage(&mut self) {
        if !self.request.wait || self.ballot.held().is_empty() {
            self.short_since = None;
        } else if self.short_since.is_none() {
            let (random, ttl) = (rand::random(), self.request.ttl);
            let patience = pace::patience(self.given_back, random, self.round_trip, ttl);
            self.short_since = Some((self.core.clock.now(), patience));
        }
    }

    /// When we make room for others: the later, the more nodes we have.
    fn make_room(&self) -> Time {
        let held = u32::try_from(self.ballot.held().len()).unwrap_or(u32::MAX);
        self.short_since.map_or(Time::MAX, |(since, patience)| {
            since.after(patience.saturating_mul(held))
        })
    }

    fn refused(&mut self, node: usize, now: Time) {
        self.ballot.refused(node);
        self.nodes[node].grant = None;
        self.nodes[node].again = self.rest_from(now);
    }

    fn failed(&mut self, node: usize, err: Error, now: Time) {
        if err.kind() == ErrorKind::Indeterminate {
            self.ballot.unclear(node);
        } else {
            self.ballot.refused(node);
        }
        self.nodes[node].grant = None;
        self.nodes[node].error = Some(err);
        self.nodes[node].again = self.rest_from(now);
    }

    fn rest_from(&self, now: Time) -> Time {
        if !self.request.wait {
            return Time::MAX;
        }
        let most = (self.request.ttl / REST).min(MOST_REST);
        now.after(most / 2 + pace::fraction(most / 2, rand::random()))
    }

    /// Whether nodes that do not answer are enough to keep anybody from a majority.
    fn is_cut_off(&self) -> bool {
        let failed = self.nodes.iter().filter(|state| state.error.is_some());
        failed.count() + self.core.majority() > self.nodes.len()
    }

    fn next_due(&self) -> Time {
        let times = self.nodes.iter().enumerate().map(|(node, state)| {
            // A node that has not answered the last request is not asked again before.
            let flying = self.crowd.is_flying(node);
            let again = if flying { Time::MAX } else { state.again };
            state.limit.min(again)
        });
        times.fold(self.make_room(), Time::min)
    }

    fn on_time(&mut self, now: Time) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].limit <= now {
                self.nodes[node].limit = Time::MAX;
                if let Some(ask) = &self.nodes[node].ask {
                    ask.stop.raise();
                }
                let limit = self.core.node_limit(self.request.ttl);
                self.failed(node, no_answer(limit), now);
            }
        }
        if self.make_room() <= now {
            self.short_since = None;
            let held = self.ballot.held();
            if held.len() < self.core.majority() && !held.is_empty() {
                self.given_back += 1;
                for node in held {
                    self.give_back(node);
                    self.nodes[node].busy = true;
                    self.refused(node, now);
                }
            }
        }
        let proposal = self.core.proposal();
        for node in 0..self.nodes.len() {
            if self.nodes[node].again <= now && !self.crowd.is_flying(node) {
                let error = self.nodes[node].error.as_ref();
                if error.is_some_and(|err| err.kind() == ErrorKind::Indeterminate) {
                    // It may have something of ours from before; whatever comes of that is not ours any more.
                    self.give_back(node);
                }
                self.ask(node, proposal);
            }
        }
    }

    /// What we have or may have on a node goes back, and we go on there under another identity.
    fn give_back(&mut self, node: usize) {
        let hold = self.claim.leave_node(node);
        self.core.forget_alias(hold.owner, &self.claim);
        self.core
            .see_to(Box::pin(hold::give_back(self.core.clone(), node, hold)));
    }

    /// A majority is ours and knows the token.
    async fn won(mut self, token: u64) -> Result<Answer, Error> {
        self.claim.agree(token);
        self.core.saw(token);
        while let Some((node, said)) = self.crowd.landed() {
            self.hear(node, said);
        }
        for node in self.ballot.behind(token) {
            self.tell_token(node, token);
        }
        let held = self.ballot.held();
        let grants: Vec<_> = held
            .iter()
            .filter_map(|node| self.nodes[*node].grant.clone())
            .collect();
        let now = self.core.clock.now();
        let ends = grants
            .iter()
            .filter_map(|grant| Some((grant.sent.after(grant.ttl?), grant.sent)));
        let ends: Vec<_> = ends.collect();
        let no_lease = grants.len() - ends.len();
        let mut lease = hold::weakest(ends, no_lease, self.core.majority());
        let (core, claim, round_trip) = (self.core.clone(), self.claim.clone(), self.round_trip);
        let is_late = |(sent, ttl): (Time, Duration)| {
            quorum::validity(ttl, now.since(sent), lease::margin(ttl, Duration::ZERO)).is_none()
        };
        if lease.is_some_and(is_late) {
            self.give_up();
            return Err(Error::new(
                ErrorKind::Indeterminate,
                "the lease was over before a majority had granted it; retry, or raise `ttl`",
            ));
        }
        let least = self.request.min_lease;
        self.leave_stragglers();
        // What was lost of it while we waited for the others is made up for. A first try gets away with the
        // time that it took.
        let too_short = |(sent, ttl): (Time, Duration)| {
            sent.after(ttl).since(now) + core.node_limit(ttl) < least
        };
        if lease.is_some_and(too_short)
            && let [
                Renewal::Renewed {
                    sent,
                    ttl: Some(ttl),
                },
            ] = hold::renew_claims(&core, std::slice::from_ref(&claim)).await[..]
        {
            lease = Some((sent, ttl));
        }
        let mut grant = match lease {
            Some((sent, ttl)) => Grant::new(token, sent, round_trip, Some(ttl)),
            None => Grant::new(token, now, round_trip, None),
        };
        grant.watched = grants.iter().all(|grant| grant.watched);
        Ok(Answer::Granted(grant))
    }

    /// Those who came late hear of the token, too. If they don't: it is safe with the majority that knows it.
    fn tell_token(&self, node: usize, token: u64) {
        let raising = self.core.nodes[node].raise(self.claim.on(node, false), token);
        self.core.see_to(Box::pin(async {
            let _ = raising.await;
        }));
    }

    /// Requests that are still under way after the verdict.
    fn leave_stragglers(mut self) {
        for node in 0..self.nodes.len() {
            let Some(ask) = self.nodes[node].ask.take() else {
                continue;
            };
            let Some(flight) = self.crowd.take(node) else {
                continue;
            };
            let answer = Box::pin(async move {
                match flight.await {
                    Said::Answered(answer) => answer,
                    // A raise: its node has granted, and the release will ask it again.
                    Said::Raised(..) => Ok(Answer::Busy),
                }
            });
            let (core, claim) = (self.core.clone(), self.claim.clone());
            self.core.see_to(Box::pin(async move {
                hold::see_out(&core, &claim, node, ask, answer).await;
            }));
        }
    }

    /// Nothing of this attempt is wanted any more: what there is goes back, on all nodes that did not say no.
    fn give_up(mut self) {
        self.claim.end(self.core.clock.now());
        self.core.forget(&self.claim);
        while let Some((node, said)) = self.crowd.landed() {
            self.hear(node, said);
        }
        for node in self.ballot.to_release() {
            if !self.crowd.is_flying(node) {
                self.give_back(node);
            }
        }
        self.leave_stragglers();
    }

    /// No majority, and there is nothing to wait for.
    fn lost(mut self) -> Result<Answer, Error> {
        let nodes = self.nodes.len();
        let cut_off = self.is_cut_off();
        let errors = self.nodes.iter_mut().filter_map(|state| state.error.take());
        let errors: Vec<_> = errors.collect();
        self.give_up();
        if cut_off {
            return Err(merged(errors, nodes, "could not be asked"));
        }
        Ok(Answer::Busy)
    }

    /// Nobody wants the answer any more. Every node says what has become of its request, or its time is over.
    async fn stopped(mut self) -> Result<Answer, Error> {
        self.claim.end(self.core.clock.now());
        for state in &self.nodes {
            if let Some(ask) = &state.ask {
                ask.stop.raise();
            }
        }
        for node in self.ballot.held() {
            self.give_back(node);
            self.ballot.refused(node);
        }
        let until = self.limit_from_now();
        let core = self.core.clone();
        while let Some((node, said)) = self.crowd.next_until(&core.clock, until).await {
            self.hear(node, said);
        }
        self.give_up();
        Ok(Answer::Busy)
    }
}
