//! One request to a session, and what came of it.

use std::time::Duration;

use tokio::sync::oneshot;

use tenure_core::fence::OwnerId;
use tenure_core::time::Time;

use crate::database::Trouble;

use super::acquisitions::{AcquisitionState, Acquisitions};
use super::dialect::Operation;

/// What came of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationResult {
    /// The key is ours, under that token.
    Granted(u64),
    /// It is somebody else's.
    Busy,
    /// It was ours, or was not.
    Unlocked(bool),
    /// The session is there.
    Alive,
}

/// An answer, and when it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) said: OperationResult,
    pub(super) sent: Time,
    pub(super) round_trip: Duration,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum OperationError {
    /// The server refused, and nothing was done.
    Refused(Trouble),
    /// No answer yet. It may come.
    TimedOut,
    /// The session is over, or in so much doubt that we ended it.
    SessionEnded(Trouble),
    /// So it was for somebody else who shared the statement.
    RefusedToo,
    SessionEndedToo,
}

pub(super) type Outcome = Result<Answer, OperationError>;

/// It is under way, or stands in the queue.
pub(super) struct PendingOperation {
    pub(super) ask: Operation,
    pub(super) owner: Option<OwnerId>,
    /// Until when an answer is waited for.
    pub(super) limit: Time,
    /// `None`: nobody waits any more.
    pub(super) answer: Option<oneshot::Sender<Outcome>>,
}

impl PendingOperation {
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
pub(super) fn undo(ask: &Operation) -> Option<Operation> {
    match ask {
        Operation::TryLock { key, is_shared } => Some(Operation::Unlock {
            key: key.clone(),
            is_shared: *is_shared,
        }),
        Operation::Unlock { .. } | Operation::Ping => None,
    }
}

/// What becomes of a request when its session is free for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Send,
    /// A request to take a key that its caller no longer wants.
    Abandoned,
    /// A request to give back a key, whose acquisition has ended before.
    AlreadyReleased,
}

/// Decides that for one request, and removes the entry of an unwanted one.
///
/// When a release and the end of the lease meet, both ask to give the key back. The server counts how often a session
/// has a key, so a second request that comes late would give back what a later acquisition of the session has taken.
pub(super) fn turn(entries: &mut Acquisitions, job: &PendingOperation) -> Admission {
    let Some(owner) = job.owner else {
        return Admission::Send;
    };
    let stage = entries.get(&owner).map(|entry| entry.stage);
    match (&job.ask, stage) {
        (Operation::TryLock { .. }, None | Some(AcquisitionState::Abandoned)) => {
            entries.remove(&owner);
            Admission::Abandoned
        }
        (Operation::Unlock { .. }, None) => Admission::AlreadyReleased,
        _ => Admission::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::super::acquisitions::Acquisition;
    use super::super::names::Key;
    use super::*;

    const OWNER: OwnerId = OwnerId::from_bytes([1; 16]);

    fn job(ask: Operation) -> PendingOperation {
        PendingOperation {
            ask,
            owner: Some(OWNER),
            limit: Time::MAX,
            answer: None,
        }
    }

    fn take() -> Operation {
        Operation::TryLock {
            key: Key::One(7),
            is_shared: false,
        }
    }

    fn give() -> Operation {
        Operation::Unlock {
            key: Key::One(7),
            is_shared: false,
        }
    }

    fn entries(stage: AcquisitionState) -> Acquisitions {
        let mut entries = Acquisitions::default();
        let entry = Acquisition {
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
        let mut entries = entries(AcquisitionState::Releasing {
            retry_at: Time::MAX,
        });
        assert_eq!(turn(&mut entries, &job(give())), Admission::Send);
        entries.remove(&OWNER);
        assert_eq!(turn(&mut entries, &job(give())), Admission::AlreadyReleased);
    }

    #[test]
    fn an_unwanted_take_is_not_sent_and_leaves_nothing() {
        let mut wanted = entries(AcquisitionState::Requested);
        assert_eq!(turn(&mut wanted, &job(take())), Admission::Send);
        let mut unwanted = entries(AcquisitionState::Abandoned);
        assert_eq!(turn(&mut unwanted, &job(take())), Admission::Abandoned);
        assert!(unwanted.is_empty());
        assert_eq!(turn(&mut unwanted, &job(take())), Admission::Abandoned);
    }
}
