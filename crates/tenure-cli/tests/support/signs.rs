//! A command whose tree does everything to survive, and what it leaves to be looked at.

use std::path::Path;

use super::{Store, Talk};

/// Far above what a server and two busy cores need, short enough to wait for its end.
pub(crate) const TTL: &str = "4s";

/// The same in nanoseconds.
pub(crate) const TTL_NANOS: u128 = 4_000_000_000;

/// Nanoseconds of the machine's wall clock, as `date` prints them.
pub(crate) fn now() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_nanos()
}

/// Where a tree leaves its signs of life.
pub(crate) struct Signs<'a>(pub(crate) &'a Store);

impl Signs<'_> {
    /// A shell whose tree ignores TERM and has children that left its group, its session and its family. All of
    /// them hold descriptor 9, and by it the kernel's lock on a file; three say `up` and then write the time to
    /// another, again and again. A fifth says `asked` when it gets a TERM, and goes on.
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

    /// What the next holder runs: prints the time first thing, and then whether anything of the tree is left.
    pub(crate) fn look(&self) -> String {
        format!(
            "date +%s%N; flock -n '{}' echo alone || echo overlap",
            self.file("alive")
        )
    }

    /// When the tree wrote the time last.
    pub(crate) fn last(&self) -> u128 {
        let beats = std::fs::read_to_string(Path::new(&self.file("beats"))).unwrap();
        let times = beats.lines().filter_map(|line| line.parse().ok());
        times.max().expect("it lived")
    }

    /// Starts the tree under the lock `x`.
    pub(crate) fn start_first(&self, options: &[&str]) -> Talk {
        let options = [&["--json", "--ttl", TTL], options].concat();
        let mut first = self.0.start_run(&options, "x", &self.script());
        first.lines_are(&["up"; 4]);
        first
    }

    /// Starts the next holder, and returns when it waits.
    pub(crate) fn start_second(&self, until_waiting: impl FnOnce()) -> Talk {
        let options = ["--json", "--ttl", TTL];
        let second = self.0.start_run(&options, "x", &self.look());
        until_waiting();
        second
    }

    /// The next holder comes, and is alone.
    pub(crate) fn assert_alone(&self, second: &mut Talk) {
        let taken_over: u128 = second.line().parse().unwrap();
        let found = second.line();
        let last = self.last();
        assert!(
            found == "alone" && last < taken_over,
            "{found}: taken over at {taken_over}, last sign of life at {last}"
        );
        assert_eq!(second.code(), 0);
    }
}
