//! Whether a hold passes from one task of a client to the next one without a request to the store.
//!
//! This is lock cohorting (Dice, Marathe, Shavit: "Lock Cohorting", PPoPP 2012): the tasks of one client pass a hold on among
//! themselves, a bounded number of times and for a bounded time, before it goes back to the store and to other clients. The
//! store sees one hold of one owner meanwhile, so the tokens of the tasks are reserved in the store before the first of them
//! is used: no other grant of the name gets one of them, also if this client ends at any moment.

use std::time::Duration;

use crate::logic::lease::HoldState;
use crate::time::Time;

/// How long after its grant a hold passes on at most. Other clients may have to wait for that long.
pub const MAX_TIME: Duration = Duration::from_millis(20);

/// A hold of the store that may pass from task to task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedTurn {
    /// When the store granted the hold.
    granted: Time,
    /// How long the request took that the store granted.
    round_trip: Duration,
    /// How often the hold may still pass on.
    left: u32,
    /// The token of the task that holds now.
    token: u64,
    /// The last token that is reserved in the store. The token of the grant: none is reserved yet.
    reserved: u64,
}

/// The hold at the moment when a task releases it.
#[derive(Clone, Copy, Debug)]
pub struct Released {
    /// The token that the task has.
    pub token: u64,
    /// The hold is exclusive, and the store has confirmed that.
    pub is_exclusive: bool,
    /// What the task may claim.
    pub state: HoldState,
    /// The time until the deadline.
    pub remaining: Duration,
    /// A request about the hold may still be on its way that must not count for a later task.
    pub has_late_requests: bool,
    /// Another client asks the holder to let go.
    pub is_asked: bool,
}

/// What is done with a hold that a task releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The store gets the hold back.
    Release,
    /// The store is asked to reserve the tokens up to this one, and then the decision is made again.
    Reserve(u64),
    /// The next task has the hold.
    HandOver(SharedTurn),
}

impl SharedTurn {
    /// A hold that the store has granted now under `token`, after `round_trip`, and that may pass on so often.
    pub fn granted(token: u64, limit: u32, round_trip: Duration, now: Time) -> Self {
        Self {
            granted: now,
            round_trip,
            left: limit,
            token,
            reserved: token,
        }
    }

    /// Whether the hold may pass on again, if it is released at `now`.
    pub fn may_pass_on(&self, now: Time) -> bool {
        self.left > 0 && now < self.end()
    }

    /// Whether the store can reserve tokens before the time is over, if it is asked at `now`. Otherwise the request would only
    /// delay the release.
    pub fn can_reserve(&self, now: Time) -> bool {
        now.after(self.round_trip) < self.end()
    }

    /// From when on the hold goes back to the store.
    pub fn end(&self) -> Time {
        self.granted.after(MAX_TIME)
    }

    /// The token of the task that holds now.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The store has reserved the tokens up to this one.
    pub fn reserved(&mut self, token: u64) {
        self.reserved = self.reserved.max(token);
    }

    /// What is done with a hold that is released at `now`, while a task waits that wants a lease of `min_lease` at least.
    pub fn next(&self, released: Released, min_lease: Duration, now: Time) -> Next {
        let may_pass_on = self.may_pass_on(now)
            && released.token == self.token
            && released.is_exclusive
            && released.state == HoldState::Held
            && released.remaining >= min_lease
            && !released.has_late_requests
            && !released.is_asked;
        let Some(last) = self.token.checked_add(u64::from(self.left)) else {
            return Next::Release;
        };
        match (may_pass_on, self.token < self.reserved) {
            (false, _) => Next::Release,
            (true, false) if !self.can_reserve(now) => Next::Release,
            (true, false) => Next::Reserve(last),
            (true, true) => Next::HandOver(Self {
                left: self.left - 1,
                token: self.token + 1,
                ..self.clone()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_passes_on_as_often_as_its_limit_says() {
        let granted = Time::from_nanos(1_000_000_000);
        for (limit, may_pass_on) in [(0, false), (1, true)] {
            let turn = SharedTurn::granted(7, limit, Duration::ZERO, granted);
            assert_eq!(turn.may_pass_on(granted), may_pass_on, "{limit}");
        }
    }

    #[test]
    fn tokens_are_reserved_only_if_the_answer_can_come_in_time() {
        let granted = Time::from_nanos(1_000_000_000);
        let released = Released {
            token: 7,
            is_exclusive: true,
            state: HoldState::Held,
            remaining: Duration::MAX,
            has_late_requests: false,
            is_asked: false,
        };
        let millis = Duration::from_millis;
        for (round_trip, after, next) in [
            (0, 19, Next::Reserve(10)),
            (5, 14, Next::Reserve(10)),
            (5, 15, Next::Release),
            (19, 0, Next::Reserve(10)),
            (20, 0, Next::Release),
            (300, 0, Next::Release),
        ] {
            let turn = SharedTurn::granted(7, 3, millis(round_trip), granted);
            let now = granted.after(millis(after));
            let found = turn.next(released, Duration::ZERO, now);
            assert_eq!(found, next, "{round_trip} ms, {after} ms after the grant");
        }
        // A hold whose tokens are reserved passes on until the end.
        let mut turn = SharedTurn::granted(7, 3, millis(19), granted);
        turn.reserved(10);
        let next = turn.next(released, Duration::ZERO, granted.after(millis(19)));
        assert!(matches!(next, Next::HandOver(_)), "{next:?}");
    }
}
