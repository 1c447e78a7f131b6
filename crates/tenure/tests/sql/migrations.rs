//! Migrations of several instances that start at the same time.

use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};
use tenure::ErrorKind;
use tenure::sql::{MigratedDatabase, advisory_lock_in_tx};
use tokio::task::JoinSet;

use crate::support::{Bank, assert_says, bank, name, on_each, soon};
use tenure_testkit::needs;
use tenure_testkit::pgbouncer::Pooler;
use tenure_testkit::postgres::Postgres as Server;

trait Migrated: Bank + MigratedDatabase {}
impl<DB: Bank + MigratedDatabase> Migrated for DB {}

on_each!(one_instance_migrates, a_migration_that_fails_is_named);

fn migrator(table: &str, statements: &[String]) -> Migrator {
    let migration = |(version, sql): (usize, &String)| {
        // CONCURRENTLY cannot run in a transaction.
        let no_tx = sql.contains("CONCURRENTLY");
        let version = i64::try_from(version).unwrap() + 1;
        let sql = AssertSqlSafe(sql.clone()).into_sql_str();
        Migration::new(version, "test".into(), MigrationType::Simple, sql, no_tx)
    };
    let all = statements.iter().enumerate().map(migration).collect();
    let mut migrator = Migrator::with_migrations(all);
    migrator.dangerous_set_table_name(format!("migrations_{table}"));
    migrator
}

/// Names of tables of this test only.
fn table() -> String {
    name("users").replace('-', "_")
}

/// Would fail in a second run.
fn statements(table: &str) -> Vec<String> {
    vec![
        format!("CREATE TABLE {table} (id BIGINT)"),
        format!("INSERT INTO {table} VALUES (42)"),
        format!("ALTER TABLE {table} ADD COLUMN born BIGINT"),
    ]
}

async fn one_instance_migrates<DB: Migrated>() {
    let table = table();
    let pool = bank::<DB>(8).await;
    let mut instances = JoinSet::new();
    for _ in 0..4 {
        let (pool, migrator) = (pool.clone(), migrator(&table, &statements(&table)));
        instances.spawn(async move { tenure::migrate(&pool, migrator).await });
    }
    for migrated in soon(instances.join_all()).await {
        migrated.unwrap();
    }
    let mut conn = pool.acquire().await.unwrap();
    let rows = format!("SELECT COUNT(*) FROM {table} WHERE born IS NULL");
    assert_eq!(DB::number(&mut conn, rows).await.unwrap(), Some(1));
    // A later version of the program has one more.
    let mut more = statements(&table);
    more.push(format!("INSERT INTO {table} VALUES (43, 0)"));
    drop(conn);
    soon(tenure::migrate(&pool, migrator(&table, &more)))
        .await
        .unwrap();
    let mut conn = pool.acquire().await.unwrap();
    let rows = format!("SELECT COUNT(*) FROM {table}");
    assert_eq!(DB::number(&mut conn, rows).await.unwrap(), Some(2));
}

async fn a_migration_that_fails_is_named<DB: Migrated>() {
    let table = table();
    let pool = bank::<DB>(2).await;
    let wrong = migrator(&table, &["SELECT nonsense FROM nowhere".into()]);
    let err = soon(tenure::migrate(&pool, wrong)).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Store, "{err:#}");
    assert_says(&err, &["migrations", "nowhere"]);
    // The lock is free again.
    let right = migrator(&table.replace("users", "others"), &statements(&table));
    soon(tenure::migrate(&pool, right)).await.unwrap();
}

/// This statement waits until every snapshot that is older has ended, and so for other instances that wait with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_is_made_concurrently_while_others_wait() {
    needs!(postgres);
    let table = table();
    // A server without the transactions of other tests.
    let server = Server::start(&[]);
    let url = format!("{}?sslmode=disable", server.url());
    let pool = PgPoolOptions::new().connect(&url).await.unwrap();
    let mut statements = statements(&table);
    statements.push(format!("CREATE INDEX CONCURRENTLY ON {table} (id)"));
    let mut instances = JoinSet::new();
    for _ in 0..3 {
        let (pool, migrator) = (pool.clone(), migrator(&table, &statements));
        instances.spawn(async move { tenure::migrate(&pool, migrator).await });
    }
    for migrated in soon(instances.join_all()).await {
        migrated.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_one_connection_is_enough() {
    needs!(postgres);
    let table = table();
    let pool = bank::<sqlx::Postgres>(1).await;
    let all = migrator(&table, &statements(&table));
    soon(tenure::migrate(&pool, all)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_holds_behind_a_pooler_and_leaves_nothing_there() {
    needs!(pgbouncer);
    let server = Server::start(&[]);
    let pooler = Pooler::start(&server, "transaction", 4);
    let url = format!("{}?sslmode=disable", server.url_at(pooler.port()));
    let options: PgConnectOptions = url.parse().unwrap();
    // PgBouncer refuses the option, and does not keep a statement with its client.
    let options = options.extra_float_digits(None).statement_cache_capacity(0);
    let pooled = PgPoolOptions::new().connect_with(options);
    let pooled = pooled.await.unwrap();
    let url = format!("{}?sslmode=disable", server.url());
    let direct = PgPoolOptions::new().connect(&url).await.unwrap();
    // Another instance migrates.
    let mut other = direct.begin().await.unwrap();
    advisory_lock_in_tx(&mut other, "tenure/migrations")
        .await
        .unwrap();
    let all = migrator("users", &statements("users"));
    let waiting = tokio::spawn(async move { tenure::migrate(&pooled, all).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    let tables = "SELECT COUNT(*) FROM pg_class WHERE relname = 'users'";
    let there: i64 = sqlx::query_scalar(tables).fetch_one(&direct).await.unwrap();
    assert_eq!(there, 0);
    other.rollback().await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    let left = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory'";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&direct).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_stop_when_the_connection_with_the_lock_breaks() {
    needs!(postgres);
    let table = table();
    // Its sessions are ended below, and its statement goes on until the server ends.
    let server = Server::start(&[]);
    let url = format!("{}?sslmode=disable", server.url());
    let pool = PgPoolOptions::new().connect(&url).await.unwrap();
    let slow = migrator(&table, &["SELECT pg_sleep(600)".into()]);
    let running = tokio::spawn(async move { tenure::migrate(&pool, slow).await });
    let lock = "SELECT pg_terminate_backend(pid)::text FROM pg_locks WHERE locktype = 'advisory' AND pid IN \
                (SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction')";
    let sleeps = "SELECT 1::text FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()";
    crate::support::until("it migrates", async || {
        !server.admin().rows(sleeps).is_empty()
    })
    .await;
    assert!(!server.admin().rows(lock).is_empty());
    let err = soon(running).await.unwrap().unwrap_err();
    assert!(err.is_lost(), "{err:#}");
}

/// Other tools than sqlx's: the task in docs/tasks.md. A migration says whether it found the table.
#[tokio::test(flavor = "multi_thread")]
async fn another_tool_migrates_under_a_lock() {
    async fn migrated<E>(
        locks: &tenure::Client,
        migrate: impl Future<Output = Result<bool, E>>,
    ) -> Result<bool, Box<dyn std::error::Error>>
    where
        E: std::error::Error + 'static,
    {
        Ok(locks
            .lock("migrations")
            .run(async |_| migrate.await)
            .await??)
    }
    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .connect("sqlite::memory:")
        .await
        .unwrap();
    let migrate = async || {
        let found = "SELECT name FROM sqlite_master WHERE name = 'users'";
        let found = sqlx::query(found).fetch_optional(&pool).await?.is_some();
        if !found {
            tokio::task::yield_now().await;
            let make = sqlx::query("CREATE TABLE users (id INTEGER)");
            make.execute(&pool).await?;
        }
        Ok::<_, sqlx::Error>(found)
    };
    let locks = tenure::connect("memory:").await.unwrap();
    let (one, other) = tokio::join!(migrated(&locks, migrate()), migrated(&locks, migrate()));
    let mut found = [one.unwrap(), other.unwrap()];
    found.sort_unstable();
    assert_eq!(found, [false, true]);
}
