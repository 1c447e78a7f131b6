//! Directories and files that other users or programs have changed.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use tenure::file;
use tenure::store::{Hold, Release, Renewal, Store as _};
use tenure::{ErrorKind, LostReason};

use crate::support::{Scratch, inspect, is_free, list, now, release, request, take, try_acquire};

#[track_caller]
fn assert_lost(store: &Arc<file::Store>, hold: Hold) {
    let renewal = now(store.clone().renew(vec![hold.clone()])).pop().unwrap();
    assert!(
        matches!(renewal, Renewal::Lost(LostReason::TakenOver)),
        "{renewal:?}"
    );
    assert_eq!(now(store.clone().release(hold)).unwrap(), Release::NotHeld);
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
    release(&two, second);
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
    release(&two, second);
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
    release(&fresh, second);
    assert!(is_free(&two, "a") && is_free(&one, "a"));
}

#[track_caller]
fn assert_refused(path: &Path, why: &str) {
    let refused = file::Store::open(path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(format!("{refused:#}").contains(why), "{refused}");
    assert!(
        format!("{refused:#}").contains(path.to_str().unwrap()),
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
    // Only root can make a directory that belongs to another user.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(scratch.locks(), Some(12_345), None).unwrap();
        assert_refused(&scratch.locks(), "belongs to user 12345");
        let own = format!("for example {}", scratch.locks().join("locks").display());
        assert_refused(&scratch.locks(), &own);
    } else {
        println!("skipped: a foreign owner, which needs root");
    }
}

#[test]
fn a_lock_file_that_is_something_else_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.open();
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
        let refused = try_acquire(&store, request(name)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{name}: {refused}");
        assert!(
            format!("{refused:#}").contains(at(name).to_str().unwrap()),
            "{name}: {refused}"
        );
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(
        std::fs::read_to_string(at("text")).unwrap(),
        "somebody's notes\n"
    );
    // A refused file hides no other lock from `list`.
    let held = take(&store, "fine");
    assert_eq!(list(&store, "").len(), 1);
    release(&store, held);
}

#[test]
fn an_empty_file_is_as_good_as_none() {
    let scratch = Scratch::new();
    let store = scratch.open();
    std::fs::write(scratch.locks().join("a"), "").unwrap();
    assert!(!inspect(&store, "a").is_held());
    let held = take(&store, "a");
    release(&store, held);
}

/// Both slots are damaged behind their magic: the next token follows the clock.
#[test]
fn a_damaged_record_is_written_anew() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let first = take(&store, "a");
    let token = first.token;
    release(&store, first);
    let path = scratch.locks().join("a");
    let mut bytes = std::fs::read(&path).unwrap();
    (bytes[20], bytes[1044]) = (!bytes[20], !bytes[1044]);
    std::fs::write(&path, bytes).unwrap();
    let second = take(&store, "a");
    assert!(second.token > token);
    release(&store, second);
}
