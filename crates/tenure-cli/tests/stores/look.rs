//! `list`, `status`, `watch`, `check`: what is said of a store's locks, and of the store.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{next_event, text};
use crate::{On, on_each};

on_each![
    list_and_status_show_who_holds_and_who_waits,
    watch_prints_a_line_per_change,
    check_knows_that_nobody_takes_over_from_one_server,
];

fn json(bytes: &[u8]) -> Vec<Value> {
    text(bytes)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn list_and_status_show_who_holds_and_who_waits(on: &On) {
    assert!(on.output(&["list"]).stdout.is_empty());
    let name = "jobs/größe 🔒";
    let mut holder = on.start(&["hold", "--label", "\u{1b}[31mred", name]);
    let token: String = holder.line().rsplit(' ').next().unwrap().into();
    let mut other = on.start(&["hold", "other"]);
    other.line();
    let waiter = on.start_run(&["--label", "me too"], name, "true");
    on.until_waiting(name, 1);
    let pid = holder.child.id();

    let list = text(&on.output(&["list"]).stdout);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains(name) && list.contains(&token), "{list}");
    assert!(!list.contains('\u{1b}'), "{list:?}");
    let list = json(&on.output(&["list", "--json", "jobs/"]).stdout);
    assert_eq!(list.len(), 1);
    let (held, queue) = (&list[0]["holds"][0], &list[0]["queue"]);
    assert_eq!(
        (&list[0]["name"], &held["pid"]),
        (&name.into(), &pid.into())
    );
    assert_eq!(held["token"].to_string(), token);
    assert_eq!(held["label"], "\u{1b}[31mred");
    assert_eq!(
        (&queue[0]["pid"], &queue[0]["label"]),
        (&waiter.child.id().into(), &"me too".into())
    );

    let status = text(&on.output(&["status", name]).stdout);
    for word in [&format!("pid {pid}"), &token, "1 waiting", "me too"] {
        assert!(status.contains(word), "{word}: {status}");
    }
    assert_eq!(
        text(&on.output(&["status", "free"]).stdout),
        "\"free\" is free\n"
    );
}

fn watch_prints_a_line_per_change(on: &On) {
    let mut first = on.start(&["hold", "jobs/a"]);
    first.line();
    let mut watch = on.start(&["watch", "--json", "--interval", "50ms", "jobs/"]);
    let held = next_event(&mut watch.out, "held");
    assert_eq!(
        (&held["name"], &held["holder"]["pid"]),
        (&"jobs/a".into(), &first.child.id().into())
    );
    first.close_input();
    assert_eq!(next_event(&mut watch.out, "ended")["token"], held["token"]);
    watch.signal(Signal::INT);
    assert_eq!(watch.code(), 0);
}

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
