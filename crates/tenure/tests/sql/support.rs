//! What the tests about transactions share: three databases, and the data in them.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, MySql, Pool, Postgres, Sqlite, Transaction};
use tenure::memory;
use tenure::{Client, Error};
use tokio::sync::oneshot;

pub(crate) use crate::common::soon;
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres;
use tenure_testkit::process::Directory;

pub(crate) static MARIADB: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::start(&[]));
pub(crate) static POSTGRES: LazyLock<postgres::Postgres> =
    LazyLock::new(|| postgres::Postgres::start(&["max_connections=1000"]));
static FILES: LazyLock<Directory> = LazyLock::new(|| Directory::new("sqlite"));

/// A name of this test only.
pub(crate) fn name(tail: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{tail}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

/// A database with our tables and one of the user, `accounts`.
pub(crate) trait Bank: tenure::sql::Database {
    /// Only one transaction writes at a time, whatever its lock is.
    const ONE_WRITER: bool = false;
    /// A statement that fails ends its transaction.
    const STRICT: bool = false;

    /// Whether there is no server on this machine; then a line says so.
    fn skip_unless_installed() -> bool {
        false
    }

    /// The port of the shared server.
    fn port() -> u16;

    /// The shared database by way of another port; of SQLite a new file.
    fn connect(port: u16, connections: u32) -> impl Future<Output = Pool<Self>> + Send;

    /// Statements, without parameters.
    fn execute(
        conn: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The number that a statement returns, or nothing.
    fn number(
        conn: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;

    /// Begins a transaction that writes.
    fn begin(pool: &Pool<Self>) -> impl Future<Output = Transaction<'static, Self>> + Send;

    /// A statement that returns the number of its connection in the server.
    const WHO_AM_I: &str;

    /// Whether the connection with that number waits for another transaction.
    fn waits(connection: i64) -> bool;
}

macro_rules! statements {
    () => {
        async fn execute(conn: &mut Self::Connection, sql: String) -> Result<(), sqlx::Error> {
            if sql.is_empty() {
                return Ok(());
            }
            let sql = sqlx::raw_sql(AssertSqlSafe(sql));
            sql.execute(conn).await.map(drop)
        }

        async fn number(
            conn: &mut Self::Connection,
            sql: String,
        ) -> Result<Option<i64>, sqlx::Error> {
            let sql = sqlx::query_scalar(AssertSqlSafe(sql));
            sql.fetch_optional(conn).await
        }
    };
}

impl Bank for MySql {
    fn skip_unless_installed() -> bool {
        mariadb::skip_unless_installed()
    }

    fn port() -> u16 {
        MARIADB.port()
    }

    async fn connect(port: u16, connections: u32) -> Pool<Self> {
        let url = format!("{}?ssl-mode=disabled", MARIADB.url_at(port));
        let pool = MySqlPoolOptions::new().max_connections(connections);
        pool.acquire_timeout(TEST_TIMEOUT)
            .connect(&url)
            .await
            .unwrap()
    }

    async fn begin(pool: &Pool<Self>) -> Transaction<'static, Self> {
        pool.begin().await.unwrap()
    }

    const WHO_AM_I: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

    fn waits(connection: i64) -> bool {
        // The server does not refresh its table of transactions for clients that read it more often than ten times a second.
        let status = MARIADB.admin().rows("SHOW ENGINE INNODB STATUS");
        let status = status[0][2].clone().unwrap_or_default();
        let ours = format!("thread id {connection},");
        let mut transactions = status.split("---TRANSACTION");
        transactions.any(|it| it.contains(&ours) && it.contains("LOCK WAIT"))
    }

    statements!();
}

impl Bank for Postgres {
    const STRICT: bool = true;

    fn skip_unless_installed() -> bool {
        postgres::skip_unless_installed()
    }

    fn port() -> u16 {
        POSTGRES.port()
    }

    async fn connect(port: u16, connections: u32) -> Pool<Self> {
        let url = format!("{}?sslmode=disable", POSTGRES.url_at(port));
        let pool = PgPoolOptions::new().max_connections(connections);
        pool.acquire_timeout(TEST_TIMEOUT)
            .connect(&url)
            .await
            .unwrap()
    }

    async fn begin(pool: &Pool<Self>) -> Transaction<'static, Self> {
        pool.begin().await.unwrap()
    }

    const WHO_AM_I: &str = "SELECT pg_backend_pid()::bigint";

    fn waits(connection: i64) -> bool {
        let waiting = format!(
            "SELECT 1::text FROM pg_stat_activity WHERE pid={connection} AND wait_event_type='Lock'"
        );
        !POSTGRES.admin().rows(&waiting).is_empty()
    }

    statements!();
}

impl Bank for Sqlite {
    const ONE_WRITER: bool = true;

    fn port() -> u16 {
        0
    }

    async fn connect(_: u16, connections: u32) -> Pool<Self> {
        let path: PathBuf = FILES.path().join(name("bank"));
        let file = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(TEST_TIMEOUT);
        let pool = SqlitePoolOptions::new().max_connections(connections);
        pool.connect_with(file).await.unwrap()
    }

    async fn begin(pool: &Pool<Self>) -> Transaction<'static, Self> {
        pool.begin_with("BEGIN IMMEDIATE").await.unwrap()
    }

    const WHO_AM_I: &str = "SELECT 0";

    /// Of two transactions the second does not even begin.
    fn waits(_: i64) -> bool {
        false
    }

    statements!();
}

/// The database, its tables made.
pub(crate) async fn bank<DB: Bank>(connections: u32) -> Pool<DB> {
    bank_at(DB::port(), connections).await
}

pub(crate) async fn bank_at<DB: Bank>(port: u16, connections: u32) -> Pool<DB> {
    let pool = DB::connect(port, connections).await;
    tenure::sql::init(&pool).await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    let table = "CREATE TABLE IF NOT EXISTS accounts (id VARCHAR(100) PRIMARY KEY, balance BIGINT NOT NULL)";
    // Two tests at the same time may both find the table missing.
    let made = DB::execute(&mut conn, table.into()).await;
    if made.is_err() {
        DB::execute(&mut conn, table.into()).await.unwrap();
    }
    drop(conn);
    pool
}

/// An account of this test only, with 100 in it.
pub(crate) async fn account<DB: Bank>(pool: &Pool<DB>) -> String {
    let id = name("account");
    let insert = format!("INSERT INTO accounts (id, balance) VALUES ('{id}', 100)");
    let mut conn = pool.acquire().await.unwrap();
    DB::execute(&mut conn, insert).await.unwrap();
    id
}

pub(crate) async fn read<DB: Bank>(
    conn: &mut DB::Connection,
    id: &str,
) -> Result<i64, sqlx::Error> {
    let select = format!("SELECT balance FROM accounts WHERE id = '{id}'");
    DB::number(conn, select)
        .await?
        .ok_or(sqlx::Error::RowNotFound)
}

pub(crate) async fn write<DB: Bank>(
    conn: &mut DB::Connection,
    id: &str,
    balance: i64,
) -> Result<(), sqlx::Error> {
    let update = format!("UPDATE accounts SET balance = {balance} WHERE id = '{id}'");
    DB::execute(conn, update).await
}

/// The committed balance.
pub(crate) async fn balance<DB: Bank>(pool: &Pool<DB>, id: &str) -> i64 {
    let mut conn = pool.acquire().await.unwrap();
    read::<DB>(&mut conn, id).await.unwrap()
}

/// Sends the number of a connection, for [`until_waits`].
pub(crate) async fn send_connection_number<DB: Bank>(
    conn: &mut DB::Connection,
    number: oneshot::Sender<i64>,
) {
    let who = DB::number(conn, DB::WHO_AM_I.into()).await;
    // An error means that the test does not wait: in SQLite the second of two transactions does not even begin.
    let _ = number.send(who.unwrap().unwrap());
}

/// Waits until the connection whose number arrives waits for another transaction.
pub(crate) async fn until_waits<DB: Bank>(number: oneshot::Receiver<i64>) {
    if DB::ONE_WRITER {
        // The transaction has not begun, and a file does not show who waits for it.
        return;
    }
    let connection = soon(number).await.unwrap();
    until("it waits", async || DB::waits(connection)).await;
}

/// A store of locks in this process, on a clock that stands still, and a client of it.
pub(crate) fn locks() -> (memory::Store, Client) {
    let store = memory::Store::with_virtual_clock();
    let client = Client::from_store(store.clone()).unwrap();
    (store, client)
}

/// Polls the condition, without blocking the thread for long.
#[track_caller]
pub(crate) fn until(
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = std::time::Instant::now();
        while !condition().await {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "never happened: {what}, {caller}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The error is one line and has these words.
#[track_caller]
pub(crate) fn assert_says(err: &Error, words: &[&str]) {
    let said = format!("{err:#}");
    assert!(!said.contains('\n'), "{said}");
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}

/// The same test on each server.
macro_rules! on_servers {
    ($($test:ident),* $(,)?) => {
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                tenure_testkit::needs!(mariadb);
                super::$test::<sqlx::MySql>().await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                tenure_testkit::needs!(postgres);
                super::$test::<sqlx::Postgres>().await;
            })*
        }
    };
}
pub(crate) use on_servers;

/// The same test on each database.
macro_rules! on_each {
    ($($test:ident),* $(,)?) => {
        $crate::support::on_servers!($($test),*);
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test::<sqlx::Sqlite>().await;
            })*
        }
    };
}
pub(crate) use on_each;
