//! `tenure torture`: its verdict, its exit codes, and what it leaves behind: nothing.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::TcpListener;

use rustix::process::Signal;
use support::{Store, text};

/// Short runs; how much happens in them is up to this machine, so nothing here counts on it.
#[test]
fn the_verdict_has_three_lines_and_the_page_and_the_events_are_there() {
    let store = Store::new();
    let out = store.path("out");
    let out = out.to_str().unwrap();
    let output = store.output(&[
        "torture", "--for", "4s", "--ttl", "500ms", "--seed", "3", "--out", out, "-v",
    ]);
    let (verdict, talk) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(verdict.lines().count(), 3, "{verdict}{talk}");
    // Nothing was wrong; whether enough happened is another matter.
    let code = output.status.code().unwrap();
    assert!(matches!(code, 0 | 70), "{code}: {verdict}{talk}");
    assert_eq!(code == 70, verdict.contains("not enough: "), "{verdict}");
    assert!(talk.starts_with("tenure: seed 3, store file:"), "{talk}");
    assert!(talk.contains("no network"), "{talk}");
    assert!(
        verdict.contains("seed 3") && verdict.contains(out),
        "{verdict}"
    );
    assert!(store.path("out/page.html").exists());
    assert!(store.path("out/timeline.svg").exists());
    assert!(store.path("out/events.jsonl").exists());

    // The events of a run are never written over.
    let output = store.output(&["torture", "--for", "4s", "--out", out]);
    assert_eq!(output.status.code(), Some(70));
    let talk = text(&output.stderr);
    assert!(
        talk.contains("--out") && talk.contains("another run"),
        "{talk}"
    );
}

#[test]
fn an_interrupt_ends_it_early_with_a_verdict() {
    let store = Store::new();
    let out = store.path("out");
    let arguments = ["torture", "--json", "--for", "1h", "--out"];
    let mut talk = store.start(&[&arguments[..], &[out.to_str().unwrap()]].concat());
    let began: serde_json::Value = serde_json::from_str(&talk.err_line()).unwrap();
    assert_eq!(began["event"], "torture");
    // It runs: a fault has begun.
    let fault: serde_json::Value = serde_json::from_str(&talk.err_line()).unwrap();
    assert_eq!(fault["event"], "fault");
    talk.signal(Signal::INT);
    let verdict: serde_json::Value = serde_json::from_str(&talk.line()).unwrap();
    assert_eq!(verdict["verdict"], "not-enough", "{verdict}");
    assert_eq!(verdict["seed"], began["seed"]);
    assert_eq!(verdict["left_over"], serde_json::json!([]));
    assert_eq!(talk.code(), 70);
}

#[test]
fn a_store_that_is_not_there_is_one_line() {
    let store = Store::new();
    // Bound and then closed: nobody listens there.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("redis://me:hunter2@{port}/?timeout=500ms");
    let out = store.path("out");
    let output = store.output(&["-u", &url, "torture", "-q", "--out", out.to_str().unwrap()]);
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{talk}");
    assert_eq!(talk.lines().count(), 1, "{talk}");
    assert!(!talk.contains("hunter2"), "{talk}");
    assert!(!out.exists(), "nothing was made for nothing");
}

#[test]
fn two_runs_at_one_store_would_disturb_each_other() {
    let store = Store::new();
    let mut other = store.start(&["hold", "tenure-torture-0"]);
    assert!(other.line().starts_with("acquired"));
    let out = store.path("out");
    let output = store.output(&["torture", "-q", "--out", out.to_str().unwrap()]);
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{talk}");
    assert!(talk.contains("another run"), "{talk}");
    assert_eq!(talk.lines().count(), 1, "{talk}");
    assert!(!out.exists());
}
