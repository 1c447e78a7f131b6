//! The runtime of a blocking client.

use tenure_core::lost::LostReason;

/// A tokio runtime with one thread, for callers that have no runtime.
#[derive(Debug)]
pub(crate) struct OwnRuntime(Option<tokio::runtime::Runtime>);

impl OwnRuntime {
    pub(crate) fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tenure")
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
        self.0
            .as_ref()
            .expect("BUG: the runtime is taken out by drop only")
    }

    /// Runs `future` in the calling thread. `None` inside another runtime, whose thread must not be blocked.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        if tokio::runtime::Handle::try_current().is_ok() {
            return None;
        }
        Some(self.runtime().block_on(future))
    }

    /// Calls `listener` in the thread of this runtime if the hold is lost. The task ends with the hold, and keeps nothing of
    /// the client.
    pub(crate) fn call_when_lost(
        &self,
        lost: impl Future<Output = Option<LostReason>> + Send + 'static,
        listener: impl FnOnce(LostReason) + Send + 'static,
    ) {
        self.runtime().spawn(async move {
            if let Some(reason) = lost.await {
                listener(reason);
            }
        });
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // An ordinary drop waits for its threads, and panics inside another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
