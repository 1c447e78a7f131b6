//! How a store tells the driver that a hold ended.

use std::fmt;
use std::sync::{OnceLock, Weak};

use crate::error::Error;
use crate::fence::OwnerId;
use crate::lost::LostReason;

/// Reports losses to the driver. A store gets its notifier by [`Store::attach`](super::Store::attach).
///
/// A clone is cheap and keeps nothing alive; calls after the client is gone do nothing.
/// A store must not call the notifier while it holds a lock that its own methods take.
#[derive(Clone)]
pub struct LossNotifier(Weak<dyn LossListener>);

/// The receiver of the reports: the driver, or a store that is made of stores.
pub trait LossListener: Send + Sync {
    /// The hold of this owner is definitely over.
    fn lost(&self, owner: OwnerId, reason: LostReason);
    /// The same, with the error that ended the hold.
    fn lost_by(&self, owner: OwnerId, reason: LostReason, cause: Error) {
        let _ = cause;
        self.lost(owner, reason);
    }
    /// Every hold of the client is over.
    fn all_lost(&self, reason: LostReason);
    /// Another client asks the holder to let go. The hold goes on.
    fn asked_to_release(&self, owner: OwnerId) {
        let _ = owner;
    }
}

impl LossNotifier {
    /// A notifier that reports to this listener, as long as the listener lives.
    pub fn new(listener: Weak<dyn LossListener>) -> Self {
        Self(listener)
    }

    /// The hold of this owner is definitely over, for this reason. Unknown owners are ignored.
    pub fn lost(&self, owner: OwnerId, reason: LostReason) {
        if let Some(listener) = self.0.upgrade() {
            listener.lost(owner, reason);
        }
    }

    /// As [`lost`](Self::lost), with the error that ended the hold.
    pub fn lost_by(&self, owner: OwnerId, reason: LostReason, cause: Error) {
        if let Some(listener) = self.0.upgrade() {
            listener.lost_by(owner, reason, cause);
        }
    }

    /// Every hold of the client is over: the session that kept the holds ended.
    pub fn all_lost(&self, reason: LostReason) {
        if let Some(listener) = self.0.upgrade() {
            listener.all_lost(reason);
        }
    }

    /// Another client asks the holder of this owner to let go; the holder decides. May be called again for the same request.
    pub fn asked_to_release(&self, owner: OwnerId) {
        if let Some(listener) = self.0.upgrade() {
            listener.asked_to_release(owner);
        }
    }

    /// Whether the listener is gone.
    pub fn has_no_listener(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl fmt::Debug for LossNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossNotifier")
            .field("has_no_listener", &self.has_no_listener())
            .finish()
    }
}

/// Where a store reports that a hold has ended.
#[derive(Debug, Default)]
pub struct Losses(OnceLock<LossNotifier>);

impl Losses {
    /// Reports go to this notifier from now on. Called once, as [`Store::attach`](super::Store::attach) is.
    pub fn attach(&self, notifier: LossNotifier) {
        let _ = self.0.set(notifier);
    }

    /// Tells the driver that the hold of `owner` is definitely over. A store without a driver has no holds.
    pub fn report(&self, owner: OwnerId, reason: LostReason) {
        if let Some(notifier) = self.0.get() {
            notifier.lost(owner, reason);
        }
    }

    /// As [`report`](Self::report), with the error that ended the hold.
    pub fn report_by(&self, owner: OwnerId, reason: LostReason, cause: Error) {
        if let Some(notifier) = self.0.get() {
            notifier.lost_by(owner, reason, cause);
        }
    }

    /// Tells the driver that another client asks the holder of this owner to let go.
    pub fn asked_to_release(&self, owner: OwnerId) {
        if let Some(notifier) = self.0.get() {
            notifier.asked_to_release(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::error::ErrorKind;
    use crate::rt::lock;

    #[derive(Default)]
    struct Driver(Mutex<Vec<OwnerId>>);

    impl LossListener for Driver {
        fn lost(&self, owner: OwnerId, _: LostReason) {
            lock(&self.0).push(owner);
        }

        fn all_lost(&self, _: LostReason) {}
    }

    #[test]
    fn a_loss_is_reported_to_the_driver_once_there_is_one() {
        let (losses, driver, owner) = (
            Losses::default(),
            Arc::<Driver>::default(),
            OwnerId::random(),
        );
        losses.report(OwnerId::random(), LostReason::SessionGone);
        losses.attach(LossNotifier::new(Arc::<Driver>::downgrade(&driver)));
        losses.report(owner, LostReason::SessionGone);
        assert_eq!(*lock(&driver.0), [owner]);
        // A listener that has no use for causes gets the loss all the same.
        let cause = Error::new(ErrorKind::Lost, "the session expired");
        losses.report_by(owner, LostReason::SessionGone, cause);
        assert_eq!(*lock(&driver.0), [owner, owner]);
    }
}
