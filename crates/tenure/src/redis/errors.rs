//! Errors about locks: what lies at a key, what a format cannot do, and a grant that may be left behind. What an error of
//! the client library means is in `connection/errors.rs`.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::options::Mode;

use super::settings::{Format, RedissonLock};

/// A grant that does not count could not be given back: the driver sends the release again.
pub(super) fn left_behind(err: Error) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server granted what does not count, and whether that was given back cannot be told",
    )
    .with_source(err)
}

/// The key has another type than a lock of this format.
pub(super) fn wrong_type(found: &str, format: Format) -> Error {
    let wanted = match format {
        Format::Token | Format::Redisson(RedissonLock::Semaphore) => "string",
        Format::Redisson(_) => "hash",
    };
    let hint = match (found, format) {
        ("hash", Format::Token) => "; if Redisson keeps it there, use dialect=redisson",
        ("hash", _) => {
            "; if it is another lock of Redisson, leave lock=semaphore out, or use lock=rw or lock=fair"
        }
        ("string", _) => {
            "; if it is a lock of the common kind, leave dialect=redisson out; if it is a semaphore of Redisson, use lock=semaphore"
        }
        _ => "",
    };
    not_our_lock(&format!("a {found}, and a lock is a {wanted}"), hint)
}

/// The key has the type of a lock of this format, and holds another kind of lock; `found` is the script's word for it.
pub(super) fn wrong_lock(found: &str) -> Error {
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

fn not_our_lock(found: &str, hint: &str) -> Error {
    Error::new(
        ErrorKind::Store,
        format!(
            "the key of that name holds {found}: something else uses the name; nothing was changed{hint}"
        ),
    )
}

/// Another lock has a side key of the same text as this lock's key.
pub(super) fn side_key() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "a name with an opening brace that ends with `:timeout` (lock=semaphore) or contains `:rwlock_timeout:` (lock=rw) is the name of a key that Redisson keeps for another lock; choose another name",
    )
}

/// The semaphore has another number of permits than the one that was asked for.
pub(super) fn other_permits(total: i64, mode: Mode) -> Error {
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
pub(super) fn lease_too_long(longest: Duration) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "with lock=rw a shared hold has a lease of {longest:?} at most, because a renewal of a reader in Redisson shortens the lease of every reader; ask for a ttl of {longest:?} or less (the library takes a longer ttl if the hold is renewed and `min_lease` is at most {longest:?})"
        ),
    )
}

/// The server does not have the hold that is to be upgraded.
pub(super) fn no_hold() -> Error {
    let message = "the server has no such hold; the lock was lost";
    Error::new(ErrorKind::Lost, message)
}

/// A key that a write is to be about lies on another server than the lock; `hashed` decides where the lock's key lies.
pub(super) fn other_slot(key: &str, hashed: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!(
            "the key \"{}\" is in another slot of the cluster than the lock; put what the lock's key is hashed by into braces in it, as in {{{}}}:data",
            Escaped(key),
            Escaped(hashed),
        ),
    )
}

/// Holds of this format keep their mode.
pub(super) fn no_mode_change() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "Redisson's locks have no such change of the mode; release the lock and acquire it again",
    )
}

/// The format has no script to be one of several stores.
pub(super) fn no_node() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a lock of Redisson cannot be a node of another store",
    )
}
