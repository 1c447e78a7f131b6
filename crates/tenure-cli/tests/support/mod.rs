//! What the command line tests share: a store of their own, and processes to talk with.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod scenarios;
pub(crate) mod signs;
pub(crate) mod terminal;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A shell that ignores TERM, with children that left its group, its session and its family.
/// Each of the four holds standard output; three of them say `up`.
pub(crate) const STUBBORN: &str = r#"
    trap '' TERM HUP INT
    setsid sh -c 'trap "" TERM HUP; echo up; while :; do sleep 1000; done' &
    (setsid sh -c 'trap "" TERM HUP; (trap "" TERM HUP; echo up; while :; do sleep 1000; done) & sleep 0.001' &)
    sh -c 'echo up; while :; do sleep 1000; done' &
    while :; do sleep 1000; done
"#;

/// The store of one test, and a directory for what its commands write.
pub(crate) struct Store {
    pub(crate) dir: TempDir,
    url: String,
}

impl Store {
    /// A lock directory.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file:{}", dir.path().join("locks").display());
        Self { dir, url }
    }

    /// The store with this URL.
    pub(crate) fn at(url: String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, url }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// `tenure` with these arguments, on this store.
    pub(crate) fn tenure(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command
            .args(arguments)
            .env("TENURE_URL", self.url())
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.tenure(arguments).output().unwrap()
    }

    pub(crate) fn code(&self, arguments: &[&str]) -> i32 {
        self.output(arguments).status.code().unwrap()
    }

    /// Starts it, to be talked with.
    pub(crate) fn start(&self, arguments: &[&str]) -> Talk {
        Talk::start(self.tenure(arguments))
    }

    /// Starts `tenure run [options] NAME -- sh -c script`.
    pub(crate) fn start_run(&self, options: &[&str], name: &str, script: &str) -> Talk {
        self.start(&[&["run"], options, &[name, "--", "sh", "-c", script]].concat())
    }
}

/// After this long with one process it is killed: what waits for its words fails then, instead of for ever.
const PATIENCE: Duration = Duration::from_secs(300);

/// A process with pipes to it. Killed when dropped.
pub(crate) struct Talk {
    pub(crate) child: Child,
    pub(crate) out: BufReader<ChildStdout>,
    pub(crate) err: BufReader<ChildStderr>,
    _watched: Sender<()>,
}

impl Talk {
    pub(crate) fn start(mut command: Command) -> Self {
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = BufReader::new(child.stderr.take().unwrap());
        let (_watched, over) = channel();
        let pid = Pid::from_child(&child);
        std::thread::spawn(move || {
            if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self {
            child,
            out,
            err,
            _watched,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The next line of its standard output.
    pub(crate) fn line(&mut self) -> String {
        read_line(&mut self.out)
    }

    pub(crate) fn lines_are(&mut self, expected: &[&str]) {
        for line in expected {
            assert_eq!(self.line(), *line);
        }
    }

    /// The next line of its standard error.
    pub(crate) fn err_line(&mut self) -> String {
        read_line(&mut self.err)
    }

    /// The next event of that kind on its standard error.
    pub(crate) fn event(&mut self, kind: &str) -> serde_json::Value {
        next_event(&mut self.err, kind)
    }

    /// The rest of its standard output: comes when the last process that holds it is gone.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        rest
    }

    pub(crate) fn err_rest(&mut self) -> String {
        let mut rest = String::new();
        self.err.read_to_string(&mut rest).unwrap();
        rest
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn code(&mut self) -> i32 {
        self.child
            .wait()
            .unwrap()
            .code()
            .expect("it ends by itself, not by a signal")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end_matches('\n').into()
}

/// Skips to the next event of that kind.
pub(crate) fn next_event(from: &mut impl BufRead, kind: &str) -> serde_json::Value {
    loop {
        let line = read_line(from);
        assert!(
            !line.is_empty(),
            "the output ended before an event \"{kind}\""
        );
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["event"] == kind {
            return event;
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until the process is stopped, as /proc shows it.
pub(crate) fn wait_until_stopped(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_pid());
    let start = Instant::now();
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        assert!(start.elapsed() < PATIENCE, "{pid:?} was never stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The children of a process, as /proc shows them.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let pid = pid.as_raw_pid();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap())
        .collect()
}

/// Runs `true` under a lock of the store with this URL: the exit code, and all that was said.
pub(crate) fn try_url(url: &str, options: &[&str]) -> (i32, String) {
    let arguments = [&["run"], options, &["x", "--", "true"]].concat();
    let output = Store::at(url.into()).output(&arguments);
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.code().unwrap(), said)
}

/// A value of each line.
pub(crate) fn json(bytes: &[u8]) -> Vec<serde_json::Value> {
    text(bytes)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
