//! `list`, `status`, `watch`, `check`: what is said of a server's locks, and of the server.

use rustix::process::Signal;
use serde_json::Value;

use crate::OnRedis;
use crate::support::{Store, next_event, text};
use tenure_testkit::redis;
use tenure_testkit::redis::Redis;

fn json(bytes: &[u8]) -> Vec<Value> {
    text(bytes)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn list_and_status_show_who_holds_and_who_waits() {
    let Some(on) = OnRedis::start() else { return };
    assert!(on.output(&["list"]).stdout.is_empty());
    let mut holder = on.start(&["hold", "--label", "\u{1b}[31mred", "jobs/größe 🔒"]);
    let token: String = holder.line().rsplit(' ').next().unwrap().into();
    let mut other = on.start(&["hold", "other"]);
    other.line();
    let name = "jobs/größe 🔒";
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
    let left = held["ttl_left_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");
    assert_eq!(queue.as_array().unwrap().len(), 1);
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

#[test]
fn watch_prints_a_line_per_change() {
    let Some(on) = OnRedis::start() else { return };
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

#[test]
fn check_knows_what_a_restart_does_and_that_nobody_takes_over() {
    if redis::skip_unless_installed() {
        return;
    }
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
        // What is void is void, and nothing else.
        (&open, "failover", 0),
        (&open, "pause", 0),
    ] {
        let output = store.output(&["check", "--require", fault]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{fault}: {said}");
        assert_eq!(said.lines().count(), code as usize, "{fault}: {said}");
    }
    let said = text(&open.output(&["check", "--require", "restart"]).stderr);
    assert!(said.contains("restart_guard"), "{said}");
    let page = text(&guarded.output(&["check"]).stdout);
    for word in ["Redis", "restart_guard", "fair", "first come, first served"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let answer = &json(&open.output(&["check", "--json"]).stdout)[0];
    assert_eq!(answer["backend"], "redis");
    let findings = answer["findings"].as_array().unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding["severity"] == "warning")
    );
}
