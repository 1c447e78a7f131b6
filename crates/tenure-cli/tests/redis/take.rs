//! A hold without a process, on a server.

use crate::RedisStore;
use crate::support::{Store, text};

#[test]
fn a_hold_without_a_process_is_taken_renewed_used_and_given_back() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let file = store.path("x.receipt");
    let file = file.to_str().unwrap();
    let name = "größe 🔒 x";
    let take = [
        "take",
        "-n",
        name,
        "--holder",
        "build 77",
        "--receipt",
        file,
    ];
    assert_eq!(store.code(&take), 0);
    assert_eq!(store.try_run(name), 75);
    assert_eq!(store.code(&take), 0, "the same job again");
    // The receipt says where the store is.
    let receipt = std::fs::read_to_string(file).unwrap();
    let address = format!("store=redis://127.0.0.1:{}", store.server.port());
    assert!(receipt.contains(&address), "{receipt}");
    let status = text(&store.output(&["status", name]).stdout);
    assert!(
        status.contains("build 77") && status.contains("ends in 29m"),
        "{status}"
    );
    let script = "echo up; read line; exit 3";
    let mut process = store.start(&["run", "--receipt", file, "--", "sh", "-c", script]);
    process.lines_are(&["up"]);
    process.write_line("go");
    assert_eq!(process.code(), 3);
    assert_eq!(store.try_run(name), 75);
    assert_eq!(store.code(&["renew", file, "--for", "2h"]), 0);
    assert_eq!(store.code(&["release", file]), 0);
    assert_eq!(store.code(&["release", file]), 76);
    assert_eq!(store.try_run(name), 0);
}

#[test]
fn a_store_that_is_silent_does_not_say_that_a_hold_is_over() {
    let Some(mut store) = RedisStore::start() else {
        return;
    };
    let url = format!("{}?timeout=1s&restart_guard=off", store.server.url());
    store.store = Store::at(url);
    let file = store.path("x.receipt");
    let file = file.to_str().unwrap();
    assert_eq!(store.code(&["take", "x", "--receipt", file]), 0);
    let receipt = std::fs::read_to_string(file).unwrap();
    store.server.stop();
    for names in [&["x"][..], &["y"]] {
        let arguments = [&["take", "-n", "--receipt", file], names].concat();
        assert_eq!(store.code(&arguments), 69, "{names:?}");
    }
    for action in ["renew", "release"] {
        assert_eq!(store.code(&[action, file]), 69);
    }
    assert_eq!(store.code(&["run", "--receipt", file, "--", "true"]), 69);
    assert_eq!(std::fs::read_to_string(file).unwrap(), receipt);
    store.server.resume();
    assert_eq!(store.code(&["release", file]), 0);
}

#[test]
fn a_waiter_behind_a_hold_without_a_process_is_served_at_its_end() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let receipt = text(&store.output(&["take", "x", "--for", "2s"]).stdout);
    assert_eq!(store.code(&["run", "-w", "5m", "x", "--", "true"]), 0);
    assert_eq!(store.code(&["renew", receipt.trim()]), 76);
    // A release wakes the waiter.
    let receipt = text(&store.output(&["take", "x"]).stdout);
    let mut waiter = store.start(&["run", "--json", "x", "--", "true"]);
    waiter.event("waiting");
    assert_eq!(store.code(&["release", receipt.trim()]), 0);
    assert_eq!(waiter.code(), 0);
    // A command is ended when its hold is broken.
    let receipt = text(&store.output(&["take", "x"]).stdout);
    let script = "trap 'echo asked; exit 0' TERM; echo $TENURE_TOKEN; while :; do sleep 0.01; done";
    let arguments = ["run", "--ttl", "3s", "--receipt", receipt.trim()];
    let mut process = store.start(&[&arguments[..], &["--", "sh", "-c", script]].concat());
    let token = process.line();
    assert_eq!(store.code(&["break", "x", "--token", &token]), 0);
    process.lines_are(&["asked"]);
    assert_eq!(process.code(), 76);
}
