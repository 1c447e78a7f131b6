//! `run --receipt`: the command runs under a hold that was there, and the hold goes on afterwards.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;

use rustix::process::Signal;
use support::next_event;
use support::receipts::Receipts;
use tenure_testkit::until;

#[test]
fn run_keeps_the_hold_after_the_command_and_tells_the_command_about_it() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let file = store.take("x.receipt", &["x", "y z"]);
        let script = r#"printf '%s|' "$TENURE_NAME" "$TENURE_TOKEN" "$TENURE_OWNER""#;
        let [out, _] = store.ends(0, &["run", "--receipt", &file, "--", "sh", "-c", script]);
        let parts: Vec<_> = out.split('|').collect();
        assert_eq!(parts[0], "x\ny z");
        assert_eq!(parts[1].lines().next(), Some(&*store.token("x")));
        let receipt = fs::read_to_string(&file).unwrap();
        assert!(
            parts[2].lines().all(|owner| receipt.contains(owner)),
            "{out}"
        );
        assert_eq!(store.0.try_run("x"), 75);
        store.ends(7, &["run", "--receipt", &file, "--", "sh", "-c", "exit 7"]);
        store.ends(
            127,
            &["run", "--receipt", &file, "--", "no-such-command-anywhere"],
        );
        let output = store
            .0
            .output(&["run", "--json", "--receipt", &file, "--", "true"]);
        let mut events = output.stderr.as_slice();
        let attached = next_event(&mut events, "attached");
        assert_eq!(attached["names"], serde_json::json!(["x", "y z"]));
        assert!(attached.get("owner").is_none() && attached.get("owners").is_none());
        next_event(&mut events, "detached");
        assert_eq!(next_event(&mut events, "exit")["code"], 0);
        assert_eq!(store.0.try_run("y z"), 75);
        store.ends(0, &["release", &file]);
        assert_eq!(store.0.try_run("x"), 0);
    }
}

#[test]
fn run_ends_the_command_when_the_hold_is_given_back_or_broken() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let script = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done";
        for ends in [["release", "x.receipt"], ["break", "x"]] {
            let file = store.take("x.receipt", &["x"]);
            let arguments = [
                "run",
                "--json",
                "--ttl",
                "3s",
                "--grace",
                "2s",
                "--receipt",
                &file,
            ];
            let arguments = [&arguments[..], &["--", "sh", "-c", script]].concat();
            let mut process = store.0.start(&arguments);
            process.lines_are(&["up"]);
            match ends {
                ["break", name] => store.ends(0, &["break", name, "--token", &store.token(name)]),
                [action, _] => store.ends(0, &[action, &file]),
            };
            // The name is free at once: the hold is over for all that are attached to it.
            assert_eq!(store.0.try_run("x"), 0);
            process.lines_are(&["asked"]);
            assert_eq!(process.rest(), "");
            assert_eq!(process.code(), 76);
            assert_eq!(process.event("lost")["names"][0], "x");
        }
    }
}

#[test]
fn a_tenure_that_is_killed_ends_its_command_and_not_the_hold() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let file = store.take("x.receipt", &["x"]);
        let mut process = store.0.start(&[
            "run",
            "--receipt",
            &file,
            "--",
            "sh",
            "-c",
            support::STUBBORN,
        ]);
        process.lines_are(&["up", "up", "up"]);
        process.signal(Signal::KILL);
        assert_eq!(process.rest(), "");
        assert_eq!(store.0.try_run("x"), 75);
        store.ends(0, &["release", &file]);
        assert_eq!(store.0.try_run("x"), 0);
    }
}

#[test]
fn a_command_may_take_longer_than_the_time_of_its_receipt() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let file = store.path("x.receipt");
        store.ends(0, &["take", "x", "--for", "2s", "--receipt", &file]);
        let script = "echo up; read line";
        let mut process = store.0.start(&[
            "run",
            "--ttl",
            "3s",
            "--receipt",
            &file,
            "--",
            "sh",
            "-c",
            script,
        ]);
        process.lines_are(&["up"]);
        // After the time of the receipt.
        store.ends(75, &["run", "-w", "4s", "x", "--", "true"]);
        process.write_line("end");
        assert_eq!(process.code(), 0);
        assert_eq!(store.0.try_run("x"), 75);
        // And then the hold ends.
        until("the hold is over", || store.0.try_run("x") == 0);
    }
}

#[test]
fn max_hold_ends_the_command_and_keeps_the_hold() {
    let store = Receipts::new();
    let file = store.take("x.receipt", &["x"]);
    // The shorter time is usually over before the command can start.
    for limit in ["1ms", "100ms"] {
        let options = ["run", "--max-hold", limit, "--receipt", &file];
        let arguments = [&options[..], &["--", "sleep", "1000"]].concat();
        let [_, message] = store.ends(76, &arguments);
        assert!(message.contains("--max-hold"), "{message}");
        assert_eq!(store.0.try_run("x"), 75);
    }
    store.ends(0, &["release", &file]);
}
