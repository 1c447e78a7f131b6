//! What etcd promises.

use crate::guarantees::{Cell, Fault, Guarantees, Order, Promise};

/// The promises of a cluster with that many members that vote.
pub fn guarantees(members: usize) -> Guarantees {
    use Promise::{Claims, Effects, NotApplicable};
    let is_one = members == 1;
    let failover = if is_one {
        Cell::new(Fault::Failover, NotApplicable, "there is one member")
    } else {
        Cell::new(
            Fault::Failover,
            Claims,
            "what was answered is known to a majority; a new leader gives every lease its whole ttl again",
        )
        .late()
    };
    let power = "every write is on the disks of a majority before it is answered, unless --unsafe-no-fsync is set";
    let faults = vec![
        Cell::new(
            Fault::HolderKilled,
            Effects,
            "the lease runs out: within one ttl and 1 s, and an election if there is one",
        )
        .late(),
        Cell::new(
            Fault::HolderPaused,
            Claims,
            "the deadline passes before the lease does; a late write is stopped by the token, or by a write through the guard",
        ),
        Cell::new(
            Fault::Partition,
            Claims,
            "the deadline passes before the lease does; a minority of the members grants nothing and renews nothing",
        ),
        Cell::new(
            Fault::StoreRestart,
            Claims,
            "locks and leases are on disk; every lease has its whole ttl again",
        )
        .late(),
        Cell::new(Fault::PowerLoss, Claims, power).late(),
        failover,
        Cell::new(
            Fault::StoreClockForward,
            Claims,
            "leases are measured on a clock that does not jump",
        ),
        Cell::new(
            Fault::StoreClockBack,
            Claims,
            "leases are measured on a clock that does not jump",
        ),
        Cell::new(
            Fault::ClientClock,
            Effects,
            "no wall clock of a client is looked at",
        ),
        Cell::new(
            Fault::ClientSuspended,
            Claims,
            "deadlines are measured on a clock that goes on meanwhile",
        ),
    ];
    Guarantees {
        setting: match is_one {
            true => "one member".to_owned(),
            false => "three members or more".to_owned(),
        },
        shared: true,
        permits: true,
        min_hold: true,
        why_not: "a lease that runs out takes its keys along, so nothing is left that could reserve the name",
        liveness: "a lease of the client, renewed at a third of the ttl, in whole seconds",
        clock: "the leader's monotonic clock ends leases, the client's boot clock ends claims",
        waiting: "a queue in the store, in the order of arrival; each waiter is told when it is its turn; a dead waiter costs what is left of its lease",
        token: "the revision at which the key was made; grows over everything but a restored backup",
        loss: "at the next renewal, at the deadline at the latest",
        fit: "correctness with a fencing token, also when machines fail",
        ..Guarantees::new("etcd", Order::Fair, faults)
    }
}
