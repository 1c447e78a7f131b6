//! One hold on the nodes.

use std::sync::{Arc, Mutex};

use tenure_core::backend::{Hold, Release, Request};
use tenure_core::fence::OwnerId;
use tenure_core::rt::{Flag, lock};
use tenure_core::time::Time;

/// What one acquisition has, or may have, on the nodes.
pub(super) struct Claim {
    /// Our identity towards the driver.
    pub(super) owner: OwnerId,
    /// What was asked for.
    pub(super) request: Arc<Request>,
    /// Raised when nothing on any node is wanted any more: whoever finds something gives it back.
    pub(super) ended: Flag,
    pub(super) seats: Mutex<Seats>,
}

pub(super) struct Seats {
    pub(super) of_node: Vec<Seat>,
    /// The agreed token; 0 before there is one.
    pub(super) token: u64,
    pub(super) ended_at: Time,
}

/// What we have on one node.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    /// Under which identity. Ours to begin with; another one after something was given back there, because
    /// a release that comes late must not hit what was acquired since.
    pub(super) owner: OwnerId,
    pub(super) held: bool,
    /// The node has said that it released it.
    pub(super) released: bool,
    /// A release is on its way, and sees to whatever comes of the seat.
    pub(super) leaving: bool,
    /// A request that was still under way then may have been granted after it.
    pub(super) late: bool,
    pub(super) healing: bool,
}

impl Claim {
    pub(super) fn new(request: &Arc<Request>, nodes: usize) -> Arc<Self> {
        let seat = Seat {
            owner: request.owner,
            held: false,
            released: false,
            leaving: false,
            late: false,
            healing: false,
        };
        Arc::new(Self {
            owner: request.owner,
            request: request.clone(),
            ended: Flag::new(),
            seats: Mutex::new(Seats {
                of_node: vec![seat; nodes],
                token: 0,
                ended_at: Time::MAX,
            }),
        })
    }

    /// The request of this claim to one node.
    pub(super) fn ask(&self, node: usize, wait: bool, propose: u64) -> Arc<Request> {
        let ours = &self.request;
        let owner = lock(&self.seats).of_node[node].owner;
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

    /// What one node knows as our hold.
    pub(super) fn on(&self, node: usize, unclean: bool) -> Hold {
        let seats = lock(&self.seats);
        let mut hold = Hold::new(&self.request, seats.token);
        hold.owner = seats.of_node[node].owner;
        hold.unclean = unclean;
        hold
    }

    pub(super) fn owners(&self) -> Vec<OwnerId> {
        let seats = lock(&self.seats);
        let others = seats.of_node.iter().map(|seat| seat.owner);
        others.chain([self.owner]).collect()
    }

    pub(super) fn token(&self) -> u64 {
        lock(&self.seats).token
    }

    pub(super) fn agree(&self, token: u64) {
        lock(&self.seats).token = token;
    }

    pub(super) fn held(&self, node: usize) {
        lock(&self.seats).of_node[node].held = true;
    }

    /// A node does not have it any more; how many still do.
    pub(super) fn lost_node(&self, node: usize) -> usize {
        let mut seats = lock(&self.seats);
        seats.of_node[node].held = false;
        seats.of_node.iter().filter(|seat| seat.held).count()
    }

    /// A new identity for a node where the old one was given back; returns what to give back.
    pub(super) fn leave_node(&self, node: usize) -> Hold {
        let hold = self.on(node, false);
        let mut seats = lock(&self.seats);
        seats.of_node[node].held = false;
        seats.of_node[node].owner = OwnerId::random();
        hold
    }

    pub(super) fn end(&self, now: Time) {
        self.ended.raise();
        let mut seats = lock(&self.seats);
        seats.ended_at = seats.ended_at.min(now);
    }

    /// Resolves when the hold is over, unless a release of it is on its way to the node, which ends there what waits.
    pub(super) async fn unwanted(&self, node: usize) {
        self.ended.raised().await;
        if lock(&self.seats).of_node[node].leaving {
            std::future::pending::<()>().await;
        }
    }

    /// A release is sent to each node now.
    pub(super) fn leave(&self, now: Time) {
        let mut seats = lock(&self.seats);
        seats
            .of_node
            .iter_mut()
            .for_each(|seat| seat.leaving = true);
        drop(seats);
        self.end(now);
    }

    /// The node has answered a release; whether it is to be asked once more, because something came after it.
    pub(super) fn left(&self, node: usize, release: Release) -> bool {
        let mut seats = lock(&self.seats);
        let seat = &mut seats.of_node[node];
        seat.leaving = false;
        seat.released |= release == Release::Released;
        std::mem::take(&mut seat.late) && !seat.released
    }

    /// Something was granted when all was over; whether nobody else gives it back.
    pub(super) fn is_orphan(&self, node: usize, owner: OwnerId) -> bool {
        let mut seats = lock(&self.seats);
        let seat = &mut seats.of_node[node];
        if seat.owner != owner {
            return true;
        }
        seat.late |= seat.leaving;
        !seat.leaving && !seat.released
    }

    /// Nobody asks for the release of a hold any more that ended so long ago: its leases are over.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        let ended_at = lock(&self.seats).ended_at;
        self.ended.is_raised() && now.since(ended_at) > self.request.ttl * 2
    }
}
