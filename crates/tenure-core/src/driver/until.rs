//! Until when an acquisition waits.

use std::time::Duration;

use crate::rt::Clock;
use crate::time::Time;

/// Until when an acquisition waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// One try.
    Once,
    /// One try, whose answer is awaited until then.
    OnceBy(Time),
    /// A point on the client's clock.
    At(Time),
    /// For ever.
    Forever,
}

impl Until {
    /// Whether the acquisition waits while the name is taken.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::At(_) | Self::Forever)
    }

    /// One try that ends with this wait.
    pub(crate) fn once(self) -> Self {
        match self {
            Self::At(time) => Self::OnceBy(time),
            Self::Once | Self::OnceBy(_) | Self::Forever => Self::Once,
        }
    }

    /// How long the wait lasts from now on; the greatest duration if for ever.
    pub(crate) fn length(self, clock: &Clock) -> Duration {
        match self {
            Self::At(time) | Self::OnceBy(time) => time.since(clock.now()),
            Self::Once => Duration::ZERO,
            Self::Forever => Duration::MAX,
        }
    }

    /// Until when what an acquisition has is given back in the foreground. After that time the caller has its answer, and the
    /// rest is released in the background.
    pub(crate) fn end_of_giving_back(self, clock: &Clock) -> Time {
        /// Not longer than the caller may wait after the end of its wait.
        const LIMIT: Duration = Duration::from_millis(50);
        match self {
            Self::At(time) | Self::OnceBy(time) => time.max(clock.now()).after(LIMIT),
            Self::Once | Self::Forever => Time::MAX,
        }
    }

    /// From the option.
    pub(crate) fn from_wait(wait: Option<Duration>, clock: &Clock) -> Self {
        match wait {
            None => Self::Forever,
            Some(Duration::ZERO) => Self::Once,
            Some(wait) => Self::At(clock.now().after(wait)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acquired_is_given_back_until_shortly_after_the_wait() {
        let (clock, _) = Clock::virtual_clock();
        let (now, wait) = (clock.now(), Duration::from_secs(1));
        let giving_back = |until: Until| until.end_of_giving_back(&clock).since(now);
        for until in [Until::At(now.after(wait)), Until::OnceBy(now.after(wait))] {
            let after_wait = giving_back(until) - wait;
            assert!(!after_wait.is_zero() && after_wait < Duration::from_millis(100));
        }
        assert_eq!(Until::Forever.end_of_giving_back(&clock), Time::MAX);
    }
}
