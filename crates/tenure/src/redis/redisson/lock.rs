//! Which lock of Redisson a name is.

use std::time::Duration;

use tenure_core::options::Mode;

/// The longest lease of a reader, which may hold together with readers of Redisson: a renewal of one of those sets the
/// time of the whole lock to Redisson's `lockWatchdogTimeout`, by default this long, whatever lease another reader has.
const MAX_READER_LEASE: Duration = Duration::from_secs(30);

/// Which lock of Redisson a name is: the option `lock`. Redisson has another layout of keys for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedissonLock {
    /// `RLock` and `RFencedLock`.
    Plain,
    /// `RReadWriteLock`.
    ReadWrite,
    /// `RLock` of `getFairLock`.
    Fair,
    /// `RPermitExpirableSemaphore`.
    Semaphore,
}

impl RedissonLock {
    /// The lease of a hold whose request asks for this ttl.
    pub(crate) fn lease(self, mode: Mode, ttl: Duration) -> Duration {
        match (self, mode) {
            (Self::ReadWrite, Mode::Shared) => ttl.min(MAX_READER_LEASE),
            _ => ttl,
        }
    }

    /// Whether the store keeps the waiters of this lock.
    pub(crate) fn has_queue(self) -> bool {
        self == Self::Fair
    }

    /// Whether an owner is the id of a client and that of a thread, as Redisson writes them. Redisson never reads these ids
    /// from a lock.
    pub(crate) fn has_client_in_owner(self) -> bool {
        self != Self::Semaphore
    }
}
