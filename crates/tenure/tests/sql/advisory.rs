//! PostgreSQL's advisory locks in transactions.

use std::time::Duration;

use sqlx::{PgPool, Postgres};
use tenure::ErrorKind;
use tenure::sql::{advisory_lock_in_tx, advisory_lock_in_tx_within};

use crate::support::{assert_says, bank, name, soon, until};
use tenure_testkit::needs;

/// The server's own arithmetic for the key of a name.
const KEY: &str =
    "SELECT ('x' || left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 16))::bit(64)::bigint";

async fn key(pool: &PgPool, name: &str) -> i64 {
    let key = sqlx::query_scalar(KEY).bind(name);
    key.fetch_one(pool).await.unwrap()
}

/// The locks with that key: whether each is granted.
async fn seen(pool: &PgPool, key: i64) -> Vec<bool> {
    let locks = "SELECT granted FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 \
                 AND (classid::bigint << 32) | objid::bigint = $1 ORDER BY granted DESC";
    let locks = sqlx::query_scalar(locks).bind(key);
    locks.fetch_all(pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_seen_in_the_server_and_ends_with_the_transaction() {
    needs!(postgres);
    let pool = bank::<Postgres>(5).await;
    let lock = name("Grüße");
    let key = key(&pool, &lock).await;
    let mut tx = pool.begin().await.unwrap();
    advisory_lock_in_tx(&mut tx, &lock).await.unwrap();
    advisory_lock_in_tx(&mut tx, &lock).await.unwrap();
    assert_eq!(seen(&pool, key).await, [true]);
    let waiting = {
        let (pool, lock) = (pool.clone(), lock.clone());
        tokio::spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            advisory_lock_in_tx(&mut tx, &lock).await.unwrap();
            tx.rollback().await.unwrap();
        })
    };
    until("the second waits in the server", async || {
        seen(&pool, key).await == [true, false]
    })
    .await;
    tx.commit().await.unwrap();
    soon(waiting).await.unwrap();
    assert!(seen(&pool, key).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_a_session_with_that_key_excludes_it() {
    needs!(postgres);
    let pool = bank::<Postgres>(3).await;
    let lock = name("lock");
    let key = key(&pool, &lock).await;
    let mut session = pool.acquire().await.unwrap();
    let take = sqlx::query("SELECT pg_advisory_lock($1)").bind(key);
    take.execute(&mut *session).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let wait = Duration::from_millis(50);
    let err = advisory_lock_in_tx_within(&mut tx, &lock, wait)
        .await
        .unwrap_err();
    assert_eq!(err.kind(), ErrorKind::WaitElapsed, "{err}");
    assert_says(&err, &["50ms", &lock]);
    drop(session.detach());
    soon(advisory_lock_in_tx(&mut tx, &lock)).await.unwrap();
    assert_eq!(seen(&pool, key).await, [true]);
    tx.rollback().await.unwrap();
}
