//! A token that the loss of one of several holds cancels (feature `tokio-util`).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::logic::lease::HoldState;

use super::hold_state::SharedHoldState;

/// The token of a guard that holds several names: cancelled when the first of them is lost, as long as the guard exists.
pub(crate) struct JointToken {
    token: Arc<CancellationToken>,
    holds: Vec<Arc<SharedHoldState>>,
}

impl JointToken {
    pub(crate) fn new(holds: Vec<Arc<SharedHoldState>>) -> Self {
        let token = Arc::new(CancellationToken::new());
        for hold in &holds {
            hold.tokens.add(&token);
        }
        Self { token, holds }
    }

    /// A token that the loss of one of the holds cancels.
    pub(crate) fn child_token(&self) -> CancellationToken {
        // The state is read after the token is in the lists: a loss before that did not cancel it.
        let is_lost = |hold: &Arc<SharedHoldState>| matches!(hold.state(), HoldState::Lost(_));
        if self.holds.iter().any(is_lost) {
            self.token.cancel();
        }
        self.token.child_token()
    }
}

impl Drop for JointToken {
    fn drop(&mut self) {
        for hold in &self.holds {
            hold.tokens.remove(&self.token);
        }
    }
}
