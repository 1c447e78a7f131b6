//! Repeating a request whose outcome is unknown.

use std::time::Duration;

use crate::error::ErrorKind;
use crate::logic::pace;
use crate::rt::Clock;
use crate::time::Time;

/// When to send a request about a hold again, and until when.
pub(super) struct Repetition<'a> {
    clock: &'a Clock,
    ttl: Duration,
    give_up: Time,
    attempt: u32,
}

impl<'a> Repetition<'a> {
    /// For a hold that the store frees by itself when its ttl has passed.
    pub(super) fn new(clock: &'a Clock, ttl: Duration) -> Self {
        Self {
            clock,
            ttl,
            give_up: clock.now().after(ttl),
            attempt: 0,
        }
    }

    /// The store does not free the hold by itself now: its ttl begins again.
    pub(super) fn begin_again(&mut self) {
        self.give_up = self.clock.now().after(self.ttl);
    }

    /// Pauses after an error of that kind. `false`: the request is not sent again.
    pub(super) async fn pause_after(&mut self, kind: ErrorKind) -> bool {
        // A closed client sends nothing more, and closing ends the hold.
        if kind == ErrorKind::Closed {
            return false;
        }
        let now = self.clock.now();
        let left = self.give_up.since(now);
        let Some(pause) = pace::next(self.attempt, self.clock.random(), None, Some(left)) else {
            return false;
        };
        self.attempt += 1;
        self.clock.sleep_until(now.after(pause)).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{VirtualClock, poll_now};

    /// The output of a pause, on a clock that moves from timer to timer.
    fn pause(repetition: &mut Repetition<'_>, hand: &VirtualClock, kind: ErrorKind) -> bool {
        let clock = repetition.clock;
        let mut pause = Box::pin(repetition.pause_after(kind));
        loop {
            match poll_now(pause) {
                Ok(goes_on) => return goes_on,
                Err(pending) => pause = pending,
            }
            let wake = hand.next_wake().expect("a pause sleeps");
            hand.advance(wake.since(clock.now()));
        }
    }

    #[test]
    fn a_request_is_repeated_until_the_ttl_has_passed() {
        let (clock, hand) = Clock::virtual_clock();
        let (start, ttl) = (clock.now(), Duration::from_secs(3));
        let mut repetition = Repetition::new(&clock, ttl);
        let mut count = 0;
        while pause(&mut repetition, &hand, ErrorKind::Unreachable) {
            count += 1;
        }
        assert_eq!(clock.now(), start.after(ttl), "after {count} pauses");
        assert!(count > 10);
        repetition.begin_again();
        assert!(pause(&mut repetition, &hand, ErrorKind::Indeterminate));
    }

    #[test]
    fn a_closed_client_repeats_nothing() {
        let (clock, hand) = Clock::virtual_clock();
        let mut repetition = Repetition::new(&clock, Duration::from_secs(3));
        assert!(!pause(&mut repetition, &hand, ErrorKind::Closed));
        assert_eq!(hand.next_wake(), None);
    }
}
