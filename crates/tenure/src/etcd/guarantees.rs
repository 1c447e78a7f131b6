//! The guarantees of etcd.

use tenure_core::guarantees::{Cell, DetachedHolds, Fault, Guarantees, Order};

/// The guarantees of a cluster with this many voting members.
pub fn guarantees(members: usize) -> Guarantees {
    let is_one = members == 1;
    let failover = if is_one {
        Cell::not_applicable(Fault::Failover, "there is one member")
    } else {
        Cell::claims(Fault::Failover, "a majority has every write that was answered; a new leader gives every lease its whole ttl again",
        )
        .late()
    };
    let power = "every write is on the disks of a majority before it is answered, unless --unsafe-no-fsync is set";
    let faults = Cell::of_lease_store(&[
        Cell::effects(
            Fault::HolderKilled,
            "the lease ends within one ttl and 1 s, and an election if there is one",
        )
        .late(),
        Cell::claims(
            Fault::HolderPaused,
            "the holder's deadline comes before the end of the lease; the token or `guard.put` stops a late write",
        ),
        Cell::claims(
            Fault::Partition,
            "the holder's deadline comes before the end of the lease; a minority of the members grants nothing and renews nothing",
        ),
        Cell::claims(
            Fault::StoreRestart,
            "locks and leases are on disk; after the restart every lease has its whole ttl again",
        )
        .late(),
        Cell::claims(Fault::PowerLoss, power).late(),
        failover,
        Cell::claims(
            Fault::StoreClockForward,
            "leases are measured on a clock that does not jump",
        ),
        Cell::claims(
            Fault::StoreClockBack,
            "leases are measured on a clock that does not jump",
        ),
    ]);
    let mut guarantees = Guarantees::new("etcd", Order::Fair, faults);
    guarantees.setting = match is_one {
        true => "one member".to_owned(),
        false => "three members or more".to_owned(),
    };
    guarantees.shared = true;
    guarantees.upgradable = true;
    guarantees.permits = true;
    guarantees.min_hold = true;
    guarantees.lock_delay = true;
    guarantees.detached = DetachedHolds::EachMode;
    guarantees.liveness = "a lease of the client, in whole seconds, renewed every third of the ttl";
    guarantees.clock = "the leader's monotonic clock ends leases; the holder's deadline runs on the client's boot clock";
    guarantees.waiting = "a queue in the store, in the order of arrival; each waiter is told when it is its turn; a dead waiter delays the others until its lease ends";
    guarantees.token = "the revision at which the key was made, or one near it for an upgradable holder and the shared holders after it; can go backward only if a backup is restored";
    guarantees.loss = "at the next renewal, at the deadline at the latest";
    guarantees.observers = "push: one way from the member to the observer; a killed leader is seen when the server ends its lease, within one ttl and 1 s";
    guarantees.fit = "correctness with a fencing token, also when machines fail";
    guarantees
}
