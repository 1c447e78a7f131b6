//! How a backend tells the driver that a hold ended.

use std::sync::Weak;

use crate::fence::OwnerId;
use crate::lost::LostReason;

use super::renewal::Renewals;

/// Given to a backend by [`Backend::attach`](crate::backend::Backend::attach).
///
/// A cheap clone that keeps nothing alive; calls after the client is gone do nothing.
/// Must not be called while the backend holds a lock that its own methods take.
#[derive(Clone, Debug, Default)]
pub struct Alarm(pub(super) Weak<Renewals>);

impl Alarm {
    /// That hold is definitely over, for this reason. Unknown owners are ignored.
    pub fn lost(&self, owner: OwnerId, reason: LostReason) {
        if let Some(renewals) = self.0.upgrade() {
            renewals.lost(owner, reason);
        }
    }

    /// Every hold of the client is over: the session that carried them ended.
    pub fn all_lost(&self, reason: LostReason) {
        if let Some(renewals) = self.0.upgrade() {
            renewals.all_lost(reason);
        }
    }
}
