//! A lock that is released before COMMIT loses an update; `Lock::transaction` releases it afterwards.
//!
//! Two deposits into one account; the second comes at the worst moment of the first.

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use tenure::{Client, Error, Fenced as _};
use tokio::sync::oneshot;

/// The mistake: the lock ends when the work is done, and COMMIT comes after it.
///
/// `worst_moment` is the time between the two. It always exists, and mostly it is short.
async fn deposit_and_commit_later(
    locks: &Client,
    pool: &SqlitePool,
    amount: i64,
    has_read: impl AsyncFnOnce(),
    worst_moment: impl AsyncFnOnce(),
) -> Result<(), Error> {
    let guard = locks.lock("account").acquire().await?;
    let balance = balance(pool).await?;
    has_read().await;
    let mut tx = pool.begin().await?;
    write(&mut tx, balance + amount).await?;
    guard.release().await?; // too early
    worst_moment().await;
    tx.commit().await?;
    Ok(())
}

/// Lock, BEGIN, body, COMMIT, and only then the release.
async fn deposit(
    locks: &Client,
    pool: &SqlitePool,
    amount: i64,
    worst_moment: impl AsyncFnOnce(),
) -> Result<(), Error> {
    let lock = locks.lock("account");
    lock.transaction(pool, async |tx, guard| {
        // If this process is paused for longer than its lease, the database refuses what it writes afterwards.
        tx.fence(guard).await?;
        let balance: i64 = sqlx::query_scalar("SELECT balance FROM account")
            .fetch_one(&mut **tx)
            .await?;
        write(tx, balance + amount).await?;
        worst_moment().await;
        Ok(())
    })
    .await
}

async fn balance(pool: &SqlitePool) -> Result<i64, Error> {
    let balance = sqlx::query_scalar("SELECT balance FROM account");
    Ok(balance.fetch_one(pool).await?)
}

async fn write(conn: &mut sqlx::SqliteConnection, balance: i64) -> Result<(), Error> {
    let update = sqlx::query("UPDATE account SET balance = ?").bind(balance);
    update.execute(conn).await?;
    Ok(())
}

/// A database with one account, which has 100.
async fn open_bank(file: &std::path::Path) -> Result<SqlitePool, Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal); // readers see committed data, and do not wait for writers
    let pool = SqlitePool::connect_with(options).await?;
    tenure::sql::init(&pool).await?;
    sqlx::raw_sql(
        "CREATE TABLE account (balance INTEGER NOT NULL); INSERT INTO account VALUES (100)",
    )
    .execute(&pool)
    .await?;
    Ok(pool)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let dir = std::env::temp_dir().join(format!("tenure-transaction-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the directory for temporary files can be written to");
    let pool = open_bank(&dir.join("bank.db")).await?;
    // The lock may be in any store, also in another one than the data.
    let locks = tenure::connect("memory:").await?;

    // The second deposit comes between the release and the COMMIT of the first.
    let (released, is_released) = oneshot::channel();
    let (read, is_read) = oneshot::channel();
    let (committed, is_committed) = oneshot::channel::<()>();
    let first = async {
        let worst_moment = async || {
            let _ = released.send(());
            let _ = is_read.await;
        };
        deposit_and_commit_later(&locks, &pool, 10, async || {}, worst_moment).await?;
        let _ = committed.send(());
        Ok::<_, Error>(())
    };
    let second = async {
        let _ = is_released.await;
        let has_read = async || {
            let _ = read.send(());
            let _ = is_committed.await;
        };
        deposit_and_commit_later(&locks, &pool, 5, has_read, async || {}).await
    };
    let (first, second) = tokio::join!(first, second);
    first.and(second)?;
    let wrong = balance(&pool).await?;
    println!("released before COMMIT: 100 + 10 + 5 = {wrong}");
    assert_eq!(wrong, 105, "the first deposit is gone");

    // The second deposit comes at the same moment again.
    write(&mut *pool.acquire().await?, 100).await?;
    let (reached, is_reached) = oneshot::channel();
    let first = async {
        let worst_moment = async || {
            let is_taken = locks.lock("account").wait(std::time::Duration::ZERO);
            let other = tokio::spawn(async move { is_taken.try_acquire().await });
            let other = other.await.expect("the task does not panic");
            assert!(other.is_ok_and(|guard| guard.is_none()), "nobody gets in");
            let _ = reached.send(());
        };
        deposit(&locks, &pool, 10, worst_moment).await
    };
    let second = async {
        let _ = is_reached.await;
        deposit(&locks, &pool, 5, async || {}).await
    };
    let (first, second) = tokio::join!(first, second);
    first.and(second)?;
    let right = balance(&pool).await?;
    println!("released after COMMIT:  100 + 10 + 5 = {right}");
    assert_eq!(right, 115);

    pool.close().await;
    let _ = std::fs::remove_dir_all(dir);
    Ok(())
}
