//! `list`, `status`, `watch`, `check`: what they print about a store and its locks.

use serde_json::Value;

use crate::support::scenarios::{
    list_and_status_show_who_holds_and_who_waits, watch_prints_a_line_per_change,
};
use crate::support::{json, text};
use crate::{AnyStore, on_each};

on_each![
    list_and_status_show_who_holds_and_who_waits,
    watch_prints_a_line_per_change,
    check_knows_that_one_server_has_no_replica,
];

fn check_knows_that_one_server_has_no_replica(store: &AnyStore) {
    for fault in ["restart", "kill,pause,partition,suspend", "clock-forward"] {
        let output = store.output(&["check", "--require", fault]);
        let message = text(&output.stderr);
        // The leases of rows end by the server's wall clock, and so does the idle timeout of PostgreSQL.
        let by_clock = store.server.is_table() || store.server.scheme() == "postgres";
        // A restart ends sessions, which these tests do not guard against, and sessions end with their connection.
        let is_session = store.server.url().contains("restart_guard=off");
        let is_void = match fault {
            "clock-forward" => by_clock,
            _ => is_session,
        };
        let code = i32::from(is_void);
        assert_eq!(output.status.code(), Some(code), "{fault}: {message}");
    }
    let answer = &json(&store.output(&["check", "--json"]).stdout)[0];
    assert_eq!(answer["scheme"], store.server.scheme());
    let findings = answer["findings"].as_array().unwrap();
    let warns = |finding: &Value| finding["severity"] == "warning";
    // Not every user of a database may see its replicas.
    let says = findings.iter().any(warns) || store.server.is_table();
    assert!(says, "one server: {findings:?}");
}
