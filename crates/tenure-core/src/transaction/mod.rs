//! A transaction under a lock: the lock is given back when the transaction has ended, and never before.
//!
//! It is here and not in the crate `tenure`, as all else about databases: [`Lock::transaction`] is a method of a type of
//! this crate, and `From<sqlx::Error>` an impl for one.

mod database;
mod end;
mod outcome;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use sqlx::{Pool, Transaction};

use crate::error::Error;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::lost::LostReason;

use self::end::{ROLLED_BACK, lost, release, roll_back};

pub use self::database::{Sort, SqlDatabase};
pub use self::end::{commit_and_release, roll_back_and_release};
pub use self::outcome::{Operation, explain, named};

impl Lock {
    /// Acquires, begins a transaction, runs `body`, commits, and only then releases. (Feature `sqlx`.)
    ///
    /// A release before COMMIT would be a mistake: the next holder would read the old data, and one of the two writes would
    /// be lost. This method releases after COMMIT. Nothing that the transaction reads is older than the lock.
    ///
    /// The lock may lie in any store; it needs not be the database.
    /// When `body` returns an error, or panics, the transaction is rolled back and the lock released.
    /// When the lock is lost meanwhile, `body` is cancelled (dropped at its current await) and the
    /// transaction rolled back; it is not committed under a lock that has been lost by then.
    /// As in [`run`](Lock::run) the lock may be entered again inside `body`.
    ///
    /// Between the last check of the lock and the COMMIT a process can be stopped for longer than the lease. The lock
    /// cannot prevent that COMMIT, but the database can: call `tx.fence(guard)` (of the trait `tenure::Fenced`) at the
    /// beginning of `body`.
    ///
    /// In PostgreSQL this costs one more round trip: after a statement has failed, COMMIT would be a ROLLBACK without an
    /// error, so the server is asked before whether the transaction can commit.
    ///
    /// # Cancel safety
    /// Dropped before COMMIT is sent, the transaction is rolled back and the lock released. Dropped while COMMIT is
    /// under way, the outcome is unknown, and the lock is kept until its lease ends.
    ///
    /// # Errors
    /// That of `body`; those of [`acquire`](Lock::acquire); and
    /// - [`Lost`](crate::ErrorKind::Lost): the lock ended before the transaction did. It was rolled back, unless the
    ///   message says that it was committed or that this is unknown.
    /// - [`Indeterminate`](crate::ErrorKind::Indeterminate): the connection broke during COMMIT, which may have been done.
    ///   The lock is not released: it is renewed no more, and free when its lease ends, which the message says.
    ///   In stores without leases that is one ttl.
    /// - [`Store`](crate::ErrorKind::Store), [`Unreachable`](crate::ErrorKind::Unreachable): the database refused BEGIN or COMMIT;
    ///   nothing was kept, and the lock was released.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn example() -> Result<(), tenure::Error> {
    /// use tenure::Fenced as _;
    ///
    /// let pool = sqlx::SqlitePool::connect("sqlite::memory:").await?;
    /// # let mut conn = pool.acquire().await?;
    /// tenure::sql::init(&mut *conn).await?;
    /// # drop(conn);
    /// let client = tenure::connect("memory:").await?;
    /// let answer = client.lock("orders/42").transaction(&pool, async |tx, guard| {
    ///     tx.fence(guard).await?;
    ///     let answer: i64 = sqlx::query_scalar("SELECT 6 * 7").fetch_one(&mut **tx).await?;
    ///     Ok::<_, tenure::Error>(answer)
    /// }).await?;
    /// assert_eq!(answer, 42);
    /// # Ok(()) }
    /// # #[cfg(feature = "sqlite")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn transaction<DB, T, E, F>(&self, pool: &Pool<DB>, body: F) -> Result<T, E>
    where
        DB: SqlDatabase,
        E: From<Error>,
        // Any lifetime, though it is always 'static: with that one the compiler takes no such call for `Send`.
        F: AsyncFnOnce(&mut Transaction<'_, DB>, &Guard) -> Result<T, E>,
    {
        let owner = self.owner_of_body();
        let guard = self.acquire_for(Some(&owner)).await?;
        let begun = tokio::select! {
            biased;
            Some(reason) = guard.lost() => return Err(guard.explained(lost(reason, ROLLED_BACK)).into()),
            begun = pool.begin() => begun,
        };
        let mut tx = match begun {
            Ok(tx) => tx,
            Err(err) => {
                let err = explain::<DB>(err, Operation::Transaction(guard.name()));
                release([guard]).await;
                return Err(err.into());
            }
        };
        let done = tokio::select! {
            biased;
            Some(reason) = guard.lost() => Done::Lost(reason),
            done = caught(owner.enter_body(body(&mut tx, &guard))) => match done {
                Ok(Ok(value)) => Done::Value(value),
                Ok(Err(err)) => Done::Error(err),
                Err(panic) => Done::Panic(panic),
            },
        };
        let value = match (done, guard.loss()) {
            (Done::Value(value), None) => value,
            (Done::Error(err), _) => {
                roll_back_and_release(tx, [guard]).await;
                return Err(err);
            }
            (Done::Panic(panic), _) => {
                roll_back_and_release(tx, [guard]).await;
                resume_unwind(panic);
            }
            (Done::Lost(reason), _) | (Done::Value(_), Some(reason)) => {
                roll_back(tx).await;
                // Dropping the guard cleans up in the background: the store that was lost may be slow to answer.
                return Err(guard.explained(lost(reason, ROLLED_BACK)).into());
            }
        };
        commit_and_release(tx, vec![guard]).await?;
        Ok(value)
    }
}

/// How a body ended.
enum Done<T, E> {
    Value(T),
    Error(E),
    Panic(Box<dyn Any + Send>),
    Lost(LostReason),
}

/// Awaits a future that may panic.
async fn caught<F: Future>(future: F) -> std::thread::Result<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        // It is not polled again after a panic.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}
