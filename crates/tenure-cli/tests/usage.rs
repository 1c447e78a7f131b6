//! Wrong usage: one line that names the input and the remedy, exit code 2, and no file is created.

#![allow(clippy::unwrap_used)]

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};

use support::{Store, text};

/// `tenure` with an empty environment, except for an empty home directory.
fn at_home(store: &Store, arguments: &[&OsStr]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(arguments)
        .env_clear()
        .env("HOME", store.dir.path())
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn assert_refused(arguments: &[&OsStr], words: &[&str]) {
    let store = Store::new();
    let output = at_home(&store, arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(message.lines().count(), 1, "{arguments:?}: {message}");
    for word in words {
        assert!(
            message.contains(word),
            "{arguments:?} lacks {word:?}: {message}"
        );
    }
    assert!(message.len() < 320, "{message}");
    assert_eq!(
        std::fs::read_dir(store.dir.path()).unwrap().count(),
        0,
        "{arguments:?} left something"
    );
}

#[test]
fn mistakes_are_refused_before_anything_is_touched() {
    let long = "x".repeat(2_000);
    let cases: &[(&[&str], &[&str])] = &[
        (&["run", "", "--", "true"], &["name", "empty"]),
        (&["run", &long, "--", "true"], &["2000 bytes", "1000"]),
        (&["run", "x"], &["no command", "--"]),
        (
            &["run", "x", "true"],
            &["no command", "tenure run x -- true"],
        ),
        (&["run", "--", "true"], &["no lock name"]),
        (
            &["run", "--wait", "-1", "x", "--", "true"],
            &["-1", "--wait", "negative"],
        ),
        (
            &["run", "--wait", "5", "x", "--", "true"],
            &["5", "--wait", "5s"],
        ),
        (
            &["run", "--wait", "soon", "x", "--", "true"],
            &["soon", "--wait", "5s"],
        ),
        (
            &["run", "--ttl", "1ms", "x", "--", "true"],
            &["ttl", "1ms", "20ms"],
        ),
        (
            &["run", "--ttl", "1y", "x", "--", "true"],
            &["ttl", "1y", "too long", "at most 30d"],
        ),
        (
            &["run", "--ttl", "100000000d", "x", "--", "true"],
            &["ttl", "too long", "at most 30d"],
        ),
        (
            &["run", "-u", "redis://h/?timeout=5", "x", "--", "true"],
            &["timeout", "no unit", "1h30m"],
        ),
        (
            &["run", "-u", "redis://h/?timeout=1h30m", "x", "--", "true"],
            &["timeout", "5400s", "60s"],
        ),
        (
            &["run", "--max-hold", "0", "x", "--", "true"],
            &["max_hold", "zero"],
        ),
        (
            &["run", "--drift", "20s", "x", "--", "true"],
            &["drift", "20s", "15s"],
        ),
        (
            &["hold", "--drift", "-1s", "x"],
            &["--drift", "-1s", "negative"],
        ),
        (
            &["run", "--renew", "sometimes", "x", "--", "true"],
            &["--renew", "sometimes", "never"],
        ),
        (
            &[
                "run",
                "--renew",
                "never",
                "--max-hold",
                "1h",
                "x",
                "--",
                "true",
            ],
            &["--max-hold", "--ttl", "--renew never"],
        ),
        (
            &["run", "--standby", "-n", "x", "--", "true"],
            &["--standby", "--try"],
        ),
        (
            &["run", "--standby", "--wait", "5s", "x", "--", "true"],
            &["--standby", "--wait"],
        ),
        (
            &["run", "--standby", "-E", "0", "x", "--", "true"],
            &["--standby", "--busy-exit-code"],
        ),
        (
            &["run", "--standby", "--every", "1h", "x", "--", "true"],
            &["--standby", "--every"],
        ),
        (
            &["run", "--standby", "--any", "x", "y", "--", "true"],
            &["--standby", "--any"],
        ),
        (
            &["run", "--standby", "--k-of", "1", "x", "--", "true"],
            &["--standby", "--k-of"],
        ),
        (
            &["run", "--standby", "--shared", "x", "--", "true"],
            &["--standby", "--shared"],
        ),
        (
            &["run", "--standby", "--permits", "2", "x", "--", "true"],
            &["--standby", "--permits"],
        ),
        (
            &["run", "--standby", "x", "y", "--", "true"],
            &["--standby", "one name", "each of them"],
        ),
        (&["run", "--standby", "--", "true"], &["no lock name"]),
        (&["run", "--standby", "x"], &["no command"]),
        (
            &["run", "--restart", "x", "--", "true"],
            &["--standby", "`--restart`", "`tenure run --help`"],
        ),
        (
            &["run", "--ready-file", "/tmp/x", "x", "--", "true"],
            &["--standby", "`--ready-file`"],
        ),
        (
            &["run", "--value", "v", "x", "--", "true"],
            &["--standby", "`--value`"],
        ),
        (&["hold", "--standby", "x"], &["--standby"]),
        (&["take"], &["NAME", "`tenure take --help`"]),
        (&["take", ""], &["name", "empty"]),
        (
            &["take", "--for", "5", "x"],
            &["5", "--for", "5s", "`tenure take --help`"],
        ),
        (&["take", "--for", "500ms", "x"], &["--for", "at least 1s"]),
        (&["take", "--for", "31d", "x"], &["--for", "at most 30d"]),
        (&["take", "--ttl", "5s", "x"], &["--ttl"]),
        (
            &["take", "--shared", "--permits", "2", "x"],
            &["--shared", "--permits"],
        ),
        (
            &["take", "--k-of", "3", "x", "y"],
            &["--k-of", "3", "2 names"],
        ),
        (&["-u", "memory:", "take", "x"], &["`memory:`", "`-u`"]),
        (&["renew"], &["RECEIPT", "`tenure renew --help`"]),
        (&["renew", "x"], &["there is no file \"x\"", "RECEIPT"]),
        (&["renew", "--for", "0", "x"], &["--for", "0"]),
        (&["release"], &["RECEIPT"]),
        (&["release", "x"], &["there is no file \"x\""]),
        (&["release", "x", "y"], &["y"]),
        (
            &["run", "--receipt", "r", "--", "true"],
            &["there is no file \"r\""],
        ),
        (&["run", "--receipt", "r"], &["no command", "--receipt"]),
        (
            &["run", "--receipt", "r", "true"],
            &["--receipt", "NAME", "the receipt has the names"],
        ),
        (
            &["run", "--receipt", "r", "-n", "--", "true"],
            &["--receipt", "--try"],
        ),
        (
            &["run", "--receipt", "r", "--wait", "1s", "--", "true"],
            &["--receipt", "--wait"],
        ),
        (
            &["run", "--receipt", "r", "--standby", "--", "true"],
            &["--receipt", "--standby"],
        ),
        (
            &["run", "--receipt", "r", "--shared", "--", "true"],
            &["--receipt", "--shared"],
        ),
        (
            &["run", "--receipt", "r", "--every", "1h", "--", "true"],
            &["--receipt", "--every"],
        ),
        (
            &["run", "--receipt", "r", "--renew", "never", "--", "true"],
            &["--receipt", "--renew"],
        ),
        (
            &["run", "--receipt", "r", "--label", "l", "--", "true"],
            &["--receipt", "--label"],
        ),
        (&["leader"], &["NAME"]),
        (&["leader", ""], &["name", "empty"]),
        (&["ask"], &["NAME"]),
        (&["ask", ""], &["name", "empty"]),
        (
            &["hold", "--lock-delay", "5", "x"],
            &["--lock-delay", "5", "5s"],
        ),
        (&["run", "--any", "--", "true"], &["no lock name"]),
        (&["hold", "--any"], &["NAME"]),
        (
            &["run", "--k-of", "0", "x", "--", "true"],
            &["--k-of", "at least 1"],
        ),
        (
            &["run", "--k-of", "3", "x", "y", "--", "true"],
            &["--k-of", "3", "2 names", "lower"],
        ),
        (
            &["hold", "--k-of", "2", "x", "y", "x"],
            &["\"x\"", "twice", "leave one out"],
        ),
        (&["hold", "--k-of", "two", "x", "y"], &["two", "--k-of"]),
        (
            &["run", "--any", "--k-of", "1", "x", "--", "true"],
            &["--any", "--k-of"],
        ),
        (
            &["run", "--permits", "0", "x", "--", "true"],
            &["--permits", "0", "a number from 1", "`tenure run --help`"],
        ),
        (
            &["run", "-n", "--wait", "5s", "x", "--", "true"],
            &["--try", "--wait"],
        ),
        (
            &["run", "-E", "300", "x", "--", "true"],
            &["300", "--busy-exit-code"],
        ),
        (
            &["run", "--shared", "--permits", "2", "x", "--", "true"],
            &["--shared", "--permits"],
        ),
        (&["run", "--nonsense", "x", "--", "true"], &["--nonsense"]),
        (
            &["-u", "nonsense:x", "run", "x", "--", "true"],
            &["nonsense:", "file:"],
        ),
        (
            &["-u", "no-scheme", "run", "x", "--", "true"],
            &["scheme", "file:"],
        ),
        (
            &["-u", "file:/tmp/x?y=z", "run", "x", "--", "true"],
            &["option", "y"],
        ),
        (&["frobnicate"], &["frobnicate"]),
        (
            &["break", "x"],
            &["--token", "tenure status NAME", "`tenure break --help`"],
        ),
        (
            &["run", "-u", "", "x", "--", "true"],
            &["the URL is empty", "leave `-u` out"],
        ),
        (&["status", "x", "--url="], &["the URL is empty", "`-u`"]),
        (&["break", "x", "--token", "many"], &["many", "--token"]),
        (&["hold"], &["NAME"]),
        (
            &["torture", "--faults", "earthquake"],
            &["earthquake", "--faults", "pause"],
        ),
        (
            &["torture", "--faults", "stall"],
            &["--faults stall", "no network"],
        ),
        (
            &["torture", "--faults", "server-kill"],
            &["server-kill", "no servers"],
        ),
        (&["torture", "--workers", "1"], &["--workers", "1", "2"]),
        (&["torture", "--tasks", "0"], &["--tasks", "0", "1"]),
        (&["torture", "--names", "0"], &["--names", "0", "1"]),
        (&["torture", "--ttl", "20ms"], &["--ttl 20ms", "200ms"]),
        (
            &["torture", "--for", "2s", "--ttl", "1s"],
            &["--for 2s", "--ttl"],
        ),
        (&["torture", "--seed", "x"], &["--seed", "x"]),
        (&["-u", "memory:", "torture"], &["memory", "file:"]),
    ];
    for (arguments, words) in cases {
        let arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
        assert_refused(&arguments, words);
    }
}

#[test]
fn a_name_that_is_not_utf_8_is_refused() {
    let name = OsStr::from_bytes(b"caf\xe9");
    let arguments = [
        OsStr::new("run"),
        name,
        OsStr::new("--"),
        OsStr::new("true"),
    ];
    assert_refused(&arguments, &["caf\\xE9", "UTF-8"]);
}

#[test]
fn without_a_home_there_is_no_default_directory() {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["run", "x", "--", "true"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(
        message.contains("HOME") && message.contains("file:/"),
        "{message}"
    );
}

#[test]
fn the_default_store_is_in_the_state_directory_of_the_user() {
    let store = Store::new();
    let arguments = ["run", "nightly", "--", "true"].map(OsStr::new);
    assert!(at_home(&store, &arguments).status.success());
    assert!(store.path(".local/state/tenure/locks/nightly").exists());
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let store = Store::new();
    std::fs::write(store.path("file"), "").unwrap();
    for path in ["file", "file/below"] {
        let url = format!("file:{}", store.path(path).display());
        let output = store.output(&["-u", &url, "run", "x", "--", "true"]);
        let message = text(&output.stderr);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.contains(&*store.path(path).to_string_lossy()),
            "{message}"
        );
        assert!(
            [69, 70, 77].contains(&output.status.code().unwrap()),
            "{output:?}"
        );
    }
}

#[test]
fn no_password_of_a_url_is_ever_printed() {
    let store = Store::new();
    for url in [
        "redis9://user:hunter2@host/0",
        "hunter2@host",
        "file:/x?password=hunter2",
        "hunter2",
    ] {
        for action in [
            &["run", "x", "--", "true"][..],
            &["check"],
            &["list"],
            &["-vv", "status", "x"],
        ] {
            let arguments = [&["-u", url], action].concat();
            let output = store.output(&arguments);
            let all = text(&output.stdout) + &text(&output.stderr);
            assert!(!all.contains("hunter2"), "{arguments:?}: {all}");
        }
    }
    let help = text(
        &store
            .tenure(&["run", "--help"])
            .env("TENURE_URL", "x:hunter2")
            .output()
            .unwrap()
            .stdout,
    );
    assert!(help.contains("TENURE_URL") && !help.contains("hunter2"));
}

#[test]
fn help_completions_and_the_manual_name_every_action() {
    let store = Store::new();
    let actions = [
        "run",
        "hold",
        "take",
        "renew",
        "release",
        "list",
        "status",
        "leader",
        "ask",
        "break",
        "check",
        "watch",
        "bench",
        "torture",
        "completions",
        "man",
    ];
    for arguments in [
        &["--help"][..],
        &["man"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let output = store.output(arguments);
        let page = text(&output.stdout).to_lowercase();
        assert_eq!(output.status.code(), Some(0));
        for action in actions {
            assert!(page.contains(action), "{arguments:?} lacks {action}");
        }
        assert!(!page.contains("__guardian"));
    }
    assert!(text(&store.output(&["--help"]).stdout).contains("75"));
    for (page, example) in [
        (&["run", "--help"][..], "crontab"),
        (&["run", "--help"], "tenure run --receipt"),
        (&["take", "--help"], "tenure release staging.receipt"),
        (&["renew", "--help"], "standard input"),
        (&["man"], "crontab"),
        (&["man"], "tenure release staging.receipt"),
    ] {
        assert!(
            text(&store.output(page).stdout).contains(example),
            "{page:?} has no example with {example}"
        );
    }
}

/// A variable of the environment without a value is as wrong as an option without one.
#[test]
fn a_url_variable_that_is_empty_is_refused() {
    let store = Store::new();
    for arguments in [&["run", "-n", "x", "--", "echo", "ran"][..], &["list"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(arguments)
            .env("HOME", store.dir.path())
            .env("TENURE_URL", "")
            .output()
            .unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("TENURE_URL is set to nothing"),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    }
}
