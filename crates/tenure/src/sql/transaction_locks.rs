//! What each database does its own way: the tables, the lock and the fence.

use std::time::Duration;

use tenure_core::transaction::SqlDatabase;

/// A database, as the functions of this module need it. Errors are those of `sqlx`; [`sort`](SqlDatabase::sort) says what
/// they mean.
pub trait TransactionLocks: SqlDatabase {
    /// Creates the tables that are not there.
    fn create(conn: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Locks the row of that name until the transaction ends, and returns its new number.
    fn lock(
        conn: &mut Self::Connection,
        name: &[u8],
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// The same, and stops waiting for the row after `wait`: then returns `None`, and the transaction can go on.
    fn lock_within(
        conn: &mut Self::Connection,
        name: &[u8],
        wait: Duration,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;

    /// Raises the row of that resource to `token`. `Some`: the row has this greater token, and nothing was done.
    fn fence(
        conn: &mut Self::Connection,
        resource: &[u8],
        token: i64,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;
}
