//! Migrations that one instance of a program runs while the others wait.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::error::Error as _;
use std::time::Duration;

use sqlx::Pool;
use sqlx::migrate::{MigrateError, Migrator};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use sqlx::{Connection, Transaction};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::rt::Clock;
use tenure_core::transaction::{Sort, SqlDatabase};

use super::in_tx::Database;
#[cfg(feature = "postgres")]
use super::in_tx::advisory_lock_in_tx_within;
#[cfg(feature = "mysql")]
use super::in_tx::lock_in_tx_within;
#[cfg(feature = "mysql")]
use super::transaction_locks::TransactionLocks;

/// The name of the lock under which migrations run.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const LOCK: &str = "tenure/migrations";

/// How often an instance that waits asks for the lock. It does not wait in the database: in PostgreSQL a statement that
/// waits has a snapshot, for which CREATE INDEX CONCURRENTLY of the instance that migrates would wait for ever.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// How often the connection with the lock is used, so that neither a limit of the server for idle transactions nor a device
/// between client and server ends it, and so that its end is noticed.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the migrations that were not run yet, under a lock: of several instances that start at the same time one migrates,
/// and the others wait for the lock and then find nothing to do.
///
/// The lock of sqlx itself is a lock of a session. Behind a pooler that gives a server connection to a client for one
/// transaction at a time, such as PgBouncer in its mode `transaction`, this lock stays behind on a connection of other
/// clients, and excludes nothing. Therefore it is not used here.
///
/// - PostgreSQL: an advisory lock of a transaction, which a pooler keeps together. MySQL and MariaDB: the row
///   `tenure/migrations` in the table of [`lock_in_tx`](super::lock_in_tx), which is made if it is missing. The lock is taken
///   on one more connection, with the options of the pool and not counted by the pool, and released when the migrations have
///   ended. If this connection breaks meanwhile, the migrations are stopped; the server may go on with the statement that is
///   under way, without a COMMIT after it.
/// - SQLite: all migrations run in one transaction (`BEGIN IMMEDIATE`), so all of them are kept or none. A migration that is
///   marked `no-transaction` is in that transaction too.
///
/// Instances that migrate by `Migrator::run` are not excluded.
///
/// Other tools than sqlx's run under [`Lock::run`](crate::Lock::run):
/// `locks.lock("migrations").run(async |_| Migrator::up(&db, None).await).await??`.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn example() -> Result<(), tenure::Error> {
/// use sqlx::migrate::{Migration, MigrationType, Migrator};
/// use sqlx::{AssertSqlSafe, SqlSafeStr as _};
///
/// // In a program: `sqlx::migrate!()`, for the files in `./migrations`.
/// let sql = AssertSqlSafe("CREATE TABLE users (id INTEGER)").into_sql_str();
/// let first = Migration::new(1, "users".into(), MigrationType::Simple, sql, false);
/// let migrator = Migrator::with_migrations(vec![first]);
///
/// # let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
/// let pool = options.connect("sqlite::memory:").await?;
/// tenure::migrate(&pool, migrator).await?;
/// sqlx::query("SELECT id FROM users").fetch_all(&pool).await?;
/// # Ok(()) }
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Cancel safety
/// A dropped call stops the migrations between two statements, as a crash would: a migration that runs in a transaction is
/// rolled back. There is no limit of time; put `tokio::time::timeout` around the call.
///
/// # Errors
/// [`Store`](ErrorKind::Store) when a migration fails, with the [`MigrateError`] as its source;
/// [`Unreachable`](ErrorKind::Unreachable); [`Lost`](ErrorKind::Lost) when the connection with the lock broke while the
/// migrations ran.
pub async fn migrate<DB: MigratedDatabase>(
    pool: &Pool<DB>,
    mut migrator: Migrator,
) -> Result<(), Error> {
    migrator.set_locking(false);
    let migrated = DB::migrate(pool, &migrator).await;
    migrated.map_err(|err| err.with_scheme(DB::SCHEME))
}

/// A database whose migrations [`migrate`] runs. Other crates cannot implement this trait.
pub trait MigratedDatabase: Database {
    /// Runs the migrations under a lock.
    fn migrate(
        pool: &Pool<Self>,
        migrator: &Migrator,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

#[cfg(feature = "postgres")]
impl MigratedDatabase for sqlx::Postgres {
    async fn migrate(pool: &Pool<Self>, migrator: &Migrator) -> Result<(), Error> {
        let mut conn = sqlx::PgConnection::connect_with(&pool.connect_options()).await?;
        // In REPEATABLE READ the transaction would keep a snapshot for which CREATE INDEX CONCURRENTLY waits.
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
        let lock = loop {
            let mut tx = conn.begin_with(begin).await?;
            let locked = advisory_lock_in_tx_within(&mut tx, LOCK, Duration::ZERO).await;
            if is_granted::<Self, _>(locked)? {
                break tx;
            }
            tx.rollback().await?;
            pause(RETRY_INTERVAL).await;
        };
        let migrate = async {
            let mut conn = pool.acquire().await?;
            // `Migrator::run` is this call. The compiler does not see that its future is `Send`.
            migrator.run_direct(None, &mut *conn, false).await
        };
        beside(lock, migrate).await?;
        let _ = conn.close().await;
        Ok(())
    }
}

#[cfg(feature = "mysql")]
impl MigratedDatabase for sqlx::MySql {
    async fn migrate(pool: &Pool<Self>, migrator: &Migrator) -> Result<(), Error> {
        let mut conn = sqlx::MySqlConnection::connect_with(&pool.connect_options()).await?;
        <Self as TransactionLocks>::create(&mut conn).await?;
        let lock = loop {
            let mut tx = conn.begin().await?;
            let locked = lock_in_tx_within(&mut tx, LOCK, Duration::ZERO).await;
            if is_granted::<Self, _>(locked)? {
                break tx;
            }
            tx.rollback().await?;
            pause(RETRY_INTERVAL).await;
        };
        let migrate = async {
            let mut conn = pool.acquire().await?;
            migrator.run_direct(None, &mut *conn, false).await
        };
        beside(lock, migrate).await?;
        let _ = conn.close().await;
        Ok(())
    }
}

#[cfg(feature = "sqlite")]
impl MigratedDatabase for sqlx::Sqlite {
    async fn migrate(pool: &Pool<Self>, migrator: &Migrator) -> Result<(), Error> {
        let mut tx = loop {
            match pool.begin_with("BEGIN IMMEDIATE").await {
                Ok(tx) => break tx,
                Err(sqlx::Error::Database(said)) if Self::sort(&*said) == Sort::Busy => {
                    pause(RETRY_INTERVAL).await;
                }
                Err(err) => return Err(err.into()),
            }
        };
        let migrated = migrator.run_direct(None, &mut *tx, false).await;
        migrated.map_err(failed)?;
        Ok(tx.commit().await?)
    }
}

/// Whether the lock was granted; `false` if another instance has it.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn is_granted<DB: SqlDatabase, T>(locked: Result<T, Error>) -> Result<bool, Error> {
    match locked {
        Ok(_) => Ok(true),
        Err(err) if err.is_busy() || is_deadlock::<DB>(&err) => Ok(false),
        Err(err) => Err(err),
    }
}

/// MySQL ends some of the transactions that wait for a name whose first lock is rolled back.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn is_deadlock<DB: SqlDatabase>(err: &Error) -> bool {
    let cause = err.source().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(sqlx::Error::Database(said)) => DB::sort(&**said) == Sort::Deadlock,
        _ => false,
    }
}

/// Runs `migrate` while the transaction `lock` has the lock, and stops `migrate` if that transaction ends before.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn beside<DB: SqlDatabase>(
    mut lock: Transaction<'_, DB>,
    migrate: impl Future<Output = Result<(), MigrateError>>,
) -> Result<(), Error> {
    let done = tokio::select! {
        biased;
        err = until_broken::<DB>(&mut lock) => {
            let message = "the connection with the lock broke while the migrations ran, and they were stopped; run them again";
            return Err(Error::new(ErrorKind::Lost, message).with_source(err));
        }
        done = migrate => done,
    };
    // The row of the lock is kept, for the reason that `is_deadlock` tells. Without an answer the lock ends with its
    // connection.
    let _ = lock.commit().await;
    done.map_err(failed)
}

/// Resolves when the connection is broken.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn until_broken<DB: SqlDatabase>(conn: &mut DB::Connection) -> sqlx::Error {
    loop {
        pause(PING_INTERVAL).await;
        if let Err(err) = conn.ping().await {
            return err;
        }
    }
}

async fn pause(duration: Duration) {
    let clock = Clock::system();
    clock.sleep_until(clock.now().after(duration)).await;
}

fn failed(err: MigrateError) -> Error {
    let kind = match &err {
        MigrateError::Execute(
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed,
        ) => ErrorKind::Unreachable,
        _ => ErrorKind::Store,
    };
    Error::new(kind, "the migrations were not run to their end").with_source(err)
}
