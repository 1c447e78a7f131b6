//! What differs between databases.

use std::time::Duration;

use tenure_core::transaction::SqlDatabase;

/// A database, as the functions of this module need it. Answers are those of `sqlx`; what they mean is said by
/// [`sort`](SqlDatabase::sort).
pub trait Dialect: SqlDatabase {
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
}
