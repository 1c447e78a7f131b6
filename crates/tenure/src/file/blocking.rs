//! Work that blocks its thread, away from the threads of the runtime.

use tenure_core::error::Error;
use tenure_core::rt::{self, Spawner};
use tenure_core::support::closed;

/// Does `work`, which reads many files or waits for other processes, on a thread that may block. Outside of a runtime
/// that is the thread of the caller.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match Spawner::current() {
        None => work(),
        Some(_) => rt::apart(work).await.unwrap_or_else(|| Err(closed())),
    }
}
