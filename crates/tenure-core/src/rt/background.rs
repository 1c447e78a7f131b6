//! Tasks that continue after the caller that started them has left: releases of dropped guards, clean-up after dropped
//! waits, leases that are given up. The tasks are counted, so that closing a client can wait for them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::spawner::Spawner;
use super::sync::{AtomicUsize, Notify};

/// How many of these tasks run, and how many operations that a caller performs itself.
#[derive(Default)]
pub struct BackgroundTasks {
    count: AtomicUsize,
    done: Notify,
}

/// Counts one task or operation, until it is dropped.
#[must_use]
pub struct Counted(Arc<BackgroundTasks>);

impl BackgroundTasks {
    /// Counts an operation that the caller performs itself, for as long as the answer lives.
    pub fn enter(self: &Arc<Self>) -> Counted {
        self.count.fetch_add(1, Ordering::SeqCst);
        Counted(self.clone())
    }

    /// Runs `work` in the background. `work` counts from now on, until it has ended or its runtime has dropped it.
    pub fn spawn(
        self: &Arc<Self>,
        spawner: &Spawner,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let counted = self.enter();
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
        let counted = self.enter();
        spawner.spawn_blocking(move || {
            work();
            drop(counted);
        });
    }

    /// Resolves when no such task runs. Cancel safe.
    pub async fn all_done(&self) {
        let mut woken = pin!(self.done.notified());
        loop {
            // Registers before it reads the count, so that the end of the last task is not missed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::poll_now;

    #[test]
    fn all_is_done_when_the_last_operation_is_over() {
        let tasks = Arc::<BackgroundTasks>::default();
        let (first, second) = (tasks.enter(), tasks.enter());
        let mut done = Box::pin(tasks.all_done());
        assert!(poll_now(done.as_mut()).is_err());
        drop(first);
        assert!(poll_now(done.as_mut()).is_err());
        drop(second);
        assert!(poll_now(done.as_mut()).is_ok());
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use super::*;
    use crate::rt::sync::{block_on, check, spawn};

    #[test]
    fn the_end_of_the_last_task_is_not_missed() {
        check(|| {
            let tasks = Arc::<BackgroundTasks>::default();
            let ended = Arc::new(AtomicUsize::new(0));
            let running = [(); 2].map(|()| {
                let (counted, ended) = (tasks.enter(), ended.clone());
                spawn(async move {
                    ended.fetch_add(1, Ordering::SeqCst);
                    drop(counted);
                })
            });
            block_on(tasks.all_done());
            assert_eq!(ended.load(Ordering::SeqCst), running.len());
            for task in running {
                task.join().unwrap();
            }
        });
    }
}
