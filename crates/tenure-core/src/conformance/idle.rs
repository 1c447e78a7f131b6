//! Waits until this machine is idle enough for a test about leases.
//!
//! A test about leases fails without a fault in the code when its process does not run for longer than a lease: the
//! host runs something else, or too many tests run at once. A test cannot prevent that after it has begun, so it
//! begins when the machine is idle. No test is repeated, and no failure is ignored.

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two readings of the processors' counters, which count hundredths of a second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The result of a check is used again for this long.
const CHECK_VALIDITY: Duration = Duration::from_millis(200);

/// How long all tests of a process may wait together. After that the tests begin on a busy machine.
const TOTAL_WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The time that the tests of a process waited is printed when it reaches this, and again whenever it has doubled.
const FIRST_PRINTED_WAIT: Duration = Duration::from_secs(5);

/// How many threads may run or be ready to run for each processor, this one not counted.
const MAX_RUNNING_PER_PROCESSOR: u64 = 2;

/// How much of the processors' time the host may take for others, in percent.
const MAX_STOLEN_PERCENT: u64 = 30;

/// Blocks this thread until the machine is idle, or until the time limit. Returns at once where the system has no
/// such counters.
pub(crate) fn wait_for_idle_machine() {
    static LAST: Mutex<(Option<Instant>, Duration)> = Mutex::new((None, Duration::ZERO));
    // Held while this test waits, so that tests that begin together begin one after the other.
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let (checked, waited) = *last;
    if checked.is_some_and(|checked| checked.elapsed() < CHECK_VALIDITY) {
        return;
    }
    let start = Instant::now();
    while waited + start.elapsed() < TOTAL_WAIT_LIMIT {
        let Some(before) = ProcessorTimes::read() else {
            break;
        };
        std::thread::sleep(SAMPLE_INTERVAL);
        let has_time = ProcessorTimes::read()
            .is_none_or(|after| after.stolen_since(&before) <= MAX_STOLEN_PERCENT);
        if has_time && !is_crowded() {
            break;
        }
    }
    let beyond_a_sample = start.elapsed().saturating_sub(SAMPLE_INTERVAL);
    let total = waited + beyond_a_sample;
    if is_printed(waited, total) {
        print_wait(total);
    }
    *last = (Some(Instant::now()), total);
}

/// Whether a limit lies between the two sums: few lines show how the time grew, and nothing runs at the end of a
/// process that could print its total.
fn is_printed(before: Duration, total: Duration) -> bool {
    let mut limit = FIRST_PRINTED_WAIT;
    while limit <= before {
        limit *= 2;
    }
    total >= limit
}

/// Prints past the capture of output, as the `SKIP` lines of tests: a test that passes shows the time, too.
fn print_wait(total: Duration) {
    let seconds = total.as_secs();
    let line = format!("\nWAIT the tests of this process waited {seconds} s for an idle machine\n");
    // A closed standard error has no reader, so an error does not matter.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// How the processors spent their time since the start of the system, in hundredths of a second.
struct ProcessorTimes {
    all: u64,
    stolen: u64,
}

impl ProcessorTimes {
    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the guests' times are part of the first two.
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

/// Whether more threads want to run than the processors can serve soon.
fn is_crowded() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // "0.54 1.54 2.01 1/79 21698": one thread runs or is ready to run.
    let running = load
        .split_whitespace()
        .nth(3)
        .and_then(|it| it.split_once('/')?.0.parse().ok());
    running.is_some_and(|running: u64| running > 1 + MAX_RUNNING_PER_PROCESSOR * processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_printed_at_five_seconds_and_whenever_it_has_doubled() {
        let mut waited = Duration::ZERO;
        let mut printed = Vec::new();
        for _ in 0..60 {
            let total = waited + Duration::from_secs(1);
            if is_printed(waited, total) {
                printed.push(total.as_secs());
            }
            waited = total;
        }
        assert_eq!(printed, [5, 10, 20, 40]);
        assert!(is_printed(Duration::ZERO, Duration::from_secs(120)));
    }
}
