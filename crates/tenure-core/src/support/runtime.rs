//! The runtime of a client: found when the client connects, and noticed when it has shut down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind};
use crate::rt::{Spawner, Task};

/// The runtime that the caller runs in, for a client that is about to connect.
///
/// # Errors
/// [`Closed`](ErrorKind::Closed): the caller runs outside a runtime.
pub fn spawner() -> Result<Spawner, Error> {
    Spawner::current().ok_or_else(|| {
        Error::new(
            ErrorKind::Closed,
            "connect was called outside a tokio runtime; use `tenure::blocking` there",
        )
    })
}

/// Knows whether the runtime that a client was made in has shut down. From then on nothing that sleeps or reads a
/// socket may be polled: such a poll panics.
///
/// A task that does nothing is the witness: a runtime drops its tasks when it shuts down.
pub struct RuntimeWatch {
    is_gone: Arc<AtomicBool>,
    witness: Task,
}

/// Dropped with its task.
struct Witness(Arc<AtomicBool>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl RuntimeWatch {
    /// Watches the runtime of `spawner`.
    pub fn new(spawner: &Spawner) -> Self {
        let is_gone = Arc::new(AtomicBool::new(false));
        let witness = Witness(is_gone.clone());
        let witness = spawner.spawn(async move {
            let _witness = witness;
            std::future::pending::<()>().await;
        });
        Self { is_gone, witness }
    }

    /// Whether the runtime has shut down.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }
}

impl Drop for RuntimeWatch {
    fn drop(&mut self) {
        self.witness.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_gone_when_it_was_dropped() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without drivers");
        let watch = runtime.block_on(async {
            let spawner = Spawner::current().expect("inside the runtime");
            RuntimeWatch::new(&spawner)
        });
        assert!(!watch.is_gone());
        drop(runtime);
        assert!(watch.is_gone());
    }

    #[tokio::test]
    async fn a_watch_that_is_dropped_leaves_no_task() {
        let spawner = Spawner::current().expect("inside the runtime");
        let watch = RuntimeWatch::new(&spawner);
        let is_gone = watch.is_gone.clone();
        tokio::task::yield_now().await;
        drop(watch);
        tokio::task::yield_now().await;
        // Only this test has the flag: the task is over.
        assert_eq!(Arc::strong_count(&is_gone), 1);
    }
}
