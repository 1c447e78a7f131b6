//! What must be true of the command line on every server.

use std::ops::Deref;

use rustix::process::Signal;
use serde_json::Value;
use tenure_testkit::until;

use super::stubborn_tree::{StubbornTree, TTL, TTL_NANOS, now};
use super::{Store, json, next_event, text, try_url, wait_until_stopped};

/// A server, as the store of a test.
pub(crate) trait ServerStore: Deref<Target = Store> {
    /// Returns when so many clients wait for `name`.
    fn until_waiting(&self, name: &str, count: usize);
    /// Checks that no request for `name` is left in the server.
    fn assert_queue_is_empty(&self, name: &str);
    /// Whether the server has no holder of `name`.
    fn is_free(&self, name: &str) -> bool;
    /// Whether locks end with the connection of their holder.
    fn ends_with_connection(&self) -> bool;
    fn stop(&self);
    fn resume(&self);
    fn kill(&self);
}

/// Returns the hold as it is listed.
pub(crate) fn list_and_status_show_who_holds_and_who_waits(store: &impl ServerStore) -> Value {
    assert!(store.output(&["list"]).stdout.is_empty());
    let name = "jobs/größe 🔒";
    let mut holder = store.start(&["hold", "--label", "\u{1b}[31mred", name]);
    let token: String = holder.line().rsplit(' ').next().unwrap().into();
    let _other = store.start_hold(&["other"]);
    let waiter = store.start_run(&["--label", "me too"], name, "true");
    store.until_waiting(name, 1);
    let pid = holder.child.id();

    let list = text(&store.output(&["list"]).stdout);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains(name) && list.contains(&token), "{list}");
    assert!(!list.contains('\u{1b}'), "{list:?}");
    let list = json(&store.output(&["list", "--json", "jobs/"]).stdout);
    assert_eq!(list.len(), 1);
    let (held, queue) = (&list[0]["holds"][0], &list[0]["queue"]);
    assert_eq!(
        (&list[0]["name"], &held["pid"]),
        (&name.into(), &pid.into())
    );
    assert_eq!(held["token"].to_string(), token);
    assert_eq!(held["label"], "\u{1b}[31mred");
    assert_eq!(queue.as_array().unwrap().len(), 1);
    assert_eq!(
        (&queue[0]["pid"], &queue[0]["label"]),
        (&waiter.child.id().into(), &"me too".into())
    );

    let status = text(&store.output(&["status", name]).stdout);
    for word in [&format!("pid {pid}"), &token, "1 waiting", "me too"] {
        assert!(status.contains(word), "{word}: {status}");
    }
    assert_eq!(
        text(&store.output(&["status", "free"]).stdout),
        "\"free\" is free\n"
    );
    held.clone()
}

pub(crate) fn watch_prints_a_line_per_change(store: &Store) {
    let mut first = store.start_hold(&["jobs/a"]);
    let mut watch = store.start(&["watch", "--json", "--interval", "50ms", "jobs/"]);
    let held = next_event(&mut watch.out, "held");
    assert_eq!(
        (&held["name"], &held["holder"]["pid"]),
        (&"jobs/a".into(), &first.child.id().into())
    );
    first.close_input();
    assert_eq!(next_event(&mut watch.out, "ended")["token"], held["token"]);
    watch.signal(Signal::INT);
    assert_eq!(watch.code(), 0);
}

pub(crate) fn tenure_is_stopped_and_the_tree_is_gone_before_the_next_one_comes(
    store: &impl ServerStore,
) {
    let tree = StubbornTree(store);
    let mut first = tree.start_first(&[]);
    let mut second = tree.start_second(|| store.until_waiting("x", 1));
    first.signal(Signal::STOP);
    wait_until_stopped(first.pid());
    tree.assert_alone(&mut second);
    first.signal(Signal::CONT);
    // The command got its SIGTERM although `tenure` was stopped.
    first.lines_are(&["asked"]);
    assert_eq!(first.code(), 76);
    assert_eq!(first.event("exit")["code"], 76);
}

pub(crate) fn tenure_is_killed_and_the_tree_is_gone_before_the_next_one_comes(
    store: &impl ServerStore,
) {
    let tree = StubbornTree(store);
    let mut first = tree.start_first(&[]);
    let mut second = tree.start_second(|| store.until_waiting("x", 1));
    first.signal(Signal::KILL);
    assert_eq!(
        first.rest(),
        "",
        "without `tenure` there is no SIGTERM and no grace time"
    );
    if store.ends_with_connection() {
        // The server releases the lock when the connection ends, while the guardian kills the tree, as docs/tasks.md tells. So
        // the next holder may have met the tree.
        second.line();
        assert!(matches!(second.line().as_str(), "alone" | "overlap"));
        assert_eq!(second.code(), 0);
        return;
    }
    tree.assert_alone(&mut second);
}

pub(crate) fn a_server_that_stands_still_longer_than_the_lease_ends_the_command(
    store: &impl ServerStore,
) {
    let tree = StubbornTree(store);
    let mut first = tree.start_first(&[]);
    store.stop();
    let stopped = now();
    first.lines_are(&["asked"]);
    assert_eq!(first.rest(), "");
    assert_eq!(first.code(), 76);
    assert_eq!(first.event("exit")["code"], 76);
    // The server had granted the lease before it was stopped.
    assert!(tree.last_heartbeat() < stopped + TTL_NANOS);
    store.resume();
    let mut second = store.start_run(&["--json", "--ttl", TTL], "x", &tree.overlap_check());
    tree.assert_alone(&mut second);
}

pub(crate) fn a_server_that_is_killed_ends_the_command_by_the_deadline(store: &impl ServerStore) {
    let tree = StubbornTree(store);
    let mut first = tree.start_first(&[]);
    store.kill();
    let killed = now();
    first.lines_are(&["asked"]);
    assert_eq!(first.rest(), "");
    assert_eq!(first.code(), 76);
    assert!(tree.last_heartbeat() < killed + TTL_NANOS);
}

pub(crate) fn a_healthy_lease_is_renewed_for_as_long_as_the_command_runs(store: &impl ServerStore) {
    let script = "trap 'echo asked' TERM; echo $TENURE_OWNER; sleep 7; exit 7";
    let mut process = store.start_run(&["--json", "--ttl", TTL], "x", script);
    let owner = process.line();
    let rest = process.rest();
    assert_eq!(rest, "", "{}", process.err_rest());
    assert_eq!(process.code(), 7);
    assert_eq!(process.event("acquired")["owner"], owner.as_str());
    process.event("released");
    assert!(store.is_free("x"));
}

pub(crate) fn busy_names_the_holder_on_one_line(store: &impl ServerStore) {
    let holder = store.start_hold(&["--label", "why\nnot", "x"]);
    let pid = format!("pid {}", holder.child.id());
    let host: String = rustix::system::uname().nodename().to_str().unwrap().into();
    for options in [&["-n"][..], &["--wait", "0"], &["--wait", "1s"]] {
        let arguments = [&["run"], options, &["x", "--", "echo", "ran"]].concat();
        let output = store.output(&arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(75), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in ["\"x\"", &host, &pid, "since 2", "why\\nnot"] {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert!(output.stdout.is_empty());
        store.assert_queue_is_empty("x");
    }
    assert_eq!(store.code(&["run", "-n", "-E", "9", "x", "--", "true"]), 9);
}

pub(crate) fn the_next_one_goes_on_when_the_first_ends(store: &impl ServerStore) {
    let mut first = store.start_run(&[], "x", "echo up; read line");
    first.line();
    let mut waiters = Vec::new();
    for name in ["second", "third", "fourth"] {
        waiters.push(store.start_run(&[], "x", &format!("echo {name}; read line")));
        store.until_waiting("x", waiters.len());
    }
    first.write_line("go");
    assert_eq!(first.code(), 0);
    for (waiter, name) in waiters.iter_mut().zip(["second", "third", "fourth"]) {
        waiter.lines_are(&[name]);
        assert_eq!(store.try_run("x"), 75);
        waiter.write_line("go");
        assert_eq!(waiter.code(), 0);
    }
    assert!(store.is_free("x"));
    store.assert_queue_is_empty("x");
}

pub(crate) fn a_signal_ends_the_wait_and_leaves_nothing(store: &impl ServerStore) {
    let mut holder = store.start_hold(&["x"]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut waiter = store.start_run(&[], "x", "echo ran");
        store.until_waiting("x", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        store.assert_queue_is_empty("x");
        assert_eq!(waiter.rest(), "");
    }
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert!(store.is_free("x"));
}

pub(crate) fn a_waiter_that_is_killed_is_skipped(store: &impl ServerStore) {
    let mut holder = store.start_hold(&["x"]);
    let mut dead = store.start_run(&["--ttl", "2s"], "x", "echo ran");
    store.until_waiting("x", 1);
    let mut next = store.start_run(&[], "x", "echo next");
    store.until_waiting("x", 2);
    dead.signal(Signal::KILL);
    holder.close_input();
    assert_eq!(holder.code(), 0);
    next.lines_are(&["next"]);
    assert_eq!(next.code(), 0);
    assert_eq!(dead.rest(), "");
}

pub(crate) fn the_status_of_the_command_passes_through_and_the_name_is_free_afterwards(
    store: &impl ServerStore,
) {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 75", 75),
        ("kill -KILL $$", 137),
    ] {
        assert_eq!(
            store.code(&["run", "x", "--", "sh", "-c", script]),
            code,
            "{script}"
        );
        assert!(store.is_free("x"), "{script}");
    }
    assert_eq!(
        store.code(&["run", "x", "--", "no-such-command-anywhere"]),
        127
    );
    assert_eq!(store.code(&["run", "x", "--", "/etc/passwd"]), 126);
    assert!(store.is_free("x"));
}

pub(crate) fn all_names_are_held_or_none(store: &impl ServerStore) {
    let _holder = store.start_hold(&["b"]);
    assert_eq!(store.code(&["run", "-n", "a", "b", "c", "--", "true"]), 75);
    assert!(store.is_free("a") && store.is_free("c"));
    let script = "echo up; read line; exit 0";
    let mut process = store.start(&["run", "c", "a", "--", "sh", "-c", script]);
    process.line();
    assert!(!store.is_free("a") && !store.is_free("c"));
    process.close_input();
    assert_eq!(process.code(), 0);
    assert!(store.is_free("a") && store.is_free("c"));
}

pub(crate) fn a_signal_while_the_command_runs_releases_at_once(store: &impl ServerStore) {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut process = store.start_run(&[], "x", "echo up; exec sleep 1000");
        process.lines_are(&["up"]);
        assert!(!store.is_free("x"));
        process.signal(signal);
        assert_eq!(process.code(), code);
        assert!(store.is_free("x"));
    }
}

pub(crate) fn a_hold_that_is_broken_ends_the_command(store: &impl ServerStore) {
    // The command has time to answer, and does not use up its grace period.
    let script = "trap 'echo asked; exit 0' TERM; echo $TENURE_TOKEN; while :; do sleep 0.01; done";
    let options = ["--json", "--ttl", "15s", "--grace", "5s"];
    let mut process = store.start_run(&options, "x", script);
    let token = process.line();
    assert_eq!(store.code(&["break", "x", "--token", "1"]), 1);
    assert_eq!(store.code(&["break", "x", "--token", &token]), 0);
    process.lines_are(&["asked"]);
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 76);
    assert_eq!(process.event("lost")["names"][0], "x");
    assert!(store.is_free("x"));
}

/// Returns the message.
pub(crate) fn a_server_that_does_not_answer_is_unreachable(store: &impl ServerStore) -> String {
    store.stop();
    let (code, message) = try_url(&store.url().replace("timeout=10s", "timeout=500ms"), &[]);
    assert_eq!(code, 69, "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    store.resume();
    message
}

pub(crate) fn a_server_that_dies_meanwhile_does_not_change_the_status_of_a_command_that_ended_in_time(
    store: &impl ServerStore,
) {
    let mut process = store.start_run(&[], "x", "echo up; read line; exit 3");
    process.lines_are(&["up"]);
    store.kill();
    // The lock is lost with the server, and that is noticed at once: the command is ended, and its input stays open.
    let ends_at_once = store.ends_with_connection();
    if !ends_at_once {
        process.close_input();
    }
    until("the command ends", || {
        process.child.try_wait().unwrap().is_some()
    });
    if ends_at_once {
        assert_eq!(process.code(), 76);
        return;
    }
    assert_eq!(process.code(), 3);
    assert!(
        !process.err_rest().is_empty(),
        "tenure prints that it could not release"
    );
}
