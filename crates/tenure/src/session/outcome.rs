//! What the errors of a server mean for locks of its sessions.

use tenure_core::error::{Error, ErrorKind};

use crate::database::{self, Server, Trouble};

use super::job::Failure;

/// The error of a request that was not fulfilled.
pub(super) fn explain(trouble: Trouble, server: &Server) -> Error {
    let cure = |code: &str| match code {
        "53200" => Some((
            ErrorKind::Backend,
            format!(
                "{server} has no room for another lock; ALTER SYSTEM SET max_locks_per_transaction = 256 and restart it"
            ),
        )),
        "1213" | "3058" | "40P01" => Some((
            ErrorKind::Backend,
            format!(
                "{server} says that waiting would be a deadlock; take several locks in one order, as lock_all does, or give up with `wait`"
            ),
        )),
        "1146" | "42P01" => Some((
            ErrorKind::Denied,
            format!(
                "{server} has no table tenure_holders, which list and break need; `tenure check --init` makes it"
            ),
        )),
        "1142" | "42501" => Some((
            ErrorKind::Denied,
            format!(
                "our user may not do that in {server}; GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_holders to it, or let an owner call `tenure check --init`"
            ),
        )),
        "1095" => Some((
            ErrorKind::Denied,
            format!("{server} does not let us end the session of another user"),
        )),
        // The thread to be killed is gone.
        "1094" => Some((
            ErrorKind::Backend,
            format!("{server} knows no such session"),
        )),
        _ => None,
    };
    database::explain(trouble, server, cure)
}

/// The same, for whatever became of a request.
pub(super) fn of_failure(failure: Failure, server: &Server) -> Error {
    match failure {
        Failure::Refused(trouble) | Failure::Gone(trouble) => explain(trouble, server),
        Failure::Late => explain(Trouble::Silence(server.timeout), server),
        Failure::RefusedToo => Error::new(
            ErrorKind::Unreachable,
            format!("{server} refused a statement that this was part of"),
        ),
        Failure::GoneToo => doubt(server),
    }
}

/// A check without an answer.
pub(super) fn of_check(failure: &Failure, server: &Server) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "{server} did not say whether the session is there ({})",
            match failure {
                Failure::Late => "no answer in time",
                Failure::Refused(_) | Failure::RefusedToo => "it refused",
                Failure::Gone(_) | Failure::GoneToo => "the connection broke",
            }
        ),
    )
}

/// A session has ended for us, and perhaps not for the server.
pub(super) fn doubt(server: &Server) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        format!(
            "the session in {server} ended, and it did not confirm that it has ended there too"
        ),
    )
}

/// The server was not there for as long as a lease lasts.
pub(super) fn silence(err: Error) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the server did not answer for a whole ttl; the place in its queue is given up",
    )
    .with_source(err)
}

/// Nothing is left of the request.
pub(super) fn unreachable(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate => Error::new(
            ErrorKind::Unreachable,
            "the session ended under the request, again and again",
        )
        .with_source(err),
        _ => err,
    }
}

pub(super) fn null() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the server could not tell whether the lock was taken (NULL): the request was called off, or it has run out of memory; retry",
    )
}

pub(super) fn nonsense() -> Error {
    Error::new(
        ErrorKind::Backend,
        "the server's answer makes no sense to this version; is something between us and it?",
    )
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}
