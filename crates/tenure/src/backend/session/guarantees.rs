//! What locks of a session promise.

use crate::guarantees::{Cell, Fault, Guarantees, Order, Promise};

/// What decides about the promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// PostgreSQL, else MySQL or MariaDB.
    pub is_postgres: bool,
    /// Whether a server that was started lately grants nothing (`restart_guard`).
    pub is_guarded: bool,
}

/// The promises of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    use Promise::{Claims, Effects, Nothing};
    let restart = |fault| {
        match of.is_guarded {
        true => Cell::new(
            fault,
            Claims,
            match of.is_postgres {
                true => "the server forgets all locks, so a fresh one grants nothing until every lease of before is over (restart_guard); its processes have to end together: killed alone, the first one leaves others that pass on locks for a moment",
                false => "the server forgets all locks, so a fresh one grants nothing until every lease of before is over (restart_guard)",
            },
        )
        .late(),
        false => Cell::new(
            fault,
            Nothing,
            "the server forgets all locks, and their holders learn it at their next look; set restart_guard",
        ),
    }
    };
    let clock_back = match of.is_postgres {
        true => Cell::new(
            Fault::StoreClockBack,
            Claims,
            "the session of a host that vanished meanwhile lasts longer by the jump; tokens go backward if the server is also started anew",
        )
        .late(),
        false => Cell::new(
            Fault::StoreClockBack,
            Claims,
            "sessions end by a clock that does not jump; tokens go backward if the server is also started anew",
        ),
    }
    .token_regress();
    let faults = vec![
        Cell::new(
            Fault::HolderKilled,
            Claims,
            "the server sees the connection end at once, and a write that was sent before may arrive after that; of a host that vanished it ends the session within one ttl",
        )
        .late(),
        Cell::new(
            Fault::HolderPaused,
            Claims,
            "the deadline passes before the server ends the silent session; a late write is stopped by the token only",
        ),
        Cell::new(
            Fault::Partition,
            Nothing,
            "a connection that breaks frees its locks at once, and their holders learn it at their next look (validate); in silence the deadline passes before the server ends the session",
        ),
        restart(Fault::StoreRestart),
        restart(Fault::PowerLoss),
        Cell::new(
            Fault::Failover,
            Nothing,
            "locks of a session are not replicated; use mode=table",
        )
        .token_regress(),
        match of.is_postgres {
            true => Cell::new(
                Fault::StoreClockForward,
                Nothing,
                "the server may take silent sessions for overdue and end them, and their holders learn it at their next look (validate)",
            ),
            false => Cell::new(
                Fault::StoreClockForward,
                Claims,
                "sessions end by a clock that does not jump; a jump right after a start shortens restart_guard",
            ),
        },
        clock_back,
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
    let backend = if of.is_postgres { "postgres" } else { "mysql" };
    Guarantees {
        setting: match of.is_guarded {
            true => String::new(),
            false => "restart_guard=off".to_owned(),
        },
        shared: of.is_postgres,
        why_not: "a lock of a session ends with its session and leaves nothing that could reserve the name",
        liveness: "a session that the server ends when it is silent for a ttl; asked for every second, or every third of the ttl",
        clock: if of.is_postgres {
            "a timer of the server ends sessions, the client's boot clock ends claims"
        } else {
            "the server's monotonic clock ends sessions, the client's boot clock ends claims"
        },
        waiting: "the server's own queue; beyond connections=N a client's waiters look again at a pace; a dead waiter costs one ttl at most",
        token: if of.is_postgres {
            "start of this run of the server in µs, and the number of the transaction; goes backward only if the clock does between two starts"
        } else {
            "start of the server in s and a counter (UUID_SHORT); goes backward only if the clock does between two starts"
        },
        loss: "at the next look, within validate=1s; at the deadline at the latest",
        fit: "services that have this database and no failover, or write behind a fencing token",
        ..Guarantees::new(backend, Order::Fair, faults)
    }
}
