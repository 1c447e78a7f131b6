//! What is true of each lock of Redisson.

use tenure_core::guarantees::Guarantees;

use super::lock::RedissonLock;

/// Where our tokens are.
const JAVA_TAKES_NONE: &str = "max(last + 1, server clock in µs), in a key of ours; holders in Java take none; can go backward only if the data is lost and the clock is set back";

pub(crate) fn describe(lock: RedissonLock, guarantees: &mut Guarantees) {
    match lock {
        RedissonLock::Plain => {
            guarantees.why_not = "dialect=redisson is an RLock; lock=rw, lock=fair or lock=semaphore in the URL chooses another lock of Redisson";
        }
        RedissonLock::ReadWrite => {
            guarantees.why_not = "lock=rw is an RReadWriteLock of Redisson; a renewal of a reader in Java sets the time of every reader, so a reservation would end too early or too late";
            guarantees.liveness = "a lease, renewed every third of the ttl; 30 s at most for a shared hold, because a renewal of a reader in Java sets the lease of all readers to Redisson's lockWatchdogTimeout";
            guarantees.token = JAVA_TAKES_NONE;
        }
        RedissonLock::Fair => {
            guarantees.why_not = "lock=fair is a fair lock of Redisson";
            guarantees.clock = "the server's wall clock ends leases; the holder's deadline runs on the client's boot clock; a waiter's place in the queue ends by the server's clock, and for Java by the clock of the Java client that looks, so a Java client whose clock is ahead may skip waiters";
            guarantees.waiting = "a queue in the server; a release wakes the first waiter; a dead waiter delays the others by min(ttl, 5 s), and behind a waiter in Java by the holder's lease and 300 s";
            guarantees.token = JAVA_TAKES_NONE;
        }
        RedissonLock::Semaphore => {
            guarantees.why_not = "lock=semaphore is an RPermitExpirableSemaphore of Redisson";
            guarantees.clock = "the server's wall clock ends leases, and for a Java client that client's own wall clock, so a lease can end early by as much as that clock is ahead; the holder's deadline runs on the client's boot clock";
            guarantees.token = JAVA_TAKES_NONE;
        }
    }
}
