//! Many transactions at once.

use sqlx::Pool;
use tenure::ErrorKind;
use tenure::sql::lock_in_tx;
use tokio::sync::Barrier;

use std::sync::Arc;

use crate::support::{
    Bank, account, assert_says, balance, bank, name, on_each, read, soon, until, write,
};
use tenure_testkit::needs;

on_each!(
    two_hundred_transactions_on_five_names,
    first_uses_of_many_names_at_once,
    first_uses_that_are_rolled_back,
    a_deadlock_is_reported,
);

/// 200 transactions at the same time, each with a connection of its own: all names are used for the first time.
async fn two_hundred_transactions_on_five_names<DB: Bank>() {
    let pool = bank::<DB>(if DB::ONE_WRITER { 8 } else { 200 }).await;
    count(&pool, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_in_mysql_under_read_committed() {
    needs!(mariadb);
    let pool = bank::<sqlx::MySql>(200).await;
    count(
        &pool,
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    )
    .await;
}

async fn count<DB: Bank>(pool: &Pool<DB>, set_up: &'static str) {
    let mut names = Vec::new();
    for _ in 0..5 {
        names.push((name("lock"), account(pool).await));
    }
    let start = Arc::new(Barrier::new(200));
    let workers = (0..200).map(|worker: usize| {
        let (pool, start) = (pool.clone(), start.clone());
        let (lock, id) = names[worker % 5].clone();
        tokio::spawn(async move {
            if !DB::ONE_WRITER {
                // All connections are there before the first transaction begins.
                let mut conn = pool.acquire().await.unwrap();
                DB::execute(&mut conn, set_up.into()).await.unwrap();
                start.wait().await;
            }
            let mut tx = DB::begin(&pool).await;
            lock_in_tx(&mut tx, &lock).await.unwrap();
            // Read and write are two statements: a transaction in between would be lost.
            let seen = read::<DB>(&mut tx, &id).await.unwrap();
            write::<DB>(&mut tx, &id, seen + 1).await.unwrap();
            tx.commit().await.unwrap();
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon(worker).await.unwrap();
    }
    for (_, id) in &names {
        assert_eq!(balance(pool, id).await, 140);
    }
}

/// Neighbours in the order of the index, each used for the first time, each by two: no deadlock on gaps.
async fn first_uses_of_many_names_at_once<DB: Bank>() {
    let pool = bank::<DB>(16).await;
    let prefix = name("lock");
    let workers = (0..200).map(|worker: usize| {
        let (pool, lock) = (pool.clone(), format!("{prefix}-{:03}", worker / 2));
        tokio::spawn(async move {
            let mut tx = DB::begin(&pool).await;
            lock_in_tx(&mut tx, &lock).await.unwrap();
            tx.commit().await.unwrap();
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon(worker).await.unwrap();
    }
}

/// The row of a name that is used for the first time is gone when its transaction is rolled back, while others wait for
/// it. MySQL ends some of the waiting ones as deadlocks, and the error says so. When they are run again they succeed, and
/// nothing is lost.
async fn first_uses_that_are_rolled_back<DB: Bank>() {
    let pool = bank::<DB>(16).await;
    let (lock, id) = (name("lock"), account(&pool).await);
    let workers = (0..64).map(|worker: usize| {
        let (pool, lock, id) = (pool.clone(), lock.clone(), id.clone());
        tokio::spawn(async move {
            let mut deadlocks = 0;
            loop {
                let mut tx = DB::begin(&pool).await;
                if let Err(err) = lock_in_tx(&mut tx, &lock).await {
                    assert_says(&err, &["waited for each other", "run it again"]);
                    deadlocks += 1;
                    continue;
                }
                let seen = read::<DB>(&mut tx, &id).await.unwrap();
                write::<DB>(&mut tx, &id, seen + 1).await.unwrap();
                if worker.is_multiple_of(2) {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                }
                return deadlocks;
            }
        })
    });
    let mut deadlocks = 0;
    for worker in workers.collect::<Vec<_>>() {
        deadlocks += soon(worker).await.unwrap();
    }
    assert_eq!(balance(&pool, &id).await, 132);
    assert!(deadlocks == 0 || DB::NAME == "MySQL", "{deadlocks}");
    println!("{deadlocks} deadlocks");
}

/// The first use of a name is rolled back when several wait behind it, and the server may end some of them.
async fn rolled_back_with_waiters(level: &'static str) {
    needs!(mariadb);
    let pool = bank::<sqlx::MySql>(12).await;
    let (lock, id) = (name("lock"), account(&pool).await);
    let mut first = sqlx::MySql::begin(&pool).await;
    lock_in_tx(&mut first, &lock).await.unwrap();
    let workers = (0..10).map(|_| {
        let (pool, lock, id) = (pool.clone(), lock.clone(), id.clone());
        tokio::spawn(async move {
            let mut deadlocks = 0;
            loop {
                let mut conn = pool.acquire().await.unwrap();
                sqlx::MySql::execute(&mut conn, level.into()).await.unwrap();
                let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
                if let Err(err) = lock_in_tx(&mut tx, &lock).await {
                    assert_says(&err, &["waited for each other", "run it again"]);
                    deadlocks += 1;
                    continue;
                }
                let seen = read::<sqlx::MySql>(&mut tx, &id).await.unwrap();
                write::<sqlx::MySql>(&mut tx, &id, seen + 1).await.unwrap();
                tx.commit().await.unwrap();
                return deadlocks;
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    let waiting = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'INSERT INTO tenure_tx_locks%' \
         AND db = '{}' AND time_ms > 20",
        tenure_testkit::mariadb::DATABASE
    );
    let operator = crate::support::MARIADB.admin();
    until("all wait", async || {
        operator.value(&waiting).parse::<u32>().unwrap() >= 10
    })
    .await;
    first.rollback().await.unwrap();
    let mut deadlocks = 0;
    for worker in workers {
        deadlocks += soon(worker).await.unwrap();
    }
    println!("{deadlocks} deadlocks: {level}");
    assert_eq!(balance(&pool, &id).await, 110);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_use_is_rolled_back_under_waiters() {
    rolled_back_with_waiters("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_use_is_rolled_back_under_waiters_in_read_committed() {
    rolled_back_with_waiters("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
}

async fn a_deadlock_is_reported<DB: Bank>() {
    if DB::ONE_WRITER {
        return;
    }
    let pool = bank::<DB>(3).await;
    let names = [name("lock"), name("lock")];
    // The rows exist from here on.
    let mut tx = DB::begin(&pool).await;
    for it in &names {
        lock_in_tx(&mut tx, it).await.unwrap();
    }
    tx.commit().await.unwrap();
    let both_have_one = Arc::new(Barrier::new(2));
    let workers = [0, 1].map(|first| {
        let (pool, names, both) = (pool.clone(), names.clone(), both_have_one.clone());
        tokio::spawn(async move {
            let mut tx = DB::begin(&pool).await;
            lock_in_tx(&mut tx, &names[first]).await.unwrap();
            both.wait().await;
            let outcome = lock_in_tx(&mut tx, &names[1 - first]).await;
            drop(tx);
            outcome
        })
    });
    let mut errors = Vec::new();
    for worker in workers {
        errors.extend(soon(worker).await.unwrap().err());
    }
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Store);
    assert_says(
        &errors[0],
        &["waited for each other", "same order", "rolled back"],
    );
}
