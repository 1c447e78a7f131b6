//! A transaction under a lock: the lock is given back when the transaction has ended, and never before.
//!
//! It is here and not in the crate `tenure`, as all else about databases: [`Lock::transaction`] is a method of a type of
//! this crate, and `From<sqlx::Error>` an impl for one.

mod database;
mod outcome;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sqlx::{Pool, Transaction};

use crate::after::GuardUntilOutcome;
use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::lock::Lock;
use crate::lost::LostReason;
use crate::rt::Clock;

pub use self::database::{Sort, SqlDatabase};
pub use self::outcome::{Operation, explain, named};

/// How long the answer to a ROLLBACK is waited for. Without one the transaction is never committed either; only
/// the locks of its rows last until the database has noticed.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(2);

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
    /// - [`Lost`](ErrorKind::Lost): the lock ended before the transaction did. It was rolled back, unless the
    ///   message says that it was committed or that this is unknown.
    /// - [`Indeterminate`](ErrorKind::Indeterminate): the connection broke during COMMIT, which may have been done.
    ///   The lock is not released: it is renewed no more, and free when its lease ends, which the message says.
    ///   In stores without leases that is one ttl.
    /// - [`Store`](ErrorKind::Store), [`Unreachable`](ErrorKind::Unreachable): the database refused BEGIN or COMMIT;
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
                release(guard).await;
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
                roll_back(tx).await;
                release(guard).await;
                return Err(err);
            }
            (Done::Panic(panic), _) => {
                roll_back(tx).await;
                release(guard).await;
                resume_unwind(panic);
            }
            (Done::Lost(reason), _) | (Done::Value(_), Some(reason)) => {
                roll_back(tx).await;
                // Dropping the guard cleans up in the background: the store that was lost may be slow to answer.
                return Err(guard.explained(lost(reason, ROLLED_BACK)).into());
            }
        };
        commit(tx, guard).await?;
        Ok(value)
    }
}

/// Commits and releases, in this order.
async fn commit<DB: SqlDatabase>(
    mut tx: Transaction<'static, DB>,
    guard: Guard,
) -> Result<(), Error> {
    let probed = tokio::select! {
        biased;
        Some(_) = guard.lost() => Ok(()),
        probed = DB::probe(&mut tx) => probed,
    };
    if let Err(err) = probed {
        let err = explain::<DB>(err, Operation::Transaction(guard.name()));
        roll_back(tx).await;
        release(guard).await;
        return Err(err);
    }
    // The answer may have taken longer than the lease.
    if let Some(reason) = guard.loss() {
        roll_back(tx).await;
        return Err(guard.explained(lost(reason, ROLLED_BACK)));
    }
    let name = guard.name().clone();
    // From here on COMMIT may be applied: a dropped guard is not released any more.
    let committing = GuardUntilOutcome::new(guard);
    let committed = tokio::select! {
        biased;
        committed = tx.commit() => committed,
        Some(reason) = committing.lost() => return Err(committing.explained(lost(reason, UNKNOWN))),
    };
    match committed {
        Ok(()) => committing.release("the transaction was committed").await,
        Err(sqlx::Error::Database(said)) if DB::is_no(&*said) => {
            if let Some(guard) = committing.into_guard() {
                release(guard).await;
            }
            let err = sqlx::Error::Database(said);
            Err(explain::<DB>(err, Operation::Transaction(&name)))
        }
        Err(err) => {
            let doubt = "it is unknown whether the transaction was committed";
            let err = committing.keep(doubt, err);
            Err(named::<DB>(err, Operation::Transaction(&name)))
        }
    }
}

fn lost(reason: LostReason, what: &str) -> Error {
    let message = format!("the lock was lost while the transaction ran: {reason}; {what}");
    Error::new(ErrorKind::Lost, message)
}

const ROLLED_BACK: &str = "it was rolled back";
const UNKNOWN: &str = "COMMIT was under way, and it is unknown whether it was done";

/// How a body ended.
enum Done<T, E> {
    Value(T),
    Error(E),
    Panic(Box<dyn Any + Send>),
    Lost(LostReason),
}

async fn roll_back<DB: SqlDatabase>(tx: Transaction<'static, DB>) {
    let clock = Clock::system();
    tokio::select! {
        biased;
        // After an error, too, the transaction is never committed.
        _ = tx.rollback() => {}
        () = clock.sleep_until(clock.now().after(ROLLBACK_LIMIT)) => {}
    }
}

/// Releases when the outcome is an error already. A release that fails is repeated in the background.
async fn release(guard: Guard) {
    let _ = guard.release().await;
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
