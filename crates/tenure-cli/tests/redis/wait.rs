//! Waiting for a lock: the messages, and what a waiter leaves in the server.

use rustix::process::Signal;

use crate::support::scenarios::{self, ServerStore};
use crate::support::terminal::Terminal;
use crate::support::text;
use crate::{RedisStore, on_redis};

on_redis![
    busy_names_the_holder_on_one_line,
    the_next_one_goes_on_when_the_first_ends,
    a_waiter_that_is_killed_is_skipped,
];

#[test]
fn another_program_that_holds_the_key_is_waited_for_too() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    store
        .server
        .order(&["SET", "x", "their-secret", "NX", "PX", "60000"]);
    let output = store.output(&["run", "-n", "x", "--", "true"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75));
    assert!(
        message.contains("another program") && !message.contains("their-secret"),
        "{message}"
    );
    let mut waiter = store.start_run(&[], "x", "echo ran");
    store.until_waiting("x", 1);
    store.server.order(&["DEL", "x"]);
    assert_eq!(waiter.rest(), "ran\n");
    assert_eq!(waiter.code(), 0);
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    scenarios::a_signal_ends_the_wait_and_leaves_nothing(&store);
    // The counter of tokens stays.
    assert_eq!(store.server.order(&["KEYS", "*"]).text(), "tenure:{x}:hold");
}

/// Checks the message about a server that was started lately.
fn assert_explains(store: &RedisStore, message: &str) {
    let server = store.server.address();
    for words in [
        &*server,
        "was started lately (",
        "may have forgotten who held what",
        "`?restart_guard=off`",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[test]
fn a_server_that_was_started_lately_is_explained_once() {
    // The server grants nothing during this test.
    let Some(store) = RedisStore::start_with("restart_guard=1h") else {
        return;
    };
    let mut waiter = store.start_run(&[], "x", "echo ran");
    assert_explains(&store, &waiter.err_line());
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    assert_eq!(
        (waiter.err_rest(), waiter.rest()),
        (String::new(), String::new())
    );

    // With `-q` there is only the error at the end.
    let output = store.output(&["run", "-q", "-w", "2500ms", "x", "--", "echo", "ran"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_explains(&store, &message);
    assert!(output.stdout.is_empty());

    let status = text(&store.output(&["status", "x"]).stdout);
    assert!(status.contains("was started"), "{status}");
}

#[test]
fn a_server_that_was_started_lately_is_explained_to_programs() {
    let Some(store) = RedisStore::start_with("restart_guard=1h") else {
        return;
    };
    let assert_is_whole = |event: &serde_json::Value, at_least: u64| {
        let guard = &event["restart_guard"];
        assert_eq!(guard["server"], store.server.address(), "{event}");
        assert!(guard["uptime_ms"].is_u64(), "{event}");
        assert!(guard["left_ms"].as_u64().unwrap() > at_least, "{event}");
    };
    let half = 30 * 60 * 1000;
    let mut waiter = store.start_run(&["--json"], "x", "echo ran");
    assert_is_whole(&waiter.event("waiting"), half);
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    // The server grants a longer lease later.
    let ttl = ["--json", "--ttl", "3h", "-w", "100ms"];
    let mut waiter = store.start_run(&ttl, "x", "echo ran");
    assert_is_whole(&waiter.event("error"), 5 * half);
    assert_eq!(waiter.code(), 69);
    let status = store.output(&["status", "--json", "x"]).stdout;
    assert_is_whole(&serde_json::from_slice(&status).unwrap(), half);
}

#[test]
fn a_server_that_was_started_lately_is_explained_once_on_a_terminal() {
    let Some(store) = RedisStore::start_with("restart_guard=1h") else {
        return;
    };
    let mut terminal = Terminal::new(&store, &["run", "x", "--", "echo", "ran"]);
    terminal.shows("grants nothing for another");
    let explained = terminal.shows("into the URL");
    assert_explains(&store, &(explained + "into the URL"));
    // The progress line is redrawn after the message.
    terminal.shows("grants nothing for another");
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
    let rest = terminal.rest();
    assert!(!rest.contains("into the URL"), "{rest:?}");
}

/// `-w` covers a server that is not there yet; without it, such a server is an error at once.
#[test]
fn a_server_that_comes_within_the_wait_is_waited_for() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    store.server.kill();
    let refused = store.output(&["run", "x", "--", "echo", "ran"]);
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    assert_eq!(text(&refused.stderr).lines().count(), 1, "{refused:?}");
    let mut waiter = store.start_run(&["-w", "4m"], "x", "echo ran");
    let line = waiter.err_line();
    assert!(line.contains("trying again for up to 4m"), "{line}");
    store.server.launch();
    assert_eq!((waiter.code(), waiter.rest()), (0, "ran\n".into()));
    store.server.kill();
    let given_up = store.output(&["run", "-w", "200ms", "x", "--", "echo", "ran"]);
    assert_eq!(given_up.status.code(), Some(69), "{given_up:?}");
    assert!(given_up.stdout.is_empty());
}
