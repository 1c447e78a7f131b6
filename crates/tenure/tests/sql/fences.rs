//! A holder that was paused wakes up and writes.

use sqlx::Pool;
use tenure::fence::{EtcdCompare, ZooKeeperCheck};
use tenure::sql::fence;
use tenure::{Client, Error, ErrorKind, Fenced, Guard};
use tokio::sync::oneshot;

use crate::support::{
    Bank, account, assert_says, balance, bank, locks, name, on_each, read, send_connection_number,
    soon, until_waits, write,
};

on_each!(
    a_paused_holder_wakes_up_and_writes,
    a_paused_holder_wakes_up_inside_its_transaction,
    a_fence_remembers_what_was_committed_only,
    the_same_token_passes_again,
    a_late_holder_waits_and_is_refused,
    every_name_of_a_guard_is_fenced,
    resources_and_tokens_are_checked,
);

/// A deposit by a client that believes to hold the lock.
async fn deposit<DB: Bank>(
    pool: &Pool<DB>,
    id: &str,
    guard: &Guard,
    amount: i64,
) -> Result<(), Error> {
    let mut tx = DB::begin(pool).await;
    fence(&mut tx, id, guard.token()).await?;
    let balance = read::<DB>(&mut tx, id).await?;
    write::<DB>(&mut tx, id, balance + amount).await?;
    tx.commit().await?;
    Ok(())
}

async fn take(client: &Client, lock: &str) -> Guard {
    soon(client.lock(lock).acquire()).await.unwrap()
}

async fn a_paused_holder_wakes_up_and_writes<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (store, first) = locks();
    let second = Client::from_store(store.clone()).unwrap();
    let paused = take(&first, &lock).await;
    deposit(&pool, &id, &paused, 1).await.unwrap();
    // The holder is paused here, and its lease ends.
    store.expire(&lock).unwrap();
    let newer = take(&second, &lock).await;
    deposit(&pool, &id, &newer, 10).await.unwrap();
    let (stale, newest) = (paused.token(), newer.token());
    newer.release().await.unwrap();
    // The holder goes on, and still believes to hold the lock.
    let err = deposit(&pool, &id, &paused, 100).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost);
    let tokens = [stale, newest].map(|token| token.to_string());
    assert_says(&err, &["is stale", &id, &tokens[0], &tokens[1]]);
    assert_eq!(balance(&pool, &id).await, 111);
    // The next holder passes.
    let next = take(&second, &lock).await;
    deposit(&pool, &id, &next, 1_000).await.unwrap();
    assert_eq!(balance(&pool, &id).await, 1_111);
}

async fn a_paused_holder_wakes_up_inside_its_transaction<DB: Bank>() {
    if DB::ONE_WRITER {
        // The transaction that has passed the fence is the writer: no other transaction writes before it ends.
        return;
    }
    let pool = bank::<DB>(4).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (store, first) = locks();
    let second = Client::from_store(store.clone()).unwrap();
    let paused = take(&first, &lock).await;
    let mut tx = DB::begin(&pool).await;
    let seen = read::<DB>(&mut tx, &id).await.unwrap();
    // The holder is paused between reading and the fence.
    store.expire(&lock).unwrap();
    let newer = take(&second, &lock).await;
    deposit(&pool, &id, &newer, 10).await.unwrap();
    let err = match tx.fence(&paused).await {
        // That fence is called after the lock, the other after the account.
        Ok(()) => fence(&mut tx, &id, paused.token()).await.unwrap_err(),
        Err(err) => err,
    };
    assert_eq!(err.kind(), ErrorKind::Lost, "{err}");
    drop((tx, seen));
    assert_eq!(balance(&pool, &id).await, 110);
}

async fn a_fence_remembers_what_was_committed_only<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let resource = name("resource");
    for (token, commit) in [(5_u64, true), (9, false), (7, true)] {
        let mut tx = DB::begin(&pool).await;
        fence(&mut tx, &resource, token).await.unwrap();
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
    let mut tx = DB::begin(&pool).await;
    let err = fence(&mut tx, &resource, 6_u64).await.unwrap_err();
    assert_says(&err, &["token 6 is stale", "7 has written since"]);
    tx.rollback().await.unwrap();
}

async fn the_same_token_passes_again<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let resource = name("resource");
    for _ in 0..3 {
        let mut tx = DB::begin(&pool).await;
        fence(&mut tx, &resource, 5_u64).await.unwrap();
        fence(&mut tx, &resource, 5_u64).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// The newer holder has passed the fence and not committed yet.
async fn a_late_holder_waits_and_is_refused<DB: Bank>() {
    let pool = bank::<DB>(4).await;
    let resource = name("resource");
    let mut tx = DB::begin(&pool).await;
    fence(&mut tx, &resource, 1_u64).await.unwrap();
    tx.commit().await.unwrap();
    let mut newer = DB::begin(&pool).await;
    fence(&mut newer, &resource, 7_u64).await.unwrap();
    let (sender, receiver) = oneshot::channel();
    let late = {
        let (pool, resource) = (pool.clone(), resource.clone());
        tokio::spawn(async move {
            let mut tx = DB::begin(&pool).await;
            send_connection_number::<DB>(&mut tx, sender).await;
            let outcome = fence(&mut tx, &resource, 6_u64).await;
            tx.rollback().await.unwrap();
            outcome
        })
    };
    until_waits::<DB>(receiver).await;
    assert!(!late.is_finished());
    newer.commit().await.unwrap();
    let err = soon(late).await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost);
}

async fn every_name_of_a_guard_is_fenced<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let names = [name("lock"), name("lock")];
    let (store, client) = locks();
    let both = client.lock_all(&names).acquire().await.unwrap();
    let mut tx = DB::begin(&pool).await;
    tx.fence(&both).await.unwrap();
    tx.commit().await.unwrap();
    store.expire(&names[1]).unwrap();
    let other = Client::from_store(store.clone()).unwrap();
    let newer = take(&other, &names[1]).await;
    let mut tx = DB::begin(&pool).await;
    tx.fence(&newer).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = DB::begin(&pool).await;
    let err = tx.fence(&both).await.unwrap_err();
    assert_eq!(err.name().map(|name| name.as_str()), Some(&*names[1]));
    tx.rollback().await.unwrap();
}

async fn resources_and_tokens_are_checked<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    let mut tx = DB::begin(&pool).await;
    for (resource, token) in [("", 1), ("x", u64::MAX)] {
        let err = fence(&mut tx, resource, token).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid, "{err}");
    }
    fence(&mut tx, &name("x"), i64::MAX as u64).await.unwrap();
    tx.rollback().await.unwrap();
}

/// Conditions of a store that does not have the lock say nothing about the lock.
#[tokio::test]
async fn conditions_of_another_store_are_refused() {
    let (_, client) = locks();
    let guard = take(&client, "lock").await;
    let mut compare: Vec<EtcdCompare> = Vec::new();
    let mut check: Vec<ZooKeeperCheck> = Vec::new();
    for err in [compare.fence(&guard).await, check.fence(&guard).await] {
        let err = err.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unsupported);
        assert_says(&err, &["is not kept in", "fencing token"]);
    }
    assert!(compare.is_empty() && check.is_empty());
}
