//! A point in time that the kernel can compute with.

use std::time::Duration;

/// A point on a clock that neither jumps nor stops while the machine is suspended:
/// nanoseconds since an epoch that only the clock knows (for the real clock, the boot of the machine).
///
/// Two values can be compared only when they come from the same clock.
/// Arithmetic saturates: 2^64 ns are 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's epoch.
    pub const ZERO: Self = Self(0);
    /// Later than every other point: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The point `later` after this one; [`Time::MAX`] stays what it is.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(nanos(later)))
    }

    /// The point `earlier` before this one, at most back to the epoch; [`Time::MAX`] stays what it is.
    #[must_use]
    pub fn before(self, earlier: Duration) -> Self {
        if self == Self::MAX {
            self
        } else {
            Self(self.0.saturating_sub(nanos(earlier)))
        }
    }

    /// Time passed since `earlier`; zero when that point is still to come.
    /// [`Duration::MAX`] when `self` is [`Time::MAX`].
    pub fn since(self, earlier: Self) -> Duration {
        if self == Self::MAX {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
