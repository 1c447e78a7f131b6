//! Any `k` of `n` names: which of them to ask for, and which of them to keep.
//!
//! Each name has a queue of its own in the store, and a client may stand in several queues at the same time. The names
//! are in one order that all clients keep, the byte order.
//!
//! # Why clients do not wait for each other in a circle
//! An example: a client needs three of a, b, c and d, and has b. It misses two. It may ask for a, which comes before b, and
//! for c, because d follows and could be the last one; it does not ask for d, because no name follows.
//!
//! The rule: a client that has some of its names and misses `r` others asks for a name only if the name comes before the
//! last one that it has, or if at least `r - 1` of its names follow. So each client that waits could complete its choice
//! with names that come after all that it has.
//!
//! Suppose that some clients wait for each other, and that all other clients release after a while. One of these clients
//! has the last name that any of them has, and asks for a name after that one. None of them has this name, so it is free
//! after a while, and the first client in its queue gets it. If that is one of these clients, the last name that any of
//! them has was another one.
//!
//! Of `n` names all `n` (`lock_all`) this is the rule that locks are taken one after the other; of `n` names one
//! (`lock_any`) it allows to ask for all of them.
//!
//! # Why a client begins again
//! Holders may keep a name for hours. Then two clients can share the few names that are released, each with too few of
//! them. So a client that has some of its names, could use other names instead, and has made no progress for a while
//! ([`time_until_restart`]) gives up all that it has and its places in the queues, and begins again behind the others.
//!
//! # Why names that become free are not missed
//! If `r` of the missing names are free, the first of these comes before the last name that the client has, or the
//! `r - 1` others follow. In both cases the client asks for the first one.

use std::time::Duration;

use super::pace;

/// Upper end of the first such time. Far longer than a hand-over takes in any store, so that nothing is given up that
/// was about to be complete.
const FIRST_RESTART: Duration = Duration::from_millis(500);

/// Each such time is twice the one before, this many times. A client that has waited for long keeps what it has for
/// about a minute, in which it can collect names that clients with fewer wishes would take otherwise.
const DOUBLINGS: u32 = 7;

/// How long a client keeps some names without getting further, before it begins again for the `attempt`-th time (the
/// first is 0). Drawn by `random`, a number used over its full range, so that two clients do not begin again together.
pub fn time_until_restart(attempt: u32, random: u32) -> Duration {
    let longest = FIRST_RESTART * (1 << attempt.min(DOUBLINGS));
    longest / 2 + pace::fraction(longest / 2, random)
}

/// What became of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Choice {
    /// The name is neither had nor asked for.
    Open,
    /// A request for the name waits.
    Asked,
    /// The name is held.
    Held,
    /// The wait for the name is over, and the name is not asked for again.
    Over,
}

/// The choice of `k` of `n` names. Names are numbers here: their positions in the common order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    choices: Vec<Choice>,
    wanted: usize,
}

impl Selection {
    /// Any `wanted` of `count` names; `wanted` is at most `count`.
    pub fn new(count: usize, wanted: usize) -> Self {
        debug_assert!(wanted <= count, "BUG: more names are wanted than there are");
        Self {
            choices: vec![Choice::Open; count],
            wanted,
        }
    }

    /// How many names are missing.
    pub fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.held().count())
    }

    /// Whether the client begins again if it gets no further: it has names that others could need, and could do
    /// without them.
    pub fn may_begin_again(&self) -> bool {
        self.begins_with_attempts() && self.held().next().is_some()
    }

    /// The names that are held, in order.
    pub fn held(&self) -> impl Iterator<Item = usize> {
        self.with(Choice::Held)
    }

    /// Whether one attempt for each name begins the acquisition. Clients that begin with different names find free ones
    /// without meeting each other. If every name is needed, a request that waits for the first one does as well.
    pub fn begins_with_attempts(&self) -> bool {
        self.wanted < self.choices.len()
    }

    /// Whether so few names are held and left that the attempts can stop.
    pub fn is_out_of_reach(&self, attempts_left: usize) -> bool {
        attempts_left < self.missing()
    }

    /// After the attempts: the names to give back before the client may wait, the last one first.
    pub fn give_back(&mut self) -> Vec<usize> {
        let had: Vec<_> = self.held().collect();
        for name in &had {
            self.choices[*name] = Choice::Open;
        }
        let mut given_back = Vec::new();
        for name in had {
            match self.may_ask()(name) {
                true => self.choices[name] = Choice::Held,
                false => given_back.push(name),
            }
        }
        given_back.reverse();
        given_back
    }

    /// The names that the client asks for from now on, in addition to those that it asks for already.
    pub fn ask(&mut self) -> Vec<usize> {
        let may_ask = self.may_ask();
        let names = self.with(Choice::Open).filter(|name| may_ask(*name));
        let names: Vec<_> = names.collect();
        for name in &names {
            self.choices[*name] = Choice::Asked;
        }
        names
    }

    /// The store has granted the name.
    pub fn granted(&mut self, name: usize) {
        self.choices[name] = Choice::Held;
    }

    /// The wait for the name has ended without a grant.
    pub fn ended(&mut self, name: usize) {
        self.choices[name] = Choice::Over;
    }

    fn with(&self, choice: Choice) -> impl Iterator<Item = usize> {
        let names = self.choices.iter().enumerate();
        names
            .filter(move |(_, it)| **it == choice)
            .map(|(name, _)| name)
    }

    /// Which names may be asked for as long as the same names are held; see the [module](self).
    fn may_ask(&self) -> impl Fn(usize) -> bool + use<> {
        let (missing, last, count) = (self.missing(), self.held().last(), self.choices.len());
        move |name| {
            let is_below = last.is_some_and(|last| name < last);
            let following = count - 1 - name;
            missing > 0 && (is_below || following >= missing - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_until_a_restart_doubles_up_to_a_limit() {
        for (attempt, times) in [(0, 1), (1, 2), (3, 8), (DOUBLINGS, 128), (u32::MAX, 128)] {
            let longest = FIRST_RESTART * times;
            assert_eq!(time_until_restart(attempt, 0), longest / 2, "{attempt}");
            assert_eq!(time_until_restart(attempt, u32::MAX), longest, "{attempt}");
        }
    }

    #[test]
    fn a_client_begins_again_if_it_has_names_and_could_do_without_them() {
        let mut some = Selection::new(3, 2);
        assert!(some.begins_with_attempts() && !some.may_begin_again());
        some.granted(1);
        assert!(some.may_begin_again());
        let mut all = Selection::new(2, 2);
        all.granted(0);
        assert!(!all.begins_with_attempts() && !all.may_begin_again());
    }

    #[test]
    fn attempts_stop_when_too_few_names_are_left() {
        let mut selection = Selection::new(3, 2);
        assert!(selection.is_out_of_reach(1) && !selection.is_out_of_reach(2));
        selection.granted(0);
        assert!(selection.is_out_of_reach(0) && !selection.is_out_of_reach(1));
    }

    #[test]
    fn names_below_the_last_one_are_asked_for_while_names_are_missing() {
        let mut all = Selection::new(4, 4);
        all.granted(3);
        assert_eq!(all.ask(), [0, 1, 2]);
        let mut one = Selection::new(2, 1);
        one.granted(1);
        assert!(one.ask().is_empty());
    }
}
