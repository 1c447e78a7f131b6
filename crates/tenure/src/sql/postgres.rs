//! PostgreSQL.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _};

use tenure_core::rt::Clock;
use tenure_core::time::Time;

use super::statements::{Dialect, POSTGRES_FENCE, create_tables};
use super::transaction_locks::TransactionLocks;

/// The server's clock when the expression is evaluated (`now()` is the start of the transaction), in µs since 1970.
macro_rules! clock {
    () => {
        "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT"
    };
}

const CREATE: &str = create_tables(Dialect::Postgres);

/// Whether both tables are where [`CREATE`] would create them. If they are, nothing is created: else the server would send a
/// notice for each table, which the client library logs, and refuse a role that may not create tables.
const IS_COMPLETE: &str = "SELECT count(*) = 2 FROM pg_class WHERE relname IN ('tenure_tx_locks', 'tenure_fences') AND relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace";

/// A new row gets 0, which no grant has: see [`RAISE`].
///
/// The server evaluates the new number when the row is locked: `DO UPDATE` locks first and evaluates then.
const LOCK: &str = concat!(
    "INSERT INTO tenure_tx_locks AS t (name, token) VALUES ($1, 0) ON CONFLICT (name) ",
    "DO UPDATE SET token = GREATEST(t.token + 1, ",
    clock!(),
    ") RETURNING token"
);

/// The first number of a new row. `VALUES` are evaluated before the insertion waits for another insertion of the same
/// name; a clock that was read there could be behind the clock of a transaction that had the row meanwhile and was rolled
/// back.
const RAISE: &str = concat!(
    "UPDATE tenure_tx_locks SET token = GREATEST(token + 1, ",
    clock!(),
    ") WHERE name = $1 RETURNING token"
);

/// How much longer than its limit a wait may take in all. `lock_timeout` limits each single wait, and a row may cost
/// several waits when other transactions get it first.
const SLACK: Duration = Duration::from_millis(250);

impl TransactionLocks for Postgres {
    async fn create(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let row = sqlx::raw_sql(IS_COMPLETE).fetch_one(&mut *conn).await?;
        if row.try_get::<bool, _>(0)? {
            return Ok(());
        }
        // IF NOT EXISTS looks for the table first, and does not see a table that another session creates at the same
        // moment. There are two tables, so that may happen twice.
        for _ in 0..2 {
            let made = sqlx::raw_sql(CREATE).execute(&mut *conn).await;
            let code = match &made {
                Err(sqlx::Error::Database(said)) => said.code(),
                _ => return made.map(drop),
            };
            // Duplicates: of a key in the catalogue, of a type, of a table.
            if !matches!(code.as_deref(), Some("23505" | "42710" | "42P07")) {
                return made.map(drop);
            }
        }
        sqlx::raw_sql(CREATE).execute(conn).await.map(drop)
    }

    async fn lock(conn: &mut PgConnection, name: &[u8]) -> Result<i64, sqlx::Error> {
        let token = sqlx::query_scalar(LOCK).bind(name).fetch_one(&mut *conn);
        match token.await? {
            0 => sqlx::query_scalar(RAISE).bind(name).fetch_one(conn).await,
            token => Ok(token),
        }
    }

    async fn lock_within(
        conn: &mut PgConnection,
        name: &[u8],
        wait: Duration,
    ) -> Result<Option<i64>, sqlx::Error> {
        let limits = Limits::set(conn, wait).await?;
        let locked = Self::lock(conn, name).await;
        limits.put_back(conn, locked).await
    }

    async fn fence(
        conn: &mut PgConnection,
        resource: &[u8],
        token: i64,
    ) -> Result<Option<i64>, sqlx::Error> {
        let greatest = sqlx::query_scalar(POSTGRES_FENCE)
            .bind(resource)
            .bind(token);
        let greatest: i64 = greatest.fetch_one(conn).await?;
        Ok((greatest > token).then_some(greatest))
    }
}

/// The limits that were set before ours, to be restored. A savepoint is set before ours, because an error aborts the
/// transaction, or what it did after its last savepoint.
struct Limits {
    before: [String; 2],
    clock: Clock,
    over: Time,
}

impl Limits {
    async fn set(conn: &mut PgConnection, wait: Duration) -> Result<Self, sqlx::Error> {
        // 0 would mean no limit.
        let ms = |limit: Duration| limit.as_millis().clamp(1, 1_000_000_000);
        let statements = format!(
            "SAVEPOINT tenure_lock; \
             SELECT current_setting('lock_timeout'), current_setting('statement_timeout'); \
             SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}",
            ms(wait),
            ms(wait.saturating_add(SLACK))
        );
        // All rows are fetched, so that all statements run to their end.
        let rows = sqlx::raw_sql(AssertSqlSafe(statements));
        let rows = rows.fetch_all(conn).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let clock = Clock::system();
        Ok(Self {
            before: [row.try_get(0)?, row.try_get(1)?],
            over: clock.now().after(wait),
            clock,
        })
    }

    /// `None`: the limits have ended the wait.
    async fn put_back<T>(
        self,
        conn: &mut PgConnection,
        outcome: Result<T, sqlx::Error>,
    ) -> Result<Option<T>, sqlx::Error> {
        let [lock, statement] = self.before.map(|value| value.replace('\'', "''"));
        let statements = match &outcome {
            Ok(_) => format!(
                "SET LOCAL lock_timeout = '{lock}'; SET LOCAL statement_timeout = '{statement}'; \
                 RELEASE SAVEPOINT tenure_lock"
            ),
            // The rollback also restores the limits, which were set after the savepoint.
            Err(sqlx::Error::Database(_)) => {
                "ROLLBACK TO SAVEPOINT tenure_lock; RELEASE SAVEPOINT tenure_lock".into()
            }
            Err(_) => return outcome.map(Some),
        };
        let is_over = self.clock.now() >= self.over;
        let put_back = sqlx::raw_sql(AssertSqlSafe(statements)).execute(conn);
        match (put_back.await, outcome) {
            (Ok(_), Ok(value)) => Ok(Some(value)),
            (_, Err(sqlx::Error::Database(said))) => match said.code().as_deref() {
                Some("55P03") => Ok(None),
                // A cancellation by an administrator has the same code.
                Some("57014") if is_over => Ok(None),
                _ => Err(sqlx::Error::Database(said)),
            },
            (Err(err), _) | (_, Err(err)) => Err(err),
        }
    }
}

/// The lock with this key until the transaction ends. `postgres://` takes the same lock for a session.
const ADVISORY: &str = "SELECT pg_advisory_xact_lock($1)";

pub(super) async fn advisory(conn: &mut PgConnection, key: i64) -> Result<(), sqlx::Error> {
    let lock = sqlx::query(ADVISORY).bind(key);
    lock.execute(conn).await.map(drop)
}

pub(super) async fn advisory_within(
    conn: &mut PgConnection,
    key: i64,
    wait: Duration,
) -> Result<Option<()>, sqlx::Error> {
    let limits = Limits::set(conn, wait).await?;
    let locked = advisory(conn, key).await;
    limits.put_back(conn, locked).await
}
