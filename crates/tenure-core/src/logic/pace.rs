//! When to try again where the store cannot push, and when to look after what is held.

use std::time::Duration;

use crate::time::Time;

/// Upper end of the pause after the first try: about one round trip in a data centre.
pub const FIRST: Duration = Duration::from_millis(1);

/// Upper end of every pause: `FIRST · 2^8`. A release is noticed that late at most, and a waiter
/// costs its store five requests a second.
pub const CAP: Duration = Duration::from_millis(256);

/// The average time between the requests of waiters that are woken together: a store serves about as many requests a
/// second in addition to its other work.
pub const SPREAD_PER_WAITER: Duration = Duration::from_micros(150);

/// Upper end of the time over which the requests of waiters that are woken together are spread.
pub const MAX_SPREAD: Duration = Duration::from_secs(1);

/// Over which time to spread the requests of `waiters` that are woken together. Zero for one waiter.
pub fn spread(waiters: usize) -> Duration {
    let others = u32::try_from(waiters.saturating_sub(1)).unwrap_or(u32::MAX);
    SPREAD_PER_WAITER.saturating_mul(others).min(MAX_SPREAD)
}

/// How long to pause after try number `attempt` (the first is 0) has found the name taken;
/// `None`: the wait is over, give up.
///
/// The pause is drawn from `[step / 2, step]` by `random`, a number used over its full range, where
/// `step` is [`FIRST`]` · 2^attempt`, at most [`CAP`].
/// Two bounds can shorten it:
/// - `hint`, how long the holder's lease still runs: there is a reason to look just then. Up to
///   [`FIRST`] is added by `random`, so that not all waiters look at the same instant;
/// - `left`, what is left of the wait (`None`: no limit), so that the last try falls on its very end.
pub fn next(
    attempt: u32,
    random: u32,
    hint: Option<Duration>,
    left: Option<Duration>,
) -> Option<Duration> {
    if left.is_some_and(|left| left.is_zero()) {
        return None;
    }
    let step = FIRST.saturating_mul(1 << attempt.min(20)).min(CAP);
    let mut pause = step / 2 + fraction(step / 2, random);
    if let Some(hint) = hint {
        // Never zero: a holder whose lease is over but not cleared yet must not cause a busy loop.
        pause = pause.min(
            hint.saturating_add(FIRST / 2)
                .saturating_add(fraction(FIRST / 2, random)),
        );
    }
    Some(left.map_or(pause, |left| pause.min(left)))
}

/// How long to keep some nodes of several without having a majority of them, before they are given back;
/// so that another contender, who is in the same position, can have them.
///
/// The pause, for each node that is held, is drawn from `[step / 2, step]`. A contender that `has_first`, the node on which
/// all of them agree, keeps its nodes for a step of [`CAP`], at most a 16th of the ttl (a lease that is given away in part
/// must be worth having), because it is the one that comes next. The step of the others is two round trips, at least
/// [`FIRST`]: so long the grant of the first node may still be on its way.
pub fn give_back_pause(
    has_first: bool,
    random: u32,
    round_trip: Duration,
    ttl: Duration,
) -> Duration {
    let most = CAP.min(ttl / 16);
    let step = match has_first {
        true => most,
        false => FIRST.max(round_trip.saturating_mul(2)).min(most),
    };
    step / 2 + fraction(step / 2, random)
}

/// When a task that looks after many things looks next: something is `due` then, and an earlier look may be `planned`.
///
/// What is planned stays planned, although the work that it was planned for may be gone: such work comes and goes often,
/// and each change of the plan would wake the task. So the task sometimes finds no work, and it never looks too late.
pub fn look(planned: Time, due: Time, now: Time) -> Time {
    match planned > now {
        true => due.min(planned),
        false => due,
    }
}

/// `random` as a share of `whole`: 0 gives zero, `u32::MAX` gives all of it.
pub fn fraction(whole: Duration, random: u32) -> Duration {
    let nanos = whole.as_nanos() * u128::from(random) / u128::from(u32::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_grows_with_the_waiters_up_to_a_limit() {
        assert_eq!((spread(0), spread(1)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(spread(3), SPREAD_PER_WAITER * 2);
        assert_eq!(spread(usize::MAX), MAX_SPREAD);
    }

    #[test]
    fn nodes_are_kept_for_two_round_trips_and_for_longer_with_the_first_node() {
        let (ms, hour) = (Duration::from_millis, Duration::from_secs(3600));
        for (has_first, round_trip, ttl, step) in [
            (false, ms(0), hour, FIRST),
            (false, ms(4), hour, ms(8)),
            (false, hour, hour, CAP),
            (true, ms(4), hour, CAP),
            (false, ms(400), ms(160), ms(10)),
            (true, ms(0), ms(160), ms(10)),
        ] {
            let pause = |random| give_back_pause(has_first, random, round_trip, ttl);
            assert_eq!(pause(0), step / 2, "{has_first} {round_trip:?} {ttl:?}");
            assert_eq!(pause(u32::MAX), step, "{has_first} {round_trip:?} {ttl:?}");
        }
    }

    #[test]
    fn a_look_that_is_planned_is_not_put_off() {
        let at = Time::from_nanos;
        for (planned, due, now, next) in [
            (10, 30, 5, 10),
            (30, 10, 5, 10),
            (10, 30, 10, 30),
            (u64::MAX, 30, 5, 30),
        ] {
            let found = look(at(planned), at(due), at(now));
            assert_eq!(found, at(next), "{planned} {due} {now}");
        }
    }

    /// A task that acquires and releases one lock after the other would wake the renewal task each time.
    #[test]
    fn a_look_that_is_planned_is_not_put_off_because_nothing_is_due_any_more() {
        let at = Time::from_nanos;
        let mut planned = Time::MAX;
        let mut next = |due, now| {
            planned = look(planned, due, at(now));
            planned
        };
        assert_eq!(next(Time::MAX, 1), Time::MAX);
        assert_eq!(next(at(10), 2), at(10));
        assert_eq!(next(Time::MAX, 3), at(10));
        assert_eq!(next(at(30), 10), at(30));
        assert_eq!(next(Time::MAX, 30), Time::MAX);
    }
}
