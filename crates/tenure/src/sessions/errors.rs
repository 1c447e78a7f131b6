//! What the errors of a server mean for locks of its sessions: cause and remedy.

use std::time::Duration;

use tenure_core::error::{
    Error,
    ErrorKind::{self, Denied, Store, Unreachable},
    ErrorParts as _,
};

use crate::database::{self, DatabasePool, Kind, Meaning, RequestError, Server};

use super::operations::OperationError;
use super::settings::Settings;

/// What error codes of a server mean for locks of its sessions.
const MEANINGS: &[Meaning] = &[
    (
        &["53200"],
        Store,
        "{server} has no room for another lock; ALTER SYSTEM SET max_locks_per_transaction = 256 and restart it",
    ),
    (
        &["1213", "3058", "40P01"],
        Store,
        "{server} reports that waiting would be a deadlock; take several locks in one order, as lock_all does, or give up with `wait`",
    ),
    (
        &["1146", "42P01"],
        Denied,
        "{server} has no table tenure_holders, which list and break need; `tenure check --init` makes it",
    ),
    (
        &["1142", "42501"],
        Denied,
        "{server} does not let our user do that; GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_holders to it, or let an owner call `tenure check --init`",
    ),
    (
        &["1095"],
        Denied,
        "{server} does not let us end the session of another user",
    ),
    (
        &["1205", "55P03"],
        Store,
        "another session of {server} has a lock on the table tenure_holders; try again when it is done",
    ),
    // The server took writes when this client connected, so the server takes over or is taken over from.
    (
        &["25006"],
        Unreachable,
        "{server} is read-only: a standby, or ALTER DATABASE .. SET default_transaction_read_only = off",
    ),
    (
        &["1290", "1836"],
        Unreachable,
        "{server} is read-only: a replica, or SET GLOBAL read_only = 0",
    ),
    // The session that was to be ended is gone.
    (&["1094"], Store, "{server} knows no such session"),
];

/// The caller's pool gave no connection in time.
pub(super) fn no_free_connection(pool: &DatabasePool, limit: Duration) -> Error {
    let most = pool.max_connections();
    let text = match pool.is_used_up() {
        true => format!(
            "no connection of the program's pool was free within {limit:?}: all {most} (max_connections) are in use, and locks of sessions need connections of their own; allow more"
        ),
        false => format!(
            "the program's pool gave no connection within {limit:?}; does the database answer?"
        ),
    };
    Error::new(ErrorKind::Unreachable, text).with_timeout()
}

/// A session of the caller's pool would get the lock that it has once more.
pub(super) fn locks_in_pool(kind: ErrorKind) -> Error {
    Error::new(
        kind,
        "a session of the program's pool has advisory locks already, and the server would grant it such a lock once more; release them (pg_advisory_unlock_all), or use locks of transactions (pg_advisory_xact_lock) there",
    )
}

/// The error of a statement that the server refused or did not answer.
pub(super) fn explain(error: RequestError, server: &Server) -> Error {
    database::explain(error, server, MEANINGS, &|_| None)
}

/// The error of an operation without a result.
pub(super) fn of_operation(error: OperationError, server: &Server) -> Error {
    match error {
        OperationError::Refused(Some(error)) | OperationError::SessionEnded(Some(error)) => {
            explain(error, server)
        }
        OperationError::TimedOut => explain(RequestError::TimedOut(server.timeout), server),
        OperationError::Refused(None) => Error::new(
            ErrorKind::Unreachable,
            format!("{server} refused a statement that this request was part of"),
        ),
        OperationError::SessionEnded(None) => unconfirmed_end(server),
    }
}

/// The error of a check without an answer.
pub(super) fn of_check(error: &OperationError, server: &Server) -> Error {
    let cause = match error {
        OperationError::TimedOut => "no answer in time",
        OperationError::Refused(_) => "it refused the request",
        OperationError::SessionEnded(_) => "the connection broke",
    };
    let err = Error::new(
        ErrorKind::Unreachable,
        format!("{server} did not say whether the session is there ({cause})"),
    );
    match error {
        OperationError::TimedOut => err.with_timeout(),
        OperationError::Refused(_) | OperationError::SessionEnded(_) => err,
    }
}

/// A session has ended for this client, and perhaps not for the server.
pub(super) fn unconfirmed_end(server: &Server) -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        format!(
            "the session in {server} ended for this client, and the server did not confirm that it has ended there too"
        ),
    )
}

/// The server did not answer for a whole ttl while an acquisition waited.
pub(super) fn silence(err: Error) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the server did not answer for a whole ttl, so the place in its queue was given up",
    )
    .with_source(err)
}

/// The last error of a request of which nothing is left in the server.
pub(super) fn unreachable(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate => Error::new(
            ErrorKind::Unreachable,
            "the session ended during the request, or the server did not answer, again and again",
        )
        .with_source(err),
        _ => err,
    }
}

/// The value of a leader, and a request to let go, have their place in the table of holders.
pub(super) fn no_room_for_values(server: &Server) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "elections over locks of sessions need the table tenure_holders, in which the leader publishes its value, and {server} has none that our user may use; `tenure check --init` or `Client::init` makes it (GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_holders), or use mode=table"
        ),
    )
}

pub(super) fn null() -> Error {
    Error::new(
        ErrorKind::Store,
        "the server could not tell whether the lock was taken (NULL): the request was cancelled, or the server has run out of memory; retry",
    )
}

pub(super) fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Store,
        "the server's reply has an unexpected shape; is there a proxy between this client and the server?",
    )
}

/// The statement that keeps the lock runs on the session that would have to change the mode.
pub(super) fn kept_and_changing() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a lock of a session with `min_hold` cannot change its mode; omit `min_hold`, or acquire the lock in the mode that it keeps",
    )
}

/// A hold needs a connection of its own, and there is none left.
pub(super) fn no_connection_left(settings: &Settings) -> Error {
    Error::new(
        ErrorKind::Store,
        format!(
            "this hold needs a connection of its own, and the client uses all {} that it may have; raise the option `connections` of the URL, or wait for the lock",
            settings.connections
        ),
    )
}

/// The server does not run the statement that keeps a lock.
pub(super) fn not_kept(error: RequestError, server: &Server) -> Error {
    let needs = match server.kind {
        Kind::Postgres => {
            ": it needs PostgreSQL 11 or later, and the right to use the language plpgsql"
        }
        Kind::MySql => "",
    };
    Error::new(
        ErrorKind::Store,
        format!("{server} did not keep the lock for `min_hold`{needs}; omit `min_hold`, or use mode=table"),
    )
    .with_source(explain(error, server))
}

/// The session that had the hold is over, because of this error.
pub(super) fn ended_by(error: &RequestError, server: &Server) -> Error {
    let lost = lost(server);
    match error {
        RequestError::Explained(err) => lost.with_source(err.clone()),
        RequestError::Refused(said) => lost.with_source(said.to_string()),
        RequestError::TimedOut(limit) => {
            let message = format!("no answer within {limit:?}");
            lost.with_timeout().with_source(message)
        }
        RequestError::Broken(err) => lost.with_source(err.to_string()),
    }
}

/// The session that had the hold is over.
pub(super) fn lost(server: &Server) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!("the session in {server} has ended, and the lock with it"),
    )
}
