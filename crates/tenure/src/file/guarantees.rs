//! What kernel file locks promise.

use tenure_core::guarantees::{Cell, DetachedHolds, Fault, Guarantees, Order};

/// The name of this store in URLs, errors and tables.
pub(super) const SCHEME: &str = "file";

/// The promises of locks in a directory.
pub fn guarantees() -> Guarantees {
    let faults = vec![
        Cell::claims(
            Fault::HolderKilled,
            "the kernel frees the lock when the process ends, and the next waiter gets it at once, that of a detached hold when the lease ends; a write that the process sent before may arrive after that",
        ),
        Cell::effects(
            Fault::HolderPaused,
            "there is no lease: a paused holder keeps the lock for as long as it is paused; a client that is attached to a detached hold loses it at its deadline",
        )
        .late(),
        Cell::not_applicable(Fault::Partition, "there is no network in between"),
        Cell::not_applicable(Fault::StoreRestart, "the kernel is the store"),
        Cell::effects(
            Fault::PowerLoss,
            "all holders end with the machine, except detached holds, which are synced to disk; tokens continue above a limit that was synced to disk before it was used",
        ),
        Cell::not_applicable(Fault::Failover, "there is one kernel"),
        Cell::effects(
            Fault::StoreClockForward,
            "the wall clock only decides about `min_hold` and `lock_delay`, which may end early; the lease of a detached hold ends by the clock of the boot as well",
        ),
        Cell::effects(
            Fault::StoreClockBack,
            "tokens continue from the last one; `min_hold` and `lock_delay` may start once more, and a lease too if the machine was restarted",
        ),
        Cell::effects(Fault::ClientClock, "client and store have the same clock"),
        Cell::effects(
            Fault::ClientSuspended,
            "holder and waiters are suspended together; the lock does not change",
        )
        .late(),
    ];
    let mut guarantees = Guarantees::new(
        SCHEME,
        Order::Unordered(
            "the kernel wakes waiters in the order of their arrival, but a process that asks at that moment can be faster, \
             and shared holders keep joining while an exclusive one waits, but not while an upgrade does",
        ),
        faults,
    );
    guarantees.shared = true;
    guarantees.upgradable = true;
    guarantees.permits = true;
    guarantees.min_hold = true;
    guarantees.lock_delay = true;
    guarantees.detached = DetachedHolds::Exclusive;
    guarantees.liveness = "the process: when it ends, the kernel frees its locks; a detached hold ends with its lease";
    guarantees.clock = "none: there is no lease, except that of a detached hold, which ends on the clock of the boot and on the wall clock; the wall clock ends `min_hold` and `lock_delay`, which only exclusive holds can have";
    guarantees.waiting = "a waiter blocks in the kernel, with one thread per contended name; the first waiter for a permit watches a pipe of each of up to 256 permits \
         (with more of them, and on macOS, the first waiter polls every 1 to 20 ms)";
    guarantees.token = "max(last + 1, wall clock in µs), kept in the lock file; a limit is synced to disk ahead of use, so tokens also grow \
         over a power loss, and over the loss of the file unless the clock was set back";
    guarantees.loss = "only `break`, or replacing the file or the directory, ends a hold, and the end of its lease a detached one; noticed within a third of the ttl";
    guarantees.observers = "poll: reads the record four times a second and asks the kernel whether the lock is held; a change, also the death of the leader, is seen after 0.25 s";
    guarantees.fit = "correctness on one host, on a local disk";
    guarantees
}
