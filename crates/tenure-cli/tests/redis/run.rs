//! `tenure run`: exit codes, what is left in the server, and what is said when there is none.

use crate::support::{Store, next_event, scenarios, text, try_url};
use crate::{OnRedis, on_redis};
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
fn the_command_is_told_what_lies_in_the_server() {
    let Some(on) = OnRedis::start() else { return };
    let script =
        "printf '%s\\n' \"$TENURE_NAME\" \"$TENURE_OWNER\" \"$TENURE_TOKEN\"; read line; exit 0";
    let mut last = 0;
    for name in ["x", "with space", "🔒 größer", "a{b}c", "tenure:{x}:hold"] {
        let mut talk = on.start_run(&["--label", "why not"], name, script);
        assert_eq!(talk.line(), name);
        let (owner, token): (_, u64) = (talk.line(), talk.line().parse().unwrap());
        // What looks like a side key of ours is written with a sign before it.
        let key = match name.strip_prefix("tenure:") {
            Some(_) => format!("tenure:={name}"),
            None => name.into(),
        };
        assert_eq!(on.server.order(&["GET", &key]).text(), owner, "{name}");
        assert_eq!(on.code(&["run", "-n", name, "--", "true"]), 75, "{name}");
        talk.close_input();
        assert_eq!(talk.code(), 0);
        assert!(!on.has(&key), "{name}");
        assert!(token > last, "the counter begins with the clock");
        last = token;
    }
}

#[test]
fn at_most_one_run_per_interval_on_the_clock_of_the_server() {
    let Some(on) = OnRedis::start() else { return };
    let run = ["run", "-n", "--every", "5s", "x", "--", "echo", "ran"];
    let first = on.output(&run);
    assert_eq!(text(&first.stdout), "ran\n");
    let left = on.server.order(&["PTTL", "x"]).int();
    assert!((1..=5000).contains(&left), "{left}");
    assert_eq!(on.server.order(&["GET", "x"]).text(), "-");
    let second = on.output(&run);
    let said = text(&second.stderr);
    assert_eq!(
        (second.status.code(), text(&second.stdout)),
        (Some(75), String::new())
    );
    assert!(
        said.contains("reserved") && said.lines().count() == 1,
        "{said}"
    );
    let status = text(&on.output(&["status", "x"]).stdout);
    assert!(status.contains("reserved"), "{status}");
    // Who waits gets the next interval, and not a moment earlier than the server gives it away.
    let mut third = on.start_run(&["--json", "--every", "5s"], "x", "echo ran");
    third.event("waiting");
    assert!(on.has("x"));
    assert_eq!(third.rest(), "ran\n");
    assert_eq!(third.code(), 0);
    let fourth = on.output(&["run", "--json", "--every", "5s", "x", "--", "true"]);
    let token = |event: serde_json::Value| event["tokens"][0].as_u64().unwrap();
    let third = token(third.event("acquired"));
    let fourth = token(next_event(&mut fourth.stderr.as_slice(), "acquired"));
    // A token is the microsecond of the grant on the server's clock, unless that one is taken.
    assert!(fourth - third >= 5_000_000, "{third} {fourth}");
}

#[test]
fn what_the_store_cannot_do_is_refused_and_nothing_is_run() {
    let Some(on) = OnRedis::start() else { return };
    for option in [&["--shared"][..], &["--permits", "2"]] {
        let arguments = [&["run"], option, &["x", "--", "echo", "ran"]].concat();
        let output = on.output(&arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            output.stdout.is_empty() && said.lines().count() == 1,
            "{said}"
        );
    }
    assert_eq!(on.server.order(&["DBSIZE"]).int(), 0);
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
            let (code, said) = try_url(url, &["-vv"]);
            assert_eq!(code, 2, "{url}: {said}");
            assert_eq!(said.lines().count(), 1, "{url}: {said}");
            assert!(!said.contains(PASSWORD), "{url}: {said}");
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let port = Port::reserve();
    let at = format!("127.0.0.1:{}", port.number());
    let url = format!("redis://{USER}:{PASSWORD}@{at}/?timeout=1s");
    for options in [&[][..], &["-n"], &["--json"], &["-vv"], &["--wait", "1s"]] {
        let (code, said) = try_url(&url, options);
        assert_eq!(code, 69, "{said}");
        assert!(said.contains(&at) && !said.contains(PASSWORD), "{said}");
    }
}

#[test]
fn a_server_that_does_not_answer_is_unreachable() {
    let Some(on) = OnRedis::start() else { return };
    let said = scenarios::a_server_that_does_not_answer_is_unreachable(&on);
    assert!(said.contains(&on.server.address()), "{said}");
}

#[test]
fn a_server_that_was_started_lately_grants_nothing_and_says_why() {
    needs!(redis);
    let server = Redis::start(&[]);
    for options in [&["-n"][..], &["--wait", "100ms"]] {
        let (code, said) = try_url(&server.url(), options);
        assert_eq!(code, 69, "{said}");
        assert!(said.contains("restart_guard") && said.contains(&server.address()));
        assert_eq!(said.lines().count(), 1, "{said}");
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
            let (code, said) = try_url(&url, options);
            assert_eq!(code, 77, "{url}: {said}");
            assert!(said.contains(&at) && !said.contains(wrong), "{url}: {said}");
        }
    }
    let url = format!("{}?restart_guard=off", server.url());
    for options in [&[][..], &["--json"], &["-vv"]] {
        let (code, said) = try_url(&url, options);
        assert_eq!(code, 0, "{said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
    let page = Store::at(url).output(&["check"]);
    let said = text(&page.stdout) + &text(&page.stderr);
    assert!(said.contains("***@") && !said.contains(PASSWORD), "{said}");
    assert!(!said.contains(USER), "{said}");
}

#[test]
fn it_speaks_tls() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let server = Redis::start_tls(&certificates);
    let ca = certificates.file("ca.crt");
    let url = format!("{}?restart_guard=off&ca={}", server.tls_url(), ca.display());
    let (code, said) = try_url(&url, &[]);
    assert_eq!(code, 0, "{said}");
    let stranger = certificates.file("stranger.crt");
    let url = format!("{}?ca={}", server.tls_url(), stranger.display());
    let (code, said) = try_url(&url, &[]);
    assert_eq!(code, 69, "{said}");
    assert!(!said.contains(PASSWORD), "{said}");
}
