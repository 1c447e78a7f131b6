//! The password of a URL is never shown: not in the output of an action, with any flags, not on the command line of a
//! process that `tenure` starts, and in no environment where the user has not put it.

use std::process::Output;

use crate::support::{PipedProcess, Store, text};
use tenure_testkit::etcd::{self, Etcd};
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::needs;
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::process::Port;
use tenure_testkit::redis::{self, PASSWORD, Redis, USER};
use tenure_testkit::sqlite::DatabaseFile;
use tenure_testkit::until;
use tenure_testkit::zookeeper::{self, Zookeeper};

/// A server of any kind, which runs until this is dropped.
type ServerHandle = Box<dyn std::any::Any>;

/// The servers, each with its URL, which has the password.
fn stores() -> Vec<(ServerHandle, String)> {
    let mut all: Vec<(ServerHandle, String)> = Vec::new();
    if !redis::skip_unless_installed() {
        let server = Redis::start_secured(&[]);
        let url = server.url() + "?restart_guard=off";
        all.push((Box::new(server), url));
    }
    if !etcd::skip_unless_installed() {
        let server = Etcd::start_secured(&[]);
        let url = server.url() + "?names=encoded";
        all.push((Box::new(server), url));
    }
    if !zookeeper::skip_unless_installed() {
        let server = Zookeeper::start(&[]);
        let at = server.port();
        let url = format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{at}/x?ttl=2s");
        all.push((Box::new(server), url));
    }
    if !mariadb::skip_unless_installed() {
        let server = MariaDb::start(&[]);
        let url = server.url();
        let table = url.clone() + "?mode=table";
        all.push((Box::new(server), url + "?restart_guard=off"));
        all.push((Box::new(()), table));
    }
    if !postgres::skip_unless_installed() {
        let server = Postgres::start(&[]);
        let url = server.url();
        let table = url.clone() + "?mode=table";
        all.push((Box::new(server), url + "?restart_guard=off"));
        all.push((Box::new(()), table));
    }
    // SQLite has no password, so an option looks like one.
    let file = DatabaseFile::new();
    let url = format!("{}?password={PASSWORD}", file.url());
    all.push((Box::new(file), url));
    all
}

#[track_caller]
fn assert_no_password(what: &str, output: &Output) {
    for message in [&output.stdout, &output.stderr] {
        let message = String::from_utf8_lossy(message);
        assert!(!message.contains(PASSWORD), "{what}: {message}");
    }
}

const ACTIONS: &[&[&str]] = &[
    &["check", "--init"],
    &["run", "--wait", "1s", "x", "--", "true"],
    &["run", "--try", "x", "--", "false"],
    &["hold", "--wait", "1s", "--ttl", "3s", "x"],
    &["list"],
    &["status", "x"],
    &["break", "x", "--token", "1"],
    &["check", "--require", "pause,restart,failover,clock,power"],
    &["bench", "--rounds", "5"],
];

#[test]
fn no_action_prints_it() {
    let stores = stores();
    let unused_port = Port::reserve();
    std::thread::scope(|scope| {
        for (_, url) in &stores {
            let unused_port = unused_port.number();
            scope.spawn(move || {
                let (start, rest) = url.split_once("127.0.0.1:").unwrap_or((url, "?x=y"));
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                let gone = format!("{start}127.0.0.1:{unused_port}{rest}");
                let wrong = url.replace(PASSWORD, &format!("{PASSWORD}x"));
                let odd = format!("{url}&color={PASSWORD}");
                let own = url.as_str();
                for url in [own, &wrong, &gone, &odd] {
                    assert_no_action_prints_it(url, url == own);
                }
            });
        }
    });
}

/// Runs all actions. Where the store cannot be reached, two are enough, because all fail in the same way.
fn assert_no_action_prints_it(url: &str, is_right: bool) {
    let store = Store::at(url.to_owned());
    let count = if is_right { ACTIONS.len() } else { 2 };
    for action in &ACTIONS[..count] {
        // All messages, for people and for programs.
        for more in [&["-vv"][..], &["--json", "-vv"]] {
            let (name, rest) = action.split_first().unwrap();
            let all = [&[*name], more, rest].concat();
            assert_no_password(&format!("{url} {all:?}"), &store.output(&all));
        }
    }
}

fn of_process(pid: u32, file: &str) -> String {
    let path = format!("/proc/{pid}/{file}");
    // The process may have ended meanwhile.
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// A process and its descendants.
fn process_tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        // The process and its threads may have ended meanwhile.
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let list = std::fs::read_to_string(thread.path().join("children"));
            let list = list.unwrap_or_default();
            all.extend(
                list.split_whitespace()
                    .map(|pid| pid.parse::<u32>().unwrap()),
            );
        }
        next += 1;
    }
    all
}

#[test]
fn neither_the_command_nor_the_guardian_has_it_unless_the_user_gave_it_to_them() {
    needs!(redis);
    let server = Redis::start_secured(&[]);
    let store = Store::at(server.url() + "?restart_guard=off");
    for by_argument in [true, false] {
        let mut command = match by_argument {
            true => {
                let url = store.url();
                let mut command = store.tenure(&["run", "--url", &url, "x", "--", "cat"]);
                command.env_remove("TENURE_URL");
                command
            }
            false => store.tenure(&["run", "x", "--", "cat"]),
        };
        command.env_remove("PASSWORD");
        let mut run = PipedProcess::start(command);
        run.write_line("up");
        assert_eq!(run.line(), "up");
        let tree = process_tree(run.child.id());
        assert_eq!(tree.len(), 3, "tenure, its guardian and the command");
        for (at, pid) in tree.into_iter().enumerate() {
            let (line, environ) = (of_process(pid, "cmdline"), of_process(pid, "environ"));
            // The command line of `tenure` itself is what the user typed.
            let may_line = by_argument && at == 0;
            assert!(may_line || !line.contains(PASSWORD), "{line}");
            assert!(!by_argument || !environ.contains(PASSWORD), "{line}");
        }
        run.close_input();
        assert_eq!(run.code(), 0);
        assert_eq!(run.err_rest(), "");
    }
}

#[test]
fn neither_the_workers_of_a_torture_nor_what_it_writes_show_it() {
    needs!(redis);
    let server = Redis::start_secured(&[]);
    let store = Store::at(server.url() + "?restart_guard=off");
    let out = store.path("out");
    let out = out.to_str().unwrap();
    let arguments = ["torture", "-vv", "--for", "3s", "--ttl", "500ms"];
    let mut run = store.start(&[&arguments[..], &["--out", out]].concat());
    until("its workers have started", || {
        process_tree(run.child.id()).len() > 6
    });
    for pid in process_tree(run.child.id()) {
        let line = of_process(pid, "cmdline");
        assert!(!line.contains(PASSWORD), "{line}");
    }
    assert!(!run.rest().contains(PASSWORD));
    let message = run.err_rest();
    assert!(!message.contains(PASSWORD), "{message}");
    for entry in std::fs::read_dir(out).unwrap() {
        let path = entry.unwrap().path();
        let written = std::fs::read(&path).unwrap_or_default();
        let written = String::from_utf8_lossy(&written);
        assert!(!written.contains(PASSWORD), "{}", path.display());
    }
}

#[test]
fn a_url_in_the_wrong_place_is_not_repeated() {
    let store = Store::new();
    let url = format!("redis://{USER}:{PASSWORD}@host/");
    for arguments in [
        &[url.as_str()][..],
        &[&url, "list"],
        &["list", "x", &url],
        &["--ur", &url, "list"],
        &[&format!("--ur={url}"), "list"],
        &["check", &url],
        &["run", "--ttl", &url, "x", "--", "true"],
        &["run", &format!("--ttl={url}"), "x", "--", "true"],
        &["--url", &url, "--url", &url, "list"],
        &["break", "x", "--token", &url],
        &["completions", &url],
    ] {
        let output = store.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_no_password(&format!("{arguments:?}"), &output);
        assert!(text(&output.stderr).starts_with("tenure: "));
    }
}
