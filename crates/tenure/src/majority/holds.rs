//! The holds of one client, each with its part on every node, from the first request of the acquisition until the
//! release.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::holder::Holder;
use tenure_core::logic::quorum_mode::{QuorumMode, Repair};
use tenure_core::options::Mode;
use tenure_core::rt::{Flag, lock};
use tenure_core::store::{Hold, Release, Request};
use tenure_core::support::HoldRegistry;
use tenure_core::time::Time;

use super::owners::{self, NodeOwner};

/// The holds of one client.
#[derive(Default)]
pub(super) struct Holds {
    /// By the owner id towards the driver, and by every other owner id that a hold has on a node.
    by_owner: HoldRegistry<Arc<QuorumHold>>,
    /// The size at which holds are looked for that no caller will release any more.
    purge_at: AtomicUsize,
}

impl Holds {
    /// Remembers `hold` under `owner`.
    pub(super) fn insert(&self, owner: OwnerId, hold: &Arc<QuorumHold>, now: Time) {
        if self.by_owner.len() >= self.purge_at.load(Ordering::Relaxed) {
            self.by_owner.retain(|_, hold| !hold.is_stale(now));
            let purge_at = 2 * self.by_owner.len() + 64;
            self.purge_at.store(purge_at, Ordering::Relaxed);
        }
        self.by_owner.insert(owner, hold.clone());
    }

    pub(super) fn get(&self, owner: OwnerId) -> Option<Arc<QuorumHold>> {
        self.by_owner.get(owner)
    }

    /// Forgets `hold` under all its owner ids.
    pub(super) fn remove(&self, hold: &QuorumHold) {
        for owner in hold.owners() {
            self.by_owner.remove(owner);
        }
    }

    /// Forgets an owner id that `hold` no longer has on any node.
    pub(super) fn remove_alias(&self, owner: OwnerId, hold: &QuorumHold) {
        if owner != hold.owner {
            self.by_owner.remove(owner);
        }
    }

    /// Each hold once.
    pub(super) fn all(&self) -> Vec<Arc<QuorumHold>> {
        let by_main_owner =
            |owner, hold: &Arc<QuorumHold>| (owner == hold.owner).then(|| hold.clone());
        self.by_owner.select(by_main_owner)
    }
}

/// What one acquisition has, or may have, on the nodes.
pub(super) struct QuorumHold {
    /// The owner id towards the driver.
    pub(super) owner: OwnerId,
    /// What was asked for.
    pub(super) request: Arc<Request>,
    /// Raised when the hold is over on all nodes: a request that is granted after that gives its grant back.
    pub(super) ended: Flag,
    /// The hold was detached by another client, and this one is attached to it.
    pub(super) is_attached: bool,
    state: Mutex<QuorumHoldState>,
    /// By node: one request at a time changes the mode of the hold there. Made when they are first needed.
    turns: OnceLock<Vec<tokio::sync::Mutex<()>>>,
}

struct QuorumHoldState {
    on_nodes: Vec<NodePart>,
    /// What each node has of the hold.
    mode: QuorumMode,
    /// The agreed token, or the last one that is reserved; 0 before there is one.
    token: u64,
    /// The agreed token, if tokens are reserved for the tasks of the client.
    first_of_turn: Option<u64>,
    granted_at: Option<Time>,
    /// What others see of the holder.
    holder: Arc<Holder>,
    /// See [`shorten_min_hold`](QuorumHold::shorten_min_hold).
    min_hold: Duration,
    ended_at: Time,
    /// The hold goes on without this client.
    is_left: bool,
    /// The change of mode that was asked for last, or a repair of the mode on a node.
    change: Option<Change>,
}

/// A change of mode on all nodes.
#[derive(Default)]
struct Change {
    /// Raised when another change was asked for, or the hold is over.
    stop: Arc<Flag>,
    /// Nodes are asked to make the hold exclusive, and too few of them have done it.
    is_upgrade: bool,
}

/// The part of a hold on one node.
#[derive(Clone, Copy)]
struct NodePart {
    owner: NodeOwner,
    /// The client knows under which owner id the node has the hold, or that the node has none.
    is_found: bool,
    /// The node has answered that it released the hold.
    is_released: bool,
    /// A release is under way, and ends everything that this hold has on the node.
    is_releasing: bool,
    /// Another request was granted while the release was under way, perhaps after it.
    is_granted_late: bool,
    is_repairing: bool,
}

impl QuorumHold {
    pub(super) fn new(request: &Arc<Request>, nodes: usize) -> Arc<Self> {
        Arc::new(Self::with_parts(request, nodes, false))
    }

    /// The hold of a receipt, before the nodes have been asked for it.
    pub(super) fn attached(request: &Arc<Request>, token: u64, nodes: usize) -> Arc<Self> {
        let hold = Self::with_parts(request, nodes, true);
        lock(&hold.state).token = token;
        Arc::new(hold)
    }

    fn with_parts(request: &Arc<Request>, nodes: usize, is_attached: bool) -> Self {
        let part = NodePart {
            owner: NodeOwner::new(request.owner),
            is_found: !is_attached,
            is_released: false,
            is_releasing: false,
            is_granted_late: false,
            is_repairing: false,
        };
        Self {
            owner: request.owner,
            request: request.clone(),
            ended: Flag::new(),
            is_attached,
            state: Mutex::new(QuorumHoldState {
                on_nodes: vec![part; nodes],
                mode: QuorumMode::new(nodes, request.mode),
                token: 0,
                first_of_turn: None,
                granted_at: None,
                holder: request.holder.clone(),
                min_hold: request.min_hold,
                ended_at: Time::MAX,
                is_left: false,
                change: None,
            }),
            turns: OnceLock::new(),
        }
    }

    /// The request of this hold to one node.
    pub(super) fn request_to(
        &self,
        node: usize,
        mode: Mode,
        wait: bool,
        propose: u64,
    ) -> Arc<Request> {
        let ours = &self.request;
        let owner = self.with_part(node, |part| part.owner.current());
        let mut request = Request::new(ours.name.clone(), owner, ours.ttl);
        request.mode = mode;
        request.wait = wait;
        request.fair = ours.fair;
        {
            let state = lock(&self.state);
            request.min_hold = state.min_hold;
            request.holder = state.holder.clone();
        }
        request.lock_delay = ours.lock_delay;
        request.min_lease = ours.min_lease;
        request.is_renewed = ours.is_renewed;
        request.propose = Some(propose);
        request.until = ours.until;
        Arc::new(request)
    }

    /// A node is about to be asked for a hold that a majority has granted: there the name has to stay taken for a shorter
    /// time than on the nodes that granted it then.
    pub(super) fn shorten_min_hold(&self, now: Time) {
        let mut state = lock(&self.state);
        if let Some(granted_at) = state.granted_at {
            let since = now.since(granted_at);
            state.min_hold = self.request.min_hold.saturating_sub(since);
        }
    }

    /// This hold as the node knows it.
    pub(super) fn on_node(&self, node: usize, unclean: bool) -> Hold {
        let state = lock(&self.state);
        let mut hold = Hold::new(&self.request, state.token);
        hold.owner = state.on_nodes[node].owner.current();
        hold.unclean = unclean;
        hold
    }

    /// The same under each owner id that the hold may have there.
    pub(super) fn all_on_node(&self, node: usize) -> Vec<Hold> {
        let on_node = self.on_node(node, false);
        if self.is_found(node) {
            return vec![on_node];
        }
        let with_owner = |owner| {
            let mut other = on_node.clone();
            other.owner = owner;
            other
        };
        owners::made_of(self.owner).map(with_owner).collect()
    }

    fn owners(&self) -> Vec<OwnerId> {
        let state = lock(&self.state);
        let others = state.on_nodes.iter().map(|part| part.owner.current());
        others.chain([self.owner]).collect()
    }

    pub(super) fn token(&self) -> u64 {
        lock(&self.state).token
    }

    /// The nodes are about to be asked to reserve these tokens. From now on a node that grants the hold, or hands it over,
    /// is told the last one, whatever becomes of the reservation.
    pub(super) fn begin_turn(&self, first: u64, last: u64) {
        let mut state = lock(&self.state);
        state.first_of_turn = Some(first);
        state.token = state.token.max(last);
    }

    /// The hold has one token again: other holds may be beside it, and have the tokens after the last one.
    pub(super) fn end_turn(&self) {
        lock(&self.state).first_of_turn = None;
    }

    /// The first of the tokens that are reserved, if there are any, and the last one or the only one.
    pub(super) fn tokens(&self) -> (Option<u64>, u64) {
        let state = lock(&self.state);
        (state.first_of_turn, state.token)
    }

    /// A majority has granted the hold, and has agreed on `token`.
    pub(super) fn set_granted(&self, token: u64, now: Time) {
        let mut state = lock(&self.state);
        state.token = token;
        state.granted_at = Some(now);
    }

    /// From now on nodes are told this about the holder.
    pub(super) fn set_holder(&self, holder: Arc<Holder>) {
        lock(&self.state).holder = holder;
    }

    /// The node has the hold in this mode.
    pub(super) fn set_held(&self, node: usize, mode: Mode) {
        lock(&self.state).mode.has(node, mode);
    }

    /// The node does not have the hold any more. Returns whether a majority still has what is claimed.
    pub(super) fn set_lost(&self, node: usize) -> bool {
        let mode = &mut lock(&self.state).mode;
        mode.lost(node);
        mode.is_supported()
    }

    /// Reads or changes what is known of the mode on the nodes.
    pub(super) fn with_mode<R>(&self, work: impl FnOnce(&mut QuorumMode) -> R) -> R {
        work(&mut lock(&self.state).mode)
    }

    /// The right to change the mode of the hold on the node, for one request after the other. Cancel safe.
    pub(super) async fn turn(&self, node: usize) -> tokio::sync::MutexGuard<'_, ()> {
        let nodes = lock(&self.state).on_nodes.len();
        let turns = self
            .turns
            .get_or_init(|| (0..nodes).map(|_| tokio::sync::Mutex::default()).collect());
        turns[node].lock().await
    }

    /// Begins a change of mode. Requests of an earlier change stop. An upgrade is under way until the next change, or
    /// until a majority has made the hold exclusive.
    pub(super) fn begin_change(&self, is_upgrade: bool) -> Arc<Flag> {
        let change = Change {
            is_upgrade,
            ..Change::default()
        };
        let stop = change.stop.clone();
        if let Some(before) = lock(&self.state).change.replace(change) {
            before.stop.raise();
        }
        if self.ended.is_raised() {
            stop.raise();
        }
        stop
    }

    /// Raised when the next change of mode begins, or the hold is over.
    pub(super) fn change_is_over(&self) -> Arc<Flag> {
        let mut state = lock(&self.state);
        let stop = state.change.get_or_insert_default().stop.clone();
        if self.ended.is_raised() {
            stop.raise();
        }
        stop
    }

    /// The holder claims the name alone, under `token`, if a majority of the nodes allows it.
    pub(super) fn claim_alone(&self, token: u64) -> bool {
        let mut state = lock(&self.state);
        let is_alone = state.mode.claim_alone();
        if is_alone {
            state.token = token;
            if let Some(change) = &mut state.change {
                change.is_upgrade = false;
            }
        }
        is_alone
    }

    /// What a node should be asked for. While an upgrade is under way, nodes may have more than what is claimed.
    pub(super) fn repair_of(&self, node: usize) -> Option<Repair> {
        let state = lock(&self.state);
        let repair = state.mode.repair(node)?;
        let is_upgrading = state
            .change
            .as_ref()
            .is_some_and(|change| change.is_upgrade);
        let waits = is_upgrading && matches!(repair, Repair::Downgrade(_));
        (!waits).then_some(repair)
    }

    /// Gives the hold another owner id on the node. Returns the hold under the old one, for a release.
    pub(super) fn replace_owner(&self, node: usize) -> Hold {
        let hold = self.on_node(node, false);
        self.with_part(node, |part| part.owner.replace());
        self.set_lost(node);
        hold
    }

    /// No request under this owner id, which was replaced, is under way to the node any more.
    pub(super) fn give_owner_back(&self, node: usize, owner: OwnerId) {
        self.with_part(node, |part| part.owner.give_back(owner));
    }

    /// The node has the hold under `owner`. A hold that was attached has everywhere the mode of its receipt.
    pub(super) fn found(&self, node: usize, owner: OwnerId) {
        self.with_part(node, |part| {
            part.owner.set(owner);
            part.is_found = true;
        });
        self.set_held(node, self.request.mode);
    }

    /// The node has the hold under no owner id.
    pub(super) fn found_missing(&self, node: usize) {
        self.with_part(node, |part| part.is_found = true);
        self.set_lost(node);
    }

    /// Whether it is known under which owner id the node has the hold, or that the node has none.
    pub(super) fn is_found(&self, node: usize) -> bool {
        self.with_part(node, |part| part.is_found)
    }

    /// Whether another client, which knows the receipt, finds the hold on the node in the mode that is claimed, or none.
    pub(super) fn is_detachable(&self, node: usize) -> bool {
        self.with_part(node, |part| part.owner.is_made_of_first())
            && self.with_mode(|mode| mode.supports_if_held(node))
    }

    /// This client has nothing to do with the hold any more, which goes on: what a node grants late stays there.
    pub(super) fn leave(&self, now: Time) {
        lock(&self.state).is_left = true;
        self.end(now);
    }

    /// Whether the hold goes on without this client.
    pub(super) fn is_left(&self) -> bool {
        lock(&self.state).is_left
    }

    /// Whether a grant that arrives after the end of the hold stays, because another client may count on it.
    pub(super) fn keeps_late_grant(&self, node: usize) -> bool {
        self.is_left() && self.with_mode(|mode| mode.supports_if_held(node))
    }

    /// A node is about to be asked for what the holder claims. Returns `false` if that is under way already.
    pub(super) fn start_repair(&self, node: usize) -> bool {
        self.with_part(node, |part| {
            !std::mem::replace(&mut part.is_repairing, true)
        })
    }

    pub(super) fn finish_repair(&self, node: usize) {
        self.with_part(node, |part| part.is_repairing = false);
    }

    pub(super) fn end(&self, now: Time) {
        self.ended.raise();
        let mut state = lock(&self.state);
        state.ended_at = state.ended_at.min(now);
        if let Some(change) = &state.change {
            change.stop.raise();
        }
    }

    /// Resolves when the hold is over. Never, if a release is under way to the node: the release also ends a request
    /// that waits there.
    pub(super) async fn ended_without_release(&self, node: usize) {
        self.ended.raised().await;
        if self.with_part(node, |part| part.is_releasing) {
            std::future::pending::<()>().await;
        }
    }

    /// A release is about to be sent to each node.
    pub(super) fn start_release(&self, now: Time) {
        let mut state = lock(&self.state);
        state.is_left = false;
        state
            .on_nodes
            .iter_mut()
            .for_each(|part| part.is_releasing = true);
        drop(state);
        self.end(now);
    }

    /// The node has answered a release. Returns whether it has to be asked once more, because another request may have
    /// been granted after the release.
    pub(super) fn finish_release(&self, node: usize, release: Release) -> bool {
        self.with_part(node, |part| {
            part.is_releasing = false;
            part.is_released |= release == Release::Released;
            std::mem::take(&mut part.is_granted_late) && !part.is_released
        })
    }

    /// The release under way to the node got no answer, or one that is not enough, and is about to be sent again. What is
    /// granted from now on may be granted after that release, so the request that is granted releases it.
    pub(super) fn repeat_release(&self, node: usize) {
        self.with_part(node, |part| part.is_releasing = false);
    }

    /// Whether the node has answered that it released the hold, now or to an earlier release.
    pub(super) fn is_released(&self, node: usize) -> bool {
        self.with_part(node, |part| part.is_released)
    }

    /// A request under `owner` was, or may have been, granted after the end of the hold. Returns whether the caller has
    /// to release the grant; otherwise a release that is under way does that, or was answered already.
    pub(super) fn note_late_grant(&self, node: usize, owner: OwnerId) -> bool {
        self.with_part(node, |part| {
            if part.owner.current() != owner {
                return true;
            }
            part.is_granted_late |= part.is_releasing;
            !part.is_releasing && !part.is_released
        })
    }

    /// Whether the hold ended so long ago that its leases are over, so that no caller will release it any more.
    fn is_stale(&self, now: Time) -> bool {
        let ended_at = lock(&self.state).ended_at;
        self.ended.is_raised() && now.since(ended_at) > self.request.ttl * 2
    }

    fn with_part<R>(&self, node: usize, work: impl FnOnce(&mut NodePart) -> R) -> R {
        work(&mut lock(&self.state).on_nodes[node])
    }
}
