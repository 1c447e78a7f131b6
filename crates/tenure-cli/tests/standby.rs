//! `tenure run --standby`, `tenure leader` and `tenure ask`, on the default store and on lock directories.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use support::{PipedProcess, Store, json, text};

/// Says that it runs, with its token, until it is ended.
const UP: &str = "echo up $TENURE_TOKEN; exec sleep 1000";

/// The same, and says when it is asked to end. A shell may write about a child that was ended, among the events of `tenure`.
const POLITE: &str = "exec 2>/dev/null; trap 'echo bye; exit 4' TERM; echo up $TENURE_TOKEN; while :; do sleep 0.01; done";

/// Starts `tenure run --standby --json [options] NAME -- sh -c script`.
fn stand_by(store: &Store, options: &[&str], name: &str, script: &str) -> PipedProcess {
    store.start_run(&[&["--standby", "--json"], options].concat(), name, script)
}

/// The token of the command, which has just said that it runs.
fn token(process: &mut PipedProcess) -> u64 {
    let line = process.line();
    let token = line.strip_prefix("up ").map(str::parse);
    token.unwrap_or_else(|| panic!("{line:?}")).unwrap()
}

#[test]
fn kill_9_of_the_leader_starts_the_command_of_the_standby() {
    let store = Store::new();
    // As in the README: no URL, and the directory of this user.
    let tenure = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).env_clear();
        command.env("HOME", store.dir.path());
        command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        command
    };
    let start = || {
        let arguments = ["run", "--standby", "--json", "job", "--", "sh", "-c", UP];
        PipedProcess::start(tenure(&arguments))
    };
    let mut first = start();
    let before = token(&mut first);
    let mut second = start();
    second.event("waiting");
    first.child.kill().unwrap();
    let after = token(&mut second);
    assert!(after > before);
    assert_eq!(first.rest(), "", "nothing of the first command is left");
    let shown = tenure(&["leader", "job"]).output().unwrap();
    let shown = text(&shown.stdout);
    let expected = [
        "\"job\" is led by ",
        &format!("pid {}", second.child.id()),
        &format!("token {after}"),
    ];
    for word in expected {
        assert!(shown.contains(word), "{word}: {shown}");
    }
}

#[test]
fn a_command_that_ends_by_itself_ends_tenure_with_its_code() {
    let store = Store::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let arguments = ["run", "--standby", "x", "--", "sh", "-c", script];
        assert_eq!(store.code(&arguments), code, "{script}");
        assert_eq!(store.try_run("x"), 0, "free after: {script}");
    }
    // It cannot be run on this machine, also not later.
    for options in [&["--standby"][..], &["--standby", "--restart"]] {
        let arguments = [&["run"], options, &["x", "--", "/no/such/file"]].concat();
        assert_eq!(store.code(&arguments), 127);
    }
}

#[test]
fn with_restart_the_lock_is_given_up_and_the_command_runs_again() {
    let store = Store::new();
    let mut standby = stand_by(&store, &["--restart"], "x", "echo up $TENURE_TOKEN; exit 3");
    let mut last = 0;
    for _ in 0..3 {
        let next = token(&mut standby);
        assert!(next > last, "{next} after {last}");
        last = next;
        standby.event("released");
        assert!(standby.event("standing_by")["pause_ms"].as_u64().unwrap() >= 50);
    }
    // In a pause, or while the command runs: its end is that of `tenure`.
    standby.signal(Signal::TERM);
    assert!([143, 3].contains(&standby.code()));
    let mut standby = stand_by(&store, &["--restart"], "x", POLITE);
    token(&mut standby);
    standby.signal(Signal::TERM);
    assert_eq!(standby.code(), 4, "the command has ended as it was told to");
    assert_eq!(standby.rest(), "bye\n");
}

#[test]
fn a_signal_ends_the_command_or_the_wait_and_the_next_one_leads() {
    let store = Store::new();
    let mut first = stand_by(&store, &[], "x", UP);
    token(&mut first);
    let mut second = stand_by(&store, &[], "x", UP);
    second.event("waiting");
    let mut third = stand_by(&store, &[], "x", UP);
    third.event("waiting");
    third.signal(Signal::INT);
    assert_eq!(third.code(), 130);
    assert_eq!(
        third.rest(),
        "",
        "neither the command nor the guardian is left"
    );
    // This signal is for the command, which does not run yet.
    second.signal(Signal::USR1);
    first.signal(Signal::TERM);
    assert_eq!(first.code(), 143);
    token(&mut second);
}

#[test]
fn after_a_loss_the_command_is_ended_and_this_process_stands_by_again() {
    let store = Store::new();
    let mut standby = stand_by(&store, &["--ttl", "200ms"], "x", UP);
    let before = token(&mut standby);
    let broken = ["break", "x", "--token", &before.to_string()];
    assert_eq!(store.code(&broken), 0);
    assert_eq!(standby.event("lost")["names"][0], "x");
    standby.event("standing_by");
    assert!(token(&mut standby) > before);
}

#[test]
fn after_max_hold_another_process_leads() {
    let store = Store::new();
    let options = ["--max-hold", "1s"];
    let mut first = stand_by(&store, &options, "x", UP);
    let before = token(&mut first);
    let mut second = stand_by(&store, &options, "x", UP);
    let between = token(&mut second);
    assert!(between > before);
    assert!(token(&mut first) > between);
}

#[test]
fn a_leader_that_is_asked_lets_the_next_one_lead_and_stands_by_again() {
    let store = Store::new();
    assert_eq!(store.code(&["ask", "x"]), 1);
    let mut first = stand_by(&store, &[], "x", POLITE);
    let before = token(&mut first);
    let mut second = stand_by(&store, &[], "x", POLITE);
    second.event("waiting");
    let asked = store.output(&["ask", "x"]);
    let message = text(&asked.stdout);
    assert_eq!(asked.status.code(), Some(0), "{}", text(&asked.stderr));
    for word in [
        "asked ",
        &format!("pid {}", first.child.id()),
        &format!("token {before}"),
        "\"x\"",
    ] {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert_eq!(first.event("asked")["names"][0], "x");
    assert_eq!(first.line(), "bye");
    let between = token(&mut second);
    assert!(between > before);
    first.event("standing_by");
    let asked = json(&store.output(&["--json", "ask", "x"]).stdout);
    assert_eq!(asked[0]["asked"], true);
    assert_eq!(asked[0]["leader"]["token"], between);
    assert_eq!(second.line(), "bye");
    assert!(token(&mut first) > between);
}

#[test]
fn without_standby_the_command_goes_on_when_it_is_asked() {
    let store = Store::new();
    let mut holder = store.start_run(&["--json"], "x", "echo up; read line; echo \"<$line>\"");
    holder.line();
    assert_eq!(store.code(&["ask", "x"]), 0);
    holder.event("asked");
    holder.write_line("on");
    assert_eq!(holder.line(), "<on>");
    assert_eq!(holder.code(), 0);
    let free = store.output(&["ask", "x"]);
    assert_eq!(free.status.code(), Some(1));
    assert_eq!(text(&free.stderr), "tenure: nobody holds \"x\"\n");
    let _reader = store.start_hold(&["--shared", "x"]);
    let shared = store.output(&["ask", "x"]);
    assert_eq!(shared.status.code(), Some(1));
    assert!(text(&shared.stderr).contains("alone"));
    assert_eq!(
        json(&store.output(&["--json", "ask", "x"]).stdout)[0]["asked"],
        false
    );
}

#[test]
fn the_leader_is_shown_with_its_value_and_followed() {
    let (store, name) = (Store::new(), "über alles 🦀");
    let nobody = store.output(&["leader", name]);
    assert_eq!(nobody.status.code(), Some(1));
    assert_eq!(text(&nobody.stdout), format!("nobody leads \"{name}\"\n"));
    let mut lines = store.start(&["leader", name, "--follow"]);
    let mut events = store.start(&["--json", "leader", name, "--follow"]);
    assert_eq!(lines.line(), format!("nobody leads \"{name}\""));
    let leader_event = |from: &mut PipedProcess| -> serde_json::Value {
        let event: serde_json::Value = serde_json::from_str(&from.line()).unwrap();
        assert_eq!(event["event"], "leader");
        assert_eq!(event["name"], name);
        event["leader"].clone()
    };
    assert!(leader_event(&mut events).is_null());
    let mut standby = stand_by(&store, &["--value", "http://h:1/\u{7}"], name, UP);
    let held = token(&mut standby);
    // Characters that could harm a terminal are escaped.
    let shown = lines.line();
    let expected = format!(", token {held}: http://h:1/\\u{{7}}");
    assert!(shown.ends_with(&expected), "{shown}");
    let seen = leader_event(&mut events);
    assert_eq!(seen["value"], "http://h:1/\u{7}");
    assert_eq!(
        (&seen["token"], &seen["pid"]),
        (&held.into(), &standby.child.id().into())
    );
    let now = store.output(&["--json", "leader", name]);
    assert_eq!(now.status.code(), Some(0));
    assert_eq!(json(&now.stdout)[0]["leader"]["token"], held);
    standby.child.kill().unwrap();
    assert_eq!(lines.line(), format!("nobody leads \"{name}\""));
    assert!(leader_event(&mut events).is_null());
    // The holder of a lock is shown too; it has no value.
    let _holder = store.start_hold(&[name]);
    assert!(lines.line().contains("is led by"));
    assert!(leader_event(&mut events)["value"].is_null());
    lines.signal(Signal::INT);
    assert_eq!(lines.code(), 0);
}

#[test]
fn a_value_that_is_too_long_is_refused() {
    let store = Store::new();
    let value = "x".repeat(4_097);
    let output = store.output(&["run", "--standby", "--value", &value, "x", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("4096"),
        "{}",
        text(&output.stderr)
    );
    let value = "x".repeat(4_096);
    assert_eq!(
        store.code(&["run", "--standby", "--value", &value, "x", "--", "true"]),
        0
    );
}

/// Waits until there is no such file. The test hangs if that never happens.
fn until_gone(path: &Path) {
    while path.exists() {
        std::thread::yield_now();
    }
}

#[test]
fn the_ready_file_exists_while_the_command_may_run() {
    let store = Store::new();
    let ready = store.path("ready ü");
    let path = ready.to_str().unwrap();
    let options = ["--ready-file", path];
    // The command is there after its file.
    let script = format!("cat '{path}'; {POLITE}");
    let mut standby = stand_by(&store, &options, "x y", &script);
    let mark = standby.line();
    let held = token(&mut standby);
    let pid = standby.child.id();
    assert_eq!(
        mark,
        format!("tenure leads \"x y\" with token {held} as process {pid}")
    );
    // Asked: removed before another process can lead.
    assert_eq!(store.code(&["ask", "x y"]), 0);
    assert_eq!(standby.line(), "bye");
    assert!(!ready.exists());
    assert_eq!(standby.line().split(' ').next(), Some("tenure"));
    token(&mut standby);
    assert!(ready.exists());
    // A signal: removed although the command takes its time.
    standby.signal(Signal::TERM);
    until_gone(&ready);
    assert_eq!(standby.line(), "bye");
    assert_eq!(standby.code(), 4);
    // The command ends by itself.
    let mut standby = stand_by(
        &store,
        &options,
        "x",
        &format!("test -e '{path}' && echo there"),
    );
    assert_eq!(standby.line(), "there");
    assert_eq!(standby.code(), 0);
    assert!(!ready.exists());
    // A loss.
    let script = format!(
        "exec 2>/dev/null; trap 'test -e \"{path}\" || echo gone; exit' TERM; echo up $TENURE_TOKEN; while :; do sleep 0.01; done"
    );
    let options = [&options[..], &["--ttl", "200ms"]].concat();
    let mut standby = stand_by(&store, &options, "x", &script);
    let held = token(&mut standby);
    assert_eq!(store.code(&["break", "x", "--token", &held.to_string()]), 0);
    assert_eq!(standby.line(), "gone");
    // A standby has none, and leaves that of the leader alone.
    token(&mut standby);
    let other = store.path("other");
    let mut waiting = stand_by(&store, &["--ready-file", other.to_str().unwrap()], "x", UP);
    waiting.event("waiting");
    assert!(ready.exists() && !other.exists());
    // kill -9: the guardian removes it.
    standby.child.kill().unwrap();
    token(&mut waiting);
    assert!(!ready.exists() && other.exists());
    waiting.signal(Signal::INT);
    assert_eq!(waiting.code(), 130);
    let left: Vec<_> = std::fs::read_dir(store.dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the lock directory: {left:?}");
}

#[test]
fn a_ready_file_that_was_left_is_removed_and_a_foreign_one_is_refused() {
    let store = Store::new();
    let ready = store.path("ready");
    let run = |path: &Path| {
        let path = path.to_str().unwrap();
        let arguments = [
            "run",
            "--standby",
            "--ready-file",
            path,
            "x",
            "--",
            "echo",
            "ran",
        ];
        let output = store.output(&arguments);
        (
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    std::fs::write(&ready, "tenure leads \"x\" with token 1 as process 1\n").unwrap();
    assert_eq!(run(&ready), (0, "ran\n".into(), String::new()));
    assert!(!ready.exists());
    let refused = |path: &Path, words: &[&str]| {
        let (code, out, message) = run(path);
        assert_eq!((code, out), (70, String::new()), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in words.iter().chain(&[path.to_str().unwrap()]) {
            assert!(message.contains(word), "{word}: {message}");
        }
    };
    std::fs::write(&ready, "of another program").unwrap();
    refused(&ready, &["tenure did not make it"]);
    assert_eq!(
        std::fs::read_to_string(&ready).unwrap(),
        "of another program"
    );
    let link = store.path("link");
    std::os::unix::fs::symlink(&ready, &link).unwrap();
    refused(&link, &["tenure did not make it"]);
    std::fs::remove_file(&ready).unwrap();
    // A link to a file that does not exist yet.
    refused(&link, &["tenure did not make it"]);
    assert!(!ready.exists());
    refused(store.dir.path(), &["tenure did not make it"]);
    refused(
        &store.path("no/such/directory"),
        &["cannot make", "may write"],
    );
    // The path is taken by another program while this process stands by: the lock is given up, and tried again.
    let holder = store.start_hold(&["x"]);
    let mut standby = stand_by(&store, &["--ready-file", ready.to_str().unwrap()], "x", UP);
    standby.event("waiting");
    std::fs::write(&ready, "of another program").unwrap();
    drop(holder);
    let message = standby.event("error")["message"].to_string();
    assert!(message.contains("the lock is given up"), "{message}");
    standby.event("standing_by");
    assert_eq!(
        std::fs::read_to_string(&ready).unwrap(),
        "of another program"
    );
    std::fs::remove_file(&ready).unwrap();
    token(&mut standby);
    assert!(ready.exists());
}
