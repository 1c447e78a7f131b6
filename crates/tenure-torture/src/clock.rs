//! The one clock of a run: all processes of one host read the same, so their events can be put in order.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on a clock that does not jump; on Linux the same that the library measures deadlines on.
pub fn now() -> u64 {
    #[cfg(target_os = "linux")]
    const ID: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const ID: ClockId = ClockId::Monotonic;
    let now = clock_gettime(ID);
    // The clock starts at boot, so neither field is negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A duration on this clock; too long a one is for ever.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
