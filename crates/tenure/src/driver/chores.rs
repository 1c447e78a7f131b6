//! What goes on after its caller has left: releases of dropped guards, clean-up after dropped waits.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many of them there are.
#[derive(Default)]
pub(super) struct Chores {
    count: AtomicUsize,
    done: Notify,
}

/// One of them, until it is dropped.
pub(super) struct Chore(Arc<Chores>);

impl Chores {
    /// One more.
    pub(super) fn begin(self: &Arc<Self>) -> Chore {
        self.count.fetch_add(1, Ordering::SeqCst);
        Chore(self.clone())
    }

    /// Resolves when there is none. Cancel safe.
    pub(super) async fn all_done(&self) {
        let mut woken = pin!(self.done.notified());
        loop {
            // Listens before it looks, so that the last one is not missed.
            woken.as_mut().enable();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            woken.as_mut().await;
            woken.set(self.done.notified());
        }
    }
}

impl Drop for Chore {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.done.notify_waiters();
        }
    }
}
