//! What the observers of one election saw; and a check that none of them went backwards.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::failure::{Failure, Verdict};
use crate::ErrorKind;
use crate::rt::lock;

/// What an observer saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Leader {
        token: u64,
        value: String,
    },
    Nobody,
    /// The store did not answer: from here on the observer does not know who leads.
    Outage(ErrorKind),
    /// The observer has ended.
    End,
}

/// One attempt to lead. An attempt that was elected is one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt(usize);

/// What the candidates of one election did. No value is published twice.
#[derive(Debug, Default)]
struct Published {
    /// Each value, with its attempt and its number among the values of this attempt.
    values: BTreeMap<String, (usize, usize)>,
    /// How many values each attempt has published.
    attempts: Vec<usize>,
    /// The attempts that were elected, by their token.
    terms: BTreeMap<u64, usize>,
}

/// What the candidates and the observers of one election did and saw.
#[derive(Debug, Default)]
pub(super) struct ElectionHistory {
    published: Mutex<Published>,
    /// One list for each observer.
    seen: Mutex<Vec<Vec<Seen>>>,
}

impl ElectionHistory {
    /// A candidate campaigns with this value: before its request is sent.
    pub(super) fn campaigns(&self, value: &str) -> Attempt {
        let mut published = lock(&self.published);
        published.attempts.push(0);
        let attempt = Attempt(published.attempts.len() - 1);
        published.add(attempt, value);
        attempt
    }

    /// The attempt was elected under this token.
    pub(super) fn elected(&self, attempt: Attempt, token: u64) {
        lock(&self.published).terms.insert(token, attempt.0);
    }

    /// The leader proclaims this value: before its request is sent.
    pub(super) fn proclaims(&self, attempt: Attempt, value: &str) {
        lock(&self.published).add(attempt, value);
    }

    /// Begins the list of one more observer; returns its number.
    pub(super) fn observes(&self) -> usize {
        let mut seen = lock(&self.seen);
        seen.push(Vec::new());
        seen.len() - 1
    }

    /// The observer saw this.
    pub(super) fn sees(&self, observer: usize, item: Seen) {
        lock(&self.seen)[observer].push(item);
    }

    /// What each observer has seen so far.
    pub(super) fn seen(&self) -> Vec<Vec<Seen>> {
        lock(&self.seen).clone()
    }

    /// Checks that no observer went backwards, and that each leader was shown with its own values.
    ///
    /// # Errors
    /// What an observer should not have seen.
    #[track_caller]
    pub(super) fn check(&self) -> Verdict {
        match first_fault(&lock(&self.published), &lock(&self.seen)) {
            Some(fault) => Err(Failure::new(fault)),
            None => Ok(()),
        }
    }
}

impl Published {
    fn add(&mut self, attempt: Attempt, value: &str) {
        let number = &mut self.attempts[attempt.0];
        self.values.insert(value.to_owned(), (attempt.0, *number));
        *number += 1;
    }
}

/// How far an observer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    token: u64,
    is_over: bool,
    number: usize,
}

fn first_fault(published: &Published, seen: &[Vec<Seen>]) -> Option<String> {
    // An attempt whose grant was not confirmed to the candidate may have led; then its first observer says under which token.
    let mut terms = published.terms.clone();
    for (observer, seen) in seen.iter().enumerate() {
        let fault = fault_of_one(&published.values, &mut terms, seen);
        if let Some(fault) = fault {
            return Some(format!("observer {observer} {fault}: {seen:?}"));
        }
    }
    None
}

fn fault_of_one(
    values: &BTreeMap<String, (usize, usize)>,
    terms: &mut BTreeMap<u64, usize>,
    seen: &[Seen],
) -> Option<String> {
    let mut last = Position::default();
    // `None`: the observer does not know who leads.
    let mut told: Option<&Seen> = None;
    for item in seen {
        if told == Some(item) {
            return Some(format!("was told twice that {item:?}"));
        }
        told = Some(item);
        match item {
            Seen::Outage(_) => told = None,
            Seen::End => {}
            Seen::Nobody => last.is_over = true,
            // A hold that is described after it was granted: it has no place in the order, and leads before it is described if
            // the connection breaks meanwhile.
            Seen::Leader { token: 0, value } if value.is_empty() => {}
            Seen::Leader { token, value } => {
                let Some(&(attempt, number)) = values.get(value) else {
                    return Some(format!("saw {value:?}, which no leader has published"));
                };
                if *terms.entry(*token).or_insert(attempt) != attempt {
                    return Some(format!("saw {value:?} under {token}, another term"));
                }
                let position = Position {
                    token: *token,
                    is_over: false,
                    number,
                };
                if position < last {
                    return Some(format!("went back to {item:?} from {last:?}"));
                }
                last = position;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two terms: the values `a` and `a2` under 3, and `b` under 5. A third attempt, `c`, got no answer.
    fn history() -> ElectionHistory {
        let history = ElectionHistory::default();
        let first = history.campaigns("a");
        let second = history.campaigns("b");
        history.elected(first, 3);
        history.proclaims(first, "a2");
        history.elected(second, 5);
        history.campaigns("c");
        history
    }

    fn leader(token: u64, value: &str) -> Seen {
        let value = value.to_owned();
        Seen::Leader { token, value }
    }

    fn outage() -> Seen {
        Seen::Outage(ErrorKind::Unreachable)
    }

    /// What the check says of one observer that saw this.
    fn fault(seen: &[Seen]) -> Option<String> {
        let history = history();
        let observer = history.observes();
        for item in seen {
            history.sees(observer, item.clone());
        }
        let seen = history.seen();
        first_fault(&lock(&history.published), &seen)
    }

    #[track_caller]
    fn assert_fault(seen: &[Seen], expected: &str) {
        let found = fault(seen).unwrap_or_default();
        assert!(found.contains(expected), "{found:?} of {seen:?}");
    }

    #[test]
    fn what_is_in_order_is_no_fault() {
        for seen in [
            &[][..],
            &[Seen::Nobody, leader(3, "a"), leader(3, "a2"), Seen::Nobody],
            &[leader(3, "a2"), leader(5, "b"), Seen::Nobody, Seen::End],
            // The first value, and the first term, may be left out.
            &[Seen::Nobody, leader(5, "b")],
            // After an outage the observer is told once more who leads, or that nobody does.
            &[leader(3, "a"), outage(), leader(3, "a"), leader(5, "b")],
            &[Seen::Nobody, outage(), Seen::Nobody, outage(), outage()],
            // The candidate does not know that it was elected.
            &[leader(5, "b"), leader(6, "c"), outage(), leader(6, "c")],
            // One that is not described yet.
            &[leader(3, "a"), leader(0, ""), leader(5, "b"), leader(0, "")],
        ] {
            assert_eq!(fault(seen), None);
        }
    }

    #[test]
    fn an_observer_that_goes_backwards_is_found() {
        for seen in [
            &[leader(5, "b"), leader(3, "a")][..],
            &[leader(5, "b"), Seen::Nobody, leader(3, "a2")],
            &[leader(5, "b"), outage(), leader(3, "a")],
            &[leader(5, "b"), leader(0, ""), leader(3, "a")],
            // An older value.
            &[leader(3, "a2"), leader(3, "a")],
            &[leader(3, "a2"), outage(), leader(3, "a")],
            // The term had ended.
            &[leader(3, "a"), Seen::Nobody, leader(3, "a")],
            &[leader(3, "a"), Seen::Nobody, leader(3, "a2")],
            &[leader(3, "a"), Seen::Nobody, outage(), leader(3, "a")],
        ] {
            assert_fault(seen, "went back");
        }
    }

    #[test]
    fn an_observer_that_is_told_twice_is_found() {
        let a = leader(3, "a");
        assert_fault(&[a.clone(), a], "told twice");
        assert_fault(&[Seen::Nobody, Seen::Nobody], "told twice");
    }

    #[test]
    fn a_leader_with_the_value_of_another_one_is_found() {
        assert_fault(&[leader(5, "a2")], "another term");
        assert_fault(&[leader(3, "a"), leader(5, "x")], "no leader has published");
        assert_fault(&[leader(3, "")], "no leader has published");
        // Two observers that do not agree.
        let history = history();
        for value in ["a", "c"] {
            let observer = history.observes();
            history.sees(observer, leader(3, value));
        }
        let fault = first_fault(&lock(&history.published), &history.seen());
        assert!(fault.is_some_and(|fault| fault.contains("observer 1 saw \"c\" under 3")));
    }
}
