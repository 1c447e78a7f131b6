//! The matrix of stores and behaviours: every store shows every behaviour, or this file has the reason why not.

mod harness {
    #[cfg(any(
        feature = "redis",
        feature = "etcd",
        feature = "zookeeper",
        all(feature = "mysql", feature = "postgres")
    ))]
    mod callers;
    #[cfg(feature = "etcd")]
    pub(crate) mod etcd;
    #[cfg(feature = "file")]
    pub(crate) mod file;
    pub(crate) mod memory;
    #[cfg(feature = "redis")]
    #[cfg_attr(
        not(feature = "redlock"),
        allow(dead_code, reason = "a majority of servers is not tested")
    )]
    pub(crate) mod redis;
    #[cfg(feature = "majority")]
    pub(crate) mod redlock;
    #[cfg(any(
        feature = "redis",
        feature = "etcd",
        feature = "zookeeper",
        all(feature = "mysql", feature = "postgres")
    ))]
    mod server;
    #[cfg(all(feature = "mysql", feature = "postgres"))]
    pub(crate) mod session;
    pub(crate) mod skips;
    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) mod table;
    #[cfg(feature = "zookeeper")]
    pub(crate) mod zookeeper;
}
#[allow(unused_imports, reason = "with few features not all of them are used")]
use harness::skips::{
    CAN_EVERYTHING, DETACHES_EACH_MODE, ENDS_WITH_ITS_CONNECTION, HAS_ELECTIONS, IN_MEMORY,
    IN_THIS_PROCESS, NEVER_SILENT, NO_CONNECTION, NO_COUNT, NO_DETACH, NO_ELECTIONS, NO_EVICTION,
    NO_LEASE, NO_LOCK_DELAY, NO_LOST_REQUESTS, NO_LOST_REQUESTS_OF_LEASES, NO_LOST_UPGRADES,
    NO_MIN_HOLD, NO_ORDER, NO_ORDER_AFTER_UPGRADES, NO_ORDER_OF_READERS, NO_PASSWORD, NO_PERMITS,
    NO_PROXY, NO_RESTART, NO_SHARED, NO_UPGRADABLE, ONE_PERMIT, ONE_SET_OF_PERMITS, ONLY_EXCLUSIVE,
    Skips, UPGRADABLE_OUTSIDE_THE_QUEUE,
};
use tenure::conformance::{Open, Setup, run_only};

/// A store on the real clock.
fn column(name: &'static str, open: Open, skips: &[&[Skips]]) {
    run(name, open, skips, false, 4);
}

/// A store with a virtual clock, which needs a runtime of one thread.
fn virtual_column(name: &'static str, open: Open, skips: &[&[Skips]]) {
    run(name, open, skips, true, 2);
}

/// Runs all behaviours, or the behaviours whose names contain `TENURE_BEHAVIOUR`. In the second case the test fails in
/// the end, because the other behaviours were not run.
fn run(name: &'static str, open: Open, skips: &[&[Skips]], single_thread: bool, together: usize) {
    let wanted = std::env::var("TENURE_BEHAVIOUR").unwrap_or_default();
    let setup = Setup {
        name,
        open,
        single_thread,
        together,
        skips: skips.concat().leak(),
    };
    run_only(&setup, |name| name.contains(&wanted)).assert();
}

/// On the real clock: no request can fail in a store that is part of the process.
#[test]
fn memory() {
    column(
        "memory",
        harness::memory::open,
        &[
            CAN_EVERYTHING,
            IN_MEMORY,
            &[
                NO_LEASE,
                NEVER_SILENT,
                NO_EVICTION,
                NO_LOST_REQUESTS,
                NO_LOST_UPGRADES,
            ],
        ],
    );
}

/// Leases, lost requests and silence, on a clock that the test moves.
#[test]
fn memory_with_a_virtual_clock() {
    virtual_column(
        "memory, virtual",
        harness::memory::open_virtual,
        &[CAN_EVERYTHING, IN_MEMORY],
    );
}

/// Kernel locks, with other processes to be killed and stopped.
#[cfg(feature = "file")]
#[test]
fn file() {
    column(
        "file",
        harness::file::open,
        &[&[
            HAS_ELECTIONS,
            NO_LEASE,
            NO_CONNECTION,
            NO_RESTART,
            NO_PASSWORD,
            NEVER_SILENT,
            NO_LOST_REQUESTS,
            NO_LOST_UPGRADES,
            NO_ORDER,
            NO_ORDER_OF_READERS,
            NO_ORDER_AFTER_UPGRADES,
            NO_COUNT,
        ]],
    );
}

/// Through a proxy that loses requests, on a server that keeps everything.
#[cfg(feature = "redis")]
#[test]
fn redis() {
    tenure_testkit::needs!(redis);
    column("redis", harness::redis::open, &[CAN_EVERYTHING]);
}

/// The format of Redisson: the first client that asks after a release gets the lock.
#[cfg(feature = "redis")]
#[test]
fn redis_redisson() {
    tenure_testkit::needs!(redis);
    column(
        "redis, redisson",
        harness::redis::open_redisson,
        &[ONLY_EXCLUSIVE, &[NO_ELECTIONS, NO_DETACH, NO_ORDER]],
    );
}

/// Redisson's read-write lock.
#[cfg(feature = "redis")]
#[test]
fn redis_redisson_rw() {
    tenure_testkit::needs!(redis);
    column(
        "redis, redisson, rw",
        harness::redis::open_redisson_rw,
        &[&[
            NO_ELECTIONS,
            NO_DETACH,
            NO_UPGRADABLE,
            NO_PERMITS,
            NO_MIN_HOLD,
            NO_LOCK_DELAY,
            NO_ORDER,
            NO_ORDER_OF_READERS,
        ]],
    );
}

/// Redisson's fair lock.
#[cfg(feature = "redis")]
#[test]
fn redis_redisson_fair() {
    tenure_testkit::needs!(redis);
    column(
        "redis, redisson, fair",
        harness::redis::open_redisson_fair,
        &[ONLY_EXCLUSIVE, &[NO_ELECTIONS, NO_DETACH]],
    );
}

/// Redisson's semaphore; an exclusive hold is the only permit of one.
#[cfg(feature = "redis")]
#[test]
fn redis_redisson_semaphore() {
    tenure_testkit::needs!(redis);
    column(
        "redis, redisson, semaphore",
        harness::redis::open_redisson_semaphore,
        &[&[
            NO_ELECTIONS,
            NO_DETACH,
            NO_SHARED,
            NO_UPGRADABLE,
            NO_ORDER,
            ONE_PERMIT,
            ONE_SET_OF_PERMITS,
        ]],
    );
}

/// Five servers, which are stopped, cut off and started again all at once.
#[cfg(feature = "redlock")]
#[test]
fn redlock() {
    tenure_testkit::needs!(redis);
    column(
        "redlock",
        harness::redis::open_redlock,
        &[
            NO_PROXY,
            &[
                HAS_ELECTIONS,
                DETACHES_EACH_MODE,
                NO_PERMITS,
                NO_LOST_UPGRADES,
                NO_ORDER,
                NO_ORDER_OF_READERS,
                NO_ORDER_AFTER_UPGRADES,
                NO_PASSWORD,
            ],
        ],
    );
}

/// Leases, lost requests, silence and restarts, on five nodes.
#[cfg(feature = "majority")]
#[test]
fn redlock_over_memory() {
    virtual_column(
        "redlock over memory, virtual",
        harness::redlock::open_virtual,
        &[
            IN_THIS_PROCESS,
            &[
                HAS_ELECTIONS,
                DETACHES_EACH_MODE,
                NO_PERMITS,
                NO_ORDER,
                NO_ORDER_OF_READERS,
                NO_ORDER_AFTER_UPGRADES,
            ],
        ],
    );
}

/// Threads compete for three nodes, so that the orders of the nodes' queues differ.
#[cfg(feature = "majority")]
#[test]
fn redlock_over_memory_on_the_real_clock() {
    column(
        "redlock over memory",
        harness::redlock::open,
        &[
            IN_MEMORY,
            &[
                HAS_ELECTIONS,
                DETACHES_EACH_MODE,
                NO_PERMITS,
                NO_LOST_UPGRADES,
                NO_LEASE,
                NEVER_SILENT,
                NO_LOST_REQUESTS,
                NO_EVICTION,
                NO_ORDER,
                NO_ORDER_OF_READERS,
                NO_ORDER_AFTER_UPGRADES,
            ],
        ],
    );
}

/// One member, through a proxy that loses requests.
#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    tenure_testkit::needs!(etcd);
    column(
        "etcd",
        harness::etcd::open,
        &[CAN_EVERYTHING, &[NO_PASSWORD]],
    );
}

/// One server, through a proxy that loses requests.
#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper() {
    tenure_testkit::needs!(zookeeper);
    column(
        "zookeeper",
        harness::zookeeper::open,
        &[&[HAS_ELECTIONS, NO_DETACH, NO_MIN_HOLD, NO_LOCK_DELAY]],
    );
}

/// MariaDB, through a proxy that loses requests.
#[cfg(all(feature = "mysql", feature = "postgres"))]
#[test]
fn mysql() {
    tenure_testkit::needs!(mariadb);
    column(
        "mysql",
        harness::session::open_mysql,
        &[
            ONLY_EXCLUSIVE,
            &[
                HAS_ELECTIONS,
                NO_DETACH,
                NO_LOCK_DELAY,
                NO_EVICTION,
                ENDS_WITH_ITS_CONNECTION,
            ],
        ],
    );
}

/// PostgreSQL, through a proxy that loses requests.
#[cfg(all(feature = "mysql", feature = "postgres"))]
#[test]
fn postgres() {
    tenure_testkit::needs!(postgres);
    column(
        "postgres",
        harness::session::open_postgres,
        &[&[
            HAS_ELECTIONS,
            NO_DETACH,
            NO_PERMITS,
            NO_LOCK_DELAY,
            NO_EVICTION,
            ENDS_WITH_ITS_CONNECTION,
            UPGRADABLE_OUTSIDE_THE_QUEUE,
        ]],
    );
}

/// Through a proxy that loses requests.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[test]
fn mysql_table() {
    tenure_testkit::needs!(mariadb);
    column(
        "mysql, table",
        harness::table::open_mysql,
        &[CAN_EVERYTHING],
    );
}

#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[test]
fn postgres_table() {
    tenure_testkit::needs!(postgres);
    column(
        "postgres, table",
        harness::table::open_postgres,
        &[CAN_EVERYTHING],
    );
}

/// A file, without a proxy.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[test]
fn sqlite() {
    column(
        "sqlite",
        harness::table::open_sqlite,
        &[
            CAN_EVERYTHING,
            NO_PROXY,
            &[NO_LOST_UPGRADES, NO_CONNECTION, NO_RESTART, NO_PASSWORD],
        ],
    );
}

/// Stores that are tested above, as clusters, with several members or with TLS, without a proxy and on servers that keep
/// nothing on disk; and over connections that the caller made. `scripts/test` leaves these to `scripts/test --all`.
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
mod deployments {
    use super::*;

    #[cfg(feature = "redis")]
    #[test]
    fn redis_tls_with_password() {
        tenure_testkit::needs!(redis, "openssl");
        column(
            "redis, tls",
            harness::redis::open_tls,
            &[CAN_EVERYTHING, NO_PROXY, &[NO_LOST_UPGRADES]],
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn redis_sentinel() {
        tenure_testkit::needs!(redis);
        column(
            "redis, sentinel",
            harness::redis::open_sentinel,
            &[CAN_EVERYTHING, NO_PROXY, &[NO_LOST_UPGRADES, NO_PASSWORD]],
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn redis_cluster() {
        tenure_testkit::needs!(redis);
        column(
            "redis, cluster",
            harness::redis::open_cluster,
            &[CAN_EVERYTHING, NO_PROXY, &[NO_LOST_UPGRADES, NO_PASSWORD]],
        );
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn etcd_three_members() {
        tenure_testkit::needs!(etcd);
        column(
            "etcd, three members",
            harness::etcd::open_three,
            &[CAN_EVERYTHING, NO_PROXY, &[NO_LOST_UPGRADES, NO_PASSWORD]],
        );
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn etcd_tls_with_password() {
        tenure_testkit::needs!(etcd, "openssl");
        column(
            "etcd, tls",
            harness::etcd::open_tls,
            &[CAN_EVERYTHING, NO_PROXY, &[NO_LOST_UPGRADES]],
        );
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn etcd_lease_per_lock() {
        tenure_testkit::needs!(etcd);
        column(
            "etcd, lease=lock",
            harness::etcd::open_lease_per_lock,
            &[CAN_EVERYTHING, NO_PROXY, &[NO_LOST_UPGRADES, NO_PASSWORD]],
        );
    }

    /// Over a channel of the caller.
    #[cfg(feature = "etcd")]
    #[test]
    fn etcd_channel() {
        tenure_testkit::needs!(etcd);
        column(
            "etcd, channel",
            harness::etcd::open_channel,
            &[CAN_EVERYTHING, &[NO_PASSWORD]],
        );
    }

    /// With the settings of a client of another crate.
    #[cfg(feature = "redis")]
    #[test]
    fn redis_settings() {
        tenure_testkit::needs!(redis);
        column(
            "redis, settings",
            harness::redis::open_settings,
            &[CAN_EVERYTHING],
        );
    }

    /// With a connector of the caller.
    #[cfg(feature = "zookeeper")]
    #[test]
    fn zookeeper_connector() {
        tenure_testkit::needs!(zookeeper);
        column(
            "zookeeper, connector",
            harness::zookeeper::open_connector,
            &[&[HAS_ELECTIONS, NO_DETACH, NO_MIN_HOLD, NO_LOCK_DELAY]],
        );
    }

    /// Over a pool of the caller, as the four below.
    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    #[test]
    fn mysql_table_pool() {
        tenure_testkit::needs!(mariadb);
        column(
            "mysql, table, pool",
            harness::table::open_mysql_pool,
            &[CAN_EVERYTHING],
        );
    }

    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    #[test]
    fn postgres_table_pool() {
        tenure_testkit::needs!(postgres);
        column(
            "postgres, table, pool",
            harness::table::open_postgres_pool,
            &[CAN_EVERYTHING],
        );
    }

    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    #[test]
    fn sqlite_pool() {
        column(
            "sqlite, pool",
            harness::table::open_sqlite_pool,
            &[
                CAN_EVERYTHING,
                NO_PROXY,
                &[NO_LOST_UPGRADES, NO_CONNECTION, NO_RESTART, NO_PASSWORD],
            ],
        );
    }

    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    #[test]
    fn mysql_pool() {
        tenure_testkit::needs!(mariadb);
        column(
            "mysql, pool",
            harness::session::open_mysql_pool,
            &[
                ONLY_EXCLUSIVE,
                &[
                    HAS_ELECTIONS,
                    NO_DETACH,
                    NO_LOCK_DELAY,
                    NO_EVICTION,
                    ENDS_WITH_ITS_CONNECTION,
                ],
            ],
        );
    }

    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    #[test]
    fn postgres_pool() {
        tenure_testkit::needs!(postgres);
        column(
            "postgres, pool",
            harness::session::open_postgres_pool,
            &[&[
                HAS_ELECTIONS,
                NO_DETACH,
                NO_PERMITS,
                NO_LOCK_DELAY,
                NO_EVICTION,
                ENDS_WITH_ITS_CONNECTION,
                UPGRADABLE_OUTSIDE_THE_QUEUE,
            ]],
        );
    }

    #[cfg(feature = "zookeeper")]
    #[test]
    fn zookeeper_ensemble() {
        tenure_testkit::needs!(zookeeper);
        column(
            "zookeeper, ensemble",
            harness::zookeeper::open_ensemble,
            &[&[
                HAS_ELECTIONS,
                NO_DETACH,
                NO_MIN_HOLD,
                NO_LOCK_DELAY,
                NO_LOST_REQUESTS,
                NO_LOST_UPGRADES,
                NO_LOST_REQUESTS_OF_LEASES,
            ]],
        );
    }

    #[cfg(feature = "zookeeper")]
    #[test]
    fn zookeeper_tls() {
        tenure_testkit::needs!(zookeeper, "openssl");
        column(
            "zookeeper, tls",
            harness::zookeeper::open_tls,
            &[
                NO_PROXY,
                &[
                    HAS_ELECTIONS,
                    NO_DETACH,
                    NO_MIN_HOLD,
                    NO_LOCK_DELAY,
                    NO_LOST_UPGRADES,
                ],
            ],
        );
    }
}
