//! The guarantees of each configuration.

use tenure_core::guarantees::{Cell, DetachedHolds, Fault, Guarantees, Order};

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
    /// A commit is on disk before it is answered.
    #[default]
    Full,
    /// A killed server does not lose a commit, a machine without power may.
    Killed,
    /// A killed server may lose a commit.
    Nothing,
}

/// The settings that decide about the guarantees.
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
    /// Whether the connections are those of a pool of the program, so that none of them listens.
    pub is_pooled: bool,
}

impl Configuration {
    /// A server as it is installed, and our own table.
    pub const fn new(database: Database) -> Self {
        Self {
            database,
            durability: Durability::Full,
            fails_over: false,
            is_shedlock: false,
            is_pooled: false,
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
        (of.is_pooled, "connections of a pool"),
    ];
    let all = all.iter().filter(|(is, _)| *is).map(|(_, what)| *what);
    all.collect::<Vec<_>>().join(", ")
}

fn faults_of_file() -> Vec<Cell> {
    Cell::of_lease_store(&[
        Cell::not_applicable(Fault::StoreRestart, "there is no server"),
        Cell::effects(
            Fault::PowerLoss,
            "all holders are on the machine and end with it; tokens continue from the clock",
        ),
        Cell::not_applicable(Fault::Failover, "there is no server"),
        Cell::not_applicable(Fault::Partition, "there is no network"),
        Cell::nothing(
            Fault::StoreClockForward,
            "leases end by the machine's wall clock",
        ),
        Cell::nothing(
            Fault::ClientClock,
            "the client's wall clock is also the clock of the store",
        ),
    ])
}

fn faults_of_server(of: Configuration) -> Vec<Cell> {
    let restart = match of.durability {
        Durability::Nothing => Cell::nothing(
            Fault::StoreRestart,
            "the last grants may be lost; set innodb_flush_log_at_trx_commit = 1, or synchronous_commit = on",
        ),
        _ => Cell::claims(
            Fault::StoreRestart,
            "a grant is committed before it is answered",
        ),
    };
    let power = match of.durability {
        Durability::Full => {
            Cell::claims(Fault::PowerLoss, "a grant is on disk before it is answered")
        }
        _ => Cell::nothing(
            Fault::PowerLoss,
            "the last grants may be lost; set innodb_flush_log_at_trx_commit = 1, or fsync and synchronous_commit = on",
        ),
    };
    let failover = match of.fails_over {
        true => Cell::nothing(
            Fault::Failover,
            "a replica that lacks the last commits may take over; make replication synchronous; tokens continue from the new server's clock",
        ),
        false => Cell::not_applicable(
            Fault::Failover,
            "no replica was seen that may lack a commit",
        ),
    };
    Cell::of_lease_store(&[restart, power, failover])
}

fn waiting(of: Configuration) -> &'static str {
    match of.database {
        _ if of.is_shedlock => "waiters poll, about five times a second",
        Database::Postgres if !of.is_pooled => {
            "a queue in the database; a release wakes the first waiter, which then takes the lock (behind a pooler the first waiter polls about five times a second); a dead waiter delays the others by min(ttl, 5 s), or by up to the ttl if its client waited for more than 1,600 names; tasks of one client that wait for an exclusive lock pass it on among themselves, up to 32 times and for 20 ms, unless `fair` is set"
        }
        _ => {
            "a queue in the database; the first waiter polls about five times a second, the others less often; a dead waiter delays the others by min(ttl, 5 s), or by up to the ttl if its client waited for more than 1,600 names; tasks of one client that wait for an exclusive lock pass it on among themselves, up to 32 times and for 20 ms, unless `fair` is set"
        }
    }
}

fn observers(of: Configuration) -> &'static str {
    match of.database {
        _ if of.is_shedlock => "",
        Database::Postgres if !of.is_pooled => {
            "push: a notification, and a read of the row; a leader that was killed is seen when its lease ends, within 0.5 s, or with the next one; behind a pooler poll, every second"
        }
        Database::Sqlite => {
            "poll, four times a second: within 0.25 s of the change, or of the end of the lease"
        }
        _ => "poll, every second: within a second of the change, or of the end of the lease",
    }
}

/// The guarantees of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    let is_file = of.database == Database::Sqlite;
    let (store, faults) = match of.database {
        Database::MySql => ("mysql", faults_of_server(of)),
        Database::Postgres => ("postgres", faults_of_server(of)),
        Database::Sqlite => ("sqlite", faults_of_file()),
    };
    let order = match of.is_shedlock {
        true => Order::Unordered("the first waiter that polls after a release gets the lock"),
        false => Order::Fair,
    };
    let mut guarantees = Guarantees::new(store, order, faults);
    guarantees.setting = setting(of);
    guarantees.min_hold = true;
    guarantees.lock_delay = !of.is_shedlock;
    guarantees.shared = !of.is_shedlock;
    guarantees.upgradable = !of.is_shedlock;
    guarantees.permits = !of.is_shedlock;
    guarantees.detached = match of.is_shedlock {
        true => DetachedHolds::None,
        false => DetachedHolds::EachMode,
    };
    (guarantees.why_not, guarantees.token) = match of.is_shedlock {
        _ if is_file => (
            "",
            "max(last + 1, the machine's wall clock in µs); can go backward only if the data is lost and the clock is set back",
        ),
        true => (
            "ShedLock's table has a row for each name, with one holder and no room for more",
            "locked_at in µs: max(last + 1 ms, server clock), as long as the row exists",
        ),
        false => (
            "",
            "max(last + 1, server clock in µs); can go backward only if the data is lost and the clock is set back",
        ),
    };
    guarantees.liveness = "a lease, renewed every third of the ttl";
    guarantees.waiting = waiting(of);
    guarantees.observers = observers(of);
    (guarantees.clock, guarantees.loss, guarantees.fit) = match is_file {
        true => (
            "the machine's wall clock ends leases; the holder's deadline runs on its boot clock",
            "at the next renewal, also when the file was removed or replaced; at the deadline at the latest",
            "processes of one host that share a file and want leases, queues and tokens; `file:` is faster",
        ),
        false => (
            "the server's wall clock ends leases; the holder's deadline runs on the client's boot clock",
            "at the next renewal, at the deadline at the latest",
            "services that have a database and want locks that do not depend on a connection (behind proxies, in Galera, for hours) and that check the fencing token at every write",
        ),
    };
    guarantees
}
