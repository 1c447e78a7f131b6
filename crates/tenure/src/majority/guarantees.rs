//! What a majority of nodes promises.

use tenure_core::guarantees::{Cell, DetachedHolds, Fault, Guarantees, Order};

/// The promises of a majority of nodes that make these promises themselves.
pub fn guarantees<'a>(nodes: impl IntoIterator<Item = &'a Guarantees>) -> Guarantees {
    let nodes: Vec<_> = nodes.into_iter().collect();
    let mut guarantees = Guarantees::new(
        "redlock",
        Order::Unordered(
            "each node serves its waiters first come, first served; where the orders of the nodes differ, chance decides",
        ),
        faults(&nodes),
    );
    if let Some(first) = nodes.first() {
        guarantees.setting.clone_from(&first.setting);
    }
    guarantees.shared = nodes.iter().all(|node| node.shared);
    guarantees.upgradable = nodes.iter().all(|node| node.upgradable);
    guarantees.min_hold = nodes.iter().all(|node| node.min_hold);
    guarantees.lock_delay = nodes.iter().all(|node| node.lock_delay);
    guarantees.detached = detached(&nodes);
    guarantees.why_not = if guarantees.shared {
        "each of several nodes decides alone: with two permits at each of three nodes, three clients can have two nodes \
         each, so a majority cannot count permits, and the nodes' queues can be in different orders"
    } else {
        "the nodes of this majority do not have it, and a majority cannot count permits or keep an order of waiters"
    };
    guarantees.liveness = "leases on a majority of nodes, renewed every third of the ttl; a renewal also restores the lease on a node that lost it";
    guarantees.clock = "each node ends its lease by its own clock";
    guarantees.waiting = "an entry in the queue of every node; a waiter that too few nodes granted gives those grants back after a short random time; tasks of one client that wait for an exclusive lock pass it on among themselves, up to 32 times and for 20 ms, if each node can reserve tokens, as Redis can";
    guarantees.token = "max(last + 1, the client's wall clock in µs), agreed with a majority; can go backward only if nodes lose their \
                data and the clocks of two clients differ by more than the time for which a restarted node does not count";
    guarantees.loss = "at the next renewal (every third of the ttl), at the deadline at the latest";
    if nodes.iter().all(|node| !node.observers.is_empty()) {
        guarantees.observers = "a push of each node, and then a read of a majority; where no node pushes, a read as with one node";
    }
    guarantees.fit = "saving double work, and correctness with a fencing token, where several independent stores exist and none of them may be a single point of failure";
    guarantees
}

/// What each node has.
fn detached(nodes: &[&Guarantees]) -> DetachedHolds {
    let all = |detached| nodes.iter().all(|node| node.detached == detached);
    let is_any_without = nodes
        .iter()
        .any(|node| node.detached == DetachedHolds::None);
    match (is_any_without, all(DetachedHolds::EachMode)) {
        (true, _) => DetachedHolds::None,
        (false, true) => DetachedHolds::EachMode,
        (false, false) => DetachedHolds::Exclusive,
    }
}

fn faults(nodes: &[&Guarantees]) -> Vec<Cell> {
    // What a fault of one node can do to a hold on a bare majority: the weakest node decides.
    let survives = |fault| nodes.iter().all(|node| node.survives(fault));
    let data_loss = |fault, survived, not_survived| match survives(fault) {
        true => Cell::claims(fault, survived).late(),
        false => Cell::nothing(fault, not_survived).token_regress(),
    };
    let clock_jump = |fault, survived, not_survived| match survives(fault) {
        true => Cell::claims(fault, survived).late(),
        false => Cell::nothing(fault, not_survived),
    };
    let failover = match survives(Fault::Failover) {
        true => Cell::not_applicable(Fault::Failover, "no node has a replica"),
        false => Cell::nothing(Fault::Failover, "a node that is replaced by a replica may forget locks and does not look restarted; use nodes without replicas",
        )
        .token_regress(),
    };
    Cell::of_lease_store(&[
        Cell::effects(Fault::HolderKilled, "the holder's leases end within one ttl",
        )
        .late(),
        Cell::claims(Fault::HolderPaused, "the holder's deadline comes before any node grants the name again; only the token stops a late write",
        )
        .late(),
        Cell::claims(Fault::Partition, "a minority of the nodes cannot grant the lock; a holder that reaches no majority loses it at its deadline",
        )
        .late(),
        data_loss(
            Fault::StoreRestart,
            "a restarted node does not count towards the majority until the leases that it may have forgotten are over",
            "a node that forgets its locks at a restart grants them again at once, and one such node can complete a second majority",
        ),
        data_loss(
            Fault::PowerLoss,
            "the same as a restart of the nodes that lost power",
            "the same as a restart of the nodes that lost power",
        ),
        failover,
        clock_jump(
            Fault::StoreClockForward,
            "the nodes' leases do not depend on a clock that jumps",
            "a node whose clock jumps ends its lease early; one such node is enough if the holder has no more than a bare majority",
        ),
        clock_jump(
            Fault::StoreClockBack,
            "leases last longer on a node whose clock jumped; the other nodes may form a majority",
            "leases depend on a clock that jumps",
        ),
        Cell::effects(Fault::ClientClock, "leases are measured on a clock that does not jump; a new token is above the last ones of the nodes",
        ),
        Cell::claims(Fault::ClientSuspended, "deadlines are measured on a clock that continues during the suspension",
        )
        .late(),
    ])
}
