//! The questions to all nodes about one hold, until a majority has said yes and knows one token.
//!
//! An acquisition and an upgrade ask in the same way: every node at once, a node again after a pause, and a second round
//! to nodes whose token is smaller than that of another node. They differ in the question, and in what is to be done about
//! a node that said yes when there is no majority.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum_acquisition::{Next, QuorumAcquisition};
use tenure_core::store::{Answer, BoxFuture, Request};
use tenure_core::time::Time;

use super::errors::no_answer;
use super::holds::QuorumHold;
use super::requests::NodeRequests;
use super::store::Store;
use super::wait::{self, sleep_until};

/// What a node answered.
pub(super) enum NodeReply {
    Answered(Result<Answer, Error>),
    /// The token that the hold has after it was to be raised.
    Raised(Result<Option<u64>, Error>),
}

/// What happens next.
pub(super) enum VoteEvent {
    Reply(usize, NodeReply),
    /// The caller gave up.
    Stopped,
    /// Something is due at this time.
    Due(Time),
}

pub(super) struct Vote {
    pub(super) store: Arc<Store>,
    pub(super) request: Arc<Request>,
    pub(super) hold: Arc<QuorumHold>,
    pub(super) quorum: QuorumAcquisition,
    pub(super) requests: NodeRequests<NodeReply>,
    voters: Vec<Voter>,
}

/// When one node has to answer, and when it is asked again.
struct Voter {
    /// When the request that is under way is given up; never for a request that waits.
    give_up_at: Time,
    error: Option<Error>,
    /// `MAX` while the node has what was asked for, or a place for it in its queue.
    ask_again_at: Time,
}

impl Vote {
    pub(super) fn new(
        store: &Arc<Store>,
        request: &Arc<Request>,
        hold: Arc<QuorumHold>,
        quorum: QuorumAcquisition,
    ) -> Self {
        let nodes = store.nodes.len();
        let voter = |_| Voter {
            give_up_at: Time::MAX,
            error: None,
            ask_again_at: Time::MAX,
        };
        Self {
            store: store.clone(),
            request: request.clone(),
            hold,
            quorum,
            requests: NodeRequests::none(nodes),
            voters: (0..nodes).map(voter).collect(),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.voters.len()
    }

    /// What the answers so far mean.
    pub(super) fn verdict(&mut self) -> Next {
        self.quorum.verdict(|| self.store.next_choice())
    }

    /// Waits for what happens next, until `due` at the latest. Cancel safe.
    pub(super) async fn next(&mut self, due: Time) -> VoteEvent {
        let due = self.next_due().min(due);
        let clock = &self.store.clock;
        tokio::select! {
            biased;
            Some((node, reply)) = self.requests.next(), if self.requests.is_any_open() => VoteEvent::Reply(node, reply),
            () = self.request.stop.raised() => VoteEvent::Stopped,
            () = sleep_until(clock, due) => VoteEvent::Due(clock.now()),
        }
    }

    fn next_due(&self) -> Time {
        let times = self.voters.iter().enumerate().map(|(node, voter)| {
            // A node that has not answered the last request is not asked again before it has.
            match self.requests.is_open(node) {
                true => voter.give_up_at,
                false => voter.give_up_at.min(voter.ask_again_at),
            }
        });
        times.fold(Time::MAX, Time::min)
    }

    /// Sends the question to a node.
    pub(super) fn ask(&mut self, node: usize, answer: BoxFuture<Result<Answer, Error>>) {
        self.quorum.asked(node);
        self.voters[node] = Voter {
            give_up_at: match self.request.wait {
                true => Time::MAX,
                false => self.store.node_deadline(self.request.ttl),
            },
            error: None,
            ask_again_at: Time::MAX,
        };
        let reply = Box::pin(async { NodeReply::Answered(answer.await) });
        self.requests.send(node, reply);
    }

    /// Whether the node is to be asked again.
    pub(super) fn is_due(&self, node: usize, now: Time) -> bool {
        self.voters[node].ask_again_at <= now && !self.requests.is_open(node)
    }

    /// The node is asked again at that time.
    pub(super) fn ask_again_at(&mut self, node: usize, at: Time) {
        self.voters[node].ask_again_at = at;
    }

    /// The second round: these nodes granted a smaller token than another node of the majority.
    pub(super) fn raise(&mut self, token: u64, nodes: &[usize]) {
        for &node in nodes {
            if self.requests.is_open(node) {
                continue;
            }
            let raising = self.raise_on(node, token);
            self.voters[node].give_up_at = self.store.node_deadline(self.request.ttl);
            let reply = Box::pin(async move { NodeReply::Raised(raising.await) });
            self.requests.send(node, reply);
        }
    }

    fn raise_on(&self, node: usize, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        let on_node = self.hold.on_node(node, false);
        self.store.nodes[node].clone().raise(on_node, token)
    }

    /// A majority knows the token: tells it to the nodes that have a smaller one. If that fails, the majority is enough.
    pub(super) fn tell_token(&self, token: u64) {
        for node in self.quorum.behind(token) {
            let raising = self.raise_on(node, token);
            self.store.background.run(Box::pin(async {
                let _ = raising.await;
            }));
        }
    }

    /// The node has answered, or was given up: nothing is waited for any more.
    pub(super) fn has_answered(&mut self, node: usize) {
        self.voters[node].give_up_at = Time::MAX;
    }

    /// The node has raised the token of the hold, or has no such hold.
    pub(super) fn raised(&mut self, node: usize, token: Option<u64>) {
        match token {
            Some(token) => {
                self.store.note_token(token);
                self.quorum.raised(node, token);
            }
            None => {
                self.hold.set_lost(node);
                self.refused(node);
            }
        }
    }

    /// The node said no.
    pub(super) fn refused(&mut self, node: usize) {
        self.quorum.refused(node);
        self.voters[node].error = None;
        self.voters[node].ask_again_at = self.cooldown();
    }

    pub(super) fn failed(&mut self, node: usize, err: Error) {
        match err.kind() {
            ErrorKind::Indeterminate => self.quorum.unclear(node),
            _ => self.quorum.refused(node),
        }
        self.voters[node].error = Some(err);
        self.voters[node].ask_again_at = self.cooldown();
    }

    /// Whether the outcome of the last request to the node is unknown.
    pub(super) fn is_unclear(&self, node: usize) -> bool {
        let error = self.voters[node].error.as_ref();
        error.is_some_and(|err| err.kind() == ErrorKind::Indeterminate)
    }

    fn cooldown(&self) -> Time {
        match self.request.wait {
            true => wait::ask_again_at(&self.store.clock, self.request.ttl),
            false => Time::MAX,
        }
    }

    /// Gives up nodes that have not answered in time, and returns them.
    pub(super) fn give_up_silent_nodes(&mut self, now: Time) -> Vec<usize> {
        let is_late = |node: &usize| self.voters[*node].give_up_at <= now;
        let late: Vec<_> = (0..self.nodes()).filter(is_late).collect();
        for &node in &late {
            self.has_answered(node);
            let timeout = self.store.settings.node_timeout_for(self.request.ttl);
            self.failed(node, no_answer(timeout));
        }
        late
    }

    /// Whether so many nodes fail that no majority can say yes.
    pub(super) fn is_cut_off(&self) -> bool {
        let failed = self.voters.iter().filter(|voter| voter.error.is_some());
        failed.count() + self.store.majority() > self.nodes()
    }

    pub(super) fn take_errors(&mut self) -> Vec<Error> {
        let errors = self.voters.iter_mut().filter_map(|it| it.error.take());
        errors.collect()
    }
}
