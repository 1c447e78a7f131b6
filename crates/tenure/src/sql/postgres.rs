//! PostgreSQL.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _};

use tenure_core::rt::Clock;
use tenure_core::time::Time;

use super::dialect::Dialect;
use super::statements::{self, POSTGRES_FENCE, create_tables};

/// What the server's clock says while this is evaluated (`now()` stands still in a transaction), in µs since 1970.
macro_rules! clock {
    () => {
        "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT"
    };
}

const CREATE: &str = create_tables(statements::Dialect::Postgres);

/// A new row gets 0, which no grant has: see [`RAISE`].
///
/// The new number is worked out when the row is ours: `DO UPDATE` locks first and evaluates then.
const LOCK: &str = concat!(
    "INSERT INTO tenure_tx_locks AS t (name, token) VALUES ($1, 0) ON CONFLICT (name) ",
    "DO UPDATE SET token = GREATEST(t.token + 1, ",
    clock!(),
    ") RETURNING token"
);

/// The first number of a row that has just been made. `VALUES` are evaluated before the insertion waits for
/// another one of the same name; a clock that was read there could be behind that of a transaction
/// which had the row meanwhile and was rolled back.
const RAISE: &str = concat!(
    "UPDATE tenure_tx_locks SET token = GREATEST(token + 1, ",
    clock!(),
    ") WHERE name = $1 RETURNING token"
);

/// How much longer than its limit a wait may take in all: `lock_timeout` counts each of the several waits
/// that a row may cost anew when others come first.
const SLACK: Duration = Duration::from_millis(250);

impl Dialect for Postgres {
    async fn create(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        // IF NOT EXISTS looks first; what somebody else creates at the same moment is seen too late. There are two
        // tables, so that may happen twice.
        for _ in 0..2 {
            let made = sqlx::raw_sql(CREATE).execute(&mut *conn).await;
            let code = match &made {
                Err(sqlx::Error::Database(said)) => said.code(),
                _ => return made.map(drop),
            };
            // A unique key of the catalogue, a type, a table.
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

/// The limits that held before ours, to be put back. A savepoint lies under ours, because an error aborts a
/// transaction, or what came after a savepoint of it.
struct Limits {
    before: [String; 2],
    clock: Clock,
    over: Time,
}

impl Limits {
    async fn set(conn: &mut PgConnection, wait: Duration) -> Result<Self, sqlx::Error> {
        // 0 would be no limit.
        let ms = |limit: Duration| limit.as_millis().clamp(1, 1_000_000_000);
        let statements = format!(
            "SAVEPOINT tenure_lock; \
             SELECT current_setting('lock_timeout'), current_setting('statement_timeout'); \
             SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}",
            ms(wait),
            ms(wait.saturating_add(SLACK))
        );
        // All rows, so that all statements are seen to their end.
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
            // It takes back what was set after it.
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
                // An administrator's cancellation is told by the same code.
                Some("57014") if is_over => Ok(None),
                _ => Err(sqlx::Error::Database(said)),
            },
            (Err(err), _) | (_, Err(err)) => Err(err),
        }
    }
}

/// The lock with this key, which `postgres://` takes for a session; until the transaction ends.
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
