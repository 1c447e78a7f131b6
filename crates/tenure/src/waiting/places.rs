//! For how long a place in the queue is valid without a request of its waiter.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::time::Time;

/// For how long a place is valid at least, if the ttl is not shorter. Those behind a waiter that died may have to wait
/// this long.
pub(crate) const WAITER_TTL: Duration = Duration::from_secs(5);

/// A waiter asks again when a third of its place's time has passed.
const REQUESTS_PER_PLACE: u32 = 3;

/// How many requests a second the waiters of one client may send to keep their places. Their places last longer when there
/// are more waiters, as far as the ttl allows.
const MAX_RATE: u32 = 1_000;

/// When a waiter asks again that has taken or kept its place by a request that was sent at `sent`.
pub(crate) fn keep_by(sent: Time, place: Duration) -> Time {
    sent.after(place / REQUESTS_PER_PLACE)
}

/// The waiters of one client.
#[derive(Debug, Default)]
pub(crate) struct Places {
    waiters: AtomicU32,
    /// Places last no longer where there are many waiters.
    have_one_length: bool,
}

/// One waiter, until it is dropped.
pub(super) struct CountedWaiter<'a>(&'a Places);

impl Places {
    /// In a store whose places do not last longer where there are many waiters.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn of_one_length() -> Self {
        Self {
            have_one_length: true,
            ..Self::default()
        }
    }

    /// Counts a waiter.
    pub(super) fn enter(&self) -> CountedWaiter<'_> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        CountedWaiter(self)
    }

    /// For how long a place is valid that a request with this ttl takes or keeps now.
    pub(super) fn place_ttl(&self, ttl: Duration) -> Duration {
        let waiters = match self.have_one_length {
            true => 0,
            false => self.waiters.load(Ordering::Relaxed),
        };
        place_ttl(ttl, waiters)
    }
}

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

fn place_ttl(ttl: Duration, waiters: u32) -> Duration {
    let for_all = Duration::from_secs(1) * REQUESTS_PER_PLACE.saturating_mul(waiters) / MAX_RATE;
    ttl.min(WAITER_TTL.max(for_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_place_lasts_as_long_as_the_rate_of_requests_wants() {
        let ttl = secs(30);
        for (waiters, place) in [
            (0, 5),
            (1_000, 5),
            (2_000, 6),
            (9_000, 27),
            (10_000, 30),
            (100_000, 30),
            (u32::MAX, 30),
        ] {
            assert_eq!(place_ttl(ttl, waiters), secs(place), "{waiters}");
        }
        assert_eq!(place_ttl(secs(2), 100_000), secs(2));
    }

    #[test]
    fn a_waiter_counts_until_it_is_dropped() {
        let places = Places::default();
        let waiters: Vec<_> = (0..2_000).map(|_| places.enter()).collect();
        assert_eq!(places.place_ttl(secs(30)), secs(6));
        drop(waiters);
        assert_eq!(places.place_ttl(secs(30)), WAITER_TTL);
    }

    #[test]
    fn places_of_one_length_do_not_depend_on_the_number_of_waiters() {
        let places = Places::of_one_length();
        let _waiters: Vec<_> = (0..2_000).map(|_| places.enter()).collect();
        assert_eq!(places.place_ttl(secs(30)), WAITER_TTL);
        assert_eq!(places.place_ttl(secs(2)), secs(2));
    }
}
