//! How a backend tells the driver that a hold ended.

use std::fmt;
use std::sync::Weak;

use crate::fence::OwnerId;
use crate::lost::LostReason;

/// Given to a backend by [`Backend::attach`](super::Backend::attach).
///
/// A cheap clone that keeps nothing alive; calls after the client is gone do nothing.
/// Must not be called while the backend holds a lock that its own methods take.
#[derive(Clone)]
pub struct Alarm(Weak<dyn Listener>);

/// Who is told: the driver, or a backend that is made of backends.
pub trait Listener: Send + Sync {
    /// That hold is definitely over.
    fn lost(&self, owner: OwnerId, reason: LostReason);
    /// Every hold is over.
    fn all_lost(&self, reason: LostReason);
}

impl Alarm {
    /// Tells this listener, as long as it lives.
    pub fn new(listener: Weak<dyn Listener>) -> Self {
        Self(listener)
    }

    /// That hold is definitely over, for this reason. Unknown owners are ignored.
    pub fn lost(&self, owner: OwnerId, reason: LostReason) {
        if let Some(listener) = self.0.upgrade() {
            listener.lost(owner, reason);
        }
    }

    /// Every hold of the client is over: the session that carried them ended.
    pub fn all_lost(&self, reason: LostReason) {
        if let Some(listener) = self.0.upgrade() {
            listener.all_lost(reason);
        }
    }

    /// Whether nobody is left to be told.
    pub fn is_deaf(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm")
            .field("is_deaf", &self.is_deaf())
            .finish()
    }
}
