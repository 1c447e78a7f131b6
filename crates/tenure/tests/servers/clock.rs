//! A wall clock for one server that the test moves. Its monotonic clock stays true.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::process::Directory;

/// Made by the compiler from `clock.c`, put before libc in the server's process.
pub(crate) struct Clock {
    dir: Directory,
    offset: File,
}

impl Clock {
    pub(crate) fn is_impossible() -> bool {
        super::is_missing(&["redis-server", "cc"])
    }

    pub(crate) fn make() -> Self {
        let dir = Directory::new("clock");
        let source = dir.path().join("clock.c");
        std::fs::write(&source, include_str!("clock.c")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        let output = cc
            .arg(dir.path().join("clock.so"))
            .arg(source)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let offset = File::create(dir.path().join("offset")).unwrap();
        let clock = Self { dir, offset };
        clock.set(0);
        clock
    }

    /// What stands before the command of a server to give it this clock.
    pub(crate) fn command(&self) -> Vec<String> {
        let file = |name| self.dir.path().join(name).display().to_string();
        vec![
            "env".into(),
            format!("LD_PRELOAD={}", file("clock.so")),
            format!("TENURE_TEST_CLOCK={}", file("offset")),
        ]
    }

    /// Now it shows so many seconds more than the machine's, and goes on.
    pub(crate) fn set(&self, seconds: i64) {
        self.write(0, seconds * 1_000_000_000);
        self.write(1, 0);
    }

    /// It stands still until it is set.
    pub(crate) fn freeze(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        self.write(1, now.as_nanos().try_into().unwrap());
    }

    fn write(&self, place: u64, number: i64) {
        self.offset
            .write_all_at(&number.to_ne_bytes(), place * 8)
            .unwrap();
    }
}
