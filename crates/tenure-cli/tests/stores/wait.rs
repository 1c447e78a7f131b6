//! Waiting for a lock: the messages, and what a waiter leaves in the store.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::scenarios::{
    a_signal_ends_the_wait_and_leaves_nothing, a_waiter_that_is_killed_is_skipped,
    busy_names_the_holder_on_one_line, the_next_one_goes_on_when_the_first_ends,
};
use crate::support::{next_event, text};
use crate::{AnyStore, on_each};

on_each![
    busy_names_the_holder_on_one_line,
    the_next_one_goes_on_when_the_first_ends,
    a_signal_ends_the_wait_and_leaves_nothing,
    a_waiter_that_is_killed_is_skipped,
];

/// A database that keeps locks for its sessions forgets them when it is restarted, so the messages are those of Redis.
fn a_server_that_was_started_lately_is_explained(store: &AnyStore) {
    let assert_explains = |message: &str| {
        for words in ["was started lately (", "`?restart_guard=off`", "127.0.0.1"] {
            assert!(message.contains(words), "{words}: {message}");
        }
    };
    let mut waiter = store.start_run(&[], "x", "echo ran");
    assert_explains(&waiter.err_line());
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    assert_eq!(waiter.err_rest(), "");
    for (options, code) in [(&["-n"][..], 69), (&["-w", "20s"], 69)] {
        let run = [&["run"], options, &["x", "--", "echo", "ran"]].concat();
        let output = store.output(&run);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert_explains(&message);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(output.stdout.is_empty());
    }
    let run = ["run", "--json", "-w", "20s", "x", "--", "true"];
    let output = store.output(&run);
    let event = next_event(&mut output.stderr.as_slice(), "error");
    assert!(
        event["restart_guard"]["left_ms"].as_u64().unwrap() > 0,
        "{event}"
    );
}

#[test]
fn a_mysql_that_was_started_lately_is_explained() {
    if let Some(store) = AnyStore::mysql("mode=session&restart_guard=1h") {
        a_server_that_was_started_lately_is_explained(&store);
    }
}

#[test]
fn a_postgres_that_was_started_lately_is_explained() {
    if let Some(store) = AnyStore::postgres("mode=session&restart_guard=1h") {
        a_server_that_was_started_lately_is_explained(&store);
    }
}

/// Something accepts the connection and says nothing. A store has a minute to answer, and its caller less.
#[test]
fn a_store_that_is_silent_from_the_beginning_is_not_waited_for_longer_than_asked() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    for url in [
        "redis://AT/",
        "redis+sentinel://AT/service",
        "redis+cluster://AT/",
        "redlock://AT,localhost:1,localhost:2/",
        "etcd://AT/",
        "zookeeper://AT/",
        "mysql://me@AT/d",
        "mysql://me@AT/d?mode=table",
        "postgres://me@AT/d",
        "postgres://me@AT/d?mode=table",
    ] {
        let separator = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{separator}timeout=60s").replace("AT", &at.to_string());
        for action in ["run", "hold"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
            command.args([action, "-w", "400ms", "-u", &url, "x"]);
            if action == "run" {
                command.args(["--", "echo", "ran"]);
            }
            let start = Instant::now();
            let output = command.output().unwrap();
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(69), "{url}: {message}");
            assert!(message.contains("did not answer within 400"), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{url}: it waited for the store"
            );
        }
    }
}
