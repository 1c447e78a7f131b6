//! What ZooKeeper promises.

use tenure_core::guarantees::{Cell, Fault, Guarantees, Order, Promise};

/// What decides about the promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Whether there is one server and no ensemble.
    pub is_single: bool,
    /// Whether nodes are called as in ZooKeeper's own recipes (`dialect=session-prefix`).
    pub is_session_prefix: bool,
}

/// The promises of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    use Promise::{Claims, Effects, NotApplicable};
    let failover = match of.is_single {
        true => Cell::new(Fault::Failover, NotApplicable, "there is one server"),
        false => Cell::new(
            Fault::Failover,
            Claims,
            "a majority has every write, and a new leader gives each session its whole timeout again",
        )
        .late(),
    };
    let faults = vec![
        Cell::new(
            Fault::HolderKilled,
            Effects,
            "the session ends within one ttl and a second, rounded up to a tick of the server",
        )
        .late(),
        Cell::new(
            Fault::HolderPaused,
            Claims,
            "the holder's deadline comes before the end of the session; `Guard::put` or the token stops a late write",
        ),
        Cell::new(
            Fault::Partition,
            Claims,
            "the deadline counts from the last write that a majority applied; `Guard::put` or the token stops a late write",
        ),
        Cell::new(
            Fault::StoreRestart,
            Claims,
            "sessions and nodes are on disk; after the restart every session has its whole timeout again",
        )
        .late(),
        Cell::new(
            Fault::PowerLoss,
            Claims,
            "every write is on disk before it is answered (forceSync=yes, its default)",
        )
        .late(),
        failover,
        Cell::new(
            Fault::StoreClockForward,
            Claims,
            "sessions end by the server's monotonic clock",
        ),
        Cell::new(
            Fault::StoreClockBack,
            Claims,
            "sessions end by the server's monotonic clock",
        ),
        Cell::new(
            Fault::ClientClock,
            Effects,
            "the wall clock of a client decides nothing",
        ),
        Cell::new(
            Fault::ClientSuspended,
            Claims,
            "deadlines are measured on a clock that continues during the suspension",
        ),
    ];
    let setting = match (of.is_single, of.is_session_prefix) {
        (false, false) => "",
        (true, false) => "one server",
        (false, true) => "dialect=session-prefix",
        (true, true) => "one server, dialect=session-prefix",
    };
    let mut guarantees = Guarantees::new("zookeeper", Order::Fair, faults);
    guarantees.setting = setting.into();
    guarantees.shared = !of.is_session_prefix;
    guarantees.permits = !of.is_session_prefix;
    guarantees.why_not =
        "a node of ZooKeeper goes with its session and cannot stay for a while longer";
    guarantees.liveness = "a session, shared by the locks of a client that have the same ttl, confirmed every third of the ttl";
    guarantees.clock = "the leader's monotonic clock ends sessions; the holder's deadline runs on the client's boot clock";
    guarantees.waiting = "each waiter watches the node just before its own; a release wakes only the next waiter; a dead waiter delays the others by one ttl";
    guarantees.token = "the czxid of the lock's own node; can go backward only if an ensemble is wiped or restored from an old copy";
    guarantees.loss = "at the next renewal; after a broken connection, as soon as there is a new one; at the deadline at the latest";
    guarantees.fit = "services that have ZooKeeper, and work that must not run twice";
    guarantees
}
