//! What this store can do and promises.

use crate::guarantees::{Cell, DetachedHolds, Fault, Guarantees, Order};

/// What this store can do and promises.
pub fn guarantees() -> Guarantees {
    let together = "holder and store are one process";
    let faults = vec![
        Cell::effects(Fault::HolderKilled, "the store ends with the holder"),
        Cell::effects(
            Fault::HolderPaused,
            "there is no lease: a paused holder keeps the lock",
        )
        .late(),
        Cell::not_applicable(Fault::Partition, together),
        Cell::not_applicable(Fault::StoreRestart, together),
        Cell::not_applicable(Fault::PowerLoss, together),
        Cell::not_applicable(Fault::Failover, together),
        Cell::effects(Fault::StoreClockForward, "no wall clock is involved"),
        Cell::effects(Fault::StoreClockBack, "no wall clock is involved"),
        Cell::effects(Fault::ClientClock, "no wall clock is involved"),
        Cell::effects(
            Fault::ClientSuspended,
            "holder and store are suspended together",
        ),
    ];
    Guarantees {
        shared: true,
        upgradable: true,
        permits: true,
        min_hold: true,
        lock_delay: true,
        detached: DetachedHolds::EachMode,
        liveness: "the guard: a hold lasts until its guard is dropped",
        clock: "none; in a store for tests, its clock",
        waiting: "a queue in the table; a release wakes one waiter",
        token: "a counter per name, until the store is dropped",
        loss: "at once (only `break_lock` can end a hold)",
        observers: "push: at once",
        fit: "tests, and tasks of one process",
        ..Guarantees::new("memory", Order::Fair, faults)
    }
}
