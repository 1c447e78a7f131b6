//! `tenure` on a database file: the first command creates the file, and a hold in a removed file is lost.

#![allow(clippy::unwrap_used)]

mod support;

use support::{Store, text};

fn store() -> (tempfile::TempDir, std::path::PathBuf, Store) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("locks.db");
    let store = Store::at(format!("sqlite:{}", file.display()));
    (dir, file, store)
}

#[test]
fn the_first_command_makes_the_file() {
    let (_dir, file, store) = store();
    let output = store.output(&["run", "x", "--", "echo", "held"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "held\n");
    assert_eq!(text(&output.stderr), "");
    assert!(file.exists());
    // All tables exist already.
    let output = store.output(&["check", "--init"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_file_that_is_removed_ends_the_command() {
    let (_dir, file, store) = store();
    // The command has time to answer, and does not use up its grace period.
    let script = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    // The lease is renewed every 5 s, and would last 15 s.
    let mut process = store.start_run(&["--json", "--ttl", "15s", "--grace", "5s"], "x", script);
    process.lines_are(&["up"]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(store.try_run("x"), 0);
    process.lines_are(&["asked"]);
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 76);
    let lost = process.event("lost");
    assert_eq!(lost["names"][0], "x");
    assert_eq!(lost["reason"], "it was taken over");
}
