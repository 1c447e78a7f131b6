//! How long a lock in a transaction is waited for.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::sql::{lock_in_tx, lock_in_tx_within};

use crate::support::{Bank, account, assert_says, balance, bank, name, on_each, soon, write};

on_each!(
    a_wait_that_is_over_leaves_the_transaction_as_it_was,
    zero_is_one_try,
    the_limit_is_put_back,
    a_free_lock_is_taken_within_any_limit,
    the_limit_of_the_database_is_reported,
    a_dropped_wait_leaves_nothing,
);

/// How long the connection waits at most, as the database reports it.
async fn limit<DB: Bank>(conn: &mut DB::Connection) -> Option<i64> {
    let limit = match DB::NAME {
        "MySQL" => "SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)",
        "PostgreSQL" => {
            "SELECT SUM(setting::bigint)::bigint FROM pg_settings WHERE name IN ('lock_timeout', 'statement_timeout')"
        }
        _ => "PRAGMA busy_timeout",
    };
    DB::number(conn, limit.into()).await.unwrap()
}

async fn set_limit<DB: Bank>(conn: &mut DB::Connection) -> i64 {
    let (limit, set) = match DB::NAME {
        "MySQL" => (17, "SET SESSION innodb_lock_wait_timeout = 17"),
        "PostgreSQL" => (
            77_000,
            "SET lock_timeout = '17s'; SET statement_timeout = '1min'",
        ),
        _ => (17_000, "PRAGMA busy_timeout = 17000"),
    };
    DB::execute(conn, set.into()).await.unwrap();
    limit
}

/// A transaction that can begin while another one writes.
async fn begin<DB: Bank>(pool: &sqlx::Pool<DB>) -> sqlx::Transaction<'static, DB> {
    pool.begin().await.unwrap()
}

async fn a_wait_that_is_over_leaves_the_transaction_as_it_was<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (lock, other) = (name("lock"), name("lock"));
    let id = account(&pool).await;
    let mut tx = begin(&pool).await;
    if !DB::ONE_WRITER {
        lock_in_tx(&mut tx, &other).await.unwrap();
        write::<DB>(&mut tx, &id, 7).await.unwrap();
    }
    let mut holder = DB::begin(&pool).await;
    // SQLite has only one transaction that may write.
    lock_in_tx(&mut holder, &lock).await.unwrap();
    let wait = Duration::from_millis(300);
    let start = std::time::Instant::now();
    let err = soon(lock_in_tx_within(&mut tx, &lock, wait)).await;
    let err = err.unwrap_err();
    assert!(start.elapsed() >= wait);
    assert_eq!(err.kind(), ErrorKind::WaitElapsed, "{err}");
    assert_says(&err, &["300ms", &lock, "can go on"]);
    holder.rollback().await.unwrap();
    // The transaction goes on: its writes and its locks are still there, and it can get the lock now.
    lock_in_tx_within(&mut tx, &lock, wait).await.unwrap();
    if DB::ONE_WRITER {
        write::<DB>(&mut tx, &id, 7).await.unwrap();
    } else {
        let mut third = begin(&pool).await;
        let err = lock_in_tx_within(&mut third, &other, Duration::ZERO).await;
        assert_eq!(err.unwrap_err().kind(), ErrorKind::WaitElapsed);
    }
    tx.commit().await.unwrap();
    assert_eq!(balance(&pool, &id).await, 7);
}

async fn zero_is_one_try<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let lock = name("lock");
    let mut holder = DB::begin(&pool).await;
    lock_in_tx(&mut holder, &lock).await.unwrap();
    let mut tx = begin(&pool).await;
    let err = soon(lock_in_tx_within(&mut tx, &lock, Duration::ZERO)).await;
    let err = err.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WaitElapsed, "{err}");
    assert_says(&err, &["`wait` is zero"]);
    assert!(err.is_retryable());
    holder.commit().await.unwrap();
    lock_in_tx_within(&mut tx, &lock, Duration::ZERO)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

async fn the_limit_is_put_back<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let lock = name("lock");
    // The short limit below is for a row that is there already.
    let mut tx = DB::begin(&pool).await;
    lock_in_tx(&mut tx, &lock).await.unwrap();
    tx.commit().await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    let before = set_limit::<DB>(&mut conn).await;
    for is_busy in [false, true] {
        let mut holder = None;
        if is_busy {
            let mut tx = DB::begin(&pool).await;
            lock_in_tx(&mut tx, &lock).await.unwrap();
            holder = Some(tx);
        }
        let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
        let outcome = lock_in_tx_within(&mut tx, &lock, Duration::from_millis(50)).await;
        assert_eq!(outcome.is_err(), is_busy);
        assert_eq!(limit::<DB>(&mut tx).await, Some(before), "in it");
        tx.commit().await.unwrap();
        assert_eq!(limit::<DB>(&mut conn).await, Some(before), "after it");
        drop(holder);
    }
    drop(conn.detach());
}

async fn a_free_lock_is_taken_within_any_limit<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    for wait in [
        Duration::from_nanos(1),
        Duration::from_millis(1_500),
        Duration::MAX,
    ] {
        let lock = name("lock");
        // In MySQL the insertion of the row may wait for the transaction that inserts its neighbour.
        let mut tx = DB::begin(&pool).await;
        lock_in_tx(&mut tx, &lock).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = DB::begin(&pool).await;
        let token = lock_in_tx_within(&mut tx, &lock, wait).await.unwrap();
        let again = lock_in_tx_within(&mut tx, &lock, wait).await.unwrap();
        assert!(again > token);
        tx.commit().await.unwrap();
    }
}

async fn the_limit_of_the_database_is_reported<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let lock = name("lock");
    let mut holder = DB::begin(&pool).await;
    lock_in_tx(&mut holder, &lock).await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    let short = match DB::NAME {
        "MySQL" => "SET SESSION innodb_lock_wait_timeout = 1",
        "PostgreSQL" => "SET lock_timeout = '50ms'",
        _ => "PRAGMA busy_timeout = 50",
    };
    DB::execute(&mut conn, short.into()).await.unwrap();
    let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
    let err = soon(lock_in_tx(&mut tx, &lock)).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WaitElapsed, "{err}");
    assert_says(&err, &["the database's own limit", &lock]);
    let err = lock_in_tx(&mut tx, &name("lock")).await.err();
    if DB::STRICT {
        assert_says(&err.unwrap(), &["roll back"]);
    }
    drop(tx);
    drop(conn.detach());
    holder.commit().await.unwrap();
}

async fn a_dropped_wait_leaves_nothing<DB: Bank>() {
    // A connection for each: no other task can use a connection before its statement has ended.
    let pool = bank::<DB>(6).await;
    let lock = name("lock");
    let mut holder = DB::begin(&pool).await;
    lock_in_tx(&mut holder, &lock).await.unwrap();
    for _ in 0..3 {
        let mut tx = begin(&pool).await;
        let waiting = lock_in_tx(&mut tx, &lock);
        let soon_over = tokio::time::timeout(Duration::from_millis(30), waiting);
        assert!(soon_over.await.is_err());
        // The connection goes back to the pool as it is, and the rollback is sent when the connection is free.
        drop(tx);
        if DB::ONE_WRITER {
            break;
        }
    }
    holder.commit().await.unwrap();
    let mut tx = soon(DB::begin(&pool)).await;
    soon(lock_in_tx(&mut tx, &lock)).await.unwrap();
    tx.commit().await.unwrap();
}
