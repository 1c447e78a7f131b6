//! What a waiter is notified of, where the database has notifications (`listener.rs`).

#![cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "only PostgreSQL notifies")
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::support;

/// A notification for one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeUp {
    /// The name is free, or will be soon.
    Freed,
    /// The waiter is the first in the queue.
    First,
    /// Notifications arrive from now on.
    PushStarted,
    /// No notifications arrive from now on.
    PushStopped,
}

/// The notifications for one waiter, until it is dropped.
pub(super) struct Subscription {
    wake_ups: support::Subscription<WakeUp>,
    has_push: Arc<AtomicBool>,
}

impl Subscription {
    /// `has_push` is shared with the task that receives notifications.
    pub(super) fn new(wake_ups: support::Subscription<WakeUp>, has_push: Arc<AtomicBool>) -> Self {
        Self { wake_ups, has_push }
    }

    /// Whether notifications arrive.
    pub(super) fn has_push(&self) -> bool {
        self.has_push.load(Ordering::SeqCst)
    }

    /// The next notification; never, without a subscription. Cancel safe.
    pub(super) async fn next(subscription: Option<&mut Self>) -> WakeUp {
        match subscription {
            Some(subscription) => subscription.wake_ups.next().await,
            None => std::future::pending().await,
        }
    }
}
