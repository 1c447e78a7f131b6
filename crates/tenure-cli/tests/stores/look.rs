//! `list`, `status`, `watch`, `check`: what is said of a store's locks, and of the store.

use serde_json::Value;

use crate::support::scenarios::{
    list_and_status_show_who_holds_and_who_waits, watch_prints_a_line_per_change,
};
use crate::support::{json, text};
use crate::{On, on_each};

on_each![
    list_and_status_show_who_holds_and_who_waits,
    watch_prints_a_line_per_change,
    check_knows_that_nobody_takes_over_from_one_server,
];

fn check_knows_that_nobody_takes_over_from_one_server(on: &On) {
    for fault in ["restart", "kill,pause,partition,suspend", "clock-forward"] {
        let output = on.output(&["check", "--require", fault]);
        let said = text(&output.stderr);
        // The leases of rows end by the server's wall clock, and so does the idle limit of PostgreSQL.
        let by_clock = on.server.is_table() || on.server.scheme() == "postgres";
        // Sessions are forgotten, and here nothing guards against that; and they end with their connection.
        let is_session = on.server.url().contains("restart_guard=off");
        let is_void = match fault {
            "clock-forward" => by_clock,
            _ => is_session,
        };
        let code = i32::from(is_void);
        assert_eq!(output.status.code(), Some(code), "{fault}: {said}");
    }
    let answer = &json(&on.output(&["check", "--json"]).stdout)[0];
    assert_eq!(answer["backend"], on.server.scheme());
    let findings = answer["findings"].as_array().unwrap();
    let warns = |finding: &Value| finding["severity"] == "warning";
    // What replicas a database has is not for everybody to see.
    let says = findings.iter().any(warns) || on.server.is_table();
    assert!(says, "one server: {findings:?}");
}
