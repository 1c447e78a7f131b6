//! A command whose processes do everything to survive, and write heartbeats until they are killed.

use std::path::Path;

use super::{PipedProcess, Store};

/// Far longer than a server on two busy cores needs, and short enough to wait for its end.
pub(crate) const TTL: &str = "4s";

/// [`TTL`] in nanoseconds.
pub(crate) const TTL_NANOS: u128 = 4_000_000_000;

/// Nanoseconds of the machine's wall clock, as `date` prints them.
pub(crate) fn now() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_nanos()
}

/// A tree of processes, which writes its files into the directory of this store.
pub(crate) struct StubbornTree<'a>(pub(crate) &'a Store);

impl StubbornTree<'_> {
    /// A shell whose tree ignores SIGTERM, with children that left its process group, its session and its tree. All
    /// processes hold descriptor 9, and with it the kernel's lock on a file. Three print `up`, and then write the time to
    /// another file again and again. A fifth process prints `asked` when it gets a SIGTERM, and goes on.
    fn script(&self) -> String {
        let beat = format!(
            r#"echo up; while :; do date +%s%N >>"{}"; sleep 0.01; done"#,
            self.file("beats")
        );
        format!(
            r#"
            exec 9>'{alive}' 2>/dev/null; flock 9
            (trap 'echo asked' TERM; trap '' HUP; echo up; while :; do sleep 0.01; done) &
            trap '' TERM HUP INT
            setsid sh -c 'trap "" TERM HUP; {beat}' &
            (setsid sh -c 'trap "" TERM HUP; (trap "" TERM HUP; {beat}) & sleep 0.001' &)
            sh -c '{beat}' &
            while :; do sleep 1000; done
            "#,
            alive = self.file("alive"),
        )
    }

    fn file(&self, name: &str) -> String {
        self.0.path(name).display().to_string()
    }

    /// The command of the next holder: it prints the time, and then whether a process of the tree is left. A process that
    /// was killed does nothing more, but on a busy machine it takes a while until it has closed its files.
    pub(crate) fn overlap_check(&self) -> String {
        format!(
            "date +%s%N; flock -w 3 '{}' echo alone || echo overlap",
            self.file("alive")
        )
    }

    /// The time of the last heartbeat.
    pub(crate) fn last_heartbeat(&self) -> u128 {
        let beats = std::fs::read_to_string(Path::new(&self.file("beats"))).unwrap();
        let times = beats.lines().filter_map(|line| line.parse().ok());
        times.max().expect("the tree wrote a heartbeat")
    }

    /// Starts the tree under the lock `x`.
    pub(crate) fn start_first(&self, options: &[&str]) -> PipedProcess {
        let options = [&["--json", "--ttl", TTL], options].concat();
        let mut first = self.0.start_run(&options, "x", &self.script());
        first.lines_are(&["up"; 4]);
        first
    }

    /// Starts the next holder, and returns when that one waits.
    pub(crate) fn start_second(&self, until_waiting: impl FnOnce()) -> PipedProcess {
        let options = ["--json", "--ttl", TTL];
        let second = self.0.start_run(&options, "x", &self.overlap_check());
        until_waiting();
        second
    }

    /// Waits until the next holder has the lock, and checks that no process of the tree was left then.
    pub(crate) fn assert_alone(&self, second: &mut PipedProcess) {
        let taken_over: u128 = second.line().parse().unwrap();
        let found = second.line();
        let last = self.last_heartbeat();
        assert!(
            found == "alone" && last < taken_over,
            "{found}: taken over at {taken_over}, last heartbeat at {last}"
        );
        assert_eq!(second.code(), 0);
    }
}
