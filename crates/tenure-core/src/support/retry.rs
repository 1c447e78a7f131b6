//! How long and how often a failed request is sent again.

use crate::logic::pace;
use crate::rt::Clock;
use crate::time::Time;

/// The pauses between attempts, and the instant from which on no further attempt is made.
///
/// A pause grows with each failure, as [`pace::next`] says, and never reaches beyond the limit: the last attempt
/// is made at the limit itself.
#[derive(Clone, Copy, Debug)]
pub struct RetryBudget {
    failures: u32,
    limit: Time,
}

impl RetryBudget {
    /// Attempts are made until `limit`.
    pub fn until(limit: Time) -> Self {
        Self { failures: 0, limit }
    }

    /// Attempts are made for ever.
    pub fn without_limit() -> Self {
        Self::until(Time::MAX)
    }

    /// The same with pauses as long as after that many failures, where attempts after a shorter pause would fail.
    #[must_use]
    pub fn after_failures(self, failures: u32) -> Self {
        Self { failures, ..self }
    }

    /// An attempt succeeded: pauses are short again, and attempts are made until `limit`.
    pub fn restart(&mut self, limit: Time) {
        *self = Self::until(limit);
    }

    /// The store is there, but the operation has not succeeded yet: attempts are made until `limit`, and pauses go on
    /// growing.
    pub fn extend(&mut self, limit: Time) {
        self.limit = limit;
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether no further attempt is made.
    pub fn is_spent(&self, clock: &Clock) -> bool {
        clock.now() >= self.limit
    }

    /// Counts a failure and returns the instant of the next attempt.
    pub fn next_attempt(&mut self, clock: &Clock) -> Time {
        let pause = pace::next(self.failures, clock.random(), None, None);
        self.failures = self.failures.saturating_add(1);
        let next = clock.now().after(pause.unwrap_or(pace::CAP));
        next.min(self.limit)
    }

    /// Counts a failure and sleeps until the next attempt. Cancel safe.
    pub async fn pause(&mut self, clock: &Clock) {
        let next = self.next_attempt(clock);
        clock.sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pauses_grow_until_a_success_and_end_at_the_limit() {
        let (clock, virtual_clock) = Clock::virtual_clock();
        virtual_clock.seed(1);
        let start = clock.now();
        let mut budget = RetryBudget::until(start.after(Duration::from_secs(1)));
        let mut last = Duration::ZERO;
        for failure in 0..9 {
            assert_eq!(budget.failures(), failure);
            let pause = budget.next_attempt(&clock).since(start);
            // Each pause is drawn from the upper half of a step that doubles.
            assert!(pause >= last && pause <= pace::CAP, "{failure}: {pause:?}");
            last = pause;
        }
        let later = start.after(Duration::from_secs(2));
        budget.extend(later);
        assert_eq!(budget.failures(), 9);
        assert!(budget.next_attempt(&clock) > start.after(pace::CAP / 2));
        virtual_clock.advance(Duration::from_secs(1));
        assert!(!budget.is_spent(&clock));
        virtual_clock.advance(Duration::from_secs(1));
        assert!(budget.is_spent(&clock));
        budget.restart(later.after(Duration::from_secs(1)));
        assert_eq!(budget.failures(), 0);
        assert!(budget.next_attempt(&clock).since(later) <= pace::FIRST);
    }

    #[test]
    fn pauses_begin_as_long_as_they_are_told_to() {
        let (clock, _) = Clock::virtual_clock();
        let start = clock.now();
        let mut budget = RetryBudget::without_limit().after_failures(3);
        assert_eq!(budget.failures(), 3);
        assert!(budget.next_attempt(&clock).since(start) > pace::FIRST);
    }

    #[test]
    fn the_last_attempt_is_made_at_the_limit() {
        let (clock, virtual_clock) = Clock::virtual_clock();
        let limit = clock.now().after(Duration::from_micros(10));
        let mut budget = RetryBudget::until(limit);
        assert!(!budget.is_spent(&clock));
        assert_eq!(budget.next_attempt(&clock), limit);
        virtual_clock.advance(Duration::from_micros(10));
        assert!(budget.is_spent(&clock));
        assert!(!RetryBudget::without_limit().is_spent(&clock));
    }
}
