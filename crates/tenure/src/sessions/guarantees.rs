//! The guarantees of each configuration.

use tenure_core::guarantees::{Cell, Fault, Guarantees, Order};

/// The settings that decide about the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// PostgreSQL, else MySQL or MariaDB.
    pub is_postgres: bool,
    /// Whether a server that was started lately grants nothing (`restart_guard`).
    pub is_guarded: bool,
    /// Whether the connections are those of a pool of the program.
    pub is_pooled: bool,
}

/// What happens to locks, and then how their holders learn of it. The sockets of a pool are not watched.
macro_rules! lost {
    ($of:expr, $what:literal, $after:literal) => {
        match $of.is_pooled {
            true => concat!($what, ", and their holders learn that within validate=1s", $after),
            false => concat!($what, ", and their holders learn that when the network tells them, at once as a rule; if it does not, at their deadline", $after),
        }
    };
}

fn faults(of: Configuration) -> Vec<Cell> {
    let restart = |fault| {
        match (of.is_guarded, of.is_postgres) {
        (true, true) => Cell::claims(fault, "the server forgets all locks, so it grants nothing after its start until every earlier lease is over (restart_guard); all its processes have to end together: if only the first one is killed, the others may still grant locks for a moment").late(),
        (true, false) => Cell::claims(fault, "the server forgets all locks, so it grants nothing after its start until every earlier lease is over (restart_guard)").late(),
        (false, _) => Cell::nothing(fault, lost!(of, "the server forgets all locks", "; set restart_guard")),
    }
    };
    let (clock_forward, clock_back) = match of.is_postgres {
        true => (
            Cell::nothing(Fault::StoreClockForward, lost!(of, "the server may take silent sessions for overdue and end them", "")),
            Cell::claims(Fault::StoreClockBack, "the session of a host that vanished meanwhile lasts longer by the size of the jump; tokens go backward if the server is also restarted").late(),
        ),
        false => (
            Cell::claims(Fault::StoreClockForward, "sessions end by a clock that does not jump; a jump right after a start shortens restart_guard"),
            Cell::claims(Fault::StoreClockBack, "sessions end by a clock that does not jump; tokens go backward if the server is also restarted"),
        ),
    };
    Cell::of_lease_store(&[
        Cell::claims(Fault::HolderKilled, "the server notices the end of the connection at once, and a write that was sent before may arrive after that; when a whole host vanishes, the server ends its session within one ttl").late(),
        Cell::claims(Fault::HolderPaused, "the holder's deadline comes before the server ends the silent session; only the token stops a late write"),
        Cell::nothing(Fault::Partition, match of.is_pooled {
            true => "the server frees the locks of a broken connection at once, and their holders learn that within validate=1s, or at their deadline if a device ends the connection for the server only; while the network is silent for both, the holder's deadline comes before the server ends the session",
            false => "the server frees the locks of a broken connection at once, and their holders learn that when the network tells them: at once as a rule, at their deadline if a device ends the connection for the server only; while the network is silent for both, the holder's deadline comes before the server ends the session",
        }),
        restart(Fault::StoreRestart),
        restart(Fault::PowerLoss),
        Cell::nothing(Fault::Failover, "locks of a session are not replicated; use mode=table").token_regress(),
        clock_forward,
        clock_back.token_regress(),
    ])
}

/// The guarantees of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    let store = if of.is_postgres { "postgres" } else { "mysql" };
    let mut guarantees = Guarantees::new(store, Order::Fair, faults(of));
    let settings = [
        (!of.is_guarded).then_some("restart_guard=off"),
        of.is_pooled.then_some("connections of a pool"),
    ];
    let settings: Vec<_> = settings.into_iter().flatten().collect();
    guarantees.setting = settings.join(", ");
    guarantees.shared = of.is_postgres;
    guarantees.upgradable = of.is_postgres;
    guarantees.upgradable_in_turn = !of.is_postgres;
    guarantees.min_hold = true;
    guarantees.why_not = match of.is_postgres {
        true => {
            "a session waits for one lock, not for the first of several permits, and a session that dies leaves nothing that could reserve the name"
        }
        false => {
            "GET_LOCK has exclusive locks only, which a session cannot pass to another one, and a session that dies leaves nothing that could reserve the name"
        }
    };
    guarantees.liveness = "a session that the server ends when it was silent for one ttl; the client checks it every second, or every third of the ttl if that is shorter";
    (guarantees.clock, guarantees.token) = match of.is_postgres {
        true => (
            "a timer of the server ends sessions; the holder's deadline runs on the client's boot clock",
            "the start of this run of the server in µs, plus the number of the transaction; can go backward only after a failover, or if the clock is set back between two starts",
        ),
        false => (
            "the server's monotonic clock ends sessions; the holder's deadline runs on the client's boot clock",
            "the start of the server in s, and a counter (UUID_SHORT); can go backward only after a failover, or if the clock is set back between two starts",
        ),
    };
    guarantees.waiting = match of.is_postgres {
        true => {
            "the server's own queue; requests for upgradable holds wait for each other before they enter that queue; a client's waiters beyond connections=N poll, outside the queue; a dead waiter delays the others by one ttl at most; tasks of one client that wait for an exclusive lock pass it on among themselves, up to 32 times and for 20 ms, unless `fair` is set"
        }
        false => {
            "the server's own queue; a client's waiters beyond connections=N poll, outside the queue; a dead waiter delays the others by one ttl at most; tasks of one client that wait for an exclusive lock pass it on among themselves, up to 32 times and for 20 ms, unless `fair` is set"
        }
    };
    guarantees.observers = match of.is_postgres && !of.is_pooled {
        true => {
            "push: a notification, and a read; a leader that was killed is seen with the next one, or within one ttl and 0.5 s; needs the table tenure_holders"
        }
        false => {
            "poll, every second: within a second of the change, or of the end of the session; needs the table tenure_holders"
        }
    };
    guarantees.loss = match of.is_pooled {
        true => "at the next check, within validate=1s; at the deadline at the latest",
        false => {
            "when the network reports it, on Linux; elsewhere at the next check, within validate=1s; at the deadline at the latest"
        }
    };
    guarantees.fit = "services that have this database and either no failover or a fencing token that is checked at every write";
    guarantees
}
