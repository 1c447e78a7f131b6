//! The clocks of one process. A test sets the wall clock of the process, and how far its monotonic clock is behind.

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

/// The clocks of one process. The process loads a library made of `clock.c` before libc.
pub struct Clock {
    dir: Directory,
    offset: File,
    /// How long the machine of the process has slept, and since when it sleeps again.
    slept: Mutex<(Duration, Option<Instant>)>,
}

impl Clock {
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

    /// The words before the command of a server that give it this clock.
    pub fn command(&self) -> Vec<String> {
        let library = self.dir.path().join("clock.so");
        let preload = format!("LD_PRELOAD={}", library.display());
        vec!["env".into(), preload, self.variable()]
    }

    /// The words for a program that makes system calls without libc. They set its wall clock and not its monotonic
    /// clock.
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

    /// The environment that gives a process this clock.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let words = self.command();
        let pairs = words.iter().filter_map(|word| word.split_once('='));
        pairs
            .map(|(key, value)| (key.into(), value.into()))
            .collect()
    }

    /// The clock is this many seconds ahead of the machine's from now on, and runs.
    pub fn set(&self, seconds: i64) {
        self.write(0, seconds * 1_000_000_000);
        self.write(1, 0);
    }

    /// The clock stands still until it is set.
    pub fn freeze(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        self.write(1, now.as_nanos().try_into().unwrap());
    }

    /// The machine of the process, which is stopped already, goes to sleep: until it wakes up, `CLOCK_MONOTONIC` stands
    /// still, and `CLOCK_BOOTTIME` does not.
    pub fn fall_asleep(&self) {
        self.slept.lock().unwrap().1 = Some(Instant::now());
    }

    /// The machine wakes up. The caller resumes the process afterwards.
    pub fn wake_up(&self) {
        let mut slept = self.slept.lock().unwrap();
        let since = slept.1.take().unwrap();
        // The process may have stopped a little after the signal, and the monotonic clock must not go back.
        slept.0 += since.elapsed().saturating_sub(Duration::from_millis(5));
        self.write(2, slept.0.as_nanos().try_into().unwrap());
    }

    fn write(&self, place: u64, number: i64) {
        self.offset
            .write_all_at(&number.to_ne_bytes(), place * 8)
            .unwrap();
    }
}

/// Returns `true`, which ends the test, where a process may not trace another one; prints that as
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
