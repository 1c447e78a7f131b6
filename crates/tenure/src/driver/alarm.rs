//! How a backend tells the driver that a hold ended.

use crate::fence::OwnerId;
use crate::lost::LostReason;

/// Given to a backend by [`Backend::attach`](crate::backend::Backend::attach).
///
/// A cheap clone that keeps nothing alive; calls after the client is gone do nothing.
#[derive(Clone, Debug, Default)]
pub struct Alarm(());

impl Alarm {
    /// That hold is definitely over, for this reason. Unknown owners are ignored.
    pub fn lost(&self, owner: OwnerId, reason: LostReason) {
        let _ = (owner, reason);
    }
}
