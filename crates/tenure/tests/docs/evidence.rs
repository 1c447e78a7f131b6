//! The tests that show each cell of the guarantee table. A cell without a test has a reason.

use tenure::guarantees::{Fault, Guarantees};

/// The evidence for a cell.
pub(crate) enum Evidence {
    /// These tests, as `CRATE/FILE::TEST` without `.rs`, or `runs/FILE::TEST` for the torture harness.
    Shown(&'static [&'static str]),
    /// There is no test, for this reason.
    NotShown(&'static str),
}

use Evidence::{NotShown, Shown};

const NO_CLOCK: Evidence = NotShown("no wall clock is involved");

/// The evidence for a cell whose fault can happen to this configuration.
pub(crate) fn evidence(of: &Guarantees, fault: Fault) -> Evidence {
    let setting = of.setting.as_str();
    let has = |word: &str| setting.contains(word);
    match of.scheme {
        "memory" => memory(fault),
        "file" => file(fault),
        "redis" => redis(fault, &has),
        "redlock" => redlock(fault, &has),
        "etcd" => etcd(fault, has("three")),
        "zookeeper" => zookeeper(fault, has("one server")),
        "mysql" | "postgres" if has("mode=table") => table(fault, of.scheme == "mysql", &has),
        "mysql" | "postgres" => sessions(fault, of.scheme == "mysql", &has),
        "sqlite" => sqlite(fault),
        other => panic!("nothing is known of {other}"),
    }
}

/// Tests of a loss without a fault of the table: the store itself is removed or replaced while locks are held.
pub(crate) fn evidence_of_loss(of: &Guarantees) -> &'static [&'static str] {
    match of.scheme {
        "file" => &[
            "tenure/tests/file/faults::a_directory_removed_under_a_holder_is_made_again",
            "tenure/tests/file/faults::a_directory_replaced_under_a_holder_is_the_new_one_for_all",
        ],
        "sqlite" => &[
            "tenure/tests/table/replaced::a_holder_loses_the_lock_when_the_file_is_removed_or_replaced",
        ],
        _ => &[],
    }
}

fn memory(fault: Fault) -> Evidence {
    match fault {
        Fault::HolderKilled | Fault::ClientSuspended => {
            NotShown("holder and store are one process")
        }
        Fault::HolderPaused => {
            Shown(&["tenure/tests/memory::without_a_store_lease_a_fixed_hold_is_ended_by_us"])
        }
        _ => NO_CLOCK,
    }
}

fn file(fault: Fault) -> Evidence {
    match fault {
        Fault::PowerLoss => {
            Shown(&["tenure/src/file/record/tests::no_torn_or_lost_write_brings_a_token_back"])
        }
        _ => Shown(&["runs/files::file"]),
    }
}

fn redis(fault: Fault, has: &dyn Fn(&str) -> bool) -> Evidence {
    let is_redisson = has("redisson");
    match fault {
        Fault::ClientClock if has("semaphore") => Shown(&[
            "tenure/tests/interop/redisson_semaphore::a_client_in_java_whose_clock_is_ahead_takes_our_permit",
        ]),
        Fault::StoreRestart | Fault::PowerLoss if has("restart_guard=off") => {
            Shown(&["runs/redis::redis_that_forgets_lets_two_hold"])
        }
        Fault::PowerLoss if has("always") => {
            Shown(&["tenure/tests/redis/restarts::the_power_is_lost"])
        }
        Fault::StoreRestart if has("appendfsync") => {
            Shown(&["runs/redis::redis_with_its_log_on_disk"])
        }
        // A server that was killed has no data left, as after a loss of power.
        Fault::StoreRestart | Fault::PowerLoss => {
            Shown(&["runs/redis::redis_that_forgets_with_the_guard"])
        }
        Fault::Failover => Shown(&[
            "tenure/tests/redis/failovers::a_replica_that_lags_takes_over",
            "runs/redis::sentinel",
            "runs/redis::cluster",
        ]),
        Fault::StoreClockForward => {
            Shown(&["runs/redis::redis_whose_clock_jumps_forward_lets_two_hold"])
        }
        _ if is_redisson => Shown(&["runs/redis::redis_with_the_format_of_redisson"]),
        _ => Shown(&["runs/redis::redis_alone"]),
    }
}

fn redlock(fault: Fault, has: &dyn Fn(&str) -> bool) -> Evidence {
    match fault {
        Fault::StoreRestart | Fault::PowerLoss if has("restart_guard=off") => {
            Shown(&["tenure/tests/redis/majorities::without_the_guard_two_hold_it"])
        }
        // The settings are those of each of its servers.
        Fault::PowerLoss if has("always") => {
            Shown(&["tenure/tests/redis/restarts::the_power_is_lost"])
        }
        Fault::StoreRestart if has("always") => {
            Shown(&["runs/redis::redlock_with_its_logs_on_disk"])
        }
        Fault::StoreClockForward => {
            Shown(&["runs/redis::redlock_whose_clocks_jump_forward_lets_two_hold"])
        }
        Fault::Partition => Shown(&[
            "runs/redis::redlock_of_five",
            "tenure/tests/redlock::a_minority_may_fail_in_any_way",
        ]),
        _ => Shown(&["runs/redis::redlock_of_five"]),
    }
}

fn etcd(fault: Fault, is_three: bool) -> Evidence {
    match fault {
        Fault::PowerLoss => Shown(&["tenure/tests/etcd/members::the_power_is_lost"]),
        Fault::Failover => Shown(&[
            "runs/consensus::etcd_of_three",
            "tenure/tests/common/trio::the_leader_is_stopped",
        ]),
        _ if is_three => Shown(&["runs/consensus::etcd_of_three"]),
        _ => Shown(&["runs/consensus::etcd_of_one"]),
    }
}

/// The tests use the default dialect. The others have other names of nodes and fewer modes, and the same code for sessions,
/// deadlines, renewals and releases.
fn zookeeper(fault: Fault, is_one: bool) -> Evidence {
    match fault {
        Fault::PowerLoss => Shown(&["tenure/tests/zookeeper/sessions::the_power_is_lost"]),
        _ if is_one => Shown(&["runs/consensus::zookeeper_of_one"]),
        _ => Shown(&["runs/consensus::zookeeper_of_three"]),
    }
}

fn sessions(fault: Fault, is_mysql: bool, has: &dyn Fn(&str) -> bool) -> Evidence {
    match fault {
        Fault::Partition => Shown(&[
            "tenure/tests/session/ends::a_holder_that_is_not_told_of_the_end_shares_the_lock",
        ]),
        Fault::StoreRestart | Fault::PowerLoss if has("restart_guard=off") => Shown(&[
            "tenure/tests/session/ends::a_holder_that_is_not_told_of_a_restart_shares_the_lock",
        ]),
        // Sessions end with the server, no matter what is on its disk.
        Fault::StoreRestart | Fault::PowerLoss => {
            Shown(&["runs/databases::sessions_with_the_guard"])
        }
        Fault::Failover if is_mysql => {
            Shown(&["tenure/tests/session/failovers::another_mariadb_takes_over"])
        }
        Fault::Failover => Shown(&["tenure/tests/session/failovers::another_postgres_takes_over"]),
        Fault::StoreClockForward if !is_mysql => Shown(&[
            "tenure/tests/session/ends::a_holder_that_is_not_told_of_the_end_shares_the_lock",
        ]),
        Fault::StoreClockBack => Shown(&["runs/databases::sessions_whose_clock_goes_back"]),
        _ => Shown(&["runs/databases::sessions"]),
    }
}

fn table(fault: Fault, is_mysql: bool, has: &dyn Fn(&str) -> bool) -> Evidence {
    match fault {
        Fault::StoreRestart | Fault::PowerLoss if setting_loses(has) => match is_mysql {
            true => Shown(&["tenure/tests/table/failovers::a_mariadb_that_loses_commits"]),
            false => Shown(&["tenure/tests/table/failovers::a_postgres_that_loses_commits"]),
        },
        Fault::PowerLoss if is_mysql => {
            Shown(&["tenure/tests/table/failovers::a_mariadb_loses_power"])
        }
        Fault::PowerLoss => Shown(&["tenure/tests/table/failovers::a_postgres_loses_power"]),
        Fault::Failover if is_mysql => {
            Shown(&["tenure/tests/table/failovers::another_mariadb_takes_over"])
        }
        Fault::Failover => Shown(&["tenure/tests/table/failovers::another_postgres_takes_over"]),
        Fault::StoreClockForward => {
            Shown(&["runs/databases::a_table_whose_clock_jumps_forward_lets_two_hold"])
        }
        _ if has("shedlock") => Shown(&["runs/databases::the_table_of_shedlock"]),
        _ => Shown(&["runs/databases::a_table"]),
    }
}

/// Whether a killed server may lose a commit, and not only one without power.
fn setting_loses(has: &dyn Fn(&str) -> bool) -> bool {
    has("commits may be lost") && !has("with the power")
}

fn sqlite(fault: Fault) -> Evidence {
    match fault {
        Fault::PowerLoss => {
            NotShown("a test would need a machine that loses power, together with all holders")
        }
        Fault::StoreClockForward | Fault::ClientClock => {
            Shown(&["runs/files::sqlite_when_the_clock_jumps_forward_lets_two_hold"])
        }
        _ => Shown(&[
            "runs/files::sqlite_when_holders_are_stopped_and_killed_and_the_clock_goes_back",
        ]),
    }
}
