//! Who waits for a change of a hold's state, and how they are notified.

#[cfg(feature = "tokio-util")]
use std::sync::Mutex;

use tokio::sync::Notify;

use crate::rt::Flag;
#[cfg(feature = "tokio-util")]
use crate::rt::lock;

/// What waits for a change of one hold.
#[derive(Default)]
pub(super) struct Signals {
    /// Raised when the hold is lost, at the deadline at the latest.
    pub(super) lost: Flag,
    /// Notified when a renewal is overdue or has failed, and at a loss.
    pub(super) at_risk: Notify,
    /// Cancelled at a loss.
    #[cfg(feature = "tokio-util")]
    tokens: Mutex<Vec<tokio_util::sync::CancellationToken>>,
}

impl Signals {
    /// Cancels `token` at the next loss.
    #[cfg(feature = "tokio-util")]
    pub(super) fn cancel_at_loss(&self, token: &tokio_util::sync::CancellationToken) {
        lock(&self.tokens).push(token.clone());
    }

    /// Notifies all that do not wait for the flag `lost` itself.
    pub(super) fn notify_loss(&self) {
        self.at_risk.notify_waiters();
        #[cfg(feature = "tokio-util")]
        lock(&self.tokens)
            .drain(..)
            .for_each(|token| token.cancel());
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::rt::poll_now;

    #[test]
    fn a_loss_notifies_waiters_and_cancels_tokens() {
        let signals = Signals::default();
        let mut at_risk = pin!(signals.at_risk.notified());
        assert!(poll_now(at_risk.as_mut()).is_err());
        #[cfg(feature = "tokio-util")]
        let token = tokio_util::sync::CancellationToken::new();
        #[cfg(feature = "tokio-util")]
        signals.cancel_at_loss(&token);
        signals.notify_loss();
        assert!(poll_now(at_risk).is_ok());
        #[cfg(feature = "tokio-util")]
        assert!(token.is_cancelled());
    }
}
