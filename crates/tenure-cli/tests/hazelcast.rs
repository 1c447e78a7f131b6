//! The command line on members of Hazelcast, and a Java program that has the same lock.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use tenure_testkit::hazelcast::{Hazelcast, java};
use tenure_testkit::{needs, until};

/// A lease has to be longer than the time that a command gets to end (`--grace`, 5 s).
static MEMBERS: LazyLock<Hazelcast> = LazyLock::new(|| Hazelcast::start_with(3, 3, 15));

fn tenure(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(arguments).env("TENURE_URL", MEMBERS.url());
    command.stdin(Stdio::null());
    command
}

/// The Java client, told what to do on its input.
struct Java {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Java {
    fn start() -> Self {
        let mut command = Command::new(java());
        let port = MEMBERS.port(1).to_string();
        command.args(["Driver", "127.0.0.1", &port]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut java = Self {
            process,
            orders,
            answers,
        };
        assert!(java.answer().starts_with("ready"));
        java
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // The program may have ended already, and a drop cannot report anything.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_command_and_a_java_program_exclude_each_other() {
    needs!(hazelcast);
    let mut java = Java::start();
    assert!(java.ask("try\tjob\t0").starts_with("held"));
    let busy = tenure(&["run", "--try", "job", "--", "true"]).output();
    assert_eq!(busy.unwrap().status.code(), Some(75));
    let status = tenure(&["status", "job"]).output().unwrap();
    let shown = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(shown.contains("of a Hazelcast client"), "{shown}");
    assert_eq!(java.ask("unlock\tjob"), "released");

    let held = ["run", "job", "--", "sh", "-c", "echo $TENURE_TOKEN; cat"];
    let mut holder = tenure(&held);
    let mut holder = holder
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut token = String::new();
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    output.read_line(&mut token).unwrap();
    assert!(token.trim().parse::<u64>().unwrap() > 0);
    assert_eq!(java.ask("try\tjob\t0"), "busy");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert!(java.ask("try\tjob\t0").starts_with("held"));
    assert_eq!(java.ask("unlock\tjob"), "released");
    drop(java);
    until("no session is left", || {
        MEMBERS.sessions("default").is_empty()
    });
}

#[test]
fn names_are_not_listed_and_the_message_says_why() {
    needs!(hazelcast);
    let list = tenure(&["list"]).output().unwrap();
    assert!(!list.status.success());
    let said = String::from_utf8_lossy(&list.stderr).into_owned();
    assert!(said.contains("no names of locks"), "{said}");
}
