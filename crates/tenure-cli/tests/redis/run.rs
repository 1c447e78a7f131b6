//! `tenure run`: exit codes, what is left in the server, and the messages when there is no server.

use crate::support::{Store, next_event, scenarios, text, try_url};
use crate::{RedisStore, on_redis};
use tenure_testkit::needs;
use tenure_testkit::process::Port;
use tenure_testkit::redis::{Certificates, PASSWORD, Redis, USER};

on_redis![
    the_status_of_the_command_passes_through_and_the_name_is_free_afterwards,
    all_names_are_held_or_none,
    a_signal_while_the_command_runs_releases_at_once,
    a_hold_that_is_broken_ends_the_command,
    a_server_that_dies_meanwhile_does_not_change_the_status_of_a_command_that_ended_in_time,
];

#[test]
fn the_command_gets_the_owner_that_is_in_the_server() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let script =
        "printf '%s\\n' \"$TENURE_NAME\" \"$TENURE_OWNER\" \"$TENURE_TOKEN\"; read line; exit 0";
    let mut last = 0;
    for name in ["x", "with space", "🔒 größer", "a{b}c", "tenure:{x}:hold"] {
        let mut process = store.start_run(&["--label", "why not"], name, script);
        assert_eq!(process.line(), name);
        let (owner, token): (_, u64) = (process.line(), process.line().parse().unwrap());
        // A name that looks like an internal key of `tenure` is stored with a prefix.
        let key = match name.strip_prefix("tenure:") {
            Some(_) => format!("tenure:={name}"),
            None => name.into(),
        };
        assert_eq!(store.server.order(&["GET", &key]).text(), owner, "{name}");
        assert_eq!(store.try_run(name), 75, "{name}");
        process.close_input();
        assert_eq!(process.code(), 0);
        assert!(!store.has(&key), "{name}");
        assert!(token > last, "the counter begins with the clock");
        last = token;
    }
}

#[test]
fn at_most_one_run_per_interval_on_the_clock_of_the_server() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let run = ["run", "-n", "--every", "60s", "x", "--", "echo", "ran"];
    let first = store.output(&run);
    assert_eq!(text(&first.stdout), "ran\n");
    let left = store.server.order(&["PTTL", "x"]).int();
    assert!((1..=60_000).contains(&left), "{left}");
    assert_eq!(store.server.order(&["GET", "x"]).text(), "-");
    let second = store.output(&run);
    let message = text(&second.stderr);
    assert_eq!(
        (second.status.code(), text(&second.stdout)),
        (Some(75), String::new())
    );
    assert!(
        message.contains("reserved") && message.lines().count() == 1,
        "{message}"
    );
    let status = text(&store.output(&["status", "x"]).stdout);
    assert!(status.contains("reserved"), "{status}");
    // A waiter gets the next interval, and not before the end of the reservation in the server.
    assert_eq!(store.code(&["run", "--every", "10s", "y", "--", "true"]), 0);
    let mut third = store.start_run(&["--json", "--every", "10s"], "y", "echo ran");
    third.event("waiting");
    assert_eq!(third.rest(), "ran\n");
    assert_eq!(third.code(), 0);
    let fourth = store.output(&["run", "--json", "--every", "10s", "y", "--", "true"]);
    let token = |event: serde_json::Value| event["tokens"][0].as_u64().unwrap();
    let third = token(third.event("acquired"));
    let fourth = token(next_event(&mut fourth.stderr.as_slice(), "acquired"));
    // A token is the microsecond of the grant on the server's clock, unless that number is taken.
    assert!(fourth - third >= 10_000_000, "{third} {fourth}");
}

#[test]
fn what_the_store_cannot_do_is_refused_and_nothing_is_run() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let url = format!("{}?dialect=redisson&restart_guard=off", store.server.url());
    for option in [&["--shared"][..], &["--permits", "2"]] {
        let store = Store::at(url.clone());
        let arguments = [&["run"], option, &["x", "--", "echo", "ran"]].concat();
        let output = store.output(&arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            output.stdout.is_empty() && message.lines().count() == 1,
            "{message}"
        );
    }
    assert_eq!(store.server.order(&["DBSIZE"]).int(), 0);
}

/// Readers run at the same time and permits are limited, by what the server says and not by this process.
#[test]
fn readers_and_permits_run_at_the_same_time() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let reader = ["--shared", "x"];
    let permit = ["--permits", "1", "p"];
    let tries = |option: &[&str]| {
        let arguments = [&["run", "-n"], option, &["--", "true"]].concat();
        store.output(&arguments).status.code()
    };
    let script = "echo up; read line; exit 0";
    let mut reading = store.start_run(&["--shared"], "x", script);
    let mut working = store.start_run(&["--permits", "1"], "p", script);
    assert_eq!((reading.line(), working.line()), ("up".into(), "up".into()));
    assert_eq!(tries(&reader), Some(0));
    assert_eq!(tries(&["x"]), Some(75));
    assert_eq!(tries(&permit), Some(75));
    for mut process in [reading, working] {
        process.close_input();
        assert_eq!(process.code(), 0);
    }
    assert_eq!(tries(&["x"]), Some(0));
    assert_eq!(tries(&permit), Some(0));
    assert_eq!(store.server.order(&["EXISTS", "x", "p"]).int(), 0);
}

#[test]
fn urls_that_cannot_be_are_wrong_usage() {
    for url in [
        "redis://",
        "redis:",
        "redis://h:0",
        "redis://h:123456",
        "redis://a,b",
        "redis://a/x",
        "redis://a?color=red",
        "redis://a?timeout=soon",
        "redis://a?ca=x",
        "redis://a?dialect=curator",
        "rediss://a?ca=/no/such/file",
        "redis+sentinel://a",
        "redis+cluster://a/1",
        "redlock://a",
        "redlock://a,b,a",
    ] {
        let with_password = url.replace("://", &format!("://me:{PASSWORD}@"));
        for url in [url, &with_password] {
            let (code, message) = try_url(url, &["-vv"]);
            assert_eq!(code, 2, "{url}: {message}");
            assert_eq!(message.lines().count(), 1, "{url}: {message}");
            assert!(!message.contains(PASSWORD), "{url}: {message}");
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let port = Port::reserve();
    let at = format!("127.0.0.1:{}", port.number());
    let url = format!("redis://{USER}:{PASSWORD}@{at}/?timeout=1s");
    for options in [&[][..], &["-n"], &["--json"], &["-vv"], &["--wait", "1s"]] {
        let (code, message) = try_url(&url, options);
        assert_eq!(code, 69, "{message}");
        assert!(
            message.contains(&at) && !message.contains(PASSWORD),
            "{message}"
        );
    }
}

#[test]
fn a_server_that_does_not_answer_is_unreachable() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let message = scenarios::a_server_that_does_not_answer_is_unreachable(&store);
    assert!(message.contains(&store.server.address()), "{message}");
}

#[test]
fn a_server_that_was_started_lately_grants_nothing_and_says_why() {
    needs!(redis);
    let server = Redis::start(&[]);
    for options in [&["-n"][..], &["--wait", "100ms"]] {
        let (code, message) = try_url(&server.url(), options);
        assert_eq!(code, 69, "{message}");
        assert!(message.contains("restart_guard") && message.contains(&server.address()));
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_password_is_needed_and_never_shown() {
    needs!(redis);
    let server = Redis::start_secured(&[]);
    let at = server.address();
    let wrong = "an-open-secret";
    for login in ["", &format!("{USER}:{wrong}@"), &format!(":{wrong}@")] {
        let url = format!("redis://{login}{at}/?restart_guard=off");
        for options in [&[][..], &["--json"], &["-vv"]] {
            let (code, message) = try_url(&url, options);
            assert_eq!(code, 77, "{url}: {message}");
            assert!(
                message.contains(&at) && !message.contains(wrong),
                "{url}: {message}"
            );
        }
    }
    let url = format!("{}?restart_guard=off", server.url());
    for options in [&[][..], &["--json"], &["-vv"]] {
        let (code, message) = try_url(&url, options);
        assert_eq!(code, 0, "{message}");
        assert!(!message.contains(PASSWORD), "{message}");
    }
    let page = Store::at(url).output(&["check"]);
    let message = text(&page.stdout) + &text(&page.stderr);
    assert!(
        message.contains("***@") && !message.contains(PASSWORD),
        "{message}"
    );
    assert!(!message.contains(USER), "{message}");
}

#[test]
fn it_speaks_tls() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let server = Redis::start_tls(&certificates);
    let ca = certificates.file("ca.crt");
    let url = format!("{}?restart_guard=off&ca={}", server.tls_url(), ca.display());
    let (code, message) = try_url(&url, &[]);
    assert_eq!(code, 0, "{message}");
    let foreign = certificates.file("foreign.crt");
    let url = format!("{}?ca={}", server.tls_url(), foreign.display());
    let (code, message) = try_url(&url, &[]);
    assert_eq!(code, 69, "{message}");
    assert!(!message.contains(PASSWORD), "{message}");
}
