//! SQLite: one transaction at a time writes into a file, so the lock of any name is the lock of the file.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use tenure_core::rt::wall_micros;
use tenure_core::transaction::{Sort, SqlDatabase as _};

use super::statements::{Dialect, SQLITE_FENCE, create_tables};
use super::transaction_locks::TransactionLocks;

/// Makes this transaction the one that writes. The wait for a lock is the wait for that.
const LOCK: &str = "INSERT INTO tenure_tx_locks (name, token) VALUES (?1, 0) \
     ON CONFLICT (name) DO UPDATE SET token = token";

/// With our clock, read after [`LOCK`], in µs: SQLite's own clock has milliseconds, and two transactions that are rolled
/// back may come within one millisecond.
const RAISE: &str =
    "UPDATE tenure_tx_locks SET token = MAX(token + 1, ?2) WHERE name = ?1 RETURNING token";

impl TransactionLocks for Sqlite {
    async fn create(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(create_tables(Dialect::Sqlite))
            .execute(conn)
            .await
            .map(drop)
    }

    async fn lock(conn: &mut SqliteConnection, name: &[u8]) -> Result<i64, sqlx::Error> {
        sqlx::query(LOCK).bind(name).execute(&mut *conn).await?;
        let now = i64::try_from(wall_micros()).unwrap_or(i64::MAX);
        let raised = sqlx::query_scalar(RAISE).bind(name).bind(now);
        raised.fetch_one(conn).await
    }

    async fn lock_within(
        conn: &mut SqliteConnection,
        name: &[u8],
        wait: Duration,
    ) -> Result<Option<i64>, sqlx::Error> {
        let before: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
            .fetch_one(&mut *conn)
            .await?;
        let ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        set_limit(conn, ms.min(i64::from(i32::MAX))).await?;
        let locked = Self::lock(conn, name).await;
        set_limit(conn, before).await?;
        match locked {
            Err(sqlx::Error::Database(said)) if Self::sort(&*said) == Sort::Busy => Ok(None),
            locked => locked.map(Some),
        }
    }

    async fn fence(
        conn: &mut SqliteConnection,
        resource: &[u8],
        token: i64,
    ) -> Result<Option<i64>, sqlx::Error> {
        let greatest = sqlx::query_scalar(SQLITE_FENCE).bind(resource).bind(token);
        let greatest: i64 = greatest.fetch_one(conn).await?;
        Ok((greatest > token).then_some(greatest))
    }
}

async fn set_limit(conn: &mut SqliteConnection, ms: i64) -> Result<(), sqlx::Error> {
    let set = AssertSqlSafe(format!("PRAGMA busy_timeout = {ms}"));
    sqlx::raw_sql(set).execute(conn).await.map(drop)
}
