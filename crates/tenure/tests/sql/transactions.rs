//! A transaction under a lock that lies elsewhere: the lock is released when the transaction has ended, and never before.

use std::time::Duration;

use tenure::sql::lock_in_tx;
use tenure::{Client, Error, ErrorKind, Fenced as _, LostReason};
use tokio::sync::oneshot;

use crate::support::{
    Bank, account, assert_says, balance, bank, bank_at, locks, name, on_each, read, soon, until,
    write,
};
use tenure_testkit::proxy::{Fault, Proxy};

on_each!(
    it_commits_and_then_releases,
    an_error_rolls_back,
    a_panic_rolls_back,
    a_dropped_call_rolls_back,
    a_loss_cancels_the_body,
    a_lock_that_was_lost_at_the_end_is_not_committed_under,
    the_lock_may_be_entered_again,
    several_names_are_held_until_the_end,
    a_pool_that_is_closed_leaves_no_lock,
    nothing_is_lost_among_many,
);

/// An error type of the user.
#[derive(Debug)]
enum Mine {
    Lock(Error),
    Sql,
    OutOfMoney,
}

impl From<Error> for Mine {
    fn from(err: Error) -> Self {
        Self::Lock(err)
    }
}

impl From<sqlx::Error> for Mine {
    fn from(_: sqlx::Error) -> Self {
        Self::Sql
    }
}

async fn is_free(client: &Client, lock: &str) -> bool {
    client.lock(lock).try_acquire().await.unwrap().is_some()
}

async fn it_commits_and_then_releases<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (_, client) = locks();
    let work = client.lock(&lock);
    let total = work.transaction(&pool, async |tx, guard| {
        tx.fence(guard).await?;
        let balance = read::<DB>(tx, &id).await?;
        write::<DB>(tx, &id, balance + 11).await?;
        assert!(guard.is_held());
        Ok::<_, Error>(balance + 11)
    });
    assert_eq!(soon(total).await.unwrap(), 111);
    assert!(is_free(&client, &lock).await);
    assert_eq!(balance(&pool, &id).await, 111);
}

async fn an_error_rolls_back<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (_, client) = locks();
    let work = client.lock(&lock);
    let outcome: Result<(), Mine> = work
        .transaction(&pool, async |tx, _| {
            write::<DB>(tx, &id, 0).await?;
            Err(Mine::OutOfMoney)
        })
        .await;
    assert!(matches!(outcome, Err(Mine::OutOfMoney)), "{outcome:?}");
    assert!(is_free(&client, &lock).await);
    assert_eq!(balance(&pool, &id).await, 100);
    // An error of the database is treated like any other.
    let outcome = work.transaction(&pool, async |tx, _| {
        DB::execute(tx, "SELECT nonsense FROM nowhere".into()).await?;
        Ok::<_, Mine>(())
    });
    assert!(matches!(outcome.await, Err(Mine::Sql)));
    // An error of the lock has a variant of its own.
    let taken = work.acquire().await.unwrap();
    let busy = work.clone().wait(Duration::ZERO);
    let outcome = busy.transaction(&pool, async |_, _| Ok::<_, Mine>(()));
    let Err(Mine::Lock(err)) = outcome.await else {
        panic!("it is taken");
    };
    assert_eq!(err.kind(), ErrorKind::WaitElapsed);
    taken.release().await.unwrap();
}

async fn a_panic_rolls_back<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (_, client) = locks();
    let task = {
        let (pool, id, lock, client) = (pool.clone(), id.clone(), lock.clone(), client.clone());
        tokio::spawn(async move {
            let work = client.lock(&lock);
            work.transaction(&pool, async |tx, _| {
                write::<DB>(tx, &id, 0).await?;
                if lock.is_empty() {
                    return Ok::<_, Error>(());
                }
                panic!("as it was meant to be");
            })
            .await
        })
    };
    assert!(soon(task).await.unwrap_err().is_panic());
    assert!(is_free(&client, &lock).await);
    assert_eq!(balance(&pool, &id).await, 100);
}

async fn a_dropped_call_rolls_back<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (_, client) = locks();
    let (reached, is_reached) = oneshot::channel();
    {
        let work = client.lock(&lock);
        let call = work.transaction(&pool, async |tx, _| {
            write::<DB>(tx, &id, 0).await?;
            reached.send(()).unwrap();
            std::future::pending::<Result<(), Error>>().await
        });
        tokio::select! {
            _ = call => panic!("it never ends"),
            reached = is_reached => reached.unwrap(),
        }
    }
    until("it is free", async || is_free(&client, &lock).await).await;
    assert_eq!(balance(&pool, &id).await, 100);
}

async fn a_loss_cancels_the_body<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (_, client) = locks();
    let operator = client.clone();
    let work = client.lock(&lock);
    let outcome = work.transaction(&pool, async |tx, guard| {
        write::<DB>(tx, &id, 0).await?;
        let broken = operator.break_lock(&lock, guard.token()).await?;
        assert!(broken);
        std::future::pending::<Result<(), Error>>().await
    });
    let err = soon(outcome).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost, "{err}");
    assert_says(&err, &["was lost while the transaction ran", "rolled back"]);
    assert!(is_free(&client, &lock).await);
    assert_eq!(balance(&pool, &id).await, 100);
}

async fn a_lock_that_was_lost_at_the_end_is_not_committed_under<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let (store, client) = locks();
    let work = client.lock(&lock).ttl(Duration::from_secs(10));
    let outcome = work.transaction(&pool, async |tx, guard| {
        write::<DB>(tx, &id, 0).await?;
        // The process was stopped for longer than its lease, and does not know it yet.
        store.pause();
        store.advance(Duration::from_secs(10));
        assert!(!guard.is_held());
        Ok::<_, Error>(())
    });
    let err = soon(outcome).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost, "{err}");
    assert_says(&err, &[&LostReason::Expired.to_string(), "rolled back"]);
    assert_eq!(balance(&pool, &id).await, 100);
}

async fn the_lock_may_be_entered_again<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let lock = name("lock");
    let (_, client) = locks();
    let work = client.lock(&lock);
    let outcome = work.transaction(&pool, async |tx, guard| {
        let again = work.acquire().await?;
        assert_eq!(again.token(), guard.token());
        lock_in_tx(tx, &lock).await?;
        again.release().await
    });
    soon(outcome).await.unwrap();
    assert!(is_free(&client, &lock).await);
}

async fn several_names_are_held_until_the_end<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (id, names) = (account(&pool).await, [name("lock"), name("lock")]);
    let (store, client) = locks();
    let other = Client::from_store(store).unwrap();
    let work = client.lock_all(&names);
    let outcome = work.transaction(&pool, async |tx, guard| {
        assert_eq!(guard.names().count(), 2);
        tx.fence(guard).await?;
        for name in &names {
            assert!(!is_free(&other, name).await);
        }
        write::<DB>(tx, &id, 111)
            .await
            .map_err(|err| Error::new(ErrorKind::Store, format!("{err:#}")))
    });
    soon(outcome).await.unwrap();
    assert_eq!(balance(&pool, &id).await, 111);
    for name in &names {
        assert!(is_free(&other, name).await);
    }
    // The loss of one of them ends the transaction.
    for lost in 0..2 {
        let outcome = work.transaction(&pool, async |tx, guard| {
            write::<DB>(tx, &id, 0).await.unwrap();
            let (name, token) = guard.tokens().nth(lost).unwrap();
            assert!(other.break_lock(name, token).await?);
            std::future::pending::<Result<(), Error>>().await
        });
        let err = soon(outcome).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Lost, "{err}");
        assert_says(&err, &["was lost while the transaction ran", "rolled back"]);
        assert_eq!(balance(&pool, &id).await, 111);
        for name in &names {
            until("it is free", async || is_free(&other, name).await).await;
        }
    }
}

async fn a_pool_that_is_closed_leaves_no_lock<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let lock = name("lock");
    let (_, client) = locks();
    pool.close().await;
    let work = client.lock(&lock);
    let outcome = work.transaction(&pool, async |_, _| Ok::<_, Error>(()));
    let err = soon(outcome).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Closed, "{err}");
    assert_says(&err, &["the pool was closed", &lock]);
    assert!(is_free(&client, &lock).await);
}

/// A release before COMMIT would lose deposits.
async fn nothing_is_lost_among_many<DB: Bank>() {
    let pool = bank::<DB>(8).await;
    let (id, lock) = (account(&pool).await, name("lock"));
    let client = tenure::connect("memory:").await.unwrap();
    let workers = (0..50).map(|_| {
        let (pool, client, id, lock) = (pool.clone(), client.clone(), id.clone(), lock.clone());
        tokio::spawn(async move {
            let work = client.lock(&lock);
            let outcome = work.transaction(&pool, async |tx, guard| {
                tx.fence(guard).await?;
                let balance = read::<DB>(tx, &id).await?;
                write::<DB>(tx, &id, balance + 1).await?;
                Ok::<_, Error>(())
            });
            outcome.await.unwrap();
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon(worker).await.unwrap();
    }
    assert_eq!(balance(&pool, &id).await, 150);
}

/// PostgreSQL is asked before COMMIT whether the transaction is sound, and that answer may be late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_lost_before_commit_is_not_committed_under() {
    if sqlx::Postgres::skip_unless_installed() {
        return;
    }
    let proxy = Proxy::text(sqlx::Postgres::port());
    let direct = bank::<sqlx::Postgres>(2).await;
    let pool = bank_at::<sqlx::Postgres>(proxy.port(), 2).await;
    let (id, lock) = (account(&direct).await, name("lock"));
    let (_, client) = locks();
    proxy.plan("SELECT 1", Fault::NoReply);
    let work = client.lock(&lock);
    let call = work.transaction(&pool, async |tx, _| {
        write::<sqlx::Postgres>(tx, &id, 0).await?;
        Ok::<_, Error>(())
    });
    let watch = async {
        until("the proxy has the answer", async || proxy.is_done()).await;
        let token = client.inspect(&lock).await.unwrap().holds[0].token;
        assert!(client.break_lock(&lock, token.unwrap()).await.unwrap());
        let is_over = async || client.list("").await.unwrap().is_empty();
        until("the lock is lost", is_over).await;
        proxy.resume();
    };
    let (outcome, ()) = soon(async { tokio::join!(call, watch) }).await;
    let err = outcome.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost, "{err}");
    assert_says(&err, &["was lost while the transaction ran", "rolled back"]);
    assert_eq!(balance(&direct, &id).await, 100);
}

/// The database has committed and its answer is under way: the lock is still held.
async fn the_lock_outlasts_commit<DB: Bank>() {
    let proxy = Proxy::text(DB::port());
    let direct = bank::<DB>(2).await;
    let pool = bank_at::<DB>(proxy.port(), 2).await;
    let (id, lock) = (account(&direct).await, name("lock"));
    let (_, client) = locks();
    proxy.plan("COMMIT", Fault::NoReply);
    let work = client.lock(&lock);
    let call = work.transaction(&pool, async |tx, _| {
        write::<DB>(tx, &id, 0).await?;
        Ok::<_, Error>(())
    });
    let watch = async {
        until("it is committed", async || balance(&direct, &id).await == 0).await;
        assert!(!is_free(&client, &lock).await);
        until("the proxy has the answer", async || proxy.is_done()).await;
        proxy.resume();
    };
    let (outcome, ()) = soon(async { tokio::join!(call, watch) }).await;
    outcome.unwrap();
    assert!(is_free(&client, &lock).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_outlasts_commit_in_mysql() {
    if !sqlx::MySql::skip_unless_installed() {
        the_lock_outlasts_commit::<sqlx::MySql>().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_outlasts_commit_in_postgres() {
    if !sqlx::Postgres::skip_unless_installed() {
        the_lock_outlasts_commit::<sqlx::Postgres>().await;
    }
}
