//! MySQL and MariaDB.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlDatabaseError, MySqlQueryResult};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _};

use super::statements::{Dialect, create_tables};
use super::transaction_locks::TransactionLocks;

/// A counter of the running server that begins at the second of its start, times 2^24. The highest byte, which would be
/// the number of the server, is left out.
///
/// The server evaluates the counter when the row is locked (`ON DUPLICATE KEY UPDATE` locks first and evaluates then). So
/// of two transactions that had the row the later one has the greater number, whatever became of the earlier one and of
/// the clock. After a restart the counter is greater because seconds have passed: it repeats a number of a transaction
/// that was rolled back only if the server started twice within one second, or if its clock was set back in between.
///
/// A clock would not do: `NOW(6)` is the start of the statement, before it waited, and so is `SYSDATE(6)` with
/// `--sysdate-is-now`, which a client cannot see. The transaction that waited longest would then have the smallest number.
macro_rules! raised {
    () => {
        "LAST_INSERT_ID(GREATEST(token + 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED)))"
    };
}

/// The same statement under every isolation level, and the one that locks the least: it locks a row that is there by its
/// key, and for a row that is missing only the insertion itself. A statement that reads first (`UPDATE`, `FOR UPDATE`)
/// would lock the gap where the row belongs: two transactions that did that, for the same name or for two neighbours,
/// could both not insert.
///
/// The reply has the number, because only MariaDB has `RETURNING`. A new row gets 0, which no grant has: see [`RAISE`].
macro_rules! lock {
    () => {
        concat!(
            "INSERT INTO tenure_tx_locks (name, token) VALUES (?, 0) ON DUPLICATE KEY UPDATE token = ",
            raised!()
        )
    };
}

const LOCK: &str = lock!();

/// The first number of a new row. It cannot be in `VALUES`, which the server evaluates before the insertion waits for
/// another insertion of the same name.
const RAISE: &str = concat!(
    "UPDATE tenure_tx_locks SET token = ",
    raised!(),
    " WHERE name = ?"
);

/// The reply has the greatest token so far, or 0 for a new row.
const FENCE: &str = "INSERT INTO tenure_fences (resource, token) VALUES (?, ?) \
     ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, ?))";

/// A shorter wait may end because the server is busy, and not because the row is locked.
const SHORT: Duration = Duration::from_millis(100);

/// Whether both tables are there. If they are, nothing is created: the server would refuse a user who may not create tables.
const IS_COMPLETE: &str = "SELECT COUNT(*) = 2 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ('tenure_tx_locks', 'tenure_fences')";

impl TransactionLocks for MySql {
    async fn create(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let row = sqlx::raw_sql(IS_COMPLETE).fetch_one(&mut *conn).await?;
        if row.try_get::<i64, _>(0)? == 1 {
            return Ok(());
        }
        sqlx::raw_sql(create_tables(Dialect::MySql))
            .execute(conn)
            .await
            .map(drop)
    }

    async fn lock(conn: &mut MySqlConnection, name: &[u8]) -> Result<i64, sqlx::Error> {
        let locked = sqlx::query(LOCK).bind(name).execute(&mut *conn);
        match locked.await?.last_insert_id() {
            0 => first(conn, name).await,
            token => number(token),
        }
    }

    async fn lock_within(
        conn: &mut MySqlConnection,
        name: &[u8],
        wait: Duration,
    ) -> Result<Option<i64>, sqlx::Error> {
        let server = sqlx::query("SELECT VERSION(), @@SESSION.innodb_lock_wait_timeout");
        let server = server.fetch_one(&mut *conn).await?;
        let (version, before): (String, u64) = (server.try_get(0)?, server.try_get(1)?);
        let locked = if is_mariadb(&version) {
            match lock_limited(conn, name, wait).await {
                // The server may have taken so long for a row that is free.
                Err(sqlx::Error::Database(said)) if code(&*said) == 1969 && wait < SHORT => {
                    lock_limited(conn, name, Duration::ZERO).await
                }
                locked => locked,
            }
        } else {
            // The limit of the session, in whole seconds, at least 1.
            set_limit(conn, seconds(wait).max(1)).await?;
            let locked = sqlx::query(LOCK).bind(name).execute(&mut *conn).await;
            if matches!(locked, Ok(_) | Err(sqlx::Error::Database(_))) {
                set_limit(conn, before).await?;
            }
            locked
        };
        match locked.map(|locked| locked.last_insert_id()) {
            Ok(0) => first(conn, name).await.map(Some),
            Ok(token) => number(token).map(Some),
            Err(sqlx::Error::Database(said)) if [1205, 1969].contains(&code(&*said)) => Ok(None),
            Err(err) => Err(err),
        }
    }

    async fn fence(
        conn: &mut MySqlConnection,
        resource: &[u8],
        token: i64,
    ) -> Result<Option<i64>, sqlx::Error> {
        let raised = sqlx::query(FENCE).bind(resource).bind(token).bind(token);
        let greatest = number(raised.execute(conn).await?.last_insert_id())?;
        Ok((greatest > token).then_some(greatest))
    }
}

/// For MariaDB. The limit is valid for this statement only, whatever happens.
async fn lock_limited(
    conn: &mut MySqlConnection,
    name: &[u8],
    wait: Duration,
) -> Result<MySqlQueryResult, sqlx::Error> {
    let statement = AssertSqlSafe(format!("{} {}", limits(wait), lock!()));
    let locked = sqlx::query(statement).persistent(false).bind(name);
    locked.execute(conn).await
}

async fn first(conn: &mut MySqlConnection, name: &[u8]) -> Result<i64, sqlx::Error> {
    let raised = sqlx::query(RAISE).bind(name).execute(conn).await?;
    number(raised.last_insert_id())
}

fn number(token: u64) -> Result<i64, sqlx::Error> {
    i64::try_from(token).map_err(|err| sqlx::Error::Decode(err.into()))
}

fn code(said: &dyn DatabaseError) -> u16 {
    said.try_downcast_ref::<MySqlDatabaseError>()
        .map_or(0, MySqlDatabaseError::number)
}

async fn set_limit(conn: &mut MySqlConnection, seconds: u64) -> Result<(), sqlx::Error> {
    let set = format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
    sqlx::raw_sql(AssertSqlSafe(set))
        .execute(conn)
        .await
        .map(drop)
}

fn is_mariadb(version: &str) -> bool {
    version.to_ascii_lowercase().contains("mariadb")
}

fn seconds(wait: Duration) -> u64 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    // One less than the greatest value that both servers accept.
    wait.as_secs().saturating_add(begun).min(99_999_999)
}

/// The beginning of a statement of MariaDB that sets its limits. The limit of a lock is in whole seconds, the limit of a
/// statement in µs; but zero as limit of a statement means no limit.
fn limits(wait: Duration) -> String {
    let lock = seconds(wait);
    if lock == 0 {
        return "SET STATEMENT innodb_lock_wait_timeout = 0 FOR".into();
    }
    // It takes at most a year.
    let statement = wait
        .min(Duration::from_secs(31_536_000))
        .as_micros()
        .max(1_000);
    format!(
        "SET STATEMENT innodb_lock_wait_timeout = {}, max_statement_time = {}.{:06} FOR",
        lock + 1,
        statement / 1_000_000,
        statement % 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_gets_the_limit_that_it_understands() {
        assert!(is_mariadb("10.11.19-MariaDB-deb12u1"));
        assert!(is_mariadb("5.5.5-10.4.2-mariadb"));
        assert!(!is_mariadb("8.4.3"));
        let limit = |ms| limits(Duration::from_millis(ms));
        assert_eq!(limit(0), "SET STATEMENT innodb_lock_wait_timeout = 0 FOR");
        assert_eq!(
            limit(1_250),
            "SET STATEMENT innodb_lock_wait_timeout = 3, max_statement_time = 1.250000 FOR"
        );
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(2)), 2);
        assert_eq!(seconds(Duration::MAX), 99_999_999);
    }
}
