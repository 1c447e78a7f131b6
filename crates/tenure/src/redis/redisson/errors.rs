//! What the scripts and names of Redisson's locks are refused for.

use std::time::Duration;

use redis::{FromRedisValue as _, Value};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;

use super::super::connection::unexpected_reply;
use super::super::errors::not_our_lock;
use super::lock::RedissonLock;

/// What a script says instead of granting the lock or telling who has it.
pub(crate) fn refused(lock: RedissonLock, reply: &[Value], mode: Mode) -> Error {
    let text = |found| String::from_redis_value_ref(found).unwrap_or_default();
    match reply {
        [Value::Int(-1), found] => wrong_type(lock, &text(found)),
        [Value::Int(-3), found] => wrong_lock(&text(found)),
        [Value::Int(-4), Value::Int(total)] => other_permits(*total, mode),
        _ => unexpected_reply(),
    }
}

/// The key has another type than this lock.
fn wrong_type(lock: RedissonLock, found: &str) -> Error {
    let wanted = match lock {
        RedissonLock::Semaphore => "string",
        _ => "hash",
    };
    let hint = match found {
        "hash" => {
            "; if it is another lock of Redisson, leave lock=semaphore out, or use lock=rw or lock=fair"
        }
        "string" => {
            "; if it is a lock of the common kind, leave dialect=redisson out; if it is a semaphore of Redisson, use lock=semaphore"
        }
        _ => "",
    };
    not_our_lock(&format!("a {found}, and a lock is a {wanted}"), hint)
}

/// The key has the type of this lock, and holds another kind of lock; `found` is the script's word for it.
fn wrong_lock(found: &str) -> Error {
    match found {
        "rw" => not_our_lock(
            "a hash with a mode, and a lock of this kind has none",
            "; if it is a RReadWriteLock of Redisson, use lock=rw",
        ),
        "plain" => not_our_lock(
            "a hash without a mode, and a read-write lock has one",
            "; if it is another lock of Redisson, use lock=plain or lock=fair",
        ),
        "expires" => not_our_lock(
            "a number of permits that expires, and with it all permits that are held",
            "; if it is a semaphore of Redisson, call clearExpire() in Java",
        ),
        _ => not_our_lock(
            "a string that is no number, and a semaphore is a number of permits",
            "; if it is a lock of the common kind, leave dialect=redisson out",
        ),
    }
}

/// Another lock has a side key of the same text as this lock's key.
pub(super) fn side_key() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "a name with an opening brace that ends with `:timeout` (lock=semaphore) or contains `:rwlock_timeout:` (lock=rw) is the name of a key that Redisson keeps for another lock; choose another name",
    )
}

/// The semaphore has another number of permits than the one that was asked for.
fn other_permits(total: i64, mode: Mode) -> Error {
    let (asked, limit) = match mode {
        Mode::Permits { limit } => (format!("permits({limit})"), limit.get()),
        _ => ("an exclusive hold, the only permit of one,".into(), 1),
    };
    let count = total.max(1);
    Error::new(
        ErrorKind::Store,
        format!(
            "the semaphore of that name has {total} permits in all, and {asked} was asked for; ask for permits({count}), or change the semaphore in Java with setPermits({limit}); nothing was changed"
        ),
    )
}

/// A hold cannot have the lease that was asked for: it is not renewed, or has that lease already.
pub(crate) fn lease_too_long(longest: Duration) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "with lock=rw a shared hold has a lease of {longest:?} at most, because a renewal of a reader in Redisson shortens the lease of every reader; ask for a ttl of {longest:?} or less (the library takes a longer ttl if the hold is renewed and `min_lease` is at most {longest:?})"
        ),
    )
}

/// Holds of this format keep their mode.
pub(crate) fn no_mode_change() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "Redisson's locks have no such change of the mode; release the lock and acquire it again",
    )
}

/// Redisson's locks have no place for a value, and no channel for observers.
pub(crate) fn no_elections() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a lock of Redisson is no election; leave dialect=redisson out",
    )
}

/// Redisson's locks have no place for what a detached hold needs.
pub(crate) fn no_detached_holds() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a lock of Redisson cannot be detached; leave dialect=redisson out",
    )
}

/// The format has no script to be one of several stores.
pub(crate) fn no_node() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a lock of Redisson cannot be a node of another store",
    )
}
