//! Stores on this host, without a server.

use std::time::Duration;

use tenure_torture::plan::Kind;

use crate::servers::database::File;
use crate::{Run, is_clock_missing};

#[test]
fn file() {
    if is_clock_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file:{}", dir.path().join("locks").display());
    let run = Run::on("file", url, None, None).ttl(Duration::from_millis(500));
    let report = run
        .only(&[Kind::Pause, Kind::Kill, Kind::ClientClock])
        .keeps_its_promise();
    // A kernel that holds the lock for a stopped process lets nobody else write.
    assert_eq!(report.findings.stale, []);
    assert!(report.left_out.unwrap().contains("network"));

    let page = std::fs::read_to_string(&report.page).unwrap();
    assert!(page.contains("<svg") && page.contains("class=\"fault pause\""));
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "it needs nobody"
    );
}

fn sqlite(name: &'static str) -> (Run, File) {
    let file = File::new();
    let url = format!("{}?timeout=1s", file.url());
    (Run::on(name, url, None, None), file)
}

#[test]
fn sqlite_when_holders_are_stopped_and_killed() {
    if is_clock_missing() {
        return;
    }
    let (run, _file) = sqlite("sqlite");
    run.only(&[Kind::Pause, Kind::Kill]).keeps_its_promise();
}

/// Its clock is that of this host, and leases end by it.
#[test]
fn sqlite_when_the_clock_jumps() {
    if is_clock_missing() {
        return;
    }
    let (run, _file) = sqlite("sqlite, clock");
    run.lets_two_hold(Kind::ClientClock);
}
