//! The clock of deadlines, and the wall clock.

use std::sync::Arc;
use std::time::Duration;

use super::virtual_clock::{VirtualClock, VirtualSleep};
use crate::time::Time;

/// The clock that deadlines are measured on.
///
/// The real clock does not jump, and it goes on while the machine is suspended, as the clock of the store does:
/// `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` on macOS, `QueryPerformanceCounter` on Windows.
/// (Linux's `CLOCK_MONOTONIC`, and macOS's `CLOCK_UPTIME_RAW`, which [`std::time::Instant`] reads there, stop.)
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<VirtualClock>>);

impl Clock {
    /// The real clock.
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock that stands still until its test moves it.
    pub fn virtual_clock() -> (Self, Arc<VirtualClock>) {
        let clock = Arc::new(VirtualClock::default());
        (Self(Some(clock.clone())), clock)
    }

    /// Now.
    pub fn now(&self) -> Time {
        match &self.0 {
            None => boot_time(),
            Some(clock) => clock.now(),
        }
    }

    /// Resolves at `at` or soon after, never before. Cancel safe.
    pub async fn sleep_until(&self, at: Time) {
        match &self.0 {
            Some(clock) => VirtualSleep::new(clock.clone(), at).await,
            None => loop {
                let left = at.since(boot_time());
                if left.is_zero() {
                    return;
                }
                // The runtime's timers stand still while the machine is suspended; a look at the
                // boot clock at least this often bounds how late we are after a wake-up.
                tokio::time::sleep(left.min(SUSPEND_CHECK)).await;
            },
        }
    }

    /// Whether time passes by itself.
    pub fn is_real(&self) -> bool {
        self.0.is_none()
    }

    /// The next number of the seed that a test gave its clock; `None`: chance is the system's.
    pub fn seeded(&self) -> Option<u64> {
        self.0.as_ref().and_then(|clock| clock.next_random())
    }

    /// A random number, for jitter. Not for secrets: a test can know it beforehand.
    pub fn random(&self) -> u32 {
        self.seeded()
            .map_or_else(rand::random, |number| (number >> 32) as u32)
    }
}

/// How late a sleeper may be after the machine was suspended.
/// (`Guard::is_held` and `Guard::remaining` read the clock themselves and are never late.)
const SUSPEND_CHECK: Duration = Duration::from_millis(250);

#[cfg(unix)]
fn boot_time() -> Time {
    use rustix::time::ClockId;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const ID: ClockId = ClockId::Boottime;
    // clock_gettime(3): it "will continue to increment while the system is asleep".
    #[cfg(target_vendor = "apple")]
    const ID: ClockId = ClockId::Monotonic;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    compile_error!(
        "tenure needs a clock that goes on while the machine is suspended, and knows one on Linux, macOS and Windows only"
    );
    let now = rustix::time::clock_gettime(ID);
    // The clock starts at boot, so neither field is negative.
    Time::from_nanos(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
}

/// `Instant` is `QueryPerformanceCounter` here, which counts "the time when the machine was in a sleep state such as
/// standby, hibernate, or connected standby" (Microsoft, "Acquiring high-resolution time stamps").
/// Counted from the first call, so two processes cannot compare their times.
#[cfg(windows)]
fn boot_time() -> Time {
    use std::sync::OnceLock;
    use std::time::Instant;

    static FIRST_CALL: OnceLock<Instant> = OnceLock::new();
    // One hour, so that subtracting a lease never meets the epoch.
    Time::from_nanos(3_600_000_000_000).after(FIRST_CALL.get_or_init(Instant::now).elapsed())
}

/// Blocks this thread for `pause`: for a moment too short to be worth a timer, or on a thread of one's own.
pub fn nap(pause: Duration) {
    std::thread::sleep(pause);
}

/// The wall clock, for what people read and for what must outlive a restart of the machine. It may jump.
pub fn wall_now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// The wall clock in µs since 1970; 0 before that.
pub fn wall_micros() -> u64 {
    let since = wall_now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
