//! The guarantees of the CP subsystem.

use std::time::Duration;

use tenure_core::guarantees::{Capability, Cell, Fault, Guarantees, Order};

/// The guarantees of a cluster that ends sessions so long after their last heartbeat.
pub fn guarantees(session_ttl: Duration) -> Guarantees {
    let forgets = "without CP persistence (Enterprise) a majority that is started again has forgotten its locks, and its tokens begin again; a minority loses nothing";
    let faults = Cell::of_lease_store(&[
        Cell::effects(
            Fault::HolderKilled,
            "the members end the session within its ttl, which they set, and 1 s; the ttl of the lock does not matter",
        )
        .late(),
        Cell::claims(
            Fault::Partition,
            "the holder's deadline comes before the end of its session; a minority of the members grants nothing and renews nothing",
        ),
        Cell::nothing(Fault::StoreRestart, forgets).token_regress(),
        Cell::nothing(Fault::PowerLoss, forgets).token_regress(),
        Cell::claims(
            Fault::Failover,
            "a majority has every write that was answered; a new leader gives every session its whole ttl again",
        )
        .late(),
        Cell::nothing(
            Fault::StoreClockForward,
            "the wall clock of the leader ends sessions",
        ),
        Cell::claims(
            Fault::StoreClockBack,
            "the session of a dead holder lasts longer by the size of the jump",
        )
        .late(),
    ]);
    let mut guarantees = Guarantees::new("hazelcast", Order::Fair, faults);
    guarantees.setting = format!("sessions of {session_ttl:?}");
    guarantees.why_not = "the lock of Hazelcast, `FencedLock`, is exclusive";
    guarantees.liveness = "a session of the CP subsystem for each lease, renewed every third of the ttl; a ttl that is longer than that of the members' sessions is granted as theirs";
    guarantees.clock = "the wall clock of the leader ends sessions; the holder's deadline runs on the client's boot clock";
    guarantees.waiting = "a queue in the store, in the order of arrival; each waiter is told when it is its turn; a dead waiter delays the others until its session ends";
    guarantees.token = "the fence of `FencedLock`, an index of the Raft log; begins again when a majority is started again, or after a reset of the CP subsystem";
    guarantees.loss = "at the next renewal, at the deadline at the latest";
    guarantees.fit = "teams that run Hazelcast, and locks that are shared with Java; efficiency, or correctness with a fencing token while a majority runs";
    guarantees
}

/// The stores that have `capability`, for a refusal.
pub(crate) fn stores_with(capability: Capability) -> String {
    let stores = match capability {
        Capability::Shared | Capability::Upgradable => {
            "`redis:`, `etcd:`, `zookeeper:`, `postgres:`"
        }
        Capability::Permits => "`redis:`, `etcd:`, `zookeeper:`",
        Capability::MinHold => "`redis:`, `etcd:`, `postgres:`, `mysql:`",
        Capability::LockDelay => "`redis:`, `etcd:`",
        Capability::Detach => "`redis:`, `etcd:`, `file:`, `sqlite:`",
        _ => "`redis:`, `etcd:`, `zookeeper:`, `postgres:`, `mysql:`",
    };
    format!("{stores} and tables of the crate `tenure`, and `memory:`")
}
