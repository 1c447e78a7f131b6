//! One request to a session, and what came of it.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::sql::Trouble;
use crate::fence::OwnerId;
use crate::time::Time;

use super::dialect::Ask;

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
