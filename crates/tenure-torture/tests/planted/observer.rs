//! An observer that asks the server again and again, with or without a mistake.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_torture::clock::{nanos, now};
use tenure_torture::event::Sight;
use tenure_torture::worker::Observer;

use crate::broken::{Locks, Mistake};

/// The mistake of an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObserverMistake {
    /// The observer shows leaders as their sightings arrive, also from a replica that lags behind.
    OrderOfArrival,
    /// The observer knows the newest term, and not that it is over.
    NoEndOfTerm,
    /// The observer knows the order of the terms, and not that of the values of one term.
    NoOrderOfValues,
    /// The observer shows the same leader again and again.
    EverySighting,
    /// The observer shows a candidate as if it led.
    Candidates,
    /// The value lies beside the lock, and is written after the grant: the observer sees the value of the last term with the
    /// leader of this one.
    ValueOfLastTerm,
    /// The observer shows each change long after it happened.
    Late,
    /// The observer misses one change, and does not ask again.
    Deaf,
}

/// How often an observer asks.
const POLL_INTERVAL: Duration = Duration::from_millis(3);
/// How late the observer with the mistake [`ObserverMistake::Late`] is.
const DELAY: Duration = Duration::from_secs(9);
/// How much of the run the observer with the mistake [`ObserverMistake::Deaf`] hears: less than happens in a short run on a
/// busy machine.
const HEARD: usize = 3;

pub(crate) struct PollingObserver {
    locks: &'static Locks,
    name: String,
    polls: usize,
    shown: Option<Sight>,
    /// How often something was shown.
    count: usize,
    /// The newest term, whether it is over, and its newest value.
    newest: (u64, bool, u64),
    /// What is shown later, and when.
    late: VecDeque<(u64, Sight)>,
    /// Token and value of the last leader.
    last_leader: Option<(Option<u64>, Option<String>)>,
}

impl PollingObserver {
    pub(crate) fn new(locks: &'static Locks, name: &str) -> Self {
        Self {
            locks,
            name: name.into(),
            polls: 0,
            shown: None,
            count: 0,
            newest: (0, false, 0),
            late: VecDeque::new(),
            last_leader: None,
        }
    }

    fn has(&self, mistake: ObserverMistake) -> bool {
        self.locks.mistake == Mistake::Observing(mistake)
    }

    /// What the server, or one that lags behind, says now; `None`: no answer.
    fn ask(&mut self) -> Option<Sight> {
        self.polls += 1;
        let name = &self.name;
        let question = match self.polls % 3 {
            0 if self.has(ObserverMistake::Candidates) => format!("candidate {name} -"),
            // Every observer asks a replica at times, because no client knows which server it asks.
            0 => format!("lagging {name} {}", 1 + self.polls % 2),
            _ => format!("leader {name} -"),
        };
        let answer = self.locks.ask(&question)?;
        let Some((token, value)) = answer.split_once(' ') else {
            return Some(Sight::Nobody);
        };
        Some(Sight::Leader {
            token: token.parse().ok(),
            value: Some(value.into()),
        })
    }

    /// Whether what the server says is older than what was shown, as far as this observer knows.
    fn is_older(&mut self, sight: &Sight) -> bool {
        if self.has(ObserverMistake::OrderOfArrival) {
            return false;
        }
        let (token, is_over, number) = self.newest;
        let Sight::Leader { token: seen, value } = sight else {
            // The server does not say which term is over, and a replica that lags behind may mean one of before.
            let is_sure = !self.polls.is_multiple_of(3);
            self.newest.1 |= is_sure && !self.has(ObserverMistake::NoEndOfTerm);
            return !is_sure;
        };
        let seen = seen.unwrap_or(0);
        let last = value.as_deref().and_then(|it| it.rsplit('-').next());
        let last = last.and_then(|it| it.parse().ok()).unwrap_or(0);
        let is_older_value = last < number && !self.has(ObserverMistake::NoOrderOfValues);
        if seen < token || seen == token && (is_over || is_older_value) {
            return true;
        }
        self.newest = (seen, false, last);
        false
    }

    /// What is shown of a sighting.
    fn falsified(&mut self, sight: Sight) -> Sight {
        let Sight::Leader { token, value } = &sight else {
            return sight;
        };
        let last = self.last_leader.replace((*token, value.clone()));
        match last {
            Some((last, value)) if last != *token && self.has(ObserverMistake::ValueOfLastTerm) => {
                let token = *token;
                Sight::Leader { token, value }
            }
            _ => sight,
        }
    }
}

impl Observer for PollingObserver {
    async fn next(&mut self) -> Sight {
        loop {
            let due = self.late.front().is_some_and(|(at, _)| *at <= now());
            if due && let Some((_, sight)) = self.late.pop_front() {
                return sight;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.has(ObserverMistake::Deaf) && self.count >= HEARD {
                continue;
            }
            let Some(sight) = self.ask() else {
                continue;
            };
            let is_same = self.shown.as_ref() == Some(&sight);
            if is_same && !self.has(ObserverMistake::EverySighting) || self.is_older(&sight) {
                continue;
            }
            self.count += 1;
            let shown = self.falsified(sight.clone());
            self.shown = Some(sight);
            if self.has(ObserverMistake::Late) {
                self.late.push_back((now() + nanos(DELAY), shown));
                continue;
            }
            return shown;
        }
    }
}
