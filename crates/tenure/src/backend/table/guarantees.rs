//! What a lease table promises.

use crate::guarantees::{Cell, Fault, Guarantees, Order, Promise};

/// Which database has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
    /// A file on this host.
    Sqlite,
}

/// What a commit outlives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is on disk before it is answered.
    #[default]
    Full,
    /// A killed server does not lose it, a machine without power may.
    Killed,
    /// A killed server may lose it.
    Nothing,
}

/// What decides about the promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Which database has the table.
    pub database: Database,
    /// What a commit outlives.
    pub durability: Durability,
    /// Whether a replica may take over that lacks the last commits.
    pub fails_over: bool,
    /// Whether the table is ShedLock's (`dialect=shedlock`).
    pub is_shedlock: bool,
}

impl Configuration {
    /// A server as it is installed, and our own table.
    pub const fn new(database: Database) -> Self {
        Self {
            database,
            durability: Durability::Full,
            fails_over: false,
            is_shedlock: false,
        }
    }
}

fn setting(of: Configuration) -> String {
    let is_file = of.database == Database::Sqlite;
    let all = [
        (!is_file, "mode=table"),
        (
            of.durability == Durability::Killed,
            "commits may be lost with the power",
        ),
        (of.durability == Durability::Nothing, "commits may be lost"),
        (of.fails_over, "a replica may take over"),
        (of.is_shedlock, "dialect=shedlock"),
    ];
    let all = all.iter().filter(|(is, _)| *is).map(|(_, what)| *what);
    all.collect::<Vec<_>>().join(", ")
}

/// The promises of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    use Promise::{Claims, Effects, NotApplicable, Nothing};
    let is_file = of.database == Database::Sqlite;
    let restart = match (is_file, of.durability) {
        (true, _) => Cell::new(Fault::StoreRestart, NotApplicable, "there is no server"),
        (_, Durability::Nothing) => Cell::new(
            Fault::StoreRestart,
            Nothing,
            "the last grants may be lost; set innodb_flush_log_at_trx_commit = 1, or synchronous_commit = on",
        ),
        _ => Cell::new(
            Fault::StoreRestart,
            Claims,
            "a grant is committed before it is answered",
        ),
    };
    let power = match (is_file, of.durability) {
        (true, _) => Cell::new(
            Fault::PowerLoss,
            Effects,
            "all holders are on the machine and end with it; tokens go on by the clock",
        ),
        (_, Durability::Full) => Cell::new(
            Fault::PowerLoss,
            Claims,
            "a grant is on disk before it is answered",
        ),
        _ => Cell::new(
            Fault::PowerLoss,
            Nothing,
            "the last grants may be lost; set innodb_flush_log_at_trx_commit = 1, or fsync and synchronous_commit = on",
        ),
    };
    let failover = match (is_file, of.fails_over) {
        (true, _) => Cell::new(Fault::Failover, NotApplicable, "there is no server"),
        (_, true) => Cell::new(
            Fault::Failover,
            Nothing,
            "a replica may take over without the last commits; make replication synchronous; the token goes on by the new server's clock",
        ),
        (_, false) => Cell::new(Fault::Failover, NotApplicable, "there is no replica"),
    };
    let store = if is_file { "machine" } else { "server" };
    let forward = match is_file {
        true => "leases end by the machine's wall clock",
        false => "leases end by the server's wall clock",
    };
    let faults = vec![
        Cell::new(
            Fault::HolderKilled,
            Effects,
            "the lease runs out: within one ttl",
        )
        .late(),
        Cell::new(
            Fault::HolderPaused,
            Claims,
            "the deadline passes before the lease does; a late write is stopped by the token only",
        ),
        match is_file {
            true => Cell::new(Fault::Partition, NotApplicable, "there is no network"),
            false => Cell::new(
                Fault::Partition,
                Claims,
                "the deadline passes before the lease does; a late write is stopped by the token only",
            ),
        },
        restart,
        power,
        failover,
        Cell::new(Fault::StoreClockForward, Nothing, forward),
        Cell::new(
            Fault::StoreClockBack,
            Claims,
            "leases of dead holders last longer by the jump",
        )
        .late(),
        match is_file {
            true => Cell::new(
                Fault::ClientClock,
                Nothing,
                "the client's wall clock is that of the store",
            ),
            false => Cell::new(
                Fault::ClientClock,
                Effects,
                "no wall clock of a client is looked at",
            ),
        },
        Cell::new(
            Fault::ClientSuspended,
            Claims,
            "deadlines are measured on a clock that goes on meanwhile",
        ),
    ];
    let order = if of.is_shedlock {
        Order::Unordered("whoever looks first after a release has it")
    } else {
        Order::Fair
    };
    Guarantees {
        setting: setting(of),
        min_hold: true,
        lock_delay: !of.is_shedlock,
        why_not: match of.is_shedlock {
            true => {
                "ShedLock's table has a row for each name, with one holder and no room for more"
            }
            false => "the row of a name has one holder",
        },
        liveness: "a lease, renewed at a third of the ttl",
        clock: match store {
            "machine" => "the machine's wall clock ends leases, its boot clock ends claims",
            _ => "the server's wall clock ends leases, the client's boot clock ends claims",
        },
        waiting: match (of.is_shedlock, of.database) {
            (true, _) => "by looking again, up to five times a second",
            (_, Database::Postgres) => {
                "a queue in the database; a release tells the first of it, which asks; a dead waiter costs min(ttl, 5 s)"
            }
            (_, _) => {
                "a queue in the database; the first of it looks up to five times a second, those behind less often; a dead waiter costs min(ttl, 5 s)"
            }
        },
        token: match of.is_shedlock {
            true => "locked_at in µs: max(last + 1 ms, server clock), as long as the row is there",
            false => {
                "max(last + 1, server clock in µs); goes backward only if data and clock are lost together"
            }
        },
        loss: "at the next renewal, at the deadline at the latest",
        fit: match of.database {
            Database::Sqlite => {
                "processes of one host that share a file and want leases, queues and tokens; file: is faster"
            }
            _ => {
                "services that have a database and want locks that outlive connections: behind proxies, in Galera, for hours; writes behind a fencing token"
            }
        },
        ..Guarantees::new(
            match of.database {
                Database::MySql => "mysql",
                Database::Postgres => "postgres",
                Database::Sqlite => "sqlite",
            },
            order,
            faults,
        )
    }
}
