//! Waiting for a condition of which no event tells.

use std::time::{Duration, Instant};

/// The time limit for conditions that hold soon on an idle machine. A test fails when the time is over.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(45);

/// Blocks this thread until the condition holds, which it checks every few milliseconds.
///
/// # Panics
/// When the condition does not hold within [`TEST_TIMEOUT`].
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_TIMEOUT, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
