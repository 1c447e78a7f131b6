//! What an error of a database means for a transaction, and the remedy.

use sqlx::error::DatabaseError;

use super::database::{Sort, SqlDatabase};
use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::name::LockName;

/// For code whose error is that of this crate, as bodies of [`Lock::transaction`](crate::Lock::transaction): what is not about
/// a lock has the kind [`Store`](ErrorKind::Store); [`Unreachable`](ErrorKind::Unreachable) when nothing was sent; or
/// [`Indeterminate`](ErrorKind::Indeterminate) when the connection broke, because the error may be that of a COMMIT. The source
/// says what it was.
impl From<sqlx::Error> for Error {
    fn from(err: sqlx::Error) -> Self {
        let sorted = match &err {
            sqlx::Error::Database(said) => match any(&**said) {
                Sort::Gone => Some(broken()),
                sort @ (Sort::Deadlock | Sort::Outdated | Sort::Aborted) => by_sort(sort),
                // Of a statement of the user's own we know no remedy.
                _ => Some(Self::new(ErrorKind::Store, "the database said no")),
            },
            err if is_broken(err) => Some(broken()),
            sqlx::Error::PoolTimedOut | sqlx::Error::BeginFailed => Some(unreachable()),
            sqlx::Error::PoolClosed => Some(Self::new(ErrorKind::Closed, "the pool was closed")),
            _ => None,
        };
        let unfit = || Self::new(ErrorKind::Store, "the database cannot be used like this");
        sorted.unwrap_or_else(unfit).with_source(err)
    }
}

/// What a database said, whichever it is.
fn any(said: &dyn DatabaseError) -> Sort {
    #[cfg(feature = "postgres")]
    if said
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .is_some()
    {
        return <sqlx::Postgres as SqlDatabase>::sort(said);
    }
    #[cfg(feature = "mysql")]
    if said
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some()
    {
        return <sqlx::MySql as SqlDatabase>::sort(said);
    }
    #[cfg(feature = "sqlite")]
    if said
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
    {
        return <sqlx::Sqlite as SqlDatabase>::sort(said);
    }
    let _ = said;
    Sort::Other
}

/// Whether the connection broke.
fn is_broken(err: &sqlx::Error) -> bool {
    use sqlx::Error::{Io, Tls, WorkerCrashed};
    matches!(err, Io(_) | Tls(_) | WorkerCrashed)
}

/// What was under way may have been a COMMIT, or a statement outside of a transaction.
fn broken() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the connection to the database broke; a COMMIT or a statement outside of a transaction may have been done, what was not committed is rolled back",
    )
}

/// Whatever the transaction did is rolled back when its connection is gone.
fn unreachable() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the database cannot be reached; nothing of the transaction was kept",
    )
}

/// What a request was for, for the text of its error.
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// A lock in a transaction.
    Lock(&'a LockName),
    /// A fence in a transaction.
    Fence(&'a LockName),
    /// A transaction of this lock was to begin or to be checked.
    Transaction(&'a LockName),
    /// The same of a transaction that holds no lock.
    Unlocked,
    /// The tables of locks and fences.
    Tables,
}

/// The error of a statement that was not done.
pub fn explain<DB: SqlDatabase>(err: sqlx::Error, operation: Operation<'_>) -> Error {
    let sorted = match &err {
        sqlx::Error::Database(said) => by_sort(DB::sort(&**said)),
        // The statement was no COMMIT.
        err if is_broken(err) => Some(unreachable()),
        _ => None,
    };
    let err = match sorted {
        Some(sorted) => sorted.with_source(err),
        None => err.into(),
    };
    named::<DB>(err, operation)
}

/// Adds what every error should name.
pub fn named<DB: SqlDatabase>(err: Error, operation: Operation<'_>) -> Error {
    let err = err.with_scheme(DB::SCHEME);
    match operation {
        Operation::Lock(name) | Operation::Transaction(name) => {
            err.with_name(name).with_step(Step::Acquire)
        }
        Operation::Fence(resource) => err.with_name(resource).with_step(Step::Write),
        Operation::Tables => err.with_step(Step::Connect),
        Operation::Unlocked => err,
    }
}

fn by_sort(sort: Sort) -> Option<Error> {
    let (kind, message) = match sort {
        Sort::Busy => (
            ErrorKind::WaitElapsed,
            "another transaction kept the row until the database's own limit was over (lock_timeout, innodb_lock_wait_timeout, busy_timeout); roll back and retry, or raise the limit",
        ),
        Sort::Deadlock => (
            ErrorKind::Store,
            "transactions waited for each other, and the database ended this one; it is rolled back, run it again from its start; to avoid it take several names in the same order everywhere, and locks before other rows",
        ),
        Sort::Outdated => (
            ErrorKind::Store,
            "somebody changed the row after this transaction had begun to read; roll back and run it again; to avoid it lock before reading anything, in READ COMMITTED (SQLite: BEGIN IMMEDIATE)",
        ),
        Sort::NoTable => (
            ErrorKind::Store,
            "the tables of tenure::sql are missing in this database; create them with tenure::sql::init(&pool), or by hand from the files in its documentation",
        ),
        Sort::Aborted => (
            ErrorKind::Store,
            "an earlier statement of this transaction has failed, and the database does nothing more in it; roll back",
        ),
        Sort::Denied => (
            ErrorKind::Denied,
            "a privilege is missing; GRANT SELECT, INSERT, UPDATE on tenure_tx_locks and tenure_fences to this user",
        ),
        Sort::ReadOnly => (
            ErrorKind::Denied,
            "the database or the transaction is read-only; connect to the primary, begin a transaction that may write",
        ),
        Sort::Gone => return Some(unreachable()),
        Sort::Other => return None,
    };
    Some(Error::new(kind, message))
}
