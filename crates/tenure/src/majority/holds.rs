//! The holds of one client, each with its part on every node, from the first request of the acquisition until the
//! release.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenure_core::backend::{Hold, Release, Request};
use tenure_core::fence::OwnerId;
use tenure_core::rt::{Flag, lock};
use tenure_core::support::HoldRegistry;
use tenure_core::time::Time;

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
    parts: Mutex<Parts>,
}

struct Parts {
    on_nodes: Vec<NodePart>,
    /// The agreed token; 0 before there is one.
    token: u64,
    ended_at: Time,
}

/// The part of a hold on one node.
#[derive(Clone, Copy)]
struct NodePart {
    /// First that of the hold. After a release on this node another one: a release that arrives late must not end what
    /// was acquired since.
    owner: OwnerId,
    is_held: bool,
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
        let part = NodePart {
            owner: request.owner,
            is_held: false,
            is_released: false,
            is_releasing: false,
            is_granted_late: false,
            is_repairing: false,
        };
        Arc::new(Self {
            owner: request.owner,
            request: request.clone(),
            ended: Flag::new(),
            parts: Mutex::new(Parts {
                on_nodes: vec![part; nodes],
                token: 0,
                ended_at: Time::MAX,
            }),
        })
    }

    /// The request of this hold to one node.
    pub(super) fn request_to(&self, node: usize, wait: bool, propose: u64) -> Arc<Request> {
        let ours = &self.request;
        let owner = self.with_part(node, |part| part.owner);
        let mut request = Request::new(ours.name.clone(), owner, ours.ttl);
        request.mode = ours.mode;
        request.wait = wait;
        request.fair = ours.fair;
        request.min_hold = ours.min_hold;
        request.lock_delay = ours.lock_delay;
        request.min_lease = ours.min_lease;
        request.propose = Some(propose);
        request.holder = ours.holder.clone();
        Arc::new(request)
    }

    /// This hold as the node knows it.
    pub(super) fn on_node(&self, node: usize, unclean: bool) -> Hold {
        let parts = lock(&self.parts);
        let mut hold = Hold::new(&self.request, parts.token);
        hold.owner = parts.on_nodes[node].owner;
        hold.unclean = unclean;
        hold
    }

    fn owners(&self) -> Vec<OwnerId> {
        let parts = lock(&self.parts);
        let others = parts.on_nodes.iter().map(|part| part.owner);
        others.chain([self.owner]).collect()
    }

    pub(super) fn token(&self) -> u64 {
        lock(&self.parts).token
    }

    /// A majority has agreed on `token`.
    pub(super) fn set_token(&self, token: u64) {
        lock(&self.parts).token = token;
    }

    /// The node has granted the hold.
    pub(super) fn set_held(&self, node: usize) {
        self.with_part(node, |part| part.is_held = true);
    }

    /// The node does not have the hold any more. Returns how many nodes still have it.
    pub(super) fn set_lost(&self, node: usize) -> usize {
        let mut parts = lock(&self.parts);
        parts.on_nodes[node].is_held = false;
        parts.on_nodes.iter().filter(|part| part.is_held).count()
    }

    /// Gives the hold another owner id on the node. Returns the hold under the old one, for a release.
    pub(super) fn replace_owner(&self, node: usize) -> Hold {
        let hold = self.on_node(node, false);
        self.with_part(node, |part| {
            part.is_held = false;
            part.owner = OwnerId::random();
        });
        hold
    }

    /// A node without the hold is about to be asked for it again. Returns `false` if that is under way already.
    pub(super) fn start_repair(&self, node: usize) -> bool {
        self.with_part(node, |part| {
            part.is_held = false;
            !std::mem::replace(&mut part.is_repairing, true)
        })
    }

    pub(super) fn finish_repair(&self, node: usize) {
        self.with_part(node, |part| part.is_repairing = false);
    }

    pub(super) fn end(&self, now: Time) {
        self.ended.raise();
        let mut parts = lock(&self.parts);
        parts.ended_at = parts.ended_at.min(now);
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
        let mut parts = lock(&self.parts);
        parts
            .on_nodes
            .iter_mut()
            .for_each(|part| part.is_releasing = true);
        drop(parts);
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
            if part.owner != owner {
                return true;
            }
            part.is_granted_late |= part.is_releasing;
            !part.is_releasing && !part.is_released
        })
    }

    /// Whether the hold ended so long ago that its leases are over, so that no caller will release it any more.
    fn is_stale(&self, now: Time) -> bool {
        let ended_at = lock(&self.parts).ended_at;
        self.ended.is_raised() && now.since(ended_at) > self.request.ttl * 2
    }

    fn with_part<R>(&self, node: usize, work: impl FnOnce(&mut NodePart) -> R) -> R {
        work(&mut lock(&self.parts).on_nodes[node])
    }
}
