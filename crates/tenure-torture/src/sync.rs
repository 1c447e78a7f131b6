//! Locking of data that the threads of the runner share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another thread that held the lock: the run still has to end in order.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
