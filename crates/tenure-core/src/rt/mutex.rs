//! Mutexes without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that a panic elsewhere does not poison: what it guards is valid between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
