//! One request to a session, and what came of it.

use std::time::Duration;

use tokio::sync::oneshot;

use tenure_core::fence::OwnerId;
use tenure_core::time::Time;

use crate::database::Trouble;

use super::dialect::Ask;
use super::entries::{Entries, Stage};

/// What came of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The key is ours, under that token.
    Granted(u64),
    /// It is somebody else's.
    Busy,
    /// It was ours, or was not.
    Given(bool),
    /// The session is there.
    Alive,
}

/// An answer, and when it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) said: Said,
    pub(super) sent: Time,
    pub(super) round_trip: Duration,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server refused, and nothing was done.
    Refused(Trouble),
    /// No answer yet. It may come.
    Late,
    /// The session is over, or in so much doubt that we ended it.
    Gone(Trouble),
    /// So it was for somebody else who shared the statement.
    RefusedToo,
    GoneToo,
}

pub(super) type Outcome = Result<Answer, Failure>;

/// It is under way, or stands in the queue.
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) owner: Option<OwnerId>,
    /// Until when an answer is waited for.
    pub(super) limit: Time,
    /// `None`: nobody waits any more.
    pub(super) answer: Option<oneshot::Sender<Outcome>>,
}

impl Job {
    pub(super) fn say(&mut self, outcome: Outcome) {
        if let Some(answer) = self.answer.take() {
            // Whoever asked may be gone.
            let _ = answer.send(outcome);
        }
    }

    /// Until when somebody waits for it.
    pub(super) fn is_wanted_until(&self) -> Option<Time> {
        self.answer.as_ref().map(|_| self.limit)
    }
}

/// What takes a request back that may have been done before the one that was refused.
pub(super) fn undo(ask: &Ask) -> Option<Ask> {
    match ask {
        Ask::Take { key, is_shared } => Some(Ask::Give {
            key: key.clone(),
            is_shared: *is_shared,
        }),
        Ask::Give { .. } | Ask::Ping => None,
    }
}

/// What becomes of a request when its session is free for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Send,
    /// A request to take a key that its caller no longer wants.
    Unwanted,
    /// A request to give back a key, whose acquisition has ended before.
    Ended,
}

/// Decides that for one request, and removes the entry of an unwanted one.
///
/// When a release and the end of the lease meet, both ask to give the key back. The server counts how often a session
/// has a key, so a second request that comes late would give back what a later acquisition of the session has taken.
pub(super) fn turn(entries: &mut Entries, job: &Job) -> Turn {
    let Some(owner) = job.owner else {
        return Turn::Send;
    };
    let stage = entries.get(&owner).map(|entry| entry.stage);
    match (&job.ask, stage) {
        (Ask::Take { .. }, None | Some(Stage::Unwanted)) => {
            entries.remove(&owner);
            Turn::Unwanted
        }
        (Ask::Give { .. }, None) => Turn::Ended,
        _ => Turn::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::Entry;
    use super::super::names::Key;
    use super::*;

    const OWNER: OwnerId = OwnerId::from_bytes([1; 16]);

    fn job(ask: Ask) -> Job {
        Job {
            ask,
            owner: Some(OWNER),
            limit: Time::MAX,
            answer: None,
        }
    }

    fn take() -> Ask {
        Ask::Take {
            key: Key::One(7),
            is_shared: false,
        }
    }

    fn give() -> Ask {
        Ask::Give {
            key: Key::One(7),
            is_shared: false,
        }
    }

    fn entries(stage: Stage) -> Entries {
        let mut entries = Entries::default();
        let entry = Entry {
            key: Key::One(7),
            is_shared: false,
            stage,
        };
        entries.insert(OWNER, entry);
        entries
    }

    /// The lease ended and the holder released at the same time; one of the two has had its answer.
    #[test]
    fn a_second_give_back_is_not_sent() {
        let mut entries = entries(Stage::Giving { again: Time::MAX });
        assert_eq!(turn(&mut entries, &job(give())), Turn::Send);
        entries.remove(&OWNER);
        assert_eq!(turn(&mut entries, &job(give())), Turn::Ended);
    }

    #[test]
    fn an_unwanted_take_is_not_sent_and_leaves_nothing() {
        let mut wanted = entries(Stage::Asking);
        assert_eq!(turn(&mut wanted, &job(take())), Turn::Send);
        let mut unwanted = entries(Stage::Unwanted);
        assert_eq!(turn(&mut unwanted, &job(take())), Turn::Unwanted);
        assert!(unwanted.is_empty());
        assert_eq!(turn(&mut unwanted, &job(take())), Turn::Unwanted);
    }
}
