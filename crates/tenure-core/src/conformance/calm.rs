//! Waits for a moment in which this machine has time.
//!
//! Tests about leases fail where nothing is wrong when the machine is away for longer than the lease: its host runs
//! something else, or too many tests run at once. They cannot help that once they have begun, so they begin in a moment
//! of calm. Nothing is repeated, and nothing that was seen is passed over.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As long as one look at the counters takes: they count hundredths of a second.
const LOOK: Duration = Duration::from_millis(100);

/// For so long after a look nobody looks again.
const FRESH: Duration = Duration::from_millis(200);

/// What all tests of a process wait together. Then there will be no calm, and they begin as they are.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many may run or want to, for each processor, besides the one who asks.
const RUNNING: u64 = 2;

/// How much of the processors' time the host may take for others, in percent.
const STOLEN: u64 = 30;

/// Blocks this thread until the machine has time, or it has waited enough. At once where the system does not tell.
pub(crate) fn until_calm() {
    static LAST: Mutex<(Option<Instant>, Duration)> = Mutex::new((None, Duration::ZERO));
    // Held while one waits: those who begin together begin one after the other.
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let (looked, waited) = *last;
    if looked.is_some_and(|looked| looked.elapsed() < FRESH) {
        return;
    }
    let start = Instant::now();
    while waited + start.elapsed() < PATIENCE {
        let Some(before) = Times::read() else {
            break;
        };
        std::thread::sleep(LOOK);
        let is_free = Times::read().is_none_or(|after| after.stolen_since(&before) <= STOLEN);
        if is_free && !is_crowded() {
            break;
        }
    }
    let beyond_a_look = start.elapsed().saturating_sub(LOOK);
    *last = (Some(Instant::now()), waited + beyond_a_look);
}

/// What the processors did since the start of the system, in hundredths of a second.
struct Times {
    all: u64,
    stolen: u64,
}

impl Times {
    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the guests' are in the first two.
        let times: Vec<u64> = numbers
            .split_whitespace()
            .take(8)
            .map_while(|number| number.parse().ok())
            .collect();
        let stolen = *times.get(7)?;
        let all = times.iter().sum();
        Some(Self { all, stolen })
    }

    /// In percent.
    fn stolen_since(&self, before: &Self) -> u64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) * 100 / all
    }
}

fn is_crowded() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // "0.54 1.54 2.01 1/79 21698": one runs or wants to.
    let running = load
        .split_whitespace()
        .nth(3)
        .and_then(|it| it.split_once('/')?.0.parse().ok());
    running.is_some_and(|running: u64| running > 1 + RUNNING * processors)
}
