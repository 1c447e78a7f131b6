//! `tenure` on a database file: the first command creates the file, and a hold in a removed file is lost.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use support::{Store, text};
use tenure_testkit::process::skip_unless_root;

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

const OWNER: u32 = 65_001;
const READER: u32 = 65_002;

/// A file of [`OWNER`] in a directory that all users may write, in a place that all users may enter.
fn store_of_several_users() -> (tempfile::TempDir, std::path::PathBuf, Store) {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    // Other users may not enter the directory in which the build lies.
    let program = dir.path().join("tenure");
    // By another process: a process that this one starts meanwhile inherits a file that is open here for writing, and a
    // program that is open for writing cannot be started.
    let copied = std::process::Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_tenure"))
        .arg(program)
        .status();
    assert!(copied.unwrap().success());
    let file = dir.path().join("locks.db");
    let store = Store::at(format!("sqlite:{}", file.display()));
    (dir, file, store)
}

fn output_as(user: u32, store: &Store, dir: &Path, arguments: &[&str]) -> Output {
    let command = store.tenure(arguments);
    let mut other = std::process::Command::new(dir.join("tenure"));
    other.args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            other.env(name, value);
        }
    }
    other.uid(user).gid(user).current_dir("/").output().unwrap()
}

/// SQLite would make files beside the database, which its owner may not write.
#[test]
fn a_user_who_may_only_read_does_not_lock_the_owner_out() {
    if skip_unless_root() {
        return;
    }
    let (dir, file, store) = store_of_several_users();
    let run_as = |user| output_as(user, &store, dir.path(), &["run", "a", "--", "true"]);
    let first = run_as(OWNER);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    for arguments in [
        &["status", "a"][..],
        &["list"],
        &["check"],
        &["run", "a", "--", "true"],
    ] {
        let refused = output_as(READER, &store, dir.path(), arguments);
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(77), "{message}");
        let owner = format!("locks.db, which belongs to the user with the id {OWNER}");
        assert!(message.contains(&owner), "{message}");
        for suffix in ["-wal", "-shm", "-journal"] {
            let beside = dir.path().join(format!("locks.db{suffix}"));
            let made_by = fs::metadata(&beside).map(|found| found.uid());
            assert_ne!(made_by.ok(), Some(READER), "{}", beside.display());
        }
    }
    let again = run_as(OWNER);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert_eq!(fs::metadata(file).unwrap().uid(), OWNER);
}

#[test]
fn a_file_beside_the_database_that_cannot_be_written_is_named() {
    if skip_unless_root() {
        return;
    }
    let (dir, _, store) = store_of_several_users();
    let run_as = |user| output_as(user, &store, dir.path(), &["run", "a", "--", "true"]);
    let first = run_as(OWNER);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let beside = dir.path().join("locks.db-wal");
    fs::write(&beside, "").unwrap();
    chown(&beside, Some(READER), Some(READER)).unwrap();
    let refused = run_as(OWNER);
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(77), "{message}");
    let named = format!("locks.db-wal, which belongs to the user with the id {READER}");
    assert!(message.contains(&named), "{message}");
}

/// Whether or not the store has elections: one command at a time, and the next one after the lease of a process that is gone.
#[test]
fn a_standby_takes_over_when_the_lease_of_a_dead_leader_is_over() {
    let (_dir, _file, store) = store();
    let script = "echo up $TENURE_TOKEN; exec sleep 1000";
    let options = ["--standby", "--json", "--ttl", "500ms"];
    let mut first = store.start_run(&options, "x", script);
    let token = |line: String| -> u64 { line.strip_prefix("up ").unwrap().parse().unwrap() };
    let before = token(first.line());
    let mut second = store.start_run(&options, "x", script);
    second.event("waiting");
    first.child.kill().unwrap();
    assert!(token(second.line()) > before);
    assert_eq!(first.rest(), "");
}
