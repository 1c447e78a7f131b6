//! Stores on this host, without a server.

use std::time::Duration;

use tenure_torture::plan::FaultKind;

use crate::Run;
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::sqlite::DatabaseFile;

#[test]
fn file() {
    needs!("cc");
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file:{}", dir.path().join("locks").display());
    let run = Run::on("file", url, None, Some(Clock::make())).ttl(Duration::from_millis(500));
    let report = run.keeps_its_promise();
    assert_eq!(report.fault_counts().len(), 5, "both ways the clock, too");
    // The operating system's kernel keeps the lock of a stopped process, so no other process writes. A write may arrive late
    // if a killed process sent it before, or a stopped one that was attached to a detached hold: that hold has a deadline.
    for late in &report.findings.writes.late {
        let causes = [FaultKind::Kill, FaultKind::Pause].map(Some);
        assert!(causes.contains(&late.documented), "{late:?}");
    }
    assert!(report.left_out.as_ref().unwrap().contains("network"));

    let page = std::fs::read_to_string(&report.page).unwrap();
    assert!(page.contains("<svg") && page.contains("class=\"fault pause\""));
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "it needs nobody"
    );
}

fn sqlite(name: &'static str, clock: Option<Clock>) -> (Run, DatabaseFile) {
    let file = DatabaseFile::new();
    let url = format!("{}?timeout=1s", file.url());
    (Run::on(name, url, None, clock), file)
}

#[test]
fn sqlite_when_holders_are_stopped_and_killed_and_the_clock_goes_back() {
    needs!("cc");
    let (run, _file) = sqlite("sqlite", Some(Clock::make()));
    let run = run.without(&[FaultKind::ClockForward]);
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

#[test]
fn sqlite_with_tasks_that_pass_the_lock_on() {
    needs!("cc");
    let (run, _file) = sqlite("sqlite, tasks", Some(Clock::make()));
    let run = run.without(&[FaultKind::ClockForward]).passing_on();
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

/// SQLite uses the clock of this host, and leases end by that clock.
#[test]
fn sqlite_when_the_clock_jumps_forward_lets_two_hold() {
    needs!("cc");
    let (run, _file) = sqlite("sqlite, clock", Some(Clock::make()));
    run.lets_two_hold(FaultKind::ClockForward);
    let (run, _file) = sqlite("sqlite, clock of a client", None);
    run.lets_two_hold(FaultKind::ClientClock);
}
