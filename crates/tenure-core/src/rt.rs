//! The leaf that touches the runtime and the clock. Nothing else names either.

mod background;
mod wakeup;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::time::Time;

pub use self::background::BackgroundTasks;
pub use self::wakeup::NextWakeup;

/// A lock that a panic elsewhere does not poison: what it guards is valid between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock that deadlines are measured on.
///
/// The real one does not jump, and it goes on while the machine is suspended, as the store's clock does:
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
            Some(clock) => {
                VirtualSleep {
                    clock: clock.clone(),
                    at,
                    id: 0,
                }
                .await
            }
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
        self.0.as_ref().and_then(|clock| clock.chance())
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

/// The name of this machine, for people who look at a lock.
pub fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    // Windows sets this variable for every process.
    #[cfg(windows)]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    name
}

/// A clock for tests: it stands still until [`advance`](VirtualClock::advance) moves it.
#[derive(Default)]
pub struct VirtualClock {
    nanos: AtomicU64,
    sleepers: Mutex<Sleepers>,
    /// Where the numbers that replace chance have come to.
    chance: Mutex<Option<u64>>,
}

#[derive(Default)]
struct Sleepers {
    next_id: u64,
    wakers: BTreeMap<(Time, u64), Waker>,
}

impl VirtualClock {
    /// Now. Starts at one hour, so that subtracting never meets the epoch.
    pub fn now(&self) -> Time {
        Time::from_nanos(3_600_000_000_000 + self.nanos.load(Ordering::SeqCst))
    }

    /// Moves the clock forward and wakes every sleeper whose time has come.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX / 2);
        self.nanos.fetch_add(by, Ordering::SeqCst);
        let now = self.now();
        let woken = {
            let mut sleepers = lock(&self.sleepers);
            let later = sleepers
                .wakers
                .split_off(&(now.after(Duration::from_nanos(1)), 0));
            std::mem::replace(&mut sleepers.wakers, later)
        };
        woken.into_values().for_each(Waker::wake);
    }

    /// The instant of the earliest sleeper, if anything sleeps.
    pub fn next_wake(&self) -> Option<Time> {
        lock(&self.sleepers).wakers.keys().next().map(|(at, _)| *at)
    }

    /// From now on, what clients on this clock leave to chance (owner ids, jitter) follows from `seed`:
    /// time and chance are what has to be fixed for a test to take the same course twice.
    pub fn seed(&self, seed: u64) {
        *lock(&self.chance) = Some(seed);
    }

    /// SplitMix64, as in the torture harness: a seed must mean the same in every version.
    fn chance(&self) -> Option<u64> {
        let mut chance = lock(&self.chance);
        let state = chance.as_mut()?;
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some(mixed ^ (mixed >> 31))
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualClock").field(&self.now()).finish()
    }
}

struct VirtualSleep {
    clock: Arc<VirtualClock>,
    at: Time,
    id: u64,
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut sleepers = lock(&this.clock.sleepers);
        // Looked at under the lock: `advance` moves the clock before it takes the lock.
        if this.clock.now() >= this.at {
            sleepers.wakers.remove(&(this.at, this.id));
            return Poll::Ready(());
        }
        if this.id == 0 {
            sleepers.next_id += 1;
            this.id = sleepers.next_id;
        }
        sleepers
            .wakers
            .insert((this.at, this.id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        lock(&self.clock.sleepers)
            .wakers
            .remove(&(self.at, self.id));
    }
}

/// A flag that is raised once and can be awaited by any number of tasks.
#[derive(Default)]
pub struct Flag {
    raised: AtomicBool,
    notify: tokio::sync::Notify,
}

impl Flag {
    /// A flag that is down.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises it and wakes everybody who waits for it.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Raises it as [`raise`](Flag::raise) does. Returns whether it was not up before.
    pub fn raise_once(&self) -> bool {
        let is_first = !self.raised.swap(true, Ordering::SeqCst);
        self.notify.notify_waiters();
        is_first
    }

    /// Whether it is up.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Resolves when it is up. Cancel safe.
    pub async fn raised(&self) {
        let mut woken = pin!(self.notify.notified());
        loop {
            // Listens before it looks, so that a raise in between is not missed.
            woken.as_mut().enable();
            if self.is_raised() {
                return;
            }
            woken.as_mut().await;
            woken.set(self.notify.notified());
        }
    }
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flag").field(&self.is_raised()).finish()
    }
}

/// Where background work of a client runs: the runtime it was made in.
#[derive(Clone, Debug)]
pub struct Spawner(tokio::runtime::Handle);

impl Spawner {
    /// The current runtime, if there is one.
    pub fn current() -> Option<Self> {
        tokio::runtime::Handle::try_current().ok().map(Self)
    }

    /// Polls `future` once, for a drop that may happen anywhere: in this runtime, in another, in none.
    /// `Err(None)`: it cannot be polled, because the runtime it needs is gone.
    pub fn poll_anywhere<F: Future + Unpin>(&self, future: F) -> Result<F::Output, Option<F>> {
        let _inside = self.0.enter();
        // Timers and sockets panic when their runtime was shut down; a drop must not.
        catch_unwind(AssertUnwindSafe(|| poll_now(future)))
            .map_or(Err(None), |polled| polled.map_err(Some))
    }

    /// Whether the runtime has shut down: then nothing that sleeps or reads a socket may be polled.
    pub fn is_shut_down(&self) -> bool {
        // It drops what it is given.
        let probe = self.0.spawn(std::future::pending::<()>());
        let is_dropped = probe.is_finished();
        probe.abort();
        is_dropped
    }

    /// Runs `future` in the background. On a runtime that has shut down it is dropped.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(self.0.spawn(future).abort_handle())
    }

    /// Runs `work`, which may block, on a thread that is there for it. On a runtime that has shut down it is dropped.
    pub fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        drop(self.0.spawn_blocking(work));
    }
}

/// A background task; aborted by hand only.
#[derive(Debug)]
pub struct Task(tokio::task::AbortHandle);

impl Task {
    /// Drops the task at its current await.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// Runs `work`, which blocks, on a thread that is there for it. `None`: there is none, or it panicked.
pub async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Lets everybody else who is ready go first.
pub async fn yield_now() {
    tokio::task::yield_now().await;
}

/// Polls `future` once without a runtime; hands it back when it is not ready.
pub fn poll_now<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
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
