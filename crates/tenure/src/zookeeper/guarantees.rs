//! What ZooKeeper promises.

use tenure_core::guarantees::{Cell, Fault, Guarantees, Order};

pub use super::names::Dialect;

/// The settings and the servers that the promises depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Whether there is one server and no ensemble.
    pub is_single: bool,
    /// How nodes are named (`dialect`).
    pub dialect: Dialect,
}

/// What each fault does to a hold.
fn faults(is_single: bool) -> Vec<Cell> {
    let failover = match is_single {
        true => Cell::not_applicable(Fault::Failover, "there is one server"),
        false => Cell::claims(Fault::Failover, "a majority has every write, and a new leader gives each session its whole timeout again",
        )
        .late(),
    };
    Cell::of_lease_store(&[
        Cell::effects(Fault::HolderKilled, "the session ends within one ttl and a second, rounded up to a tick of the server",
        )
        .late(),
        Cell::claims(Fault::HolderPaused, "the holder's deadline comes before the end of the session; `guard.put` or the token stops a late write",
        ),
        Cell::claims(Fault::Partition, "the deadline counts from the last write that a majority applied; `guard.put` or the token stops a late write",
        ),
        Cell::claims(Fault::StoreRestart, "sessions and nodes are on disk; after the restart every session has its whole timeout again",
        )
        .late(),
        Cell::claims(Fault::PowerLoss, "every write is on disk before it is answered (forceSync=yes, its default)",
        )
        .late(),
        failover,
        Cell::claims(Fault::StoreClockForward, "sessions end by the server's monotonic clock",
        ),
        Cell::claims(Fault::StoreClockBack, "sessions end by the server's monotonic clock",
        ),
    ])
}

/// The promises of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    let faults = faults(of.is_single);
    let dialect = match of.dialect {
        Dialect::Curator => None,
        Dialect::ReadWrite => Some("dialect=curator-readwrite"),
        Dialect::Semaphore => Some("dialect=curator-semaphore"),
        Dialect::SessionPrefix => Some("dialect=session-prefix"),
        Dialect::Selector => Some("dialect=curator-selector"),
        Dialect::Latch => Some("dialect=curator-latch"),
    };
    let settings = [of.is_single.then_some("one server"), dialect];
    let settings: Vec<_> = settings.into_iter().flatten().collect();
    let mut guarantees = Guarantees::new("zookeeper", Order::Fair, faults);
    guarantees.setting = settings.join(", ");
    guarantees.exclusive = of.dialect != Dialect::Semaphore;
    guarantees.shared = matches!(of.dialect, Dialect::Curator | Dialect::ReadWrite);
    guarantees.upgradable = of.dialect == Dialect::Curator;
    guarantees.permits = matches!(of.dialect, Dialect::Curator | Dialect::Semaphore);
    guarantees.why_not = match of.dialect {
        Dialect::Curator => {
            "a reservation would be a node that outlives its session, and other programs would wait for it for ever or ignore it"
        }
        Dialect::ReadWrite => "dialect=curator-readwrite has Curator's read and write locks only",
        Dialect::Semaphore => "dialect=curator-semaphore has permits only",
        Dialect::SessionPrefix => "dialect=session-prefix has exclusive locks only",
        Dialect::Selector => "dialect=curator-selector has exclusive locks and elections only",
        Dialect::Latch => "dialect=curator-latch has exclusive locks and elections only",
    };
    guarantees.liveness = "a session, shared by the locks of a client that have the same ttl, confirmed every third of the ttl";
    guarantees.clock = "the leader's monotonic clock ends sessions; the holder's deadline runs on the client's boot clock";
    guarantees.waiting = "each waiter watches the node just before its own; a release wakes only the next waiter; a dead waiter delays the others by one ttl";
    guarantees.token = "the czxid of the lock's own node, or the number of a later transaction where a hold was upgraded meanwhile; can go backward only if an ensemble is wiped or restored from an old copy";
    guarantees.loss = "at the next renewal; after a broken connection, as soon as there is a new one; at the deadline at the latest";
    if of.dialect.has_elections() {
        guarantees.observers = "push, and one read of each client: one way and a round trip; after the leader was killed, when its session has ended";
    }
    guarantees.fit = "services that have ZooKeeper, and work that must not run twice";
    guarantees
}
