//! The guarantees of each configuration.

use std::sync::Arc;

use tenure_core::guarantees::{Cell, Fault, Guarantees, Order};

use super::connection::Connection;
use super::server_info::Persistence;
use super::settings::{Format, Settings, Topology};

/// The settings that decide about the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What survives a restart of the server.
    pub persistence: Persistence,
    /// Whether a replica may take over.
    pub fails_over: bool,
    /// Whether a server that was started lately grants nothing (`restart_guard`).
    pub is_guarded: bool,
    /// Whether locks have Redisson's format (`dialect=redisson`).
    pub is_redisson: bool,
}

impl Configuration {
    pub(super) fn of(settings: &Settings, connections: &[Arc<Connection>]) -> Self {
        let servers = || connections.iter().map(|connection| &connection.server_info);
        let rank = |persistence: &Persistence| match persistence {
            Persistence::None => 0,
            Persistence::Mostly => 1,
            Persistence::Full => 2,
        };
        let weakest = servers().map(|it| it.persistence).min_by_key(rank);
        Self {
            persistence: weakest.unwrap_or_default(),
            fails_over: !matches!(settings.topology, Topology::One(_))
                || servers().any(|it| it.replicas > 0),
            is_guarded: settings.restart_guard.is_some(),
            is_redisson: settings.format == Format::Redisson,
        }
    }
}

fn setting(of: Configuration) -> String {
    let persistence = match of.persistence {
        Persistence::None => "no append-only file",
        Persistence::Mostly => "appendfsync everysec",
        Persistence::Full => "appendfsync always",
    };
    let others = [
        (of.fails_over, "a replica may take over"),
        (!of.is_guarded, "restart_guard=off"),
        (of.is_redisson, "dialect=redisson"),
    ];
    let others = others.iter().filter(|(is, _)| *is).map(|(_, what)| *what);
    let all: Vec<_> = std::iter::once(persistence).chain(others).collect();
    all.join(", ")
}

/// The guarantees of a configuration.
pub fn guarantees(of: Configuration) -> Guarantees {
    let restart = match (of.persistence, of.is_guarded) {
        (Persistence::Full, _) => Cell::claims(Fault::StoreRestart, "every write is on disk before it is answered"),
        (Persistence::Mostly, _) => Cell::claims(Fault::StoreRestart, "the writes of a killed server are in the operating system's cache, and a server that was just started grants nothing for a while (restart_guard)")
        .late(),
        (Persistence::None, true) => Cell::claims(Fault::StoreRestart, "the server forgets its locks, so it grants nothing after its start until every earlier lease is over (restart_guard)")
        .late(),
        (Persistence::None, false) => Cell::nothing(Fault::StoreRestart, "the server forgets who holds; set restart_guard"),
    };
    let power = match (of.persistence, of.is_guarded) {
        (Persistence::Full, _) => Cell::claims(Fault::PowerLoss, "every write is on disk before it is answered"),
        (_, true) => Cell::claims(Fault::PowerLoss, "the server grants nothing after its start until every earlier lease is over (restart_guard)")
        .late(),
        (_, false) => Cell::nothing(Fault::PowerLoss, "the last writes are lost; set restart_guard"),
    };
    let failover = if of.fails_over {
        Cell::nothing(
            Fault::Failover,
            "a replica that lacks the last writes may take over; wait_replicas makes that less likely and cannot exclude it; tokens continue from the new server's clock",
        )
    } else {
        Cell::not_applicable(Fault::Failover, "there is no replica")
    };
    let faults = Cell::of_lease_store(&[restart, power, failover]);
    let order = if of.is_redisson {
        Order::Unordered("the first waiter that asks after the release gets the lock")
    } else {
        Order::Fair
    };
    let mut guarantees = Guarantees::new("redis", order, faults);
    guarantees.setting = setting(of);
    guarantees.shared = !of.is_redisson;
    guarantees.upgradable = !of.is_redisson;
    guarantees.permits = !of.is_redisson;
    guarantees.min_hold = !of.is_redisson;
    guarantees.lock_delay = !of.is_redisson;
    guarantees.liveness = "a lease, renewed every third of the ttl";
    guarantees.clock = "the server's wall clock ends leases; the holder's deadline runs on the client's boot clock";
    guarantees.waiting = if of.is_redisson {
        "a message to all waiters; the fastest one gets the lock"
    } else {
        "a queue in the server; a release grants the lock to the first waiter and wakes only that one; a dead waiter delays the others by min(ttl, 5 s)"
    };
    guarantees.token = "max(last + 1, server clock in µs); can go backward only if the data is lost and the clock is set back";
    guarantees.loss = "at the next renewal; after a broken connection, as soon as there is a new one; at the deadline at the latest";
    guarantees.fit = "services that have a Redis and either accept what a failover may do or check the fencing token at every write";
    guarantees
}
