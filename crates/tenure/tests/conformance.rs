//! The matrix: every backend shows every behaviour, or has a reason not to that is written here.

mod harness {
    #[cfg(feature = "etcd")]
    pub(crate) mod etcd;
    #[cfg(feature = "file")]
    pub(crate) mod file;
    pub(crate) mod memory;
    #[cfg(feature = "redis")]
    pub(crate) mod redis;
    #[cfg(feature = "redlock")]
    pub(crate) mod redlock;
    #[cfg(all(feature = "mysql", feature = "postgres"))]
    pub(crate) mod session;
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
mod servers;

use tenure::conformance::{Setup, run};

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
    if servers::redis::is_missing() {
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
    if servers::redis::is_missing() {
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
    if servers::redis::Certificates::is_impossible() {
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
    if servers::redis::is_missing() {
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
    if servers::redis::is_missing() {
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
#[cfg(all(feature = "redis", feature = "redlock"))]
#[test]
fn redlock() {
    if servers::redis::is_missing() {
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
#[cfg(feature = "redlock")]
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
#[cfg(feature = "redlock")]
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
    if servers::etcd::is_missing() {
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
    if servers::etcd::is_missing() {
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
    if servers::etcd::is_missing() || servers::is_missing(&["openssl"]) {
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
    if servers::etcd::is_missing() {
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
    if servers::zookeeper::is_missing() {
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
    if servers::zookeeper::is_missing() {
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
    if servers::zookeeper::is_missing_for_tls() {
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
    if servers::mariadb::is_missing() {
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
    if servers::postgres::is_missing() {
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
    if servers::mariadb::is_missing() {
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
    if servers::postgres::is_missing() {
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

type Skips = (&'static str, &'static [&'static str]);

const NO_LEASE: Skips = (
    "no lease runs in this store",
    &[
        "holding::claims_never_overlap_when_a_lease_runs_out",
        "holding::the_deadline_lies_a_margin_before_the_end_of_the_lease",
        "holding::the_deadline_counts_from_before_the_request",
        "holding::a_reply_after_the_deadline_is_no_grant",
        "holding::a_ttl_too_short_for_the_round_trip_is_refused",
        "holding::an_error_on_renewal_is_neither_loss_nor_success",
        "holding::a_lease_does_not_run_out_while_it_waits",
        "holding::many_holds_are_renewed_by_few_requests",
        "holding::renewal_ends_with_the_guard",
        "faults::lost_fires_by_the_deadline_of_a_silent_store",
    ],
);

const NO_LOST_REQUESTS: Skips = (
    "no request to this store can get lost",
    &[
        "ending::a_release_without_an_answer_is_typed_and_repeated",
        "ending::an_acquire_without_an_answer_leaves_nothing",
        "ending::an_acquire_that_hangs_leaves_nothing",
    ],
);

/// Behaviours that a store without leases does not have either.
#[allow(dead_code, reason = "without some features nobody needs it")]
const NO_LOST_REQUESTS_OF_LEASES: Skips = (
    NO_LOST_REQUESTS.0,
    &[
        "holding::the_deadline_counts_from_before_the_request",
        "holding::a_reply_after_the_deadline_is_no_grant",
        "holding::a_ttl_too_short_for_the_round_trip_is_refused",
        "holding::an_error_on_renewal_is_neither_loss_nor_success",
    ],
);

const NO_COUNT: Skips = (
    "requests to this store cannot be counted",
    &["reentrance::entering_again_costs_no_request"],
);

#[allow(dead_code, reason = "without some features nobody needs it")]
const NO_COUNT_OF_LEASES: Skips = (
    NO_COUNT.0,
    &[
        "holding::many_holds_are_renewed_by_few_requests",
        "holding::renewal_ends_with_the_guard",
    ],
);

const NO_EVICTION: Skips = (
    "nothing but `break_lock` takes a hold away in this store",
    &[
        "holding::one_failing_hold_does_not_stop_the_others",
        "holding::a_refused_renewal_is_a_loss_and_never_resurrects",
        "holding::tokens_grow_over_eviction",
        "ending::a_stale_release_frees_nobody_else",
    ],
);

#[allow(dead_code, reason = "without some features nobody needs it")]
const NO_SHARED: Skips = (
    "no shared holds",
    &[
        "holding::no_two_holders_have_the_same_token",
        "reentrance::a_shared_hold_is_not_upgraded",
        "modes::shared_holders_go_together",
        "modes::readers_and_a_writer_never_meet",
        "modes::a_writer_is_not_starved",
    ],
);

#[allow(dead_code, reason = "without some features nobody needs it")]
const NO_PERMITS: Skips = (
    "no permits",
    &[
        "modes::permits_never_exceed_their_limit",
        "modes::a_permit_goes_to_the_next_waiter",
        "modes::permits_and_exclusive_never_meet",
    ],
);

#[cfg(any(feature = "redis", feature = "redlock"))]
const NO_ORDER: Skips = (
    "no order of waiters is promised",
    &["waiting::clients_are_served_in_order"],
);

#[cfg(any(
    feature = "redis",
    feature = "redlock",
    feature = "zookeeper",
    feature = "mysql"
))]
const NO_MIN_HOLD: Skips = ("no `min_hold`", &["ending::min_hold_keeps_the_name_taken"]);

#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql"
))]
const NO_LOCK_DELAY: Skips = (
    "no `lock_delay`",
    &[
        "ending::lock_delay_reserves_after_an_unclean_end",
        "ending::lock_delay_does_not_reserve_after_a_release",
        "faults::lock_delay_reserves_after_a_crash",
    ],
);

const NEVER_SILENT: Skips = (
    "this store cannot fall silent",
    &["faults::a_silent_store_never_grants"],
);

const NO_PROCESSES: Skips = (
    "no other process can reach this store",
    &[
        "faults::a_killed_holder_frees_the_lock",
        "faults::tokens_grow_over_crashes",
        "faults::lock_delay_reserves_after_a_crash",
        "faults::a_killed_waiter_does_not_block_the_queue",
        "faults::a_stopped_waiter_does_not_keep_the_lock_from_others",
        "faults::a_paused_holder_behaves_as_promised",
        "faults::processes_exclude_each_other",
        "faults::a_holder_in_another_process_is_visible",
    ],
);

const NO_CONNECTION: Skips = (
    "there is no connection to this store",
    &[
        "faults::a_broken_connection_does_not_end_a_lease",
        "faults::a_broken_connection_is_noticed",
    ],
);

const NO_RESTART: Skips = (
    "this store cannot be restarted",
    &["faults::a_restarted_store_keeps_its_promise"],
);

const NO_WIPE: Skips = (
    "this store forgets nothing while it runs",
    &["faults::a_wiped_store_is_noticed_and_tokens_grow"],
);

const NO_PASSWORD: Skips = (
    "there is no password for this store",
    &["identity::no_error_holds_the_password"],
);

const CAN_EVERYTHING: Skips = (
    "this store can do everything",
    &["identity::what_is_unsupported_is_refused_before_any_request"],
);

#[cfg(all(feature = "mysql", feature = "postgres"))]
const ENDS_WITH_ITS_CONNECTION: Skips = (
    "a hold of this store ends with its connection",
    &[
        "holding::an_error_on_renewal_is_neither_loss_nor_success",
        "faults::a_broken_connection_does_not_end_a_lease",
    ],
);
