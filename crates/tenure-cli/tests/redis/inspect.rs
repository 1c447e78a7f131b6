//! `list`, `status`, `watch`, `check`: what they print about a server and its locks.

use crate::support::{Store, json, scenarios, text};
use crate::{RedisStore, on_redis};
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

on_redis![watch_prints_a_line_per_change];

#[test]
fn list_and_status_show_who_holds_and_who_waits() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let held = scenarios::list_and_status_show_who_holds_and_who_waits(&store);
    let left = held["ttl_left_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");
}

#[test]
fn check_knows_what_a_restart_does_and_that_there_is_no_replica() {
    needs!(redis);
    let server = Redis::start(&[]);
    let guarded = Store::at(server.url());
    let open = Store::at(format!("{}?restart_guard=off", server.url()));
    for (store, fault, code) in [
        (&guarded, "restart", 0),
        (&guarded, "power", 0),
        (&guarded, "failover", 0),
        (&guarded, "kill,pause,partition,suspend", 0),
        (&guarded, "clock-forward", 1),
        (&open, "restart", 1),
        (&open, "power", 1),
        // A restart takes away these guarantees and no others.
        (&open, "failover", 0),
        (&open, "pause", 0),
    ] {
        let output = store.output(&["check", "--require", fault]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{fault}: {message}");
        assert_eq!(message.lines().count(), code as usize, "{fault}: {message}");
    }
    let message = text(&open.output(&["check", "--require", "restart"]).stderr);
    assert!(message.contains("restart_guard"), "{message}");
    let page = text(&guarded.output(&["check"]).stdout);
    for word in ["Redis", "restart_guard", "fair", "first come, first served"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let answer = &json(&open.output(&["check", "--json"]).stdout)[0];
    assert_eq!(answer["scheme"], "redis");
    let findings = answer["findings"].as_array().unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding["severity"] == "warning")
    );
}
