//! Tasks: where they run, and futures that are polled without one.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// Where background work of a client runs: the runtime it was made in.
#[derive(Clone, Debug)]
pub struct Spawner(tokio::runtime::Handle);

impl Spawner {
    /// The current runtime, if there is one.
    pub fn current() -> Option<Self> {
        tokio::runtime::Handle::try_current().ok().map(Self)
    }

    /// Polls `future` once, for a drop that may happen anywhere: in this runtime, in another, in none.
    /// `Err(None)`: `future` cannot be polled, because the runtime that it needs is gone.
    pub fn poll_anywhere<F: Future + Unpin>(&self, future: F) -> Result<F::Output, Option<F>> {
        // In the destructor of a variable of a thread, tokio's own variables may be gone.
        let Ok(_inside) = catch_unwind(AssertUnwindSafe(|| self.0.enter())) else {
            return Err(Some(future));
        };
        // Timers and sockets panic when their runtime was shut down; a drop must not. Callers ask before whether that has
        // happened; this is for a runtime that shuts down at this moment.
        catch_unwind(AssertUnwindSafe(|| poll_now(future)))
            .map_or(Err(None), |polled| polled.map_err(Some))
    }

    /// Polls `future` inside this runtime, whatever runtime the caller is in: what `future` opens belongs to this one.
    pub async fn within<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let _inside = self.0.enter();
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Whether the runtime has shut down: then nothing that sleeps or reads a socket may be polled.
    pub fn is_shut_down(&self) -> bool {
        // A runtime that has shut down drops the tasks that it is given.
        let probe = self.0.spawn(std::future::pending::<()>());
        let is_dropped = probe.is_finished();
        probe.abort();
        is_dropped
    }

    /// Runs `future` in the background. A runtime that has shut down drops it.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Task {
        #[cfg(tenure_loom)]
        let future = super::sync::on_a_thread(future);
        Task(self.0.spawn(future).abort_handle())
    }

    /// Runs `work`, which may block, on a thread for such work. A runtime that has shut down drops `work`.
    pub fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        drop(self.0.spawn_blocking(work));
    }
}

/// A background task; aborted by hand only.
#[derive(Debug)]
pub struct Task(tokio::task::AbortHandle);

impl Task {
    /// Drops the task at its current await.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// Runs `work`, which blocks, on a thread for such work. `None`: there is no such thread, or `work` panicked.
pub async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Lets all other tasks that are ready run first.
pub async fn yield_now() {
    tokio::task::yield_now().await;
}

/// Polls `future` once without a runtime; hands it back when it is not ready.
pub fn poll_now<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}
