//! Waiting for something that no event announces.

use std::time::{Duration, Instant};

/// The time limit for everything that happens soon on an idle machine. A test fails when it is over.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

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
