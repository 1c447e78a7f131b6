//! What differs between databases.

use std::time::Duration;

use sqlx::error::DatabaseError;

/// A database, as the functions of this module need it. Answers are those of `sqlx`; what they mean is said by
/// [`sort`](Dialect::sort).
pub trait Dialect: sqlx::Database {
    /// What errors call it: the scheme of its URL.
    const SCHEME: &'static str;

    /// Creates the tables that are not there.
    fn create(conn: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Takes the row of that name until the transaction ends; answers with its new number.
    fn lock(
        conn: &mut Self::Connection,
        name: &[u8],
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// The same, where waiting for the row ends after `wait`: then `None`, and the transaction goes on.
    fn lock_within(
        conn: &mut Self::Connection,
        name: &[u8],
        wait: Duration,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;

    /// Raises the row of that resource to `token`. `Some`: it has seen this greater one, and nothing was done.
    fn fence(
        conn: &mut Self::Connection,
        resource: &[u8],
        token: i64,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;

    /// Asks for nothing: an error, and the transaction would be rolled back by a COMMIT, in silence.
    fn probe(conn: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = conn;
        std::future::ready(Ok(()))
    }

    /// What the database said, in our terms.
    fn sort(said: &dyn DatabaseError) -> Sort;

    /// Whether a COMMIT that was answered with this did not commit, for certain.
    fn is_no(said: &dyn DatabaseError) -> bool;
}

/// What an error of a database means for whoever has the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Another transaction kept the row until the limit.
    Busy,
    /// The transactions waited for each other, and this one was chosen to end.
    Deadlock,
    /// Somebody changed what this transaction had read before.
    Outdated,
    /// One of our tables is not there.
    NoTable,
    /// An earlier statement of the transaction has failed, and it takes no other.
    Aborted,
    /// A privilege is missing.
    Denied,
    /// A standby, a replica, or a transaction that may only read.
    ReadOnly,
    /// The server ended the connection.
    Gone,
    /// Anything else.
    Other,
}
