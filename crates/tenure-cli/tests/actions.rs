//! `hold`, `list`, `status`, `break`, `check`, `watch`, `bench`.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::Signal;
use support::{PipedProcess, Store, json, next_event, scenarios, text};

fn token(acquired: &str) -> String {
    acquired.rsplit(' ').next().unwrap().into()
}

#[test]
fn hold_ends_on_end_of_input_and_on_signals() {
    let store = Store::new();
    let ends: [fn(&mut PipedProcess); 4] = [
        PipedProcess::close_input,
        |process| process.signal(Signal::INT),
        |process| process.signal(Signal::TERM),
        |process| process.signal(Signal::HUP),
    ];
    for end in ends {
        let mut process = store.start(&["hold", "x"]);
        assert!(process.line().starts_with("acquired \"x\", token "));
        assert_eq!(store.try_run("x"), 75);
        process.write_line("this is not an end");
        end(&mut process);
        assert_eq!(process.line(), "released \"x\"");
        assert_eq!(process.code(), 0);
        assert_eq!(store.try_run("x"), 0);
    }
}

#[test]
fn hold_speaks_json() {
    let store = Store::new();
    let mut process = store.start(&["hold", "--json", "b", "a"]);
    let acquired = next_event(&mut process.out, "acquired");
    assert_eq!(acquired["names"], serde_json::json!(["a", "b"]));
    process.close_input();
    next_event(&mut process.out, "released");
    assert_eq!(process.code(), 0);
}

#[test]
fn a_hold_that_is_broken_is_lost() {
    let store = Store::new();
    let mut process = store.start(&["hold", "--ttl", "300ms", "x"]);
    let token = token(&process.line());
    let wrong = store.output(&["break", "x", "--token", "1"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        text(&wrong.stderr).contains(&token),
        "the message names the token of the hold"
    );
    let broken = store.output(&["break", "x", "--token", &token]);
    assert_eq!(broken.status.code(), Some(0), "{}", text(&broken.stderr));
    assert!(process.line().starts_with("lost \"x\""));
    assert_eq!(process.code(), 76);
    assert_eq!(store.code(&["break", "x", "--token", &token]), 1);
}

#[test]
fn list_and_status_show_who_holds_what() {
    let store = Store::new();
    let free = store.output(&["status", "jobs/a"]);
    assert_eq!(
        (free.status.code(), text(&free.stdout)),
        (Some(0), "\"jobs/a\" is free\n".into())
    );
    assert!(store.output(&["list"]).stdout.is_empty());
    let mut a = store.start(&["hold", "--label", "\u{1b}[31mred", "jobs/a"]);
    let token = token(&a.line());
    let _b = store.start_hold(&["other"]);
    let pid = a.child.id();

    let list = text(&store.output(&["list"]).stdout);
    assert!(
        list.contains("jobs/a") && list.contains("other") && list.contains(&token),
        "{list}"
    );
    assert!(!list.contains('\u{1b}'), "{list:?}");
    let list = json(&store.output(&["list", "--json", "jobs/"]).stdout);
    assert_eq!(list.len(), 1);
    assert_eq!(list[0]["name"], "jobs/a");
    assert_eq!(list[0]["holds"][0]["pid"], pid);
    assert_eq!(list[0]["holds"][0]["token"].to_string(), token);
    assert_eq!(list[0]["holds"][0]["label"], "\u{1b}[31mred");

    let status = text(&store.output(&["status", "jobs/a"]).stdout);
    assert!(
        status.contains(&format!("pid {pid}")) && status.contains(&token),
        "{status}"
    );
    assert!(!status.contains('\u{1b}'), "{status:?}");
    let status = json(&store.output(&["status", "--json", "jobs/a"]).stdout);
    assert_eq!(status[0]["held"], true);
    assert_eq!(status[0]["holds"][0]["mode"], "exclusive");
}

#[test]
fn check_prints_the_promises_and_fails_when_one_is_required_that_is_not_kept() {
    let store = Store::new();
    let output = store.output(&["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    for word in [
        "kill",
        "pause",
        "suspend",
        "no late writes",
        "token",
        "loss",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert_eq!(store.code(&["check", "--require", "kill,pause"]), 0);
    let output = store.output(&["check", "--require", "kill,flood"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("flood"));
    let memory = store.output(&["-u", "memory:", "check", "--json", "--require", "kill"]);
    let answer = &json(&memory.stdout)[0];
    let missing = answer["missing"].as_array().unwrap();
    assert_eq!(memory.status.code(), Some(i32::from(!missing.is_empty())));
    assert!(answer["faults"].as_array().unwrap().len() > 5);
}

#[test]
fn watch_prints_a_line_per_change() {
    scenarios::watch_prints_a_line_per_change(&Store::new());
}

#[test]
fn a_reader_that_had_enough_is_no_error() {
    let store = Store::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!("({tenure} man; echo \"code $?\" >&2) | head -c 1; true");
    let mut command = std::process::Command::new("sh");
    let output = command
        .args(["-c", &script])
        .env("TENURE_URL", store.url())
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "code 0\n");
}

#[test]
fn bench_measures_both_sides_in_one_run() {
    let store = Store::new();
    for url in [store.url(), "memory:".into()] {
        let output = store.output(&["-u", &url, "bench", "--json", "--rounds", "30"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let rows = json(&output.stdout);
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert!(row["ours"]["median_us"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["raw"]["rounds"].as_u64().unwrap() > 0, "{row}");
            assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        }
        let output = store.output(&["-u", &url, "bench", "--rounds", "10"]);
        assert!(text(&output.stdout).contains("RATIO"));
    }
}
