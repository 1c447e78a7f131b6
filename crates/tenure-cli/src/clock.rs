//! The clock for limits: it does not jump, and it runs while the machine is suspended.

use std::time::Duration;

/// An instant that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// Nanoseconds since boot, the same in every process of this machine.
pub(crate) fn now() -> u64 {
    tenure_core::rt::Clock::system().now().as_nanos()
}

/// The instant `later` from `at`; [`NEVER`] when that is beyond the clock.
pub(crate) fn after(at: u64, later: Duration) -> u64 {
    u64::try_from(later.as_nanos()).map_or(NEVER, |later| at.saturating_add(later))
}

/// The instant `earlier` before `at`; [`NEVER`] stays [`NEVER`].
pub(crate) fn before(at: u64, earlier: Duration) -> u64 {
    let earlier = u64::try_from(earlier.as_nanos()).unwrap_or(NEVER);
    if at == NEVER {
        NEVER
    } else {
        at.saturating_sub(earlier)
    }
}

/// Time until `at`; zero for an instant in the past.
pub(crate) fn until(at: u64) -> Duration {
    Duration::from_nanos(at.saturating_sub(now()))
}
