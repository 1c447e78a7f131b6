//! Changing the mode of a hold on all nodes.
//!
//! An upgrade asks every node that has the hold, and each of those waits for its own other holders. It is done when a
//! majority of all nodes has made the hold exclusive and knows one token: every other holder has a majority, which shares
//! a node with that majority. An upgrade that fails, or is given up, is followed by a downgrade on all nodes.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum_acquisition::{Next, QuorumAcquisition};
use tenure_core::options::Mode;
use tenure_core::rt::Flag;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Grant, Hold, Renewal, Request};
use tenure_core::time::Time;

use super::errors::no_majority;
use super::holds::QuorumHold;
use super::mode::{make_exclusive, weaken};
use super::renew::renew_holds;
use super::requests::NodeRequests;
use super::store::Store;
use super::vote::{NodeReply, Vote, VoteEvent};
use super::yes_or_no::answers;

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { upgrade(&self, &hold, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

struct UpgradeVote {
    vote: Vote,
    /// Raised when the nodes are to stop.
    stop: Arc<Flag>,
}

/// Makes the upgradable hold exclusive on a majority of the nodes.
pub(super) async fn upgrade(
    store: &Arc<Store>,
    hold: &Hold,
    request: &Arc<Request>,
) -> Result<Answer, Error> {
    let Some(held) = store.holds.get(hold.owner) else {
        return Err(gone());
    };
    let quorum = QuorumAcquisition::new(store.nodes.len());
    let upgrade_vote = UpgradeVote {
        stop: held.begin_change(true),
        vote: Vote::new(store, request, held, quorum),
    };
    upgrade_vote.run().await
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Lost,
        "too few nodes have the hold; the lock was lost",
    )
}

impl UpgradeVote {
    async fn run(mut self) -> Result<Answer, Error> {
        self.ask_nodes(|_, _| true);
        loop {
            match self.vote.verdict() {
                Next::Won { token } => return self.won(token).await,
                Next::Raise { token, nodes } => self.vote.raise(token, &nodes),
                Next::Lost if !self.vote.request.wait || self.vote.is_cut_off() => {
                    return self.lost().await;
                }
                Next::Lost | Next::Wait => {}
            }
            if !self.vote.hold.with_mode(|mode| mode.is_supported()) {
                return self.give_up().await.and(Err(gone()));
            }
            match self.vote.next(Time::MAX).await {
                VoteEvent::Reply(node, reply) => self.apply(node, reply),
                VoteEvent::Stopped => return self.give_up().await,
                VoteEvent::Due(now) => {
                    self.vote.give_up_silent_nodes(now);
                    self.ask_nodes(|vote, node| vote.is_due(node, now));
                }
            }
        }
    }

    fn ask_nodes(&mut self, is_due: impl Fn(&Vote, usize) -> bool) {
        let proposal = self.vote.store.proposal();
        for node in 0..self.vote.nodes() {
            if is_due(&self.vote, node) {
                self.ask(node, proposal);
            }
        }
    }

    fn ask(&mut self, node: usize, proposal: u64) {
        let Vote {
            store,
            hold,
            request,
            ..
        } = &self.vote;
        if hold.with_mode(|mode| mode.at(node)).is_none() {
            // A node that a renewal repairs is asked later.
            return self.vote.refused(node);
        }
        let request = hold.request_to(node, Mode::Exclusive, request.wait, proposal);
        let (store, hold, stop) = (store.clone(), hold.clone(), self.stop.clone());
        let answer = Box::pin(make_exclusive(store, hold, node, request, stop));
        self.vote.ask(node, answer);
    }

    fn apply(&mut self, node: usize, reply: NodeReply) {
        self.vote.has_answered(node);
        match reply {
            NodeReply::Answered(Ok(Answer::Granted(grant))) => {
                self.vote.quorum.granted(node, grant.token);
            }
            NodeReply::Answered(Ok(_)) => self.vote.refused(node),
            NodeReply::Raised(Ok(token)) => self.vote.raised(node, token),
            NodeReply::Answered(Err(err)) | NodeReply::Raised(Err(err)) => {
                self.vote.failed(node, err)
            }
        }
    }

    /// A majority has made the hold exclusive and knows the token. Nodes that have not answered go on: the more nodes
    /// have the hold alone, the more of them may fail.
    async fn won(self, token: u64) -> Result<Answer, Error> {
        let Vote { store, hold, .. } = &self.vote;
        store.note_token(token);
        let is_alone = hold.claim_alone(token);
        self.vote.tell_token(token);
        if !is_alone {
            return self.give_up().await.and(Err(gone()));
        }
        // The lease so far may be that of nodes where the hold is not exclusive.
        let renewals = renew_holds(store, std::slice::from_ref(hold)).await;
        let now = store.clock.now();
        match renewals.into_iter().next() {
            Some(Renewal::Renewed { sent, ttl }) => {
                self.vote.requests.finish_in(&self.vote.store.background);
                let mut grant = Grant::new(token, sent, now.since(sent), ttl);
                grant.watched = ttl.is_none();
                Ok(Answer::Granted(grant))
            }
            Some(Renewal::Unknown(err)) => self.give_up().await.and(Err(err)),
            _ => self.give_up().await.and(Err(gone())),
        }
    }

    /// There is no majority, and nothing to wait for.
    async fn lost(mut self) -> Result<Answer, Error> {
        let nodes = self.vote.nodes();
        let is_cut_off = self.vote.is_cut_off();
        let errors = self.vote.take_errors();
        let answer = self.give_up().await;
        match is_cut_off {
            true => answer.and(Err(no_majority(errors, nodes, "could not be asked"))),
            false => answer,
        }
    }

    /// Makes the hold upgradable again.
    async fn give_up(self) -> Result<Answer, Error> {
        self.stop.raise();
        let Vote {
            store,
            hold,
            requests,
            ..
        } = self.vote;
        requests.finish_in(&store.background);
        match weaken_all(&store, &hold, Mode::Upgradable).await? {
            true => Ok(Answer::Busy),
            false => Err(gone()),
        }
    }
}

/// Makes the hold shared, or upgradable again, on all nodes. `false`: a majority definitely has no hold.
pub(super) async fn downgrade(store: &Arc<Store>, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    match store.holds.get(hold.owner) {
        Some(held) => weaken_all(store, &held, mode).await,
        None => Ok(false),
    }
}

/// Returns when a majority has answered; the other nodes are asked until they answer.
async fn weaken_all(store: &Arc<Store>, hold: &Arc<QuorumHold>, mode: Mode) -> Result<bool, Error> {
    hold.with_mode(|known| known.claim_less(mode));
    hold.end_turn();
    let stop = hold.begin_change(false);
    let weaken = |node| -> BoxFuture<_> {
        Box::pin(weaken(
            store.clone(),
            hold.clone(),
            node,
            mode,
            stop.clone(),
        ))
    };
    let requests = NodeRequests::new((0..store.nodes.len()).map(weaken));
    let answers = answers(store, hold.request.ttl, requests).await;
    answers.outcome("gave no clear answer to the downgrade")
}
