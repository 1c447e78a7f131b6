//! The clocks of one process, which the test moves: its wall clock, and how far its monotonic clock is behind.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::compiler::preload;
use super::process::Directory;
use super::skip::{print_skip, skip_unless_installed};
use super::tracer;

/// Made by the compiler from `clock.c`, put before libc in that process.
pub struct Clock {
    dir: Directory,
    offset: File,
    /// How long its machine has slept until now, and since when it does again.
    slept: Mutex<(Duration, Option<Instant>)>,
}

impl Clock {
    pub fn skip_unless_possible() -> bool {
        skip_unless_installed(&["redis-server", "cc"])
    }

    pub fn make() -> Self {
        let dir = Directory::new("clock");
        preload(dir.path(), "clock", include_str!("clock.c"));
        let offset = File::create(dir.path().join("offset")).unwrap();
        let slept = Mutex::default();
        let clock = Self { dir, offset, slept };
        clock.set(0);
        clock.write(2, 0);
        clock
    }

    /// What stands before the command of a server to give it this clock.
    pub fn command(&self) -> Vec<String> {
        let library = self.dir.path().join("clock.so");
        let preload = format!("LD_PRELOAD={}", library.display());
        vec!["env".into(), preload, self.variable()]
    }

    /// The same for one that asks the kernel without libc: its wall clock, not its monotonic one.
    pub fn traced_command(&self) -> Vec<String> {
        vec![
            "env".into(),
            self.variable(),
            tracer::build(self.dir.path()),
        ]
    }

    fn variable(&self) -> String {
        let offset = self.dir.path().join("offset");
        format!("TENURE_TEST_CLOCK={}", offset.display())
    }

    /// The same for a process that is started with an environment.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let words = self.command();
        let pairs = words.iter().filter_map(|word| word.split_once('='));
        pairs
            .map(|(key, value)| (key.into(), value.into()))
            .collect()
    }

    /// Now it shows so many seconds more than the machine's, and goes on.
    pub fn set(&self, seconds: i64) {
        self.write(0, seconds * 1_000_000_000);
        self.write(1, 0);
    }

    /// It stands still until it is set.
    pub fn freeze(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        self.write(1, now.as_nanos().try_into().unwrap());
    }

    /// The machine of the process, which stands still already, goes to sleep: until it wakes up, `CLOCK_MONOTONIC` does
    /// not go on, and `CLOCK_BOOTTIME` does.
    pub fn fall_asleep(&self) {
        self.slept.lock().unwrap().1 = Some(Instant::now());
    }

    /// To be called before the process goes on.
    pub fn wake_up(&self) {
        let mut slept = self.slept.lock().unwrap();
        let since = slept.1.take().unwrap();
        // It may have stopped a little later than it was told to, and that clock never goes back.
        slept.0 += since.elapsed().saturating_sub(Duration::from_millis(5));
        self.write(2, slept.0.as_nanos().try_into().unwrap());
    }

    fn write(&self, place: u64, number: i64) {
        self.offset
            .write_all_at(&number.to_ne_bytes(), place * 8)
            .unwrap();
    }
}

/// Returns `true`, which ends the test, where a process may not trace another one. It prints that as
/// [`skip_unless_installed`] does.
pub fn skip_unless_traceable() -> bool {
    if skip_unless_installed(&["cc"]) {
        return true;
    }
    let clock = Clock::make();
    clock.set(-1_000_000_000);
    let words = clock.traced_command();
    let mut date = Command::new(&words[0]);
    let date = date.args(&words[1..]).args(["date", "+%Y"]).output();
    let date = date.unwrap();
    if !date.status.success() {
        let why = String::from_utf8_lossy(&date.stderr);
        print_skip(&format!("no process may be traced here ({})", why.trim()));
        return true;
    }
    // Without this check, a test would pass although the program does not see the clock of the test.
    let year: u64 = String::from_utf8_lossy(&date.stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(year < 2020, "thirty years back it is {year}");
    false
}
