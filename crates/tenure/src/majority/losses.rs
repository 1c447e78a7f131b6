//! Losses that the nodes report.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::store::{LossListener, LossNotifier};

use super::holds::{Holds, QuorumHold};

/// Receives what one node reports about the end of holds.
pub(super) struct NodeListener {
    pub(super) node: usize,
    pub(super) holds: Arc<Holds>,
    pub(super) loss_notifier: LossNotifier,
}

impl NodeListener {
    /// The node has lost its part of `hold`. The driver learns of it when no majority is left.
    fn report(&self, hold: &QuorumHold, reason: LostReason, cause: Option<Error>) {
        if hold.set_lost(self.node) {
            return;
        }
        match cause {
            Some(cause) => self.loss_notifier.lost_by(hold.owner, reason, cause),
            None => self.loss_notifier.lost(hold.owner, reason),
        }
    }
}

impl LossListener for NodeListener {
    fn lost(&self, owner: OwnerId, reason: LostReason) {
        if let Some(hold) = self.holds.get(owner) {
            self.report(&hold, reason, None);
        }
    }

    fn lost_by(&self, owner: OwnerId, reason: LostReason, cause: Error) {
        if let Some(hold) = self.holds.get(owner) {
            self.report(&hold, reason, Some(cause));
        }
    }

    /// Each node may report the same request.
    fn asked_to_release(&self, owner: OwnerId) {
        if let Some(hold) = self.holds.get(owner) {
            self.loss_notifier.asked_to_release(hold.owner);
        }
    }

    fn all_lost(&self, reason: LostReason) {
        for hold in self.holds.all() {
            self.report(&hold, reason, None);
        }
    }
}
