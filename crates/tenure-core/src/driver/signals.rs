//! Who waits for a change of a hold's state, and how they are told.

#[cfg(feature = "tokio-util")]
use std::sync::Mutex;

use tokio::sync::Notify;

use crate::rt::Flag;
#[cfg(feature = "tokio-util")]
use crate::rt::lock;

/// What waits for a change of state.
#[derive(Default)]
pub(super) struct Signals {
    /// Raised when the hold is lost, at the deadline at the latest.
    pub(super) lost: Flag,
    /// Woken when a renewal is overdue, and at a loss.
    pub(super) at_risk: Notify,
    /// Cancelled at a loss.
    #[cfg(feature = "tokio-util")]
    pub(super) tokens: Mutex<Vec<tokio_util::sync::CancellationToken>>,
}

impl Signals {
    /// Tells those who do not wait for the flag itself.
    pub(super) fn tell_lost(&self) {
        self.at_risk.notify_waiters();
        #[cfg(feature = "tokio-util")]
        lock(&self.tokens)
            .drain(..)
            .for_each(|token| token.cancel());
    }
}
