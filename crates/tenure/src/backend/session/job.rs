//! One request to a session, and what came of it.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::sql::Trouble;
use crate::fence::OwnerId;
use crate::time::Time;

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

/// Whether a request is to be sent, now that the session is free for it. If not, the one who asked is told.
///
/// A request to take a key may be wanted no more. A request to give a key back may be the second one for its
/// acquisition, when a release and the end of the lease meet. The server counts how often a session has a key, so a
/// second one that comes late would give back what a later acquisition of the same session has taken.
pub(super) fn is_still_to_do(entries: &mut Entries, job: &mut Job) -> bool {
    let Some(owner) = job.owner else {
        return true;
    };
    let stage = entries.get(&owner).map(|entry| entry.stage);
    match (&job.ask, stage) {
        (Ask::Take { .. }, None | Some(Stage::Unwanted)) => {
            entries.remove(&owner);
            false
        }
        (Ask::Give { .. }, None) => {
            job.say(Ok(Answer {
                said: Said::Given(false),
                sent: Time::default(),
                round_trip: Duration::ZERO,
            }));
            false
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::Entry;
    use super::super::names::Key;
    use super::*;

    const OWNER: OwnerId = OwnerId::from_bytes([1; 16]);

    fn job(ask: Ask) -> (Job, oneshot::Receiver<Outcome>) {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            ask,
            owner: Some(OWNER),
            limit: Time::MAX,
            answer: Some(answer),
        };
        (job, answered)
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
        let (mut first, _) = job(give());
        assert!(is_still_to_do(&mut entries, &mut first));
        entries.remove(&OWNER);
        let (mut second, mut answered) = job(give());
        assert!(!is_still_to_do(&mut entries, &mut second));
        let said = answered.try_recv().unwrap().unwrap().said;
        assert_eq!(said, Said::Given(false));
    }

    #[test]
    fn a_take_that_nobody_wants_is_not_sent_and_leaves_nothing() {
        let mut wanted = entries(Stage::Asking);
        assert!(is_still_to_do(&mut wanted, &mut job(take()).0));
        let mut unwanted = entries(Stage::Unwanted);
        assert!(!is_still_to_do(&mut unwanted, &mut job(take()).0));
        assert!(unwanted.is_empty());
        assert!(!is_still_to_do(&mut unwanted, &mut job(take()).0));
    }
}
