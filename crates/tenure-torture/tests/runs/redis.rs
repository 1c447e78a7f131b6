//! One Redis server with each kind of persistence, sentinels, a cluster, and Redlock.

use std::time::Duration;

use tenure_torture::mode::{HoldMode, Modes};
use tenure_torture::plan::FaultKind;

use crate::Run;
use crate::environment::RedlockServers;
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::redis::{Cluster, Redis, SentinelSetup, redlock_url};

const TTL: Duration = Duration::from_millis(500);
/// Longer than any lease of a run.
const GUARDED: &str = "?timeout=1s&restart_guard=2s";
const TRUSTED: &str = "?timeout=1s&restart_guard=off";

const DIALECTS: [&str; 2] = ["", "&dialect=redisson"];

fn run(name: &'static str, options: &str, lines: &[&str]) -> Run {
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, lines);
    let url = format!("{}{options}", server.url());
    Run::on(name, url, Some(Box::new(server)), Some(clock)).ttl(TTL)
}

/// Overlaps are documented for these faults, so these faults would hide overlaps that are not documented.
const VOID: [FaultKind; 2] = [FaultKind::ServerKill, FaultKind::ClockForward];

#[test]
fn redis_alone() {
    needs!(redis, "cc");
    let report = run("redis", TRUSTED, &[])
        .without(&VOID)
        .keeps_its_promise();
    assert_eq!(report.findings.overlaps, []);
    assert_eq!(report.fault_counts().len(), 13);
}

#[test]
fn redis_with_tasks_that_pass_the_lock_on() {
    needs!(redis, "cc");
    let run = run("redis, tasks", TRUSTED, &[])
        .without(&VOID)
        .passing_on();
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

#[test]
fn redis_with_the_format_of_redisson() {
    needs!(redis, "cc");
    for lock in ["plain", "rw", "fair", "semaphore"] {
        let options = format!("{TRUSTED}&dialect=redisson&lock={lock}");
        let run = run("redis, redisson", &options, &[]).without(&VOID);
        // A semaphore has one number of permits, and an exclusive hold is the only permit of one.
        let run = match lock {
            "semaphore" => run.modes(Modes::of(&[HoldMode::Permit])),
            _ => run,
        };
        assert_eq!(run.keeps_its_promise().findings.overlaps, [], "{lock}");
    }
}

#[test]
fn redis_that_forgets_lets_two_hold() {
    needs!(redis, "cc");
    run("redis, no guard", TRUSTED, &[]).lets_two_hold(FaultKind::ServerKill);
}

#[test]
fn redis_that_forgets_with_the_guard() {
    needs!(redis, "cc");
    for dialect in DIALECTS {
        let run = run("redis, guard", &format!("{GUARDED}{dialect}"), &[]);
        let run = run.only(&[FaultKind::ServerKill, FaultKind::Pause]);
        assert_eq!(run.keeps_its_promise().findings.overlaps, []);
    }
}

#[test]
fn redis_with_its_log_on_disk() {
    needs!(redis, "cc");
    for (fsync, options) in [("everysec", GUARDED), ("always", "?timeout=1s")] {
        let fsync = format!("appendfsync {fsync}");
        let run = run("redis, log", options, &["appendonly yes", &fsync]);
        let run = run.only(&[FaultKind::ServerKill, FaultKind::Pause]);
        assert_eq!(run.keeps_its_promise().findings.overlaps, []);
    }
}

#[test]
fn redis_whose_clock_jumps_forward_lets_two_hold() {
    needs!(redis, "cc");
    for dialect in DIALECTS {
        let run = run("redis, clock", &format!("{TRUSTED}{dialect}"), &[]);
        let report = run.lets_two_hold(FaultKind::ClockForward);
        assert_eq!(report.findings.tokens, []);
        assert_eq!(report.findings.writes.late_accepted, []);
    }
}

#[test]
fn sentinel() {
    needs!(redis, "cc");
    let watched = SentinelSetup::start(4_000);
    let url = format!("{}{TRUSTED}", watched.url());
    Run::on("sentinel", url, Some(Box::new(watched)), None)
        .only(&[FaultKind::Pause, FaultKind::Kill, FaultKind::LeaderKill])
        .keeps_its_promise();
}

#[test]
fn cluster() {
    needs!(redis, "cc");
    let cluster = Cluster::start(true);
    let url = format!("{}{TRUSTED}", cluster.url());
    Run::on("cluster", url, Some(Box::new(cluster)), None)
        .only(&[FaultKind::Pause, FaultKind::Kill, FaultKind::LeaderKill])
        .keeps_its_promise();
}

/// A Redlock of `count` servers, all with the same wall clock.
fn redlock(name: &'static str, options: &str, count: usize, lines: &[&str]) -> Run {
    let clock = Clock::make();
    let masters: Vec<_> = (0..count)
        .map(|_| Redis::start_with_clock(&clock, lines))
        .collect();
    let url = format!("{}{options}", redlock_url(&masters));
    Run::on(
        name,
        url,
        Some(Box::new(RedlockServers(masters))),
        Some(clock),
    )
}

#[test]
fn redlock_of_five() {
    needs!(redis, "cc");
    let run = redlock("redlock", GUARDED, 5, &[]).without(&[FaultKind::ClockForward]);
    let report = run.keeps_its_promise();
    assert_eq!(report.findings.overlaps, []);
    assert_eq!(report.fault_counts().len(), 14);
}

#[test]
fn redlock_with_tasks_that_pass_the_lock_on() {
    needs!(redis, "cc");
    let run = redlock("redlock, tasks", GUARDED, 5, &[]);
    let run = run.without(&[FaultKind::ClockForward]).passing_on();
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

#[test]
fn redlock_with_its_logs_on_disk() {
    needs!(redis, "cc");
    let lines = ["appendonly yes", "appendfsync always"];
    let run = redlock("redlock, log", "?timeout=1s", 5, &lines).only(&[FaultKind::ServerKill]);
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

#[test]
fn redlock_whose_clocks_jump_forward_lets_two_hold() {
    needs!(redis, "cc");
    redlock("redlock, clock", TRUSTED, 3, &[]).lets_two_hold(FaultKind::ClockForward);
}
