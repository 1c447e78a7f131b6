//! A clock for tests, and the numbers that replace chance there.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::mutex::lock;
use crate::time::Time;

/// A clock for tests: it stands still until [`advance`](VirtualClock::advance) moves it.
#[derive(Default)]
pub struct VirtualClock {
    nanos: AtomicU64,
    sleepers: Mutex<Sleepers>,
    /// The state of the numbers that replace chance.
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

    /// The next number of the seed, by SplitMix64, as in the torture harness: a seed must mean the same in every version.
    pub(super) fn next_random(&self) -> Option<u64> {
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

/// Resolves when the clock has reached an instant.
pub(super) struct VirtualSleep {
    clock: Arc<VirtualClock>,
    at: Time,
    id: u64,
}

impl VirtualSleep {
    pub(super) fn new(clock: Arc<VirtualClock>, at: Time) -> Self {
        Self { clock, at, id: 0 }
    }
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut sleepers = lock(&this.clock.sleepers);
        // Read under the lock: `advance` moves the clock before it takes the lock.
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
