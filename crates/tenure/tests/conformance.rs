//! The matrix: every backend shows every behaviour, or has a reason not to that is written here.

mod harness {
    #[cfg(feature = "etcd")]
    pub(crate) mod etcd;
    #[cfg(feature = "file")]
    pub(crate) mod file;
    pub(crate) mod memory;
    #[cfg(feature = "redis")]
    pub(crate) mod redis;
    #[cfg(feature = "quorum")]
    pub(crate) mod redlock;
    #[cfg(all(feature = "mysql", feature = "postgres"))]
    pub(crate) mod session;
    pub(crate) mod skips;
    #[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) mod table;
    #[cfg(feature = "zookeeper")]
    pub(crate) mod zookeeper;
}
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
use harness::skips::{
    CAN_EVERYTHING, ENDS_WITH_ITS_CONNECTION, NEVER_SILENT, NO_CONNECTION, NO_COUNT,
    NO_COUNT_OF_LEASES, NO_EVICTION, NO_LEASE, NO_LOCK_DELAY, NO_LOST_REQUESTS,
    NO_LOST_REQUESTS_OF_LEASES, NO_MIN_HOLD, NO_ORDER, NO_PASSWORD, NO_PERMITS, NO_PROCESSES,
    NO_RESTART, NO_SHARED, NO_WIPE,
};
use tenure::conformance::{Report, Setup, run_only};

/// Runs all behaviours, or with `TENURE_BEHAVIOUR` those whose names contain it: then the column is red in the end,
/// because the others were not run.
fn run(setup: &Setup) -> Report {
    let wanted = std::env::var("TENURE_BEHAVIOUR").unwrap_or_default();
    run_only(setup, |name| name.contains(&wanted))
}

/// On the real clock nothing can go wrong in a store that is part of the process.
#[test]
fn memory() {
    run(&Setup {
        name: "memory",
        open: harness::memory::open,
        single_thread: false,
        together: 4,
        skips: &[
            NO_LEASE,
            NO_PROCESSES,
            NO_CONNECTION,
            NO_RESTART,
            NO_WIPE,
            NO_PASSWORD,
            CAN_EVERYTHING,
            NEVER_SILENT,
            NO_EVICTION,
            NO_LOST_REQUESTS,
        ],
    })
    .assert();
}

/// Leases, lost requests and silence, on a clock that the test moves.
#[test]
fn memory_with_a_virtual_clock() {
    run(&Setup {
        name: "memory, virtual",
        open: harness::memory::open_virtual,
        single_thread: true,
        together: 2,
        skips: &[
            NO_PROCESSES,
            NO_CONNECTION,
            NO_RESTART,
            NO_WIPE,
            NO_PASSWORD,
            CAN_EVERYTHING,
        ],
    })
    .assert();
}

/// Kernel locks, with other processes to be killed and stopped.
#[cfg(feature = "file")]
#[test]
fn file() {
    run(&Setup {
        name: "file",
        open: harness::file::open,
        single_thread: false,
        together: 4,
        skips: &[
            NO_LEASE,
            NO_CONNECTION,
            NO_RESTART,
            NO_PASSWORD,
            NEVER_SILENT,
            NO_LOST_REQUESTS,
            (
                "no order of waiters is promised",
                &[
                    "waiting::clients_are_served_in_order",
                    "modes::a_writer_is_not_starved",
                ],
            ),
            NO_COUNT,
        ],
    })
    .assert();
}

/// Through a proxy that loses requests, on a server that keeps everything.
#[cfg(feature = "redis")]
#[test]
fn redis() {
    if tenure_testkit::redis::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "redis",
        open: harness::redis::open,
        single_thread: false,
        together: 4,
        skips: &[NO_SHARED, NO_PERMITS],
    })
    .assert();
}

/// As Redisson does: whoever asks first after a release is served.
#[cfg(feature = "redis")]
#[test]
fn redis_redisson() {
    if tenure_testkit::redis::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "redis, redisson",
        open: harness::redis::open_redisson,
        single_thread: false,
        together: 4,
        skips: &[NO_SHARED, NO_PERMITS, NO_ORDER, NO_MIN_HOLD, NO_LOCK_DELAY],
    })
    .assert();
}

/// From here on without a proxy, and on servers that keep nothing on disk.
#[cfg(feature = "redis")]
#[test]
fn redis_tls_with_password() {
    if tenure_testkit::redis::Certificates::skip_unless_possible() {
        return;
    }
    run(&Setup {
        name: "redis, tls",
        open: harness::redis::open_tls,
        single_thread: false,
        together: 4,
        skips: &[
            NO_SHARED,
            NO_PERMITS,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
        ],
    })
    .assert();
}

#[cfg(feature = "redis")]
#[test]
fn redis_sentinel() {
    if tenure_testkit::redis::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "redis, sentinel",
        open: harness::redis::open_sentinel,
        single_thread: false,
        together: 4,
        skips: &[
            NO_SHARED,
            NO_PERMITS,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
            NO_PASSWORD,
        ],
    })
    .assert();
}

#[cfg(feature = "redis")]
#[test]
fn redis_cluster() {
    if tenure_testkit::redis::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "redis, cluster",
        open: harness::redis::open_cluster,
        single_thread: false,
        together: 4,
        skips: &[
            NO_SHARED,
            NO_PERMITS,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
            NO_PASSWORD,
        ],
    })
    .assert();
}

/// Five servers, which are stopped, cut off and started again all at once.
#[cfg(feature = "redis")]
#[test]
fn redlock() {
    if tenure_testkit::redis::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "redlock",
        open: harness::redis::open_redlock,
        single_thread: false,
        together: 4,
        skips: &[
            NO_SHARED,
            NO_PERMITS,
            NO_ORDER,
            NO_MIN_HOLD,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
            NO_PASSWORD,
        ],
    })
    .assert();
}

/// Leases, lost requests, silence and restarts, on five nodes.
#[cfg(feature = "quorum")]
#[test]
fn redlock_over_memory() {
    run(&Setup {
        name: "redlock over memory, virtual",
        open: harness::redlock::open_virtual,
        single_thread: true,
        together: 2,
        skips: &[
            NO_PROCESSES,
            NO_CONNECTION,
            NO_PASSWORD,
            NO_SHARED,
            NO_PERMITS,
            NO_ORDER,
            NO_MIN_HOLD,
        ],
    })
    .assert();
}

/// Threads that race for three nodes, so that the nodes' orders differ.
#[cfg(feature = "quorum")]
#[test]
fn redlock_over_memory_on_the_real_clock() {
    run(&Setup {
        name: "redlock over memory",
        open: harness::redlock::open,
        single_thread: false,
        together: 4,
        skips: &[
            NO_LEASE,
            NO_PROCESSES,
            NO_CONNECTION,
            NO_RESTART,
            NO_WIPE,
            NO_PASSWORD,
            NEVER_SILENT,
            NO_LOST_REQUESTS,
            NO_EVICTION,
            NO_SHARED,
            NO_PERMITS,
            NO_ORDER,
            NO_MIN_HOLD,
        ],
    })
    .assert();
}

/// One member, through a proxy that loses requests.
#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    if tenure_testkit::etcd::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "etcd",
        open: harness::etcd::open,
        single_thread: false,
        together: 4,
        skips: &[NO_LOCK_DELAY, NO_PASSWORD],
    })
    .assert();
}

/// From here on nothing is aimed at single requests.
#[cfg(feature = "etcd")]
#[test]
fn etcd_three_members() {
    if tenure_testkit::etcd::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "etcd, three members",
        open: harness::etcd::open_three,
        single_thread: false,
        together: 4,
        skips: &[
            NO_LOCK_DELAY,
            NO_PASSWORD,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
        ],
    })
    .assert();
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_tls_with_password() {
    if tenure_testkit::etcd::skip_unless_installed()
        || tenure_testkit::skip_unless_installed(&["openssl"])
    {
        return;
    }
    run(&Setup {
        name: "etcd, tls",
        open: harness::etcd::open_tls,
        single_thread: false,
        together: 4,
        skips: &[
            NO_LOCK_DELAY,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
        ],
    })
    .assert();
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_lease_per_lock() {
    if tenure_testkit::etcd::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "etcd, lease=lock",
        open: harness::etcd::open_lease_per_lock,
        single_thread: false,
        together: 4,
        skips: &[
            NO_LOCK_DELAY,
            NO_PASSWORD,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
        ],
    })
    .assert();
}

/// One server, through a proxy that loses requests.
#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper() {
    if tenure_testkit::zookeeper::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "zookeeper",
        open: harness::zookeeper::open,
        single_thread: false,
        together: 4,
        skips: &[NO_MIN_HOLD, NO_LOCK_DELAY],
    })
    .assert();
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_ensemble() {
    if tenure_testkit::zookeeper::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "zookeeper, ensemble",
        open: harness::zookeeper::open_ensemble,
        single_thread: false,
        together: 4,
        skips: &[
            NO_MIN_HOLD,
            NO_LOCK_DELAY,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
        ],
    })
    .assert();
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_tls() {
    if tenure_testkit::zookeeper::skip_unless_installed_for_tls() {
        return;
    }
    run(&Setup {
        name: "zookeeper, tls",
        open: harness::zookeeper::open_tls,
        single_thread: false,
        together: 4,
        skips: &[
            NO_MIN_HOLD,
            NO_LOCK_DELAY,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
        ],
    })
    .assert();
}

/// MariaDB, through a proxy that loses requests.
#[cfg(all(feature = "mysql", feature = "postgres"))]
#[test]
fn mysql() {
    if tenure_testkit::mariadb::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "mysql",
        open: harness::session::open_mysql,
        single_thread: false,
        together: 4,
        skips: &[
            NO_SHARED,
            NO_PERMITS,
            NO_MIN_HOLD,
            NO_LOCK_DELAY,
            NO_EVICTION,
            ENDS_WITH_ITS_CONNECTION,
        ],
    })
    .assert();
}

/// PostgreSQL, likewise.
#[cfg(all(feature = "mysql", feature = "postgres"))]
#[test]
fn postgres() {
    if tenure_testkit::postgres::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "postgres",
        open: harness::session::open_postgres,
        single_thread: false,
        together: 4,
        skips: &[
            NO_PERMITS,
            NO_MIN_HOLD,
            NO_LOCK_DELAY,
            NO_EVICTION,
            ENDS_WITH_ITS_CONNECTION,
        ],
    })
    .assert();
}

/// Through a proxy that loses requests.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[test]
fn mysql_table() {
    if tenure_testkit::mariadb::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "mysql, table",
        open: harness::table::open_mysql,
        single_thread: false,
        together: 4,
        skips: &[NO_SHARED, NO_PERMITS],
    })
    .assert();
}

#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[test]
fn postgres_table() {
    if tenure_testkit::postgres::skip_unless_installed() {
        return;
    }
    run(&Setup {
        name: "postgres, table",
        open: harness::table::open_postgres,
        single_thread: false,
        together: 4,
        skips: &[NO_SHARED, NO_PERMITS],
    })
    .assert();
}

/// A file, which nothing stands in front of.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[test]
fn sqlite() {
    run(&Setup {
        name: "sqlite",
        open: harness::table::open_sqlite,
        single_thread: false,
        together: 4,
        skips: &[
            NO_SHARED,
            NO_PERMITS,
            NO_CONNECTION,
            NO_RESTART,
            NO_PASSWORD,
            NO_LOST_REQUESTS,
            NO_LOST_REQUESTS_OF_LEASES,
            NO_COUNT,
            NO_COUNT_OF_LEASES,
        ],
    })
    .assert();
}
