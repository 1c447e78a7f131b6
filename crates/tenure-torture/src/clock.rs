//! The one clock of a run: all processes of one host read the same, so their events can be put in order.

use std::time::Duration;

/// Nanoseconds on the clock that the library measures deadlines on.
pub fn now() -> u64 {
    tenure_core::rt::Clock::system().now().as_nanos()
}

/// A duration on this clock; the greatest number for a duration that is too long for the clock.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
