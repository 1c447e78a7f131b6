//! Waiting for a name: who is told what, and what a waiter leaves in the store.

use rustix::process::Signal;

use crate::support::{next_event, text};
use crate::{On, on_each};

on_each![
    busy_names_the_holder_on_one_line,
    the_next_one_goes_on_when_the_first_ends,
    a_signal_ends_the_wait_and_leaves_nothing,
    a_waiter_that_is_killed_is_skipped,
];

fn busy_names_the_holder_on_one_line(on: &On) {
    let mut holder = on.start(&["hold", "--label", "why\nnot", "x"]);
    holder.line();
    let pid = format!("pid {}", holder.child.id());
    let host: String = rustix::system::uname().nodename().to_str().unwrap().into();
    for options in [&["-n"][..], &["--wait", "0"], &["--wait", "1s"]] {
        let arguments = [&["run"], options, &["x", "--", "echo", "ran"]].concat();
        let output = on.output(&arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(75), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in ["\"x\"", &host, &pid, "since 2", "why\\nnot"] {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert!(output.stdout.is_empty());
        on.until_waiting("x", 0);
    }
    assert_eq!(on.code(&["run", "-n", "-E", "9", "x", "--", "true"]), 9);
}

fn the_next_one_goes_on_when_the_first_ends(on: &On) {
    let mut first = on.start_run(&[], "x", "echo up; read line");
    first.line();
    let mut waiters = Vec::new();
    for name in ["second", "third", "fourth"] {
        waiters.push(on.start_run(&[], "x", &format!("echo {name}; read line")));
        on.until_waiting("x", waiters.len());
    }
    first.say("go");
    assert_eq!(first.code(), 0);
    for (waiter, name) in waiters.iter_mut().zip(["second", "third", "fourth"]) {
        waiter.lines_are(&[name]);
        assert_eq!(on.code(&["run", "-n", "x", "--", "true"]), 75);
        waiter.say("go");
        assert_eq!(waiter.code(), 0);
    }
    assert!(on.is_free("x"));
}

fn a_signal_ends_the_wait_and_leaves_nothing(on: &On) {
    let mut holder = on.start(&["hold", "x"]);
    holder.line();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut waiter = on.start_run(&[], "x", "echo ran");
        on.until_waiting("x", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        on.until_waiting("x", 0);
        assert_eq!(waiter.rest(), "");
    }
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert!(on.is_free("x"));
}

fn a_waiter_that_is_killed_is_skipped(on: &On) {
    let mut holder = on.start(&["hold", "x"]);
    holder.line();
    let mut dead = on.start_run(&["--ttl", "2s"], "x", "echo ran");
    on.until_waiting("x", 1);
    let mut next = on.start_run(&[], "x", "echo next");
    on.until_waiting("x", 2);
    dead.signal(Signal::KILL);
    holder.close_input();
    assert_eq!(holder.code(), 0);
    next.lines_are(&["next"]);
    assert_eq!(next.code(), 0);
    assert_eq!(dead.rest(), "");
}

/// A database that keeps locks for its sessions forgets them when it is restarted, so it says the same as a Redis.
fn a_server_that_was_started_lately_is_explained(on: &On) {
    let assert_explains = |said: &str| {
        for words in ["was started lately (", "`?restart_guard=off`", "127.0.0.1"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    };
    let mut waiter = on.start_run(&[], "x", "echo ran");
    assert_explains(&waiter.err_line());
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    assert_eq!(waiter.err_rest(), "");
    for (options, code) in [(&["-n"][..], 69), (&["-w", "500ms"], 75)] {
        let run = [&["run"], options, &["x", "--", "echo", "ran"]].concat();
        let output = on.output(&run);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_explains(&said);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(output.stdout.is_empty());
    }
    let run = ["run", "--json", "-w", "500ms", "x", "--", "true"];
    let output = on.output(&run);
    for event in ["waiting", "busy"] {
        let event = next_event(&mut output.stderr.as_slice(), event);
        assert!(
            event["restart_guard"]["left_ms"].as_u64().unwrap() > 0,
            "{event}"
        );
    }
}

#[test]
fn a_mysql_that_was_started_lately_is_explained() {
    if let Some(on) = On::mysql("mode=session&restart_guard=1h") {
        a_server_that_was_started_lately_is_explained(&on);
    }
}

#[test]
fn a_postgres_that_was_started_lately_is_explained() {
    if let Some(on) = On::postgres("mode=session&restart_guard=1h") {
        a_server_that_was_started_lately_is_explained(&on);
    }
}
