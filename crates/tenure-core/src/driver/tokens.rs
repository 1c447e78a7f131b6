//! The tokens that a loss cancels (feature `tokio-util`).

use std::sync::{Arc, Mutex, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::rt::lock;

/// The tokens of one hold.
#[derive(Default)]
pub(super) struct Tokens {
    /// The parent of the tokens of all guards that hold this name alone, however many there are.
    parent: OnceLock<CancellationToken>,
    /// The tokens of guards that hold several names.
    joint: Mutex<Vec<Arc<CancellationToken>>>,
}

impl Tokens {
    /// The token that a loss cancels. It has no other end, so it is for children only.
    pub(super) fn parent(&self) -> &CancellationToken {
        self.parent.get_or_init(CancellationToken::new)
    }

    /// Cancels `token` at a loss, unless it is removed before.
    pub(super) fn add(&self, token: &Arc<CancellationToken>) {
        lock(&self.joint).push(token.clone());
    }

    pub(super) fn remove(&self, token: &Arc<CancellationToken>) {
        lock(&self.joint).retain(|it| !Arc::ptr_eq(it, token));
    }

    /// Cancels all tokens.
    pub(super) fn cancel(&self) {
        self.parent().cancel();
        let joint = std::mem::take(&mut *lock(&self.joint));
        joint.iter().for_each(|token| token.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_was_removed_is_not_cancelled() {
        let tokens = Tokens::default();
        let [kept, removed] = [(); 2].map(|()| Arc::new(CancellationToken::new()));
        tokens.add(&kept);
        tokens.add(&removed);
        tokens.remove(&removed);
        tokens.cancel();
        assert!(kept.is_cancelled() && !removed.is_cancelled());
    }
}
