//! Errors about locks. What an error of the client library means is in `connection/errors.rs`, and what only Redisson's
//! locks are refused for in `redisson/errors.rs`.

use redis::{FromRedisValue as _, Value};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;

use super::connection::unexpected_reply;

/// A grant that does not count could not be given back: the driver sends the release again.
pub(super) fn left_behind(err: Error) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server granted what does not count, and whether that was given back cannot be told",
    )
    .with_source(err)
}

/// What a script says instead of granting the lock or telling who has it.
pub(super) fn refused(reply: &[Value]) -> Error {
    let found = match reply {
        [Value::Int(-1), found] => String::from_redis_value_ref(found).unwrap_or_default(),
        [Value::Int(-2)] => {
            let message = "the server has no such hold; the lock was lost";
            return Error::new(ErrorKind::Lost, message);
        }
        _ => return unexpected_reply(),
    };
    let hint = match found.as_str() {
        "hash" => "; if Redisson keeps it there, use dialect=redisson",
        _ => "",
    };
    not_our_lock(&format!("a {found}, and a lock is a string"), hint)
}

/// The key has a value that is no lock of ours.
pub(super) fn not_our_lock(found: &str, hint: &str) -> Error {
    Error::new(
        ErrorKind::Store,
        format!(
            "the key of that name holds {found}: something else uses the name; nothing was changed{hint}"
        ),
    )
}

/// The key that a guarded write names is on another server than the lock. `hashed` is the text that decides on which
/// server the lock's key is.
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
