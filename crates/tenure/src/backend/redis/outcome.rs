//! What an error of the client library means: nothing was applied, cannot tell, or refused.

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind as Server};

use crate::error::{Error, ErrorKind};

/// An error while a connection is being made: nothing of ours was sent.
pub(super) fn connecting(err: RedisError, host: &impl std::fmt::Display) -> Error {
    let code = err.code().unwrap_or_default().to_owned();
    let error = |kind, what: String| Error::new(kind, what);
    match (err.kind(), code.as_str()) {
        (Kind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => error(
            ErrorKind::Denied,
            format!("{host} refused user or password; they stand before `@` in the URL"),
        ),
        (Kind::Server(Server::NoPerm), _) => error(
            ErrorKind::Denied,
            format!("{host} does not let this user do what a lock needs"),
        )
        .with_source(err),
        (Kind::RESP3NotSupported, _) => error(
            ErrorKind::Unsupported,
            format!("{host} does not speak version 3 of the protocol; Redis 6 or newer does"),
        ),
        (Kind::Io, _) if err.is_timeout() => error(
            ErrorKind::Unreachable,
            format!(
                "{host} did not answer in time; is it overloaded, stopped, or something else than Redis?"
            ),
        ),
        (Kind::Io, _) => error(
            ErrorKind::Unreachable,
            format!("no connection to {host}; is the server running, and the URL right?"),
        )
        .with_source(err),
        (Kind::Parse, _) => error(
            ErrorKind::Unreachable,
            format!("{host} does not answer like a Redis server; is the port right?"),
        ),
        // A password without a user, and a server that has none: the library passes the server's words on.
        _ if err.to_string().contains("without any password configured") => error(
            ErrorKind::Denied,
            format!("{host} has no password; leave it out of the URL"),
        ),
        _ => refused(err),
    }
}

/// An error after a request was sent.
pub(super) fn asking(err: RedisError) -> Error {
    match err.kind() {
        Kind::Io | Kind::Parse if err.is_timeout() => Error::new(
            ErrorKind::Indeterminate,
            "no answer in time; whether the request was applied cannot be told",
        ),
        Kind::Io | Kind::Parse => Error::new(
            ErrorKind::Indeterminate,
            "the connection broke before the answer; whether the request was applied cannot be told",
        ),
        _ => refused(err),
    }
}

/// Whether the server is a replica; nothing was applied. Before version 7 a script wraps its error.
pub(super) fn is_readonly(err: &RedisError) -> bool {
    err.code() == Some("READONLY")
        || err
            .detail()
            .is_some_and(|detail| detail.contains("-READONLY "))
}

/// The server's own no: nothing was applied, because its first write was refused.
fn refused(err: RedisError) -> Error {
    let code = err.code().unwrap_or_default().to_owned();
    let (kind, what) = match code.as_str() {
        "LOADING" => (
            ErrorKind::Unreachable,
            "the server is still loading its data; retry",
        ),
        "BUSY" => (
            ErrorKind::Unreachable,
            "the server is busy with a script of somebody's; retry",
        ),
        "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" => (
            ErrorKind::Unreachable,
            "the servers are rearranging themselves; retry",
        ),
        "READONLY" => (
            ErrorKind::Unreachable,
            "the server is a replica and cannot be written; name the primary, or use redis+sentinel:// which follows it",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unreachable,
            "the server has too few replicas to be written (min-replicas-to-write)",
        ),
        "MISCONF" => (
            ErrorKind::Backend,
            "the server cannot save its data and refuses writes (stop-writes-on-bgsave-error); free its disk",
        ),
        "OOM" => (
            ErrorKind::Backend,
            "the server's memory is full (maxmemory); raise it or free some",
        ),
        "NOAUTH" | "WRONGPASS" => (
            ErrorKind::Denied,
            "the server wants a user and a password; they stand before `@` in the URL",
        ),
        "NOPERM" => (
            ErrorKind::Denied,
            "the server does not let this user do what a lock needs; docs/stores/redis.md lists the commands and keys",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => (
            ErrorKind::Invalid,
            "the server is a node of a cluster; write redis+cluster://",
        ),
        _ => (ErrorKind::Backend, "the server refused the request"),
    };
    Error::new(kind, what).with_source(err)
}

/// The key has a type that no lock of this format has.
pub(super) fn wrong_type(found: &str, wanted: &str) -> Error {
    let hint = match (found, wanted) {
        ("hash", "string") => "; if Redisson keeps it there, use dialect=redisson",
        ("string", "hash") => "; if it is a lock of the common kind, leave dialect=redisson out",
        _ => "",
    };
    Error::new(
        ErrorKind::Backend,
        format!(
            "the key of that name holds a {found}, and a lock is a {wanted}: something else uses the name; nothing was changed{hint}"
        ),
    )
}
