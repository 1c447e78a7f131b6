//! Tasks that go on after the caller that started them has left: releases of dropped guards, clean-up after dropped
//! waits, leases that are given up. They are counted, so that closing a client can wait for them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::Spawner;

/// How many of these tasks run.
#[derive(Default)]
pub struct BackgroundTasks {
    count: AtomicUsize,
    done: Notify,
}

/// Counts one task, until it is dropped.
struct Counted(Arc<BackgroundTasks>);

impl BackgroundTasks {
    /// Runs `work` in the background. It counts from now on, and until it has ended or its runtime has dropped it.
    pub fn spawn(
        self: &Arc<Self>,
        spawner: &Spawner,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(self.clone());
        spawner.spawn(async move {
            work.await;
            drop(counted);
        });
    }

    /// The same for `work` that may block its thread.
    pub fn spawn_blocking(
        self: &Arc<Self>,
        spawner: &Spawner,
        work: impl FnOnce() + Send + 'static,
    ) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(self.clone());
        spawner.spawn_blocking(move || {
            work();
            drop(counted);
        });
    }

    /// Resolves when none runs. Cancel safe.
    pub async fn all_done(&self) {
        let mut woken = pin!(self.done.notified());
        loop {
            // Listens before it looks, so that the end of the last one is not missed.
            woken.as_mut().enable();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            woken.as_mut().await;
            woken.set(self.done.notified());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.done.notify_waiters();
        }
    }
}
