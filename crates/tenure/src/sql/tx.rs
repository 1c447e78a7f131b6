//! A transaction that carries the locks under which it runs.

use std::fmt;
use std::ops::{Deref, DerefMut};

use sqlx::{Pool, Transaction};

use tenure_core::Guard;
use tenure_core::error::{Error, ErrorParts as _};
use tenure_core::transaction::{commit_and_release, roll_back_and_release};

use super::in_tx::Database;

/// A transaction of `sqlx` that releases locks when it has ended: code deep inside of it takes a lock and
/// [holds](Tx::hold) the lock to COMMIT or ROLLBACK, without returning the guard to the code that commits.
///
/// [`Lock::transaction`](crate::Lock::transaction) is for one lock that is taken before the transaction begins, and also
/// stops the work when the lock is lost. `Tx` looks for losses at [`commit`](Tx::commit) only.
///
/// Dropping it rolls back, as dropping a `Transaction` does, and then releases.
///
/// A lock that is taken inside a transaction may be younger than what the transaction has read: read after the lock, and in
/// READ COMMITTED, where each statement sees what was committed before it. All code should take locks before it changes
/// rows, or a holder of a row may wait for the lock while the holder of the lock waits for the row.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn example() -> Result<(), tenure::Error> {
/// use tenure::sql::Tx;
///
/// async fn ship(locks: &tenure::Client, tx: &mut Tx<sqlx::Sqlite>) -> Result<(), tenure::Error> {
///     let guard = locks.lock("orders/42").acquire().await?;
///     tenure::sql::fence(tx, "orders/42", guard.token()).await?; // refuses an earlier holder
///     tx.hold(guard); // released after COMMIT or ROLLBACK, never before
///     sqlx::query("UPDATE orders SET state = 'shipped' WHERE id = 42").execute(&mut ***tx).await?;
///     Ok(())
/// }
///
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
/// # tenure::sql::init(&pool).await?;
/// # sqlx::raw_sql("CREATE TABLE orders (id INTEGER, state TEXT)").execute(&pool).await?;
/// let locks = tenure::connect("memory:").await?;
/// let mut tx = Tx::begin(&pool).await?;
/// ship(&locks, &mut tx).await?;
/// assert!(locks.lock("orders/42").try_acquire().await?.is_none());
/// tx.commit().await?;
/// assert!(locks.lock("orders/42").try_acquire().await?.is_some());
/// # Ok(()) }
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
#[must_use = "dropping it rolls the transaction back"]
pub struct Tx<DB: Database> {
    // Dropped first: it is rolled back before the locks are released.
    tx: Transaction<'static, DB>,
    guards: Vec<Guard>,
}

impl<DB: Database> Tx<DB> {
    /// Begins a transaction of that pool. For one that begins with a statement of your own:
    /// `Tx::from(pool.begin_with("BEGIN IMMEDIATE").await?)`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// The errors of the database, above all `Unreachable`.
    pub async fn begin(pool: &Pool<DB>) -> Result<Self, Error> {
        let begun = pool.begin().await;
        begun
            .map(Self::from)
            .map_err(|err| Error::from(err).with_scheme(DB::SCHEME))
    }

    /// Holds that lock until the transaction has ended: it is released after COMMIT or ROLLBACK.
    pub fn hold(&mut self, guard: Guard) {
        self.guards.push(guard);
    }

    /// The locks that are held to the end, in the order in which they came.
    pub fn held(&self) -> &[Guard] {
        &self.guards
    }

    /// Commits, and then releases all locks.
    ///
    /// The transaction is rolled back if one of the locks was lost meanwhile. All locks are kept until their leases end, and
    /// are not renewed, if the outcome of COMMIT is unknown, so that no new holder meets a COMMIT that is under way.
    ///
    /// # Cancel safety
    /// Dropped before COMMIT is sent, the transaction is rolled back and the locks are released. Dropped while COMMIT is
    /// under way, the outcome is unknown, and the locks are kept until their leases end.
    ///
    /// # Errors
    /// The errors of [`Lock::transaction`](crate::Lock::transaction) after its body: `Lost`, `Indeterminate`, and those of the
    /// database, after which nothing was kept.
    pub async fn commit(self) -> Result<(), Error> {
        commit_and_release(self.tx, self.guards).await
    }

    /// Rolls back, and then releases all locks. There is no error: whatever happens, the transaction is never committed.
    ///
    /// # Cancel safety
    /// Dropped, it does the same in the background.
    pub async fn rollback(self) {
        roll_back_and_release(self.tx, self.guards).await;
    }
}

/// Only a whole transaction of a pool: a savepoint that is released would be no COMMIT.
impl<DB: Database> From<Transaction<'static, DB>> for Tx<DB> {
    fn from(tx: Transaction<'static, DB>) -> Self {
        Self {
            tx,
            guards: Vec::new(),
        }
    }
}

impl<DB: Database> Deref for Tx<DB> {
    type Target = Transaction<'static, DB>;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl<DB: Database> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}

impl<DB: Database> fmt::Debug for Tx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("guards", &self.guards)
            .finish_non_exhaustive()
    }
}
