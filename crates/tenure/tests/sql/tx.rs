//! A transaction that carries locks: they are released when it has ended, and never before.

use std::time::Duration;

use tenure::sql::{Tx, fence};
use tenure::{Client, Error, ErrorKind};

use crate::support::{
    Bank, account, assert_says, balance, bank, bank_at, locks, name, on_each, read, soon, until,
    write,
};
use tenure_testkit::proxy::{Fault, Proxy};

on_each!(
    both_locks_are_released_after_commit,
    a_rollback_releases,
    a_dropped_transaction_is_rolled_back_and_released,
    it_is_not_committed_under_a_lock_that_was_lost,
    a_transaction_without_locks_is_one,
);

/// The servers; a file has no COMMIT whose outcome is unknown.
mod unknown {
    use super::both_locks_are_kept_when_the_outcome_is_unknown;
    use crate::support::on_servers;

    on_servers!(both_locks_are_kept_when_the_outcome_is_unknown);
}

async fn is_free(client: &Client, lock: &str) -> bool {
    client.lock(lock).try_acquire().await.unwrap().is_some()
}

/// What code deep inside of a transaction does.
async fn withdraw<DB: Bank>(
    locks: &Client,
    tx: &mut Tx<DB>,
    id: &str,
    lock: &str,
) -> Result<(), Error> {
    let guard = locks
        .lock(lock)
        .ttl(Duration::from_secs(30))
        .acquire()
        .await?;
    fence(tx, lock, guard.token()).await?;
    tx.hold(guard);
    let before = read::<DB>(tx, id).await?;
    write::<DB>(tx, id, before - 10).await?;
    Ok(())
}

/// A transaction that has written under two locks.
async fn begun<DB: Bank>(pool: &sqlx::Pool<DB>, client: &Client) -> (Tx<DB>, String, [String; 2]) {
    let (id, names) = (account(pool).await, [name("lock"), name("lock")]);
    let mut tx = Tx::from(DB::begin(pool).await);
    for name in &names {
        soon(withdraw(client, &mut tx, &id, name)).await.unwrap();
    }
    assert_eq!(tx.held().len(), 2);
    for name in &names {
        assert!(!is_free(client, name).await);
    }
    (tx, id, names)
}

async fn both_locks_are_released_after_commit<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (_, client) = locks();
    let (tx, id, names) = begun(&pool, &client).await;
    soon(tx.commit()).await.unwrap();
    assert_eq!(balance(&pool, &id).await, 80);
    for name in &names {
        assert!(is_free(&client, name).await);
    }
}

async fn a_rollback_releases<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (_, client) = locks();
    let (tx, id, names) = begun(&pool, &client).await;
    soon(tx.rollback()).await;
    assert_eq!(balance(&pool, &id).await, 100);
    for name in &names {
        assert!(is_free(&client, name).await);
    }
}

async fn a_dropped_transaction_is_rolled_back_and_released<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (_, client) = locks();
    let (tx, id, names) = begun(&pool, &client).await;
    drop(tx);
    for name in &names {
        until("it is free", async || is_free(&client, name).await).await;
    }
    assert_eq!(balance(&pool, &id).await, 100);
}

async fn it_is_not_committed_under_a_lock_that_was_lost<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (store, client) = locks();
    let (mut tx, id, names) = begun(&pool, &client).await;
    // The second lock ends earlier than the first.
    let second = client.lock(name("short")).ttl(Duration::from_secs(1));
    tx.hold(second.acquire().await.unwrap());
    store.pause();
    store.advance(Duration::from_secs(2));
    store.resume();
    let err = soon(tx.commit()).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost, "{err:#}");
    assert_says(&err, &["it was rolled back", "short"]);
    assert_eq!(balance(&pool, &id).await, 100);
    // The other locks were held, and are released.
    for name in &names {
        until("it is free", async || is_free(&client, name).await).await;
    }
}

async fn a_transaction_without_locks_is_one<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let id = account(&pool).await;
    let mut tx = Tx::begin(&pool).await.unwrap();
    write::<DB>(&mut tx, &id, 7).await.unwrap();
    soon(tx.commit()).await.unwrap();
    assert_eq!(balance(&pool, &id).await, 7);
}

async fn both_locks_are_kept_when_the_outcome_is_unknown<DB: Bank>() {
    let proxy = Proxy::text(DB::port());
    let direct = bank::<DB>(2).await;
    let pool = bank_at::<DB>(proxy.port(), 2).await;
    let (store, client) = locks();
    let (tx, id, names) = begun(&pool, &client).await;
    proxy.plan("COMMIT", Fault::CutAfter);
    let err = soon(tx.commit()).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err:#}");
    assert_says(&err, &["it is unknown", "not released", &names[0]]);
    until("the database has decided", async || {
        balance(&direct, &id).await == 80
    })
    .await;
    for name in &names {
        assert!(!is_free(&client, name).await);
    }
    // Neither lock was renewed.
    store.advance(Duration::from_secs(31));
    for name in &names {
        until("it is free", async || is_free(&client, name).await).await;
    }
}
