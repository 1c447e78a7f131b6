//! What a network and a server do to transactions.

use std::time::Duration;

use sqlx::Postgres;
use tenure::sql::{init, lock_in_tx};
use tenure::{Error, ErrorKind};

use crate::support::{
    Bank, account, assert_says, balance, bank, bank_at, locks, name, on_servers, read, soon, until,
    write,
};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres as Server;
use tenure_testkit::proxy::{Fault, Proxy};

on_servers!(
    a_commit_that_was_done_and_not_answered,
    a_commit_that_never_arrived,
    a_commit_that_is_dropped,
    a_connection_that_breaks_in_the_body,
    a_killed_holder_frees_its_lock,
);

/// The outcome is unknown: the lock is kept until its lease ends, and freed then.
async fn unknown<DB: Bank>(fault: Fault, expected: i64) {
    let proxy = Proxy::text(DB::port());
    let direct = bank::<DB>(2).await;
    let pool = bank_at::<DB>(proxy.port(), 2).await;
    let (id, lock) = (account(&direct).await, name("lock"));
    let (store, client) = locks();
    proxy.plan("COMMIT", fault);
    let work = client.lock(&lock).ttl(Duration::from_secs(30));
    let call = work.transaction(&pool, async |tx, _| {
        write::<DB>(tx, &id, 0).await?;
        store.advance(Duration::from_secs(5));
        Ok::<_, Error>(())
    });
    let err = soon(call).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err}");
    assert_says(
        &err,
        &["it is unknown", "not released", "another 24.7s", &lock],
    );
    until("the database has decided", async || {
        balance(&direct, &id).await == expected
    })
    .await;
    // Not renewed, not released.
    for _ in 0..4 {
        store.advance(Duration::from_secs(6));
        tokio::task::yield_now().await;
        assert!(work.try_acquire().await.unwrap().is_none());
    }
    store.advance(Duration::from_secs(2));
    until("it is free", async || {
        work.try_acquire().await.unwrap().is_some()
    })
    .await;
}

async fn a_commit_that_was_done_and_not_answered<DB: Bank>() {
    unknown::<DB>(Fault::CutAfter, 0).await;
}

async fn a_commit_that_never_arrived<DB: Bank>() {
    unknown::<DB>(Fault::CutBefore, 100).await;
}

async fn a_commit_that_is_dropped<DB: Bank>() {
    let proxy = Proxy::text(DB::port());
    let direct = bank::<DB>(2).await;
    let pool = bank_at::<DB>(proxy.port(), 2).await;
    let (id, lock) = (account(&direct).await, name("lock"));
    let (store, client) = locks();
    proxy.plan("COMMIT", Fault::NoReply);
    let work = client.lock(&lock).ttl(Duration::from_secs(30));
    {
        let call = work.transaction(&pool, async |tx, _| {
            write::<DB>(tx, &id, 0).await?;
            Ok::<_, Error>(())
        });
        tokio::select! {
            _ = call => panic!("it is not answered"),
            () = until("the proxy has the answer", async || proxy.is_done()) => {}
        }
    }
    assert_eq!(balance(&direct, &id).await, 0);
    assert!(work.try_acquire().await.unwrap().is_none());
    store.advance(Duration::from_secs(31));
    until("it is free", async || {
        work.try_acquire().await.unwrap().is_some()
    })
    .await;
    proxy.resume();
}

async fn a_connection_that_breaks_in_the_body<DB: Bank>() {
    let proxy = Proxy::text(DB::port());
    let direct = bank::<DB>(2).await;
    let pool = bank_at::<DB>(proxy.port(), 2).await;
    let (id, lock) = (account(&direct).await, name("lock"));
    let (_, client) = locks();
    let work = client.lock(&lock);
    let call = work.transaction(&pool, async |tx, _| {
        write::<DB>(tx, &id, 0).await?;
        proxy.cut();
        lock_in_tx(tx, &lock).await?;
        Ok::<_, Error>(())
    });
    let err = soon(call).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unreachable, "{err}");
    assert!(work.try_acquire().await.unwrap().is_some());
    assert_eq!(balance(&direct, &id).await, 100);
}

/// A client is cut off while it has the row.
async fn a_killed_holder_frees_its_lock<DB: Bank>() {
    let proxy = Proxy::text(DB::port());
    let direct = bank::<DB>(2).await;
    let pool = bank_at::<DB>(proxy.port(), 2).await;
    let lock = name("lock");
    let mut tx = DB::begin(&pool).await;
    let token = lock_in_tx(&mut tx, &lock).await.unwrap();
    proxy.cut();
    let mut next = DB::begin(&direct).await;
    let later = soon(lock_in_tx(&mut next, &lock)).await.unwrap();
    assert!(later > token);
    next.commit().await.unwrap();
    let err = tx.commit().await;
    assert!(err.is_err());
}

/// Committed numbers are on disk, and numbers that were rolled back are forgotten: tokens grow over a restart all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_is_killed_during_a_transaction() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let url = format!("{}?ssl-mode=disabled", server.url());
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    killed(&pool, || server.kill(), || server.launch()).await;
    // The server has a runtime inside, which must not be dropped in an async task.
    tokio::task::block_in_place(|| drop(server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_killed_during_a_transaction() {
    needs!(postgres);
    let server = Server::start(&[]);
    let url = format!("{}?sslmode=disable", server.url());
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    killed(&pool, || server.kill(), || server.launch()).await;
    // The server has a runtime inside, which must not be dropped in an async task.
    tokio::task::block_in_place(|| drop(server));
}

fn second() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

async fn killed<DB: Bank>(pool: &sqlx::Pool<DB>, kill: impl Fn(), launch: impl Fn()) {
    init(pool).await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    let table = "CREATE TABLE accounts (id VARCHAR(100) PRIMARY KEY, balance BIGINT NOT NULL)";
    DB::execute(&mut conn, table.into()).await.unwrap();
    drop(conn);
    let id = account(pool).await;
    let (_, client) = locks();
    let lock = client.lock("lock");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let call = lock.transaction(pool, async |tx, _| {
            tokens.push(lock_in_tx(tx, "row").await?);
            write::<DB>(tx, &id, 0).await?;
            kill();
            read::<DB>(tx, &id).await?;
            Ok::<_, Error>(())
        });
        let err = soon(call).await.unwrap_err();
        // The statement was one of the body, whose error does not say that it was no COMMIT.
        assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err}");
        assert!(lock.try_acquire().await.unwrap().is_some());
        // The counter of MySQL begins at the second of the start.
        let second = second();
        until("the next second", async || self::second() > second).await;
        launch();
        let seen = lock.transaction(pool, async |tx, _| {
            tokens.push(lock_in_tx(tx, "row").await?);
            Ok::<_, Error>(read::<DB>(tx, &id).await?)
        });
        assert_eq!(soon(seen).await.unwrap(), 100);
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// A refusal at COMMIT is a definite no.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_constraint_that_is_checked_at_commit() {
    needs!(postgres);
    let pool = bank::<Postgres>(3).await;
    let (id, lock, table) = (
        account(&pool).await,
        name("lock"),
        name("t").replace('-', "_"),
    );
    let (_, client) = locks();
    let work = client.lock(&lock);
    let call = work.transaction(&pool, async |tx, _| {
        write::<Postgres>(tx, &id, 0).await?;
        let twice = format!(
            "CREATE TABLE {table} (x INT UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO {table} VALUES (1), (1)"
        );
        Postgres::execute(tx, twice).await?;
        Ok::<_, Error>(())
    });
    let err = soon(call).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Store, "{err}");
    assert!(work.try_acquire().await.unwrap().is_some());
    assert_eq!(balance(&pool, &id).await, 100);
}

/// COMMIT would be a ROLLBACK without an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_swallows_an_error() {
    needs!(postgres);
    let pool = bank::<Postgres>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (_, client) = locks();
    let work = client.lock(&lock);
    let call = work.transaction(&pool, async |tx, _| {
        write::<Postgres>(tx, &id, 0).await?;
        let _ = Postgres::execute(tx, "SELECT nonsense".into()).await;
        Ok::<_, Error>(())
    });
    let err = soon(call).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Store, "{err}");
    assert_says(&err, &["earlier statement", "failed"]);
    assert!(work.try_acquire().await.unwrap().is_some());
    assert_eq!(balance(&pool, &id).await, 100);
}
