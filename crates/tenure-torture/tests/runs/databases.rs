//! MariaDB and PostgreSQL, by their sessions and by a table.

use std::time::Duration;

use tenure_torture::plan::FaultKind;

use crate::{Run, text};
use tenure_testkit::clock::Clock;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_torture::checker::Verdict;

/// The requests that keep a session alive take longer on a busy machine, and MySQL counts in whole seconds.
const TTL: Duration = Duration::from_secs(2);
/// For leases in a table.
const SHORT: Duration = Duration::from_secs(1);
const GUARDED: &str = "?tls=off&timeout=1s&restart_guard=3s";
const TRUSTED: &str = "?tls=off&timeout=1s&restart_guard=off";
const TABLE: &str = "?mode=table&tls=off&timeout=1s";
const SHEDLOCK: &str = "?mode=table&dialect=shedlock&tls=off&timeout=1s";

/// These faults break a connection, and the server frees the locks of its session before their holder can know.
const VOID_FOR_SESSIONS: [FaultKind; 6] = [
    FaultKind::Delay,
    FaultKind::Stall,
    FaultKind::Cut,
    FaultKind::LostReply,
    FaultKind::Garbage,
    FaultKind::Trickle,
];

fn mysql(name: &'static str, options: &str) -> Run {
    let clock = Clock::make();
    let server = MariaDb::start_with(&clock.command(), &[]);
    let url = server.url() + options;
    Run::on(name, url, Some(Box::new(server)), Some(clock)).ttl(TTL)
}

fn postgres(name: &'static str, options: &str) -> Run {
    let clock = Clock::make();
    let server = Postgres::start_with(&clock.command(), &[]);
    let url = server.url() + options;
    Run::on(name, url, Some(Box::new(server)), Some(clock)).ttl(TTL)
}

macro_rules! on {
    ($database:ident, $server:ident) => {
        mod $database {
            use super::*;

            /// All faults under which no two workers may hold at once.
            fn faults() -> Vec<FaultKind> {
                let mut faults = vec![
                    FaultKind::Pause,
                    FaultKind::Kill,
                    FaultKind::Vanish,
                    FaultKind::ClientClock,
                    FaultKind::Suspend,
                ];
                if stringify!($database) == "mysql" {
                    faults.push(FaultKind::ClockForward);
                }
                faults
            }

            #[test]
            fn sessions() {
                needs!($server, "cc");
                let run = super::$database("sessions", TRUSTED).only(&faults());
                assert_eq!(run.keeps_its_promise().findings.overlaps, []);
            }

            #[test]
            fn sessions_with_tasks_that_pass_the_lock_on() {
                needs!($server, "cc");
                let run = super::$database("sessions, tasks", TRUSTED).only(&faults());
                let run = run.passing_on();
                assert_eq!(run.keeps_its_promise().findings.overlaps, []);
            }

            /// Tokens are made of the clock and of what a server counts since its start.
            #[test]
            fn sessions_whose_clock_goes_back() {
                needs!($server, "cc");
                let run = super::$database("sessions, back", TRUSTED).only(&[FaultKind::ClockBack]);
                let report = run.go(|run| run.faults > 3 && run.found.not_enough.is_none());
                assert_eq!(report.verdict(), Verdict::Ok, "{}", text(&report));
                assert_eq!(report.findings.overlaps, []);
            }

            #[test]
            fn sessions_with_the_guard() {
                needs!($server, "cc");
                let run = super::$database("sessions, guard", GUARDED);
                let run = run.only(&[FaultKind::ServerKill, FaultKind::Pause]);
                assert_eq!(run.keeps_its_promise().findings.overlaps, []);
            }

            #[test]
            fn sessions_whose_connections_break() {
                needs!($server, "cc");
                let run = super::$database("sessions, links", TRUSTED).only(&VOID_FOR_SESSIONS);
                run.keeps_its_promise();
            }

            #[test]
            fn a_table() {
                needs!($server, "cc");
                let run = super::$database("table", TABLE).ttl(SHORT);
                let run = run.without(&[FaultKind::ClockForward]);
                assert_eq!(run.keeps_its_promise().findings.overlaps, []);
            }

            #[test]
            fn a_table_with_tasks_that_pass_the_lock_on() {
                needs!($server, "cc");
                let run = super::$database("table, tasks", TABLE).ttl(SHORT);
                let run = run.without(&[FaultKind::ClockForward]).passing_on();
                assert_eq!(run.keeps_its_promise().findings.overlaps, []);
            }

            #[test]
            fn a_table_whose_clock_jumps_forward_lets_two_hold() {
                needs!($server, "cc");
                for options in [TABLE, SHEDLOCK] {
                    let run = super::$database("table, clock", options).ttl(SHORT);
                    run.lets_two_hold(FaultKind::ClockForward);
                }
            }

            #[test]
            fn the_table_of_shedlock() {
                needs!($server, "cc");
                let run = super::$database("shedlock", SHEDLOCK).ttl(SHORT);
                let run = run.without(&[FaultKind::ClockForward]);
                assert_eq!(run.keeps_its_promise().findings.overlaps, []);
            }
        }
    };
}

on!(mysql, mariadb);
on!(postgres, postgres);
