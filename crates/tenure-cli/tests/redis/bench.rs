//! `tenure bench`: both sides are measured on one server, and nothing of the bare requests is left.

use serde_json::Value;

use crate::RedisStore;
use crate::support::{Store, json, text};
use tenure_testkit::needs;
use tenure_testkit::redis::{Certificates, PASSWORD, Redis};

/// A short measurement as JSON: one task, many tasks, hand-off.
fn bench(url: &str) -> Vec<Value> {
    let output = Store::at(url.into()).output(&["bench", "--json", "--rounds", "200"]);
    let (answer, message) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(!answer.contains(PASSWORD) && !message.contains(PASSWORD));
    let rows = json(&output.stdout);
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert!(row["ours"]["rounds"].as_u64().unwrap() > 0, "{row}");
        assert!(row["ours"]["median_us"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(rows[1]["ours"]["per_second"].as_f64().unwrap() > 0.0);
    rows
}

fn assert_both_sides_are_measured(rows: &[Value]) {
    for row in rows {
        assert!(row["raw"]["rounds"].as_u64().unwrap() > 0, "{row}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(rows[1]["raw"]["per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn one_server_is_measured_from_both_sides() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    assert_both_sides_are_measured(&bench(&store.url()));
    // The counters of tokens stay for a day.
    let keys = store.server.order(&["KEYS", "*"]).items();
    let left: Vec<_> = keys.iter().map(|key| key.text()).collect();
    assert!(
        left.iter()
            .all(|key| key.starts_with("tenure:{tenure-bench-") && key.ends_with("}:hold")),
        "{left:?}"
    );
    let table = text(&store.output(&["bench", "--rounds", "10"]).stdout);
    for word in ["RATIO", "PER SECOND", "SET NX PX", "PUBLISH"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    // The goals of this project are not for users.
    assert!(!table.contains("GOAL"), "{table}");
}

#[test]
fn both_sides_read_the_url_alike() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let tls = Redis::start_tls(&certificates);
    let ca = certificates.file("ca.crt");
    let url = format!("{}3?restart_guard=off&ca={}", tls.tls_url(), ca.display());
    assert_both_sides_are_measured(&bench(&url));
    // This user has access to the keys of the URL only.
    let server = Redis::start(&[
        &format!("user me on >{PASSWORD} ~p:* ~tenure:* &* +@all"),
        "user default off",
        "databases 4",
    ]);
    let url = format!(
        "redis://me:{PASSWORD}@{}/2?prefix=p:&restart_guard=off",
        server.address()
    );
    assert_both_sides_are_measured(&bench(&url));
}

#[test]
fn several_servers_are_measured_alone() {
    needs!(redis);
    let servers: Vec<_> = (0..3).map(|_| Redis::start(&[])).collect();
    let hosts: Vec<_> = servers.iter().map(Redis::address).collect();
    let url = format!("redlock://{}/?restart_guard=off", hosts.join(","));
    for row in bench(&url) {
        assert!(row["raw"].is_null() && row["ratio"].is_null(), "{row}");
    }
    let store = Store::at(url);
    let table = text(&store.output(&["bench", "--rounds", "10"]).stdout);
    assert!(
        table.contains("PER SECOND") && !table.contains("RAW"),
        "{table}"
    );
}

#[test]
fn a_server_that_grants_nothing_yet_says_so_at_once() {
    needs!(redis);
    let server = Redis::start(&[]);
    let output = Store::at(server.url()).output(&["bench"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(text(&output.stderr).contains("restart_guard"));
}
