//! The clock of deadlines, and the wall clock.

use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::virtual_clock::{VirtualClock, VirtualSleep};
use crate::time::Time;

/// The clock that deadlines are measured on.
///
/// The real clock does not jump, and it goes on while the machine is suspended, as the clock of the store does:
/// `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` on macOS, `QueryPerformanceCounter` on Windows.
/// (Linux's `CLOCK_MONOTONIC`, and macOS's `CLOCK_UPTIME_RAW`, which [`std::time::Instant`] reads there, stop.)
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    /// The clock of tokio's timers, which a test can pause.
    Tokio,
    Virtual(Arc<VirtualClock>),
}

impl Clock {
    /// The real clock.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// The clock of tokio's timers: in a test that pauses it (`start_paused`), time passes only while each task waits.
    pub const fn tokio() -> Self {
        Self(Source::Tokio)
    }

    /// A clock that stands still until its test moves it.
    pub fn virtual_clock() -> (Self, Arc<VirtualClock>) {
        let clock = Arc::new(VirtualClock::default());
        (Self(Source::Virtual(clock.clone())), clock)
    }

    /// Now.
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System => boot_time(),
            Source::Tokio => tokio_time(),
            Source::Virtual(clock) => clock.now(),
        }
    }

    /// Resolves at `at` or soon after, never before. Cancel safe.
    pub async fn sleep_until(&self, at: Time) {
        self.sleep(at, SUSPEND_CHECK).await;
    }

    /// As [`Clock::sleep_until`], for the timers of one waiter, of which there may be very many: less work, and up to 2 s
    /// late after the machine was suspended.
    pub async fn wait_until(&self, at: Time) {
        self.sleep(at, SUSPEND_CHECK_OF_WAITERS).await;
    }

    async fn sleep(&self, at: Time, suspend_check: Duration) {
        match &self.0 {
            Source::Virtual(clock) => VirtualSleep::new(clock.clone(), at).await,
            Source::Tokio if at == Time::MAX => pending().await,
            Source::Tokio => {
                tokio::time::sleep_until(Instant::now() + at.since(self.now())).await;
            }
            Source::System => loop {
                let left = at.since(boot_time());
                if left.is_zero() {
                    return;
                }
                // The runtime's timers stand still while the machine is suspended; a look at the
                // boot clock at least this often bounds how late we are after a wake-up.
                tokio::time::sleep(left.min(suspend_check)).await;
            },
        }
    }

    /// Whether no test can stop or move this clock.
    pub fn is_real(&self) -> bool {
        matches!(self.0, Source::System)
    }

    /// The next number of the seed that a test gave its clock; `None`: chance is the system's.
    pub fn seeded(&self) -> Option<u64> {
        match &self.0 {
            Source::Virtual(clock) => clock.next_random(),
            Source::System | Source::Tokio => None,
        }
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
const SUSPEND_CHECK_OF_WAITERS: Duration = Duration::from_secs(2);

/// Now on the clock of tokio's timers. Counted from the first call, which one runtime may make before the clock of
/// another one was paused.
fn tokio_time() -> Time {
    static FIRST_CALL: OnceLock<std::time::Instant> = OnceLock::new();
    // A year, so that subtracting never meets the epoch.
    const START: Time = Time::from_nanos(365 * 24 * 3_600_000_000_000);
    let first = Instant::from_std(*FIRST_CALL.get_or_init(std::time::Instant::now));
    let now = Instant::now();
    START
        .before(first.saturating_duration_since(now))
        .after(now.saturating_duration_since(first))
}

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
    static FIRST_CALL: OnceLock<std::time::Instant> = OnceLock::new();
    // One hour, so that subtracting a lease never meets the epoch.
    Time::from_nanos(3_600_000_000_000)
        .after(FIRST_CALL.get_or_init(std::time::Instant::now).elapsed())
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// How often a sleep is polled until it ends.
    async fn polls(sleep: impl Future<Output = ()>) -> usize {
        let (mut sleep, mut polls) = (pin!(sleep), 0);
        std::future::poll_fn(|cx| {
            polls += 1;
            sleep.as_mut().poll(cx)
        })
        .await;
        polls
    }

    #[tokio::test]
    async fn a_waiter_looks_at_the_clock_less_often_than_a_holder() {
        let at = Clock::system().now().after(Duration::from_secs(1));
        // In tasks of their own, so that one timer does not poll the other.
        let holder = tokio::spawn(polls(async move { Clock::system().sleep_until(at).await }));
        let waiter = tokio::spawn(polls(async move { Clock::system().wait_until(at).await }));
        let (holder, waiter) = (holder.await.unwrap(), waiter.await.unwrap());
        // Timers are rounded to ms, so the last one may end too early once.
        assert!(holder >= 2 && waiter <= 3, "{holder} and {waiter} polls");
    }

    #[test]
    fn a_paused_clock_of_tokio_that_is_older_than_the_first_call_goes_on() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(async {
            let clock = Clock::tokio();
            let start = clock.now();
            assert_eq!(
                poll_once(clock.sleep_until(start.after(Duration::from_millis(5)))),
                Poll::Pending
            );
            tokio::time::advance(Duration::from_millis(5)).await;
            assert_eq!(clock.now().since(start), Duration::from_millis(5));
        });
    }

    fn poll_once(sleep: impl Future<Output = ()>) -> Poll<()> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        pin!(sleep).poll(&mut cx)
    }
}
