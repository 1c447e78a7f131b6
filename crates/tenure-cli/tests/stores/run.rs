//! `tenure run`: exit codes, what is left in the store, and the messages when there is no store.

use crate::support::scenarios::{
    ServerStore, a_hold_that_is_broken_ends_the_command,
    a_server_that_dies_meanwhile_does_not_change_the_status_of_a_command_that_ended_in_time,
    a_server_that_does_not_answer_is_unreachable, a_signal_while_the_command_runs_releases_at_once,
    all_names_are_held_or_none,
    the_status_of_the_command_passes_through_and_the_name_is_free_afterwards,
};
use crate::support::{text, try_url};
use crate::{AnyStore, on_each};
use tenure_testkit::process::Port;

on_each![
    the_status_of_the_command_passes_through_and_the_name_is_free_afterwards,
    the_command_gets_the_token_that_is_in_the_store,
    all_names_are_held_or_none,
    a_label_is_shown,
    a_signal_while_the_command_runs_releases_at_once,
    a_hold_that_is_broken_ends_the_command,
    a_server_that_does_not_answer_is_unreachable,
    a_server_that_dies_meanwhile_does_not_change_the_status_of_a_command_that_ended_in_time,
    what_the_store_cannot_do_is_refused_and_nothing_is_run,
];

fn the_command_gets_the_token_that_is_in_the_store(store: &AnyStore) {
    let script = "printf '%s\\n' \"$TENURE_NAME\" \"$TENURE_TOKEN\"; read line; exit 0";
    let mut last = 0;
    for name in ["x", "with space", "🔒 größer", "a/b", "%2F", ".", ".."] {
        let mut process = store.start_run(&["--label", "why not"], name, script);
        assert_eq!(process.line(), name);
        let token: u64 = process.line().parse().unwrap();
        assert_eq!(store.status(name)["holds"][0]["token"], token, "{name}");
        assert_eq!(store.try_run(name), 75, "{name}");
        process.close_input();
        assert_eq!(process.code(), 0);
        assert!(store.is_free(name), "{name}");
        assert!(token > last, "one counter for all names");
        last = token;
    }
}

fn a_label_is_shown(store: &AnyStore) {
    let output = store.output(&["run", "--label", "why", "x", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

/// Without its table, a session cannot show the label of a lock to others. The command line says so.
#[test]
fn a_label_that_is_not_shown_is_reported() {
    let Some(store) = AnyStore::postgres("mode=session&restart_guard=off") else {
        return;
    };
    if let crate::Server::Postgres(server, _) = &store.server {
        server.database_admin().rows("DROP TABLE tenure_holders");
    }
    let output = store.output(&["run", "--label", "why", "x", "--", "true"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("is not shown to others"), "{message}");
    let output = store.output(&["run", "x", "--", "true"]);
    assert_eq!(text(&output.stderr), "");
    // The number that `status` shows stands for the token, which the server does not know.
    let mut process = store.start_run(&[], "x", "echo up; read line; exit 0");
    assert_eq!(process.line(), "up");
    let status = store.output(&["status", "x"]);
    let shown = text(&status.stdout);
    let pid = format!("pid {}", process.child.id());
    assert!(shown.contains(&pid), "{shown}");
    let (_, rest) = shown.split_once("pg_terminate_backend(").unwrap();
    let (connection, _) = rest.split_once(')').unwrap();
    let output = store.output(&["break", "x", "--token", connection]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(process.code(), 76);
}

fn what_the_store_cannot_do_is_refused_and_nothing_is_run(store: &AnyStore) {
    let scheme = store.server.scheme();
    // The store must be able to keep a lock taken after its holder is gone.
    let can = scheme != "zookeeper";
    let code = if can { 0 } else { 2 };
    let output = store.output(&["run", "--min-hold", "1ms", "x", "--", "echo", "ran"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    if code != 0 {
        assert!(output.stdout.is_empty(), "{message}");
        assert!(
            message.contains(scheme) && message.lines().count() == 1,
            "{message}"
        );
    }
}

#[test]
fn urls_that_cannot_be_are_wrong_usage() {
    for url in [
        "etcd://",
        "etcd:",
        "etcd://h:0",
        "etcd://a?color=red",
        "etcd://a?timeout=soon",
        "etcd://a?ca=x",
        "etcd://a?lease=never",
        "etcds://a?ca=/no/such/file",
        "zookeeper://",
        "zookeeper:",
        "zookeeper://h:123456",
        "zookeeper://a?color=red",
        "zookeeper://a?ca=x",
        "zookeeper://a?dialect=redisson",
        "zookeeper://a?acl=none",
        "mysql://",
        "mysql:",
        "mysql://a,b",
        "mysql://a?mode=row",
        "mysql://a?color=red",
        "mysql://a?mode=table&color=red",
        "postgres://a?tls=maybe",
        "postgres://a?mode=table&timeout=soon",
        "postgres://a?ca=x",
    ] {
        let with_password = url.replace("://", "://me:an-open-secret@");
        for url in [url, &with_password] {
            let (code, message) = try_url(url, &["-vv"]);
            assert_eq!(code, 2, "{url}: {message}");
            assert_eq!(message.lines().count(), 1, "{url}: {message}");
            assert!(!message.contains("an-open-secret"), "{url}: {message}");
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let port = Port::reserve();
    let at = format!("127.0.0.1:{}", port.number());
    for scheme in ["etcd", "zookeeper", "mysql", "postgres"] {
        let url = format!("{scheme}://me:an-open-secret@{at}/?timeout=1s");
        for options in [&[][..], &["-n"], &["--json"], &["-vv"], &["--wait", "1s"]] {
            let (code, message) = try_url(&url, options);
            assert_eq!(code, 69, "{message}");
            assert!(
                message.contains(&at) && !message.contains("an-open-secret"),
                "{message}"
            );
        }
    }
}
