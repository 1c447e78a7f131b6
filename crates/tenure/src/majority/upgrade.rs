//! Changing the mode of a hold on all nodes.
//!
//! An upgrade asks every node that has the hold, and each of those waits for its own other holders. It is done when a
//! majority of all nodes has made the hold exclusive and knows one token: every other holder has a majority, which shares
//! a node with that majority. An upgrade that fails, or is given up, is followed by a downgrade on all nodes.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::logic::quorum_acquisition::{Next, QuorumAcquisition};
use tenure_core::options::Mode;
use tenure_core::rt::Flag;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Grant, Hold, Renewal, Request};
use tenure_core::time::Time;

use super::errors::{no_answer, no_majority};
use super::holds::QuorumHold;
use super::mode::{make_exclusive, weaken};
use super::renew::renew_holds;
use super::requests::NodeRequests;
use super::store::Store;
use super::wait::{self, sleep_until};

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

/// What a node answered.
enum Reply {
    Upgraded(Result<Answer, Error>),
    /// The token that the hold has after it was to be raised.
    Raised(Result<Option<u64>, Error>),
}

struct Upgrading {
    store: Arc<Store>,
    request: Arc<Request>,
    hold: Arc<QuorumHold>,
    /// Raised when the nodes are to stop.
    stop: Arc<Flag>,
    quorum: QuorumAcquisition,
    requests: NodeRequests<Reply>,
    nodes: Vec<NodeState>,
}

/// Where the upgrade stands with one node.
struct NodeState {
    /// When the request that is under way is given up; never for a request that waits.
    give_up_at: Time,
    error: Option<Error>,
    /// When to ask again; `MAX` while a request is under way, or the node has made the hold exclusive.
    ask_again_at: Time,
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
    let nodes = store.nodes.len();
    let node = |_| NodeState {
        give_up_at: Time::MAX,
        error: None,
        ask_again_at: Time::MAX,
    };
    let upgrading = Upgrading {
        store: store.clone(),
        request: request.clone(),
        stop: held.begin_change(true),
        hold: held,
        quorum: QuorumAcquisition::new(nodes),
        requests: NodeRequests::none(nodes),
        nodes: (0..nodes).map(node).collect(),
    };
    upgrading.run().await
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Lost,
        "too few nodes have the hold; the lock was lost",
    )
}

impl Upgrading {
    async fn run(mut self) -> Result<Answer, Error> {
        let proposal = self.store.proposal();
        for node in 0..self.nodes.len() {
            self.ask(node, proposal);
        }
        loop {
            match self.quorum.verdict(|| self.store.next_choice()) {
                Next::Won { token } => return self.won(token).await,
                Next::Raise { token, nodes } => self.raise(token, &nodes),
                Next::Lost if !self.request.wait || self.is_cut_off() => return self.lost().await,
                Next::Lost | Next::Wait => {}
            }
            if !self.hold.with_mode(|mode| mode.is_supported()) {
                return self.give_up().await.and(Err(gone()));
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
                () = self.request.stop.raised() => return self.give_up().await,
                () = sleep_until(&store.clock, next) => self.do_what_is_due(store.clock.now()),
            }
        }
    }

    fn ask(&mut self, node: usize, proposal: u64) {
        let state = &mut self.nodes[node];
        state.error = None;
        state.ask_again_at = Time::MAX;
        if self.hold.with_mode(|mode| mode.at(node)).is_none() {
            return self.refused(node);
        }
        let wait = self.request.wait;
        if !wait {
            state.give_up_at = self.store.node_deadline(self.request.ttl);
        }
        self.quorum.asked(node);
        let mode = Mode::Exclusive;
        let request = self.hold.request_to(node, mode, wait, proposal);
        let (store, hold, stop) = (self.store.clone(), self.hold.clone(), self.stop.clone());
        let reply = Box::pin(async move {
            Reply::Upgraded(make_exclusive(store, hold, node, request, stop).await)
        });
        self.requests.send(node, reply);
    }

    /// The second round, as in an acquisition.
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

    fn apply(&mut self, node: usize, reply: Reply) {
        self.nodes[node].give_up_at = Time::MAX;
        match reply {
            Reply::Upgraded(Ok(Answer::Granted(grant))) => self.quorum.granted(node, grant.token),
            Reply::Raised(Ok(Some(token))) => self.quorum.raised(node, token),
            Reply::Raised(Ok(None)) => {
                self.hold.set_lost(node);
                self.refused(node);
            }
            Reply::Upgraded(Ok(_)) => self.refused(node),
            Reply::Upgraded(Err(err)) | Reply::Raised(Err(err)) => self.failed(node, err),
        }
    }

    /// The hold is not exclusive on the node.
    fn refused(&mut self, node: usize) {
        self.quorum.refused(node);
        self.nodes[node].ask_again_at = self.cooldown();
    }

    fn failed(&mut self, node: usize, err: Error) {
        if err.kind() == ErrorKind::Indeterminate {
            self.quorum.unclear(node);
        } else {
            self.quorum.refused(node);
        }
        self.nodes[node].error = Some(err);
        self.nodes[node].ask_again_at = self.cooldown();
    }

    /// A node that a renewal has repaired is asked, too.
    fn cooldown(&self) -> Time {
        match self.request.wait {
            true => wait::ask_again_at(&self.store.clock, self.request.ttl),
            false => Time::MAX,
        }
    }

    /// Whether so many nodes fail that the hold cannot become exclusive.
    fn is_cut_off(&self) -> bool {
        let failed = self.nodes.iter().filter(|state| state.error.is_some());
        failed.count() + self.store.majority() > self.nodes.len()
    }

    fn next_due(&self) -> Time {
        let times = self.nodes.iter().enumerate().map(|(node, state)| {
            // A node that has not answered the last request is not asked again before it has.
            match self.requests.is_open(node) {
                true => state.give_up_at,
                false => state.give_up_at.min(state.ask_again_at),
            }
        });
        times.fold(Time::MAX, Time::min)
    }

    fn do_what_is_due(&mut self, now: Time) {
        let proposal = self.store.proposal();
        for node in 0..self.nodes.len() {
            if self.nodes[node].give_up_at <= now {
                self.nodes[node].give_up_at = Time::MAX;
                let timeout = self.store.settings.node_timeout_for(self.request.ttl);
                self.failed(node, no_answer(timeout));
            }
            if self.nodes[node].ask_again_at <= now && !self.requests.is_open(node) {
                self.ask(node, proposal);
            }
        }
    }

    /// A majority has made the hold exclusive and knows the token. Nodes that have not answered go on: the more nodes
    /// have the hold alone, the more of them may fail.
    async fn won(self, token: u64) -> Result<Answer, Error> {
        self.store.note_token(token);
        let is_alone = self.hold.claim_alone(token);
        for node in self.quorum.behind(token) {
            let raising = self.store.nodes[node]
                .clone()
                .raise(self.hold.on_node(node, false), token);
            // If that fails, the majority that knows the token is enough.
            self.store.background.run(Box::pin(async {
                let _ = raising.await;
            }));
        }
        if !is_alone {
            return self.give_up().await.and(Err(gone()));
        }
        // The lease so far may be that of nodes where the hold is not exclusive.
        let renewals = renew_holds(&self.store, std::slice::from_ref(&self.hold)).await;
        let now = self.store.clock.now();
        match renewals.into_iter().next() {
            Some(Renewal::Renewed { sent, ttl }) => {
                self.requests.finish_in(&self.store.background);
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
        let nodes = self.nodes.len();
        let is_cut_off = self.is_cut_off();
        let errors = self.nodes.iter_mut().filter_map(|state| state.error.take());
        let errors: Vec<_> = errors.collect();
        let answer = self.give_up().await;
        match is_cut_off {
            true => answer.and(Err(no_majority(errors, nodes, "could not be asked"))),
            false => answer,
        }
    }

    /// Makes the hold upgradable again.
    async fn give_up(self) -> Result<Answer, Error> {
        self.stop.raise();
        self.requests.finish_in(&self.store.background);
        match weaken_all(&self.store, &self.hold, Mode::Upgradable).await? {
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
    let stop = hold.begin_change(false);
    let nodes = store.nodes.len();
    let timeout = store.settings.hold_timeout_for(hold.request.ttl);
    let until = store.clock.now().after(timeout);
    let weaken = |node| -> BoxFuture<_> {
        Box::pin(weaken(
            store.clone(),
            hold.clone(),
            node,
            mode,
            stop.clone(),
        ))
    };
    let mut requests = NodeRequests::new((0..nodes).map(weaken));
    let mut tally = Tally::new(nodes);
    let mut errors = Vec::new();
    let mut count = |tally: &mut Tally, node, reply: Result<bool, Error>| {
        let _ = match reply {
            Ok(true) => tally.yes(node),
            Ok(false) => tally.no(node),
            Err(err) => {
                errors.push(err);
                tally.unknown(node)
            }
        };
    };
    while tally.verdict() != Verdict::Won
        && let Some((node, reply)) = requests.next_until(&store.clock, until).await
    {
        count(&mut tally, node, reply);
    }
    while let Some((node, reply)) = requests.next_arrived() {
        count(&mut tally, node, reply);
    }
    let silent = (0..nodes).filter(|node| requests.is_open(*node)).count();
    requests.finish_in(&store.background);
    if tally.verdict() == Verdict::Won {
        return Ok(true);
    }
    if tally.is_refused() {
        return Ok(false);
    }
    errors.extend((0..silent).map(|_| no_answer(timeout)));
    let what = "gave no clear answer to the downgrade";
    Err(no_majority(errors, nodes, what))
}
