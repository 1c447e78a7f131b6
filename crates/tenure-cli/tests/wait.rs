//! Waiting for a lock, and giving up.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::Signal;
use support::{Store, text};

fn host() -> String {
    rustix::system::uname().nodename().to_str().unwrap().into()
}

#[test]
fn busy_names_the_holder_on_one_line() {
    let store = Store::new();
    let holder = store.start_hold(&["--label", "why\nnot", "x"]);
    let pid = format!("pid {}", holder.child.id());
    for options in [&["-n"][..], &["--wait", "0"], &["--wait", "50ms"]] {
        let arguments = [&["run"], options, &["x", "--", "echo", "ran"]].concat();
        let output = store.output(&arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(75));
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in ["\"x\"", &host(), &pid, "since 2", "why\\nnot"] {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert!(output.stdout.is_empty());
    }
    let output = store.output(&["run", "-q", "-n", "-E", "9", "x", "--", "true"]);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(9), String::new())
    );
    let output = store.output(&["run", "--json", "-n", "x", "--", "true"]);
    let mut err = output.stderr.as_slice();
    let busy = support::next_event(&mut err, "busy");
    assert_eq!(busy["holder"]["pid"], holder.child.id());
    assert_eq!(support::next_event(&mut err, "exit")["code"], 75);
}

#[test]
fn nothing_is_said_while_waiting_without_a_terminal() {
    let store = Store::new();
    let _holder = store.start_hold(&["x"]);
    let mut waiter = store.start_run(&["--wait", "2s"], "x", "echo ran");
    // In this time, `tenure` has inspected the lock twice.
    assert_eq!(waiter.code(), 75);
    assert_eq!(waiter.err_rest().lines().count(), 1);
    assert_eq!(waiter.rest(), "");
}

#[test]
fn a_signal_ends_the_wait_and_the_command_never_starts() {
    let store = Store::new();
    let mut holder = store.start_hold(&["x"]);
    for (signal, code) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
        (Signal::USR1, 138),
        (Signal::USR2, 140),
    ] {
        let mut waiter = store.start_run(&["--json"], "x", "echo ran");
        assert_eq!(waiter.event("waiting")["holder"]["pid"], holder.child.id());
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        assert_eq!(
            waiter.rest(),
            "",
            "neither the command nor the guardian is left"
        );
    }
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert_eq!(store.try_run("x"), 0);
}

#[test]
fn the_next_one_goes_on_when_the_first_ends() {
    let store = Store::new();
    let mut first = store.start_run(&[], "x", "echo up; read line");
    first.line();
    let mut second = store.start_run(&["--json"], "x", "echo second");
    second.event("waiting");
    first.write_line("go");
    assert_eq!(second.line(), "second");
    assert!(second.event("acquired")["waited_ms"].as_u64().unwrap() > 0);
    assert_eq!((first.code(), second.code()), (0, 0));
}

#[test]
fn a_waiter_that_is_killed_leaves_nothing() {
    let store = Store::new();
    let mut holder = store.start_hold(&["x"]);
    let mut waiter = store.start_run(&["--json"], "x", "echo ran");
    waiter.event("waiting");
    waiter.signal(Signal::KILL);
    assert_eq!(waiter.rest(), "");
    holder.close_input();
    holder.code();
    assert_eq!(store.try_run("x"), 0);
}

#[test]
fn shared_holders_and_permits() {
    let store = Store::new();
    let _reader = store.start_hold(&["--shared", "x"]);
    assert_eq!(store.code(&["run", "-n", "--shared", "x", "--", "true"]), 0);
    assert_eq!(store.try_run("x"), 75);
    let _one = store.start_hold(&["--permits", "2", "p"]);
    assert_eq!(
        store.code(&["run", "-n", "--permits", "2", "p", "--", "true"]),
        0
    );
    let _two = store.start_hold(&["--permits", "2", "p"]);
    assert_eq!(
        store.code(&["run", "-n", "--permits", "2", "p", "--", "true"]),
        75
    );
}
