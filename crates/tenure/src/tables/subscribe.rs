//! What a waiter is notified of, where the database has notifications (`listener.rs`).

#![cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "only PostgreSQL notifies")
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::support;

use crate::waiting::{self, WakeUp};

/// The notifications for one waiter, until it is dropped.
pub(super) struct Notifications {
    wake_ups: support::Subscription<WakeUp>,
    has_push: Arc<AtomicBool>,
}

impl Notifications {
    /// `has_push` is shared with the task that receives notifications.
    pub(super) fn new(wake_ups: support::Subscription<WakeUp>, has_push: Arc<AtomicBool>) -> Self {
        Self { wake_ups, has_push }
    }
}

/// `None`: nothing wakes the waiter.
impl waiting::WakeUps for Option<Notifications> {
    async fn next(&mut self) -> WakeUp {
        match self {
            Some(subscription) => subscription.wake_ups.next().await,
            None => std::future::pending().await,
        }
    }

    fn has_push(&self) -> bool {
        let has_push = self.as_ref().map(|it| it.has_push.load(Ordering::SeqCst));
        has_push.unwrap_or(false)
    }
}
