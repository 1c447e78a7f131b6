//! What the tests of the command line share: a store for each test, and processes with pipes to them.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod receipts;
pub(crate) mod scenarios;
pub(crate) mod stubborn_tree;
pub(crate) mod terminal;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure_testkit::process::is_stopped;

/// A shell that ignores SIGTERM, with children that left its process group, its session and its tree.
/// All four processes hold standard output open; the three children print `up`.
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
    /// A store in a lock directory.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file:{}", dir.path().join("locks").display());
        Self { dir, url }
    }

    /// A store in a database file.
    pub(crate) fn in_sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("locks.db").display());
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

    /// Runs `tenure` to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.tenure(arguments).output().unwrap()
    }

    pub(crate) fn code(&self, arguments: &[&str]) -> i32 {
        self.output(arguments).status.code().unwrap()
    }

    /// The exit code of `tenure run -n NAME -- true`: 0 for a lock that is free, 75 for one that is held.
    pub(crate) fn try_run(&self, name: &str) -> i32 {
        self.code(&["run", "-n", name, "--", "true"])
    }

    /// Starts `tenure` with pipes to it.
    pub(crate) fn start(&self, arguments: &[&str]) -> PipedProcess {
        PipedProcess::start(self.tenure(arguments))
    }

    /// Starts `tenure hold` with these arguments, and returns when it holds.
    pub(crate) fn start_hold(&self, arguments: &[&str]) -> PipedProcess {
        let mut holder = self.start(&[&["hold"], arguments].concat());
        holder.line();
        holder
    }

    /// Starts `tenure run [options] NAME -- sh -c script`.
    pub(crate) fn start_run(&self, options: &[&str], name: &str, script: &str) -> PipedProcess {
        self.start(&[&["run"], options, &[name, "--", "sh", "-c", script]].concat())
    }
}

/// A process is killed after this time, so that a test that waits for its output fails and does not hang.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(300);

/// A process with pipes to it, which is killed when this is dropped.
pub(crate) struct PipedProcess {
    pub(crate) child: Child,
    pub(crate) out: BufReader<ChildStdout>,
    pub(crate) err: BufReader<ChildStderr>,
    /// Ends the thread that kills the process after [`PROCESS_TIMEOUT`].
    _timeout: Sender<()>,
}

impl PipedProcess {
    pub(crate) fn start(mut command: Command) -> Self {
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = BufReader::new(child.stderr.take().unwrap());
        let (_timeout, dropped) = channel();
        let pid = Pid::from_child(&child);
        std::thread::spawn(move || {
            if dropped.recv_timeout(PROCESS_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self {
            child,
            out,
            err,
            _timeout,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The next line of standard output.
    pub(crate) fn line(&mut self) -> String {
        read_line(&mut self.out)
    }

    pub(crate) fn lines_are(&mut self, expected: &[&str]) {
        for line in expected {
            assert_eq!(self.line(), *line);
        }
    }

    /// The next line of standard error.
    pub(crate) fn err_line(&mut self) -> String {
        read_line(&mut self.err)
    }

    /// The next event of that kind on standard error.
    pub(crate) fn event(&mut self, kind: &str) -> serde_json::Value {
        next_event(&mut self.err, kind)
    }

    /// The rest of standard output. Returns when all processes that hold it open are gone.
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

    pub(crate) fn write_line(&mut self, line: &str) {
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
            .expect("the process exits, and no signal ends it")
    }
}

impl Drop for PipedProcess {
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

/// The next event of that kind. Other events are skipped.
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

/// Waits until all threads of the process are stopped.
pub(crate) fn wait_until_stopped(pid: Pid) {
    let start = Instant::now();
    while !is_stopped(pid.as_raw_pid().unsigned_abs()) {
        assert!(
            start.elapsed() < PROCESS_TIMEOUT,
            "{pid:?} was never stopped"
        );
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

/// Runs `true` under a lock of the store with this URL. Returns the exit code and the output.
pub(crate) fn try_url(url: &str, options: &[&str]) -> (i32, String) {
    let arguments = [&["run"], options, &["x", "--", "true"]].concat();
    let output = Store::at(url.into()).output(&arguments);
    let message = text(&output.stdout) + &text(&output.stderr);
    (output.status.code().unwrap(), message)
}

/// The values of lines of JSON.
pub(crate) fn json(bytes: &[u8]) -> Vec<serde_json::Value> {
    text(bytes)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
