//! One operation of a session, from the request of a caller to its reply.

use std::time::Duration;

use tokio::sync::oneshot;

use tenure_core::fence::OwnerId;
use tenure_core::time::Time;

use crate::database::RequestError;

use super::acquisitions::{AcquisitionState, Acquisitions};
use super::key::Key;
use super::mode::KeyMode;

/// Operations in one statement.
pub(super) const MAX_BATCH: usize = 32;

/// What a session does for one caller. The operations of several callers are sent as one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SessionOperation {
    /// Take the lock if it is free.
    TryLock { key: Key, mode: KeyMode },
    /// Release the lock.
    Unlock { key: Key, mode: KeyMode },
    /// Use up tokens, so that each later grant of a lock that the session has now gets a greater token than `last`.
    Reserve { first: u64, last: u64 },
    /// Show that the session is there.
    Ping,
}

impl SessionOperation {
    /// What takes this operation back, if a refused statement has done it.
    pub(super) fn undo(&self) -> Option<Self> {
        match self {
            Self::TryLock { key, mode } => Some(Self::Unlock {
                key: key.clone(),
                mode: *mode,
            }),
            Self::Unlock { .. } | Self::Reserve { .. } | Self::Ping => None,
        }
    }

    /// The key whose count in the session the operation changes.
    pub(super) fn key(&self) -> Option<&Key> {
        match self {
            Self::TryLock { key, .. } | Self::Unlock { key, .. } => Some(key),
            Self::Reserve { .. } | Self::Ping => None,
        }
    }
}

/// A lock that an acquisition wants.
#[derive(Clone, Debug)]
pub(super) struct LockRequest {
    pub(super) key: Key,
    pub(super) mode: KeyMode,
    /// The lock is kept past the end of its hold (`min_hold`).
    pub(super) is_kept: bool,
    /// The ttl of a session that may carry the hold.
    pub(super) ttl: Duration,
}

impl LockRequest {
    /// Whether no other acquisition may be on the session of this one: a statement of it may take long.
    pub(super) fn reserves_session(&self) -> bool {
        self.is_kept || self.mode.reserves_session()
    }

    pub(super) fn try_lock(&self) -> SessionOperation {
        SessionOperation::TryLock {
            key: self.key.clone(),
            mode: self.mode,
        }
    }

    pub(super) fn unlock(&self) -> SessionOperation {
        SessionOperation::Unlock {
            key: self.key.clone(),
            mode: self.mode,
        }
    }
}

/// The result of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationResult {
    /// The lock is ours, with this token.
    Granted(u64),
    /// Another session has the lock.
    Busy,
    /// The lock is released. `false`: the session did not have the lock.
    Unlocked(bool),
    /// Later grants get greater tokens. `false`: more tokens have to be used up first.
    Reserved(bool),
    /// The session is there.
    Alive,
}

/// A result, and when the statement was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationReply {
    pub(super) result: OperationResult,
    pub(super) sent: Time,
    pub(super) round_trip: Duration,
}

/// Why an operation has no result. `None` in place of a [`RequestError`]: another caller of the same statement got the
/// error.
#[derive(Debug)]
pub(super) enum OperationError {
    /// The server refused the statement. What the statement may have locked before that is unlocked again.
    Refused(Option<RequestError>),
    /// There is no reply yet. One may come.
    TimedOut,
    /// The session is over, or it was ended because its state is unknown.
    SessionEnded(Option<RequestError>),
}

pub(super) type OperationOutcome = Result<OperationReply, OperationError>;

/// An operation that is under way or in the queue.
pub(super) struct PendingOperation {
    pub(super) operation: SessionOperation,
    pub(super) owner: Option<OwnerId>,
    /// The caller waits for a reply until then.
    pub(super) limit: Time,
    /// `None`: the caller has its outcome.
    pub(super) caller: Option<oneshot::Sender<OperationOutcome>>,
}

impl PendingOperation {
    pub(super) fn finish(&mut self, outcome: OperationOutcome) {
        if let Some(caller) = self.caller.take() {
            // An error means that the caller is gone.
            let _ = caller.send(outcome);
        }
    }

    fn unlocks(&self, owner: OwnerId) -> bool {
        matches!(self.operation, SessionOperation::Unlock { .. }) && self.owner == Some(owner)
    }

    /// Until when a caller waits; `None`: no caller does.
    pub(super) fn awaited_until(&self) -> Option<Time> {
        self.caller.as_ref().map(|_| self.limit)
    }
}

/// What is done with an operation when the connection of its session is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Send,
    /// Nothing: it would take a lock that the caller no longer wants.
    Abandoned,
    /// Nothing: it would release a lock whose acquisition has ended before.
    AlreadyReleased,
    /// Nothing yet: the same statement releases the lock of that acquisition already, and its reply decides.
    Repeated,
}

/// Decides whether an operation is sent, and removes an acquisition that was abandoned.
///
/// A release and the end of the lease may both ask to unlock the key, and so may a release that is repeated. The server
/// counts how often a session has a key, so a second unlock would release what another acquisition of the session
/// has. `admitted` are the operations before this one in the same statement.
pub(super) fn admit(
    acquisitions: &mut Acquisitions,
    pending: &PendingOperation,
    admitted: &[PendingOperation],
) -> Admission {
    let Some(owner) = pending.owner else {
        return Admission::Send;
    };
    let state = acquisitions.get(&owner).map(|it| it.state);
    match (&pending.operation, state) {
        (SessionOperation::TryLock { .. }, None | Some(AcquisitionState::Abandoned)) => {
            acquisitions.remove(&owner);
            Admission::Abandoned
        }
        (SessionOperation::Unlock { .. }, None) => Admission::AlreadyReleased,
        (SessionOperation::Unlock { .. }, _) if admitted.iter().any(|it| it.unlocks(owner)) => {
            Admission::Repeated
        }
        _ => Admission::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::super::acquisitions::Acquisition;
    use super::*;

    const OWNER: OwnerId = OwnerId::from_bytes([1; 16]);
    const KEY: Key = Key::One(7);

    fn pending(operation: SessionOperation) -> PendingOperation {
        PendingOperation {
            operation,
            owner: Some(OWNER),
            limit: Time::MAX,
            caller: None,
        }
    }

    fn try_lock() -> PendingOperation {
        pending(SessionOperation::TryLock {
            key: KEY,
            mode: KeyMode::Exclusive,
        })
    }

    fn unlock() -> PendingOperation {
        pending(SessionOperation::Unlock {
            key: KEY,
            mode: KeyMode::Exclusive,
        })
    }

    fn acquisitions(state: AcquisitionState) -> Acquisitions {
        let mut acquisitions = Acquisitions::default();
        let acquisition = Acquisition {
            key: KEY,
            mode: KeyMode::Exclusive,
            is_kept: false,
            state,
        };
        acquisitions.insert(OWNER, acquisition);
        acquisitions
    }

    /// The lease ended and the holder released at the same time; one of the two has its reply.
    #[test]
    fn a_second_unlock_is_not_sent() {
        let mut acquisitions = acquisitions(AcquisitionState::Releasing {
            retry_at: Time::MAX,
        });
        assert_eq!(admit(&mut acquisitions, &unlock(), &[]), Admission::Send);
        acquisitions.remove(&OWNER);
        let admission = admit(&mut acquisitions, &unlock(), &[]);
        assert_eq!(admission, Admission::AlreadyReleased);
    }

    /// A release without a reply is repeated, and both requests leave the queue together.
    #[test]
    fn a_statement_unlocks_an_acquisition_once() {
        let mut acquisitions = acquisitions(AcquisitionState::Releasing {
            retry_at: Time::MAX,
        });
        let admission = admit(&mut acquisitions, &unlock(), &[try_lock(), unlock()]);
        assert_eq!(admission, Admission::Repeated);
        let mut of_another = unlock();
        of_another.owner = Some(OwnerId::from_bytes([2; 16]));
        let admission = admit(&mut acquisitions, &unlock(), &[try_lock(), of_another]);
        assert_eq!(admission, Admission::Send);
    }

    #[test]
    fn an_abandoned_request_is_not_sent_and_leaves_nothing() {
        let mut wanted = acquisitions(AcquisitionState::Requested);
        assert_eq!(admit(&mut wanted, &try_lock(), &[]), Admission::Send);
        let mut abandoned = acquisitions(AcquisitionState::Abandoned);
        assert_eq!(
            admit(&mut abandoned, &try_lock(), &[]),
            Admission::Abandoned
        );
        assert!(abandoned.is_empty());
        assert_eq!(
            admit(&mut abandoned, &try_lock(), &[]),
            Admission::Abandoned
        );
    }
}
