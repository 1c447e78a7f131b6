//! `mcp`: a server of the Model Context Protocol, with a client of our own.

#![cfg(feature = "mcp")]
#![allow(clippy::unwrap_used)]

mod client;
#[path = "../support/mod.rs"]
mod support;

use client::Client;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Store, json, text};
use tenure_testkit::until;

fn status(store: &Store, name: &str) -> Value {
    json(&store.output(&["status", "--json", name]).stdout).remove(0)
}

fn is_free(store: &Store, name: &str) -> bool {
    store.try_run(name) == 0
}

#[test]
fn a_client_takes_looks_and_releases() {
    let store = Store::new();
    let mut client = Client::start(&store, &[], "editor");
    let listed = client.request("tools/list", json!({}));
    let listed = client.answer(listed);
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["take", "renew", "release", "list", "wait"]);

    let arguments = json!({ "names": ["repo/b", "repo/a"], "holder": "worker 3 🦀" });
    let hold = client.call("take", arguments);
    assert_eq!(hold["names"], json!(["repo/a", "repo/b"]));
    assert_eq!(
        (&hold["hold"], &hold["kept"]),
        (&json!("h1"), &json!(false))
    );
    assert_eq!(hold["mode"], "exclusive");
    assert!(hold["tokens"][0].is_u64() && hold.get("receipt").is_none());
    assert_eq!(store.try_run("repo/a"), 75);
    let shown = status(&store, "repo/b");
    assert_eq!(shown["holds"][0]["label"], "editor: worker 3 🦀");
    assert_eq!(shown["holds"][0]["token"], hold["tokens"][1]);

    let listed = client.call("list", json!({ "prefix": "repo/" }));
    assert_eq!(listed["locks"][1]["name"], "repo/b");
    assert_eq!(listed["locks"][1]["holds"][0]["hold"], "h1");
    assert_eq!(
        client.call("list", json!({ "prefix": "x" }))["locks"],
        json!([])
    );
    assert_eq!(
        client.call("renew", json!({ "hold": "h1" }))["tokens"],
        hold["tokens"]
    );

    let released = client.call("release", json!({ "hold": "h1" }));
    assert_eq!(released["released"], true);
    assert!(is_free(&store, "repo/a") && is_free(&store, "repo/b"));
    client.fails(
        "release",
        json!({ "hold": "h1" }),
        "invalid",
        &["no such hold", "`list`"],
    );
    assert_eq!(client.end(), "");
}

#[test]
fn two_clients_exclude_each_other() {
    for store in [Store::new(), Store::in_sqlite()] {
        let [mut a, mut b] = ["a", "b"].map(|name| Client::start(&store, &[], name));
        let hold = a.take("x");
        let at_once = json!({ "names": ["x"], "wait": "0s" });
        b.fails(
            "take",
            at_once.clone(),
            "busy",
            &["\"x\" is held by", "\"a\"", "`wait`"],
        );
        a.fails(
            "take",
            at_once,
            "busy",
            &["this session holds it itself, as h1"],
        );
        let soon = json!({ "names": ["x"], "wait": "10ms" });
        b.fails("take", soon, "busy", &["gave up after 10ms"]);
        let any = json!({ "names": ["x", "y"], "any": true, "wait": "0s" });
        assert_eq!(b.call("take", any.clone())["names"], json!(["y"]));
        b.fails("take", any, "busy", &["none of \"x\", \"y\" is free"]);

        let waits = b.begin("take", json!({ "names": ["x"], "wait": "5m" }));
        let report = b.progress(waits);
        assert!(
            report.contains("\"x\" is held by") && report.contains("\"a\""),
            "{report}"
        );
        a.call("release", json!({ "hold": hold }));
        let second = b.result(waits);
        assert_eq!(second["names"], json!(["x"]));
        let holder = &status(&store, "x")["holds"][0];
        assert_eq!(
            (&holder["label"], &holder["token"]),
            (&json!("b"), &second["tokens"][0])
        );
    }
}

#[test]
fn a_waiting_client_learns_its_place_in_the_queue() {
    let store = Store::in_sqlite();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Client::start(&store, &[], name));
    let hold = a.take("x");
    let second = b.begin("take", json!({ "names": ["x"], "wait": "5m" }));
    let report = b.progress(second);
    assert!(report.contains("position 1 of 1 in the queue"), "{report}");
    let third = c.begin("take", json!({ "names": ["x"], "wait": "5m" }));
    let report = c.progress(third);
    assert!(report.contains("position 2 of 2 in the queue"), "{report}");
    a.call("release", json!({ "hold": hold }));
    let hold = b.result(second)["hold"].clone();
    let mut report = c.progress(third);
    while !report.contains("position 1 of 1") {
        report = c.progress(third);
    }
    assert!(report.contains("\"b\""), "{report}");
    b.call("release", json!({ "hold": hold }));
    c.result(third);
}

#[test]
fn a_call_that_is_cancelled_leaves_nothing() {
    for store in [Store::new(), Store::in_sqlite()] {
        let [mut a, mut b] = ["a", "b"].map(|name| Client::start(&store, &[], name));
        let hold = a.take("x");
        let waits = b.begin(
            "take",
            json!({ "names": ["x"], "wait": "5m", "keep_for": "1h" }),
        );
        b.progress(waits);
        b.notify("notifications/cancelled", json!({ "requestId": waits }));
        until("the queue is empty", || {
            status(&store, "x")["queue"]
                .as_array()
                .is_none_or(Vec::is_empty)
        });
        a.call("release", json!({ "hold": hold }));
        assert!(is_free(&store, "x"));
        // A cancellation that crosses the answer.
        for arguments in [
            json!({ "names": ["x"] }),
            json!({ "names": ["x"], "keep_for": "1h" }),
        ] {
            let taken = b.begin("take", arguments);
            b.result(taken);
            b.notify("notifications/cancelled", json!({ "requestId": taken }));
            until("what the call had taken is free", || is_free(&store, "x"));
        }
    }
}

#[test]
fn the_holds_of_a_client_end_with_it() {
    let store = Store::in_sqlite();
    // A lease that no test outlasts: what is free was released.
    let long = ["--ttl", "1h"];
    let mut holder = Client::start(&store, &long, "holder");
    holder.take("x");
    let mut waiter = Client::start(&store, &long, "waiter");
    waiter.take("y");
    let waits = waiter.begin("take", json!({ "names": ["x"], "wait": "5m" }));
    waiter.progress(waits);
    waiter.server.close_input();
    let (kind, message) = waiter.failure(waits);
    assert_eq!(kind, "closed", "{message}");
    assert_eq!(waiter.server.code(), 0);
    assert!(is_free(&store, "y"));
    assert_eq!(status(&store, "x")["queue"], json!([]));
    assert_eq!(holder.end(), "");
    assert!(is_free(&store, "x"));
    for signal in [Signal::TERM, Signal::INT] {
        let mut client = Client::start(&store, &long, "client");
        client.take("x");
        client.server.signal(signal);
        assert_eq!(client.server.code(), 0);
        assert!(is_free(&store, "x"));
    }
}

#[test]
fn a_server_that_is_killed_frees_its_locks_within_the_ttl() {
    for store in [Store::new(), Store::in_sqlite()] {
        let mut client = Client::start(&store, &["--ttl", "1s"], "client");
        client.take("x");
        client.server.signal(Signal::KILL);
        client.server.child.wait().unwrap();
        until("the lease has ended", || is_free(&store, "x"));
    }
}

#[test]
fn a_hold_that_is_kept_goes_on_without_its_client() {
    for store in [Store::new(), Store::in_sqlite()] {
        let mut client = Client::start(&store, &["-vv"], "ci");
        let hold = client.call("take", json!({ "names": ["x"], "keep_for": "1h" }));
        assert_eq!(hold["kept"], true);
        assert!(hold["ttl_left_ms"].as_u64().unwrap() > 3_000_000, "{hold}");
        let receipt = hold["receipt"].as_str().unwrap().to_owned();
        let owner = receipt.split("owner=").nth(1).unwrap();
        // The log of everything that happened has no secret.
        let log = client.end();
        assert!(log.contains("took \"x\""), "{log}");
        assert!(
            !log.contains(owner) && !log.contains("tenure-receipt"),
            "{log}"
        );

        assert_eq!(store.try_run("x"), 75);
        assert_eq!(status(&store, "x")["holds"][0]["label"], "ci");
        let mut other = Client::start(&store, &[], "other");
        let renewed = other.call("renew", json!({ "receipt": receipt, "keep_for": "2h" }));
        assert!(
            renewed["ttl_left_ms"].as_u64().unwrap() > 7_000_000,
            "{renewed}"
        );
        assert_eq!(renewed["tokens"], hold["tokens"]);
        // The command line takes it, too.
        let output = store.output(&["release", &receipt]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(is_free(&store, "x"));
        let receipt = json!({ "receipt": receipt });
        other.fails("release", receipt.clone(), "lost", &["`take` it again"]);
        other.fails("renew", receipt, "lost", &[]);

        let hold = other.call("take", json!({ "names": ["x"], "keep_for": "1h" }));
        let renew = ["renew"; 3].map(|it| other.begin(it, json!({ "receipt": hold["receipt"] })));
        for call in renew {
            other.result(call);
        }
        other.call("release", json!({ "receipt": hold["receipt"] }));
        assert!(is_free(&store, "x"));
    }
}

#[test]
fn a_hold_that_cannot_be_kept_is_not_taken() {
    let store = Store::new();
    let mut client = Client::start(&store, &[], "client");
    let shared = json!({ "names": ["x"], "mode": "shared", "keep_for": "1h" });
    client.fails("take", shared, "unsupported", &["shared", "exclusive"]);
    assert!(is_free(&store, "x"));
    let memory = Store::at("memory:".into());
    let mut client = Client::start(&memory, &[], "client");
    client.fails(
        "take",
        json!({ "names": ["x"], "keep_for": "1h" }),
        "unsupported",
        &["memory"],
    );
    client.take("x");
}

#[test]
fn modes_are_those_of_the_store() {
    let store = Store::in_sqlite();
    let [mut a, mut b] = ["a", "b"].map(|name| Client::start(&store, &[], name));
    let shared = json!({ "names": ["s"], "mode": "shared", "wait": "0s" });
    let slot = json!({ "names": ["p"], "mode": "permits", "permits": 2, "wait": "0s" });
    for client in [&mut a, &mut b] {
        assert_eq!(client.call("take", shared.clone())["mode"], "shared");
        client.call("take", slot.clone());
    }
    b.fails("take", slot, "busy", &["and 1 more"]);
    b.fails("take", json!({ "names": ["s"], "wait": "0s" }), "busy", &[]);
}

#[test]
fn a_client_waits_for_a_name_without_taking_it() {
    let store = Store::new();
    let [mut a, mut b] = ["a", "b"].map(|name| Client::start(&store, &[], name));
    assert_eq!(b.call("wait", json!({ "name": "x" }))["free"], true);
    let hold = a.take("x");
    let soon = json!({ "name": "x", "wait": "10ms" });
    b.fails(
        "wait",
        soon,
        "busy",
        &["gave up", "\"x\" is held by", "\"a\""],
    );
    let waits = b.begin("wait", json!({ "name": "x", "wait": "5m" }));
    let report = b.progress(waits);
    assert!(report.contains("\"x\" is held by"), "{report}");
    let cancelled = b.begin("wait", json!({ "name": "x", "wait": "5m" }));
    b.notify("notifications/cancelled", json!({ "requestId": cancelled }));
    a.call("release", json!({ "hold": hold }));
    assert_eq!(b.result(waits)["free"], true);
    assert!(is_free(&store, "x"));
}

#[test]
fn calls_at_the_same_time_are_answered() {
    let store = Store::in_sqlite();
    let mut client = Client::start(&store, &[], "client");
    let hold = client.take("x");
    let waits = client.begin("take", json!({ "names": ["x"], "wait": "5m" }));
    let calls: Vec<_> = (0..20)
        .map(|n| client.begin("take", json!({ "names": [format!("n{n}")] })))
        .collect();
    let mut ids: Vec<_> = calls
        .into_iter()
        .map(|call| client.result(call)["hold"].to_string())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 20);
    client.call("release", json!({ "hold": hold }));
    client.result(waits);
    assert_eq!(client.end(), "");
    assert_eq!(text(&store.output(&["list"]).stdout), "");
}

/// A tool, its arguments (`LONG` is a text of 2000 bytes), and what the answer says.
const MISTAKES: &[(&str, &str, &[&str])] = &[
    ("take", r#"{}"#, &["`names` is missing", "list of texts"]),
    ("take", r#"{"names": "x"}"#, &["`names` is a text"]),
    ("take", r#"{"names": []}"#, &["at least one name"]),
    ("take", r#"{"names": [""]}"#, &["name", "empty"]),
    ("take", r#"{"names": ["LONG"]}"#, &["2000 bytes", "1000"]),
    (
        "take",
        r#"{"names": ["x"], "wait": 5}"#,
        &["`wait` is a number", "\"30s\""],
    ),
    (
        "take",
        r#"{"names": ["x"], "wait": "5"}"#,
        &["`wait`", "5s"],
    ),
    (
        "take",
        r#"{"names": ["x"], "keep_for": "900ms"}"#,
        &["`keep_for`", "at least 1s"],
    ),
    (
        "take",
        r#"{"names": ["x"], "keep_for": "1y"}"#,
        &["at most 30d"],
    ),
    (
        "take",
        r#"{"names": ["x"], "mode": "alone"}"#,
        &["`mode`", "\"shared\""],
    ),
    (
        "take",
        r#"{"names": ["x"], "mode": "permits"}"#,
        &["`permits` is missing"],
    ),
    (
        "take",
        r#"{"names": ["x"], "mode": "shared", "permits": 1}"#,
        &["leave one"],
    ),
    ("take", r#"{"names": ["x"], "permits": 0}"#, &["from 1"]),
    (
        "take",
        r#"{"names": ["x"], "holder": "LONG"}"#,
        &["`holder` has 2000 bytes"],
    ),
    (
        "take",
        r#"{"names": ["x"], "for": "1h"}"#,
        &["\"for\"", "`keep_for`"],
    ),
    ("renew", r#"{}"#, &["neither `receipt` nor `hold`"]),
    ("renew", r#"{"hold": "h7"}"#, &["no such hold"]),
    (
        "release",
        r#"{"hold": "h1", "receipt": "x"}"#,
        &["no receipt"],
    ),
    ("release", r#"{"receipt": "/etc/passwd"}"#, &["no receipt"]),
    ("release", r#"{"hold": 1}"#, &["`hold` is a number"]),
    ("list", r#"{"prefix": 1}"#, &["`prefix` is a number"]),
    ("wait", r#"{}"#, &["`name` is missing"]),
];

#[test]
fn wrong_input_is_answered_and_takes_nothing() {
    let store = Store::new();
    let mut client = Client::start(&store, &[], "client");
    let long = "x".repeat(2_000);
    for (tool, arguments, words) in MISTAKES {
        let arguments = arguments.replace("LONG", &long).parse().unwrap();
        client.fails(tool, arguments, "invalid", words);
    }
    for (method, params, code) in [
        (
            "tools/call",
            json!({ "name": "steal", "arguments": {} }),
            -32602,
        ),
        (
            "tools/call",
            json!({ "name": "take", "arguments": [1] }),
            -32602,
        ),
        ("tools/call", json!({ "name": 1 }), -32602),
        ("locks/steal", json!({}), -32601),
    ] {
        let call = client.request(method, params.clone());
        let error = &client.answer(call)["error"];
        assert_eq!(error["code"], code, "{params}: {error}");
    }
    client.server.write_line("this is no JSON");
    client.server.write_line("");
    assert_eq!(client.call("list", json!({}))["locks"], json!([]));
    assert_eq!(client.end(), "");
}

#[test]
fn a_client_learns_that_its_hold_is_lost() {
    let store = Store::in_sqlite();
    let mut client = Client::start(&store, &["--ttl", "1s"], "client");
    let hold = client.call("take", json!({ "names": ["x"] }));
    let token = hold["tokens"][0].to_string();
    assert_eq!(store.code(&["break", "x", "--token", &token]), 0);
    // The server learns of it with its next renewal, and says it once, on standard error.
    let line = client.server.err_line();
    assert!(line.contains("\"x\"") && line.contains("lost"), "{line}");
    let mut other = store.start_hold(&["x"]);
    let call = client.begin("take", json!({ "names": ["x"] }));
    let (kind, message) = client.failure(call);
    assert_eq!(kind, "busy", "{message}");
    assert!(!message.contains("this session"), "{message}");
    client.fails(
        "renew",
        json!({ "hold": "h1" }),
        "lost",
        &["\"x\"", "`take` it again"],
    );
    client.fails(
        "release",
        json!({ "hold": "h1" }),
        "invalid",
        &["no such hold"],
    );
    other.close_input();
    assert_eq!(other.code(), 0);
    client.take("x");
}

#[test]
fn a_store_that_does_not_answer_is_an_answer() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let store = Store::at(format!("redis://me:hunter2@127.0.0.1:{port}"));
    let mut client = Client::start(&store, &["-vv"], "client");
    for (tool, arguments) in [
        ("take", json!({ "names": ["x"] })),
        ("take", json!({ "names": ["x"], "keep_for": "1h" })),
        ("list", json!({})),
        ("wait", json!({ "name": "x" })),
    ] {
        let call = client.begin(tool, arguments);
        let (kind, message) = client.failure(call);
        assert_eq!(kind, "unreachable");
        assert!(message.contains("127.0.0.1") && !message.contains("hunter2"));
    }
    let log = client.end();
    assert!(
        log.contains("redis://") && !log.contains("hunter2"),
        "{log}"
    );
}

#[test]
fn what_is_no_client_is_told_so() {
    let store = Store::new();
    let mut server = store.start(&["mcp"]);
    server.close_input();
    assert_eq!((server.code(), server.err_rest()), (0, String::new()));
    let mut server = store.start(&["mcp"]);
    let other = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    server.write_line(&other.to_string());
    assert_eq!(server.code(), 70);
    assert!(server.err_rest().contains("no `initialize`"));
    assert_eq!(server.rest(), "");
    let help = text(&store.output(&["mcp", "--help"]).stdout);
    assert!(
        help.contains("mcpServers") && help.contains("--ttl"),
        "{help}"
    );
    let output = Store::at("nonsense:".into()).output(&["mcp"]);
    assert_eq!(output.status.code(), Some(2));
}
