//! The places of the workers in the queue of a name. The tasks of a worker have one place, one after the other: only the first
//! of them asks the store.

use std::collections::HashMap;

use crate::history::{Claim, Wait};
use crate::mode::HoldMode;

/// A time in which a worker waited, and no task of it was served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) worker: usize,
    /// How the task wants the name.
    pub(crate) mode: HoldMode,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The places in the queue of one name, from its waits and claims, each in the order in which they begin.
pub(crate) fn places<'a>(waits: impl Iterator<Item = &'a Wait>, claims: &[&Claim]) -> Vec<Place> {
    let mut served: HashMap<usize, Vec<u64>> = HashMap::new();
    for claim in claims {
        served.entry(claim.worker).or_default().push(claim.start);
    }
    // When the last place of each worker ended.
    let mut ended: HashMap<usize, u64> = HashMap::new();
    let mut places = Vec::new();
    for wait in waits {
        let served = served.get(&wait.worker).map_or(&[][..], Vec::as_slice);
        let ended = ended.entry(wait.worker).or_default();
        let mut from = wait.from.max(*ended);
        let meanwhile = served.iter().skip(served.partition_point(|at| *at <= from));
        let meanwhile = meanwhile.copied().take_while(|at| *at < wait.to);
        for to in meanwhile.chain([wait.to]) {
            if to > from {
                places.push(Place {
                    worker: wait.worker,
                    mode: wait.mode,
                    from,
                    to,
                });
                (from, *ended) = (to, to);
            }
        }
    }
    places
}

/// When the hold of each turn was asked for.
#[derive(Default)]
pub(crate) struct Turns(HashMap<u64, u64>);

impl Turns {
    /// When the hold of `claim` was asked for: by this task, or by the first one of its turn.
    pub(crate) fn asked_for(&mut self, claim: &Claim) -> u64 {
        match claim.turn {
            Some(turn) => *self.0.entry(turn).or_insert(claim.asked),
            None => claim.asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(task: usize, from: u64, to: u64) -> Wait {
        Wait {
            worker: 1,
            task,
            name: "n".into(),
            mode: HoldMode::Exclusive,
            from,
            to,
        }
    }

    fn claim(worker: usize, asked: u64, start: u64) -> Claim {
        Claim {
            acquisition: start,
            worker,
            name: "n".into(),
            mode: HoldMode::Exclusive,
            changes: None,
            turn: Some(3),
            token: start,
            asked,
            start,
            end: start + 1,
        }
    }

    fn times(waits: &[Wait], claims: &[Claim]) -> Vec<(u64, u64)> {
        let claims: Vec<_> = claims.iter().collect();
        let places = places(waits.iter(), &claims);
        places.iter().map(|it| (it.from, it.to)).collect()
    }

    #[test]
    fn the_waits_of_one_task_are_its_places() {
        let waits = [wait(0, 1, 4), wait(0, 5, 9)];
        let claims = [claim(1, 1, 4), claim(2, 1, 6), claim(1, 5, 9)];
        assert_eq!(times(&waits, &claims), [(1, 4), (5, 9)]);
    }

    #[test]
    fn tasks_have_one_place_that_ends_when_one_of_them_is_served() {
        let waits = [wait(0, 1, 4), wait(1, 2, 7), wait(2, 5, 20)];
        let claims = [claim(1, 1, 4), claim(1, 2, 7)];
        assert_eq!(times(&waits, &claims), [(1, 4), (4, 7), (7, 20)]);
        let another_gave_up = [wait(0, 1, 4), wait(1, 2, 7)];
        assert_eq!(times(&another_gave_up, &claims[1..]), [(1, 4), (4, 7)]);
    }

    #[test]
    fn a_hold_that_passes_on_was_asked_for_by_the_first_task() {
        let mut turns = Turns::default();
        assert_eq!(turns.asked_for(&claim(1, 1, 4)), 1);
        assert_eq!(turns.asked_for(&claim(1, 3, 5)), 1);
        let alone = Claim {
            turn: None,
            ..claim(1, 3, 5)
        };
        assert_eq!(turns.asked_for(&alone), 3);
    }
}
