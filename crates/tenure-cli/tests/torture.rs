//! `tenure torture`: its verdict and its exit codes, and that it leaves nothing behind.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::TcpListener;

use rustix::process::Signal;
use support::{Store, text};

/// The runs are short. How much happens in them depends on this machine, so no test relies on it.
#[test]
fn the_verdict_has_three_lines_and_the_page_and_the_events_are_there() {
    let store = Store::new();
    let out = store.path("out");
    let out = out.to_str().unwrap();
    let output = store.output(&[
        "torture", "--for", "4s", "--ttl", "500ms", "--seed", "3", "--out", out, "-v",
    ]);
    let (verdict, messages) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(verdict.lines().count(), 3, "{verdict}{messages}");
    // The run found no violation, but perhaps too little happened for a verdict.
    let code = output.status.code().unwrap();
    assert!(matches!(code, 0 | 70), "{code}: {verdict}{messages}");
    assert_eq!(code == 70, verdict.contains("not enough: "), "{verdict}");
    assert!(
        messages.starts_with("tenure: seed 3, store file:"),
        "{messages}"
    );
    assert!(messages.contains("no network"), "{messages}");
    assert!(
        verdict.contains("seed 3") && verdict.contains(out),
        "{verdict}"
    );
    assert!(store.path("out/page.html").exists());
    assert!(store.path("out/timeline.svg").exists());
    assert!(store.path("out/events.jsonl").exists());

    // The events of a run are never overwritten.
    let output = store.output(&["torture", "--for", "4s", "--out", out]);
    assert_eq!(output.status.code(), Some(70));
    let messages = text(&output.stderr);
    assert!(
        messages.contains("--out") && messages.contains("another run"),
        "{messages}"
    );
}

#[test]
fn an_interrupt_ends_it_early_with_a_verdict() {
    let store = Store::new();
    let out = store.path("out");
    // The second and the third fault come seconds later, because each one lasts longer than a lease.
    let arguments = ["torture", "--json", "--for", "1h", "--ttl", "5s", "--out"];
    let mut process = store.start(&[&arguments[..], &[out.to_str().unwrap()]].concat());
    let began: serde_json::Value = serde_json::from_str(&process.err_line()).unwrap();
    assert_eq!(began["event"], "torture");
    // The run has begun: a fault was injected.
    let fault: serde_json::Value = serde_json::from_str(&process.err_line()).unwrap();
    assert_eq!(fault["event"], "fault");
    process.signal(Signal::INT);
    let verdict: serde_json::Value = serde_json::from_str(&process.line()).unwrap();
    assert_eq!(verdict["verdict"], "not-enough", "{verdict}");
    assert_eq!(verdict["seed"], began["seed"]);
    assert_eq!(verdict["left_over"], serde_json::json!([]));
    assert_eq!(process.code(), 70);
}

#[test]
fn a_store_that_is_not_there_is_one_line() {
    let store = Store::new();
    // The port was bound and closed, so no server listens there.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("redis://me:hunter2@{port}/?timeout=500ms");
    let out = store.path("out");
    let output = store.output(&["-u", &url, "torture", "-q", "--out", out.to_str().unwrap()]);
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{messages}");
    assert_eq!(messages.lines().count(), 1, "{messages}");
    assert!(!messages.contains("hunter2"), "{messages}");
    assert!(!out.exists(), "no directory was created");
}

#[test]
fn two_runs_at_one_store_would_disturb_each_other() {
    let store = Store::new();
    let mut other = store.start(&["hold", "tenure-torture-0"]);
    assert!(other.line().starts_with("acquired"));
    let out = store.path("out");
    let output = store.output(&["torture", "-q", "--out", out.to_str().unwrap()]);
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{messages}");
    assert!(messages.contains("another run"), "{messages}");
    assert_eq!(messages.lines().count(), 1, "{messages}");
    assert!(!out.exists());
}
