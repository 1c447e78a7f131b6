//! Tables over a pool of the caller.

use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{Connection as _, Row as _};

use tenure::tables::{DatabasePool, Settings, Store};
use tenure::{Client, ErrorKind};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::sqlite::DatabaseFile;

use crate::common::{assert_says, drop_acquires, soon, until};

const TTL: Duration = Duration::from_secs(10);

/// The name that the program gives to its connections.
const PROGRAM: &str = "a service";

fn postgres_pool(server: &Postgres, connections: u32) -> PgPool {
    let options: PgConnectOptions = server.url().parse().unwrap();
    let options = options
        .ssl_mode(PgSslMode::Disable)
        .application_name(PROGRAM);
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options)
}

fn mysql_pool(server: &MariaDb, connections: u32) -> MySqlPool {
    let options: MySqlConnectOptions = server.url().parse().unwrap();
    MySqlPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options.ssl_mode(MySqlSslMode::Disabled))
}

fn file_pool(file: &DatabaseFile, connections: u32) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(file.path())
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    SqlitePoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options)
}

async fn client(pool: impl Into<DatabasePool>) -> Client {
    let store = soon(Settings::for_pool().store_with(pool)).await.unwrap();
    let client = Client::builder(store).build().unwrap();
    soon(client.init()).await.unwrap();
    client
}

/// The first client hands a hold over to the second one.
async fn hand_over(first: Client, second: Client) {
    let lock = first.lock("handed-over").ttl(TTL);
    for lock in [lock.clone(), lock.shared()] {
        let guard = soon(lock.acquire()).await.unwrap();
        let receipt = soon(guard.detach()).await.unwrap();
        let guard = soon(second.attach(&receipt)).await.unwrap();
        assert_eq!(guard.token(), receipt.token());
        soon(guard.release()).await.unwrap();
        let lost = soon(second.attach(&receipt)).await;
        assert_says(lost, ErrorKind::Lost, &["had ended"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_handed_over_between_pools() {
    needs!(postgres);
    needs!(mariadb);
    let server = Postgres::start(&[]);
    let pools = [2, 2].map(|connections| postgres_pool(&server, connections));
    hand_over(client(&pools[0]).await, client(&pools[1]).await).await;
    let server = MariaDb::start(&[]);
    let pools = [2, 2].map(|connections| mysql_pool(&server, connections));
    hand_over(client(&pools[0]).await, client(&pools[1]).await).await;
    let file = DatabaseFile::new();
    let pools = [2, 2].map(|connections| file_pool(&file, connections));
    hand_over(client(&pools[0]).await, client(&pools[1]).await).await;
}

/// The service has one pool for its queries and its locks, and the server sees no other connection.
#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_opened_beside_the_pool() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = postgres_pool(&server, 4);
    let client = client(&pool).await;
    let other = client.clone();
    let held = soon(client.lock("a").ttl(TTL).acquire()).await.unwrap();
    let waiter = tokio::spawn(async move { other.lock("a").ttl(TTL).acquire().await });
    until("a waiter is in the queue", || {
        server
            .database_admin()
            .value("SELECT count(*) FROM tenure_locks_waiters")
            == "1"
    })
    .await;
    let mut transaction = soon(pool.begin()).await.unwrap();
    sqlx::query("SELECT 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    soon(transaction.commit()).await.unwrap();
    soon(held.release()).await.unwrap();
    soon(soon(waiter).await.unwrap().unwrap().release())
        .await
        .unwrap();
    let all =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'tenure_test' AND application_name";
    let of_others = format!("{all} <> '{PROGRAM}'");
    let user = tenure_testkit::USER;
    let of_others = of_others.replace("tenure_test", user);
    let ours = format!("{all} = '{PROGRAM}'").replace("tenure_test", user);
    assert_eq!(server.admin().value(&of_others), "0");
    let ours: u32 = server.admin().value(&ours).parse().unwrap();
    assert!((1..=4).contains(&ours), "{ours}");
    soon(client.close()).await;
    // The pool is the program's, and goes on.
    let one = soon(sqlx::query("SELECT 1").fetch_one(&pool))
        .await
        .unwrap();
    assert_eq!(one.get::<i32, _>(0), 1);
}

/// A transaction needs a connection while the lease is renewed over another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_one_is_refused() {
    needs!(postgres, mariadb);
    let (postgres, mariadb, file) = (
        Postgres::start(&[]),
        MariaDb::start(&[]),
        DatabaseFile::new(),
    );
    let says = ["max_connections", "allow two or more"];
    let one = Store::from_pool(postgres_pool(&postgres, 1)).await;
    assert_says(one, ErrorKind::Invalid, &says);
    let one = Store::from_pool(mysql_pool(&mariadb, 1)).await;
    assert_says(one, ErrorKind::Invalid, &says);
    let pool = file_pool(&file, 1);
    sqlx::query("SELECT 1").execute(&pool).await.unwrap();
    let one = Store::from_pool(pool).await;
    assert_says(one, ErrorKind::Invalid, &says);
}

/// All connections are in transactions of the program: an error after the limit of a request, and no deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_used_up_is_an_error_and_no_deadlock() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = postgres_pool(&server, 2);
    let settings = Settings::for_pool().timeout(Duration::from_secs(3));
    let store = soon(settings.store_with(&pool)).await.unwrap();
    let client = Client::builder(store).build().unwrap();
    soon(client.init()).await.unwrap();
    let transactions = (
        soon(pool.begin()).await.unwrap(),
        soon(pool.begin()).await.unwrap(),
    );
    let refused = soon(client.lock("a").ttl(TTL).acquire()).await;
    let words = [
        "no connection of the program's pool",
        "all 2 (max_connections)",
    ];
    let err = refused.as_ref().err().unwrap();
    assert!(err.is_timeout() && err.is_unreachable(), "{err:?}");
    assert_says(refused, ErrorKind::Unreachable, &words);
    soon(transactions.0.rollback()).await.unwrap();
    // One connection is enough while the other is in a transaction.
    let guard = soon(client.lock("a").ttl(TTL).acquire()).await.unwrap();
    soon(guard.release()).await.unwrap();
    soon(transactions.1.rollback()).await.unwrap();
}

/// What was asked of a connection whose future is dropped is not left to the next user of the pool.
#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_is_left_in_a_connection_of_the_pool() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = postgres_pool(&server, 5);
    let client = client(&pool).await;
    let holder = soon(client.lock("held").ttl(TTL).acquire()).await.unwrap();
    drop_acquires(&client, TTL, 300, 23).await;
    soon(holder.release()).await.unwrap();
    until("nothing is left", || {
        let waiters = "SELECT count(*) FROM tenure_locks_waiters";
        server.database_admin().value(waiters) == "0"
    })
    .await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    until("no transaction is open", || {
        server.admin().value(open) == "0"
    })
    .await;
    // All of its connections can be had, and none has a transaction.
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(soon(pool.acquire()).await.unwrap());
    }
    for connection in &mut all {
        let row = sqlx::query("SELECT pg_current_xact_id_if_assigned() IS NULL");
        let row = soon(row.fetch_one(&mut **connection)).await.unwrap();
        assert!(row.get::<bool, _>(0));
    }
}

/// The sessions of MySQL stay as the program has set them up.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_the_pool_are_not_changed() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let pool = mysql_pool(&server, 2);
    // What differs between sessions, and what we set in our own.
    let settings = "SELECT CONCAT_WS(' ',@@tx_isolation,@@autocommit,@@sql_mode,@@time_zone,@@innodb_lock_wait_timeout)";
    let ask = async || {
        let row = soon(sqlx::query(settings).fetch_one(&pool)).await.unwrap();
        row.get::<String, _>(0)
    };
    let before = ask().await;
    let client = client(&pool).await;
    for mode in 0..3 {
        let lock = client.lock("a").ttl(TTL);
        let lock = match mode {
            0 => lock,
            1 => lock.shared(),
            _ => lock.permits(2),
        };
        soon(soon(lock.acquire()).await.unwrap().release())
            .await
            .unwrap();
    }
    assert_eq!(ask().await, before);
    assert!(before.starts_with("REPEATABLE-READ ON "), "{before}");
    // Without a commit of each statement no lock would be seen by others.
    let options: MySqlConnectOptions = server.url().parse().unwrap();
    let without = MySqlPoolOptions::new()
        .max_connections(2)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::query("SET autocommit=0").execute(connection).await?;
                Ok(())
            })
        })
        .connect_lazy_with(options.ssl_mode(MySqlSslMode::Disabled));
    let refused = soon(Store::from_pool(without)).await;
    assert_says(refused, ErrorKind::Unsupported, &["autocommit"]);
}

/// A database without a file, one with another journal, and one whose file is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_sqlite_has_a_file_with_a_write_ahead_log() {
    let memory = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_lazy("sqlite::memory:")
        .unwrap();
    assert_says(
        Store::from_pool(memory).await,
        ErrorKind::Invalid,
        &["leads to no file"],
    );
    let file = DatabaseFile::new();
    let options = SqliteConnectOptions::new()
        .filename(file.path())
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete);
    sqlx::SqliteConnection::connect_with(&options)
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    let other = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(options);
    let refused = soon(Store::from_pool(other)).await;
    assert_says(
        refused,
        ErrorKind::Unsupported,
        &["\"delete\"", "journal_mode"],
    );

    let file = DatabaseFile::new();
    let pool = file_pool(&file, 2);
    soon(sqlx::query("SELECT 1").execute(&pool)).await.unwrap();
    let client = client(&pool).await;
    let guard = soon(client.lock("a").ttl(TTL).acquire()).await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let path = format!("{}{suffix}", file.path().display());
        let _ = std::fs::rename(&path, format!("{path}.old"));
    }
    let refused = soon(client.lock("b").ttl(TTL).acquire()).await;
    assert_says(
        refused,
        ErrorKind::Unreachable,
        &["removed or replaced", "open the pool"],
    );
    drop(guard);
}

/// The table of the pool is the table of a URL: a holder of one excludes the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_and_a_url_are_one_store() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let pool = postgres_pool(&server, 3);
    let admin = server.database_admin();
    admin.rows("CREATE SCHEMA ops; GRANT ALL ON SCHEMA ops TO PUBLIC");
    let settings = Settings::for_pool().table("ops.locks").connections(1);
    let store = soon(settings.store_with(&pool)).await.unwrap();
    let by_pool = Client::builder(store).build().unwrap();
    soon(by_pool.init()).await.unwrap();
    let url = format!("{}?mode=table&tls=off&table=ops.locks", server.url());
    let by_url = soon(tenure::connect(&url)).await.unwrap();
    let guard = soon(by_pool.lock("a").ttl(TTL).acquire()).await.unwrap();
    assert!(
        soon(by_url.lock("a").ttl(TTL).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    soon(guard.release()).await.unwrap();
    let guard = soon(by_url.lock("a").ttl(TTL).acquire()).await.unwrap();
    assert!(
        soon(by_pool.lock("a").ttl(TTL).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    soon(guard.release()).await.unwrap();
    let wrong = Settings::for_pool()
        .host("elsewhere")
        .store_with(&pool)
        .await;
    assert_says(wrong, ErrorKind::Invalid, &["the pool says where"]);
    let wrong = Settings::for_pool()
        .option("color", "red")
        .store_with(&pool)
        .await;
    assert_says(wrong, ErrorKind::Invalid, &["color"]);
}

/// No connection of the pool listens, so observers read, and the guarantees say so.
#[tokio::test(flavor = "multi_thread")]
async fn observers_read_over_a_pool() {
    needs!(postgres, mariadb);
    let (postgres, mariadb, file) = (
        Postgres::start(&[]),
        MariaDb::start(&[]),
        DatabaseFile::new(),
    );
    let pools: [DatabasePool; 3] = [
        postgres_pool(&postgres, 4).into(),
        mysql_pool(&mariadb, 4).into(),
        file_pool(&file, 4).into(),
    ];
    for pool in pools {
        let client = client(pool).await;
        assert!(client.guarantees().observers.starts_with("poll"));
        let election = client.election("e").value("v").ttl(TTL);
        let mut observer = election.observe();
        assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
        let term = soon(election.campaign()).await.unwrap();
        let leader = soon(observer.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(leader.value(), Some("v"));
        assert!(soon(election.ask_to_resign()).await.unwrap().is_some());
        assert!(soon(term.asked_to_resign()).await);
        soon(term.resign()).await.unwrap();
        assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
        soon(client.close()).await;
    }
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    assert_eq!(postgres.admin().value(listens), "0");
}
