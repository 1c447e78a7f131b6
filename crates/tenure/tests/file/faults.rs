//! What others do to the directory and its files.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use tenure::backend::{Backend as _, Hold, Release, Renewal};
use tenure::file;
use tenure::{ErrorKind, LostReason};

use crate::support::{Scratch, give, inspect, is_free, now, request, take, try_it};

#[track_caller]
fn assert_lost(backend: &file::Store, hold: Hold) {
    let renewal = now(backend.renew(vec![hold.clone()])).pop().unwrap();
    assert!(
        matches!(renewal, Renewal::Lost(LostReason::TakenOver)),
        "{renewal:?}"
    );
    assert_eq!(now(backend.release(hold)).unwrap(), Release::NotHeld);
}

#[test]
fn a_lock_file_deleted_under_its_holder_is_a_lost_lock() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let first = take(&one, "a");
    std::fs::remove_file(scratch.locks().join("a")).unwrap();
    let second = take(&two, "a");
    assert!(second.token > first.token);
    assert_lost(&one, first);
    assert!(!is_free(&one, "a"));
    give(&two, second);
}

#[test]
fn a_directory_removed_under_a_holder_is_made_again() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let first = take(&one, "a");
    std::fs::remove_dir_all(scratch.locks()).unwrap();
    let second = take(&two, "a");
    assert!(second.token > first.token);
    assert_lost(&one, first);
    assert!(!is_free(&one, "a"));
    assert!(inspect(&one, "a").is_held());
    give(&two, second);
}

#[test]
fn a_directory_replaced_under_a_holder_is_the_new_one_for_all() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.open(), scratch.open());
    let first = take(&one, "a");
    std::fs::rename(scratch.locks(), scratch.path().join("old")).unwrap();
    let fresh = scratch.open();
    let second = take(&fresh, "a");
    assert!(second.token > first.token);
    assert!(!is_free(&two, "a"));
    assert_lost(&one, first);
    give(&fresh, second);
    assert!(is_free(&two, "a") && is_free(&one, "a"));
}

#[track_caller]
fn assert_refused(path: &Path, why: &str) {
    let refused = file::Store::open(path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains(why), "{refused}");
    assert!(
        refused.to_string().contains(path.to_str().unwrap()),
        "{refused}"
    );
}

#[test]
fn a_directory_that_others_could_change_is_refused() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let link = scratch.path().join("link");
    symlink(scratch.locks(), &link).unwrap();
    assert_refused(&link, "symbolic link");
    let plain = scratch.path().join("plain");
    std::fs::write(&plain, "x").unwrap();
    assert_refused(&plain, "no directory");

    let chmod = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(scratch.locks(), mode).unwrap();
    };
    for mode in [0o777, 0o770, 0o720, 0o702] {
        chmod(mode);
        assert_refused(&scratch.locks(), "chmod 700");
    }
    for mode in [0o1777, 0o755, 0o700] {
        chmod(mode);
        assert!(file::Store::open(scratch.locks()).is_ok());
    }
    // Only root can make the case of a directory that is somebody else's.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(scratch.locks(), Some(12_345), None).unwrap();
        assert_refused(&scratch.locks(), "belongs to user 12345");
    } else {
        println!("skipped: a foreign owner, which needs root");
    }
}

#[test]
fn a_lock_file_that_is_something_else_is_refused() {
    let scratch = Scratch::new();
    let backend = scratch.open();
    let at = |name: &str| scratch.locks().join(name);
    let target = scratch.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    symlink(&target, at("link")).unwrap();
    std::fs::hard_link(&target, at("hard")).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    let fifo = std::process::Command::new("mkfifo")
        .arg(at("fifo"))
        .status()
        .unwrap();
    assert!(fifo.success());
    std::fs::write(at("text"), "somebody's notes\n").unwrap();
    for name in ["link", "hard", "dir", "fifo", "text"] {
        let refused = try_it(&backend, request(name)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{name}: {refused}");
        assert!(
            refused.to_string().contains(at(name).to_str().unwrap()),
            "{name}: {refused}"
        );
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(
        std::fs::read_to_string(at("text")).unwrap(),
        "somebody's notes\n"
    );
    // And hides nobody else.
    let held = take(&backend, "fine");
    assert_eq!(now(backend.list(String::new())).unwrap().len(), 1);
    give(&backend, held);
}

#[test]
fn an_empty_file_is_as_good_as_none() {
    let scratch = Scratch::new();
    let backend = scratch.open();
    std::fs::write(scratch.locks().join("a"), "").unwrap();
    assert!(!inspect(&backend, "a").is_held());
    let held = take(&backend, "a");
    give(&backend, held);
}

/// Both slots destroyed, the magic still there: tokens go on with the clock.
#[test]
fn a_damaged_record_is_written_anew() {
    let scratch = Scratch::new();
    let backend = scratch.open();
    let first = take(&backend, "a");
    let token = first.token;
    give(&backend, first);
    let path = scratch.locks().join("a");
    let mut bytes = std::fs::read(&path).unwrap();
    (bytes[20], bytes[1044]) = (!bytes[20], !bytes[1044]);
    std::fs::write(&path, bytes).unwrap();
    let second = take(&backend, "a");
    assert!(second.token > token);
    give(&backend, second);
}
