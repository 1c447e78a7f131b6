//! Locks and fences in transactions of `sqlx`.

use std::time::Duration;

use sqlx::{Acquire, Transaction};

use tenure_core::Guard;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::FencingToken;
use tenure_core::name::LockName;
use tenure_core::transaction::{Operation, explain, named};

use super::statements::{signed, stale};
use super::transaction_locks::TransactionLocks;
use crate::fenced::Fenced;

/// A database in which these functions work: `sqlx::Postgres`, `sqlx::MySql` (MariaDB too) and `sqlx::Sqlite`, each with the
/// feature of that name. Other crates cannot implement this trait.
pub trait Database: TransactionLocks {}

#[cfg(feature = "mysql")]
impl Database for sqlx::MySql {}
#[cfg(feature = "postgres")]
impl Database for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Database for sqlx::Sqlite {}

/// Creates the tables that [`lock_in_tx`] and [`fence`] need, if they are missing. `target` is a pool or a connection.
/// No other function creates them.
///
/// # Cancel safety
/// Cancel safe: call it again.
///
/// # Errors
/// The errors of the database, above all a missing privilege to create tables.
pub async fn init<'a, DB: Database>(target: impl Acquire<'a, Database = DB>) -> Result<(), Error> {
    let failed = |err| explain::<DB>(err, Operation::Tables);
    let mut conn = target.acquire().await.map_err(failed)?;
    DB::create(&mut conn).await.map_err(failed)
}

/// Takes the lock `name` for the rest of the transaction, and waits for it in the database.
///
/// The lock excludes every other transaction of this database that takes the same name, and nothing else: holders of
/// [`Client::lock`](crate::Client::lock) are not among them. Waiting takes as long as the limits of the connection
/// allow: `lock_timeout` in PostgreSQL (none unless it was set), `innodb_lock_wait_timeout` in MySQL (50 s),
/// `busy_timeout` in SQLite (5 s with `sqlx`); [`lock_in_tx_within`] has a limit of its own.
///
/// The number that it returns is greater than that of any transaction that had the lock before, whether that was
/// committed or rolled back. The same transaction may take the lock again, and gets a greater number.
/// It is greater than the last number in the row by at least one. The row forgets the number of a transaction that was
/// rolled back; therefore the number is also at least the server's clock (PostgreSQL, SQLite), or a counter that begins at
/// the second of the server's start (MySQL). So a number is repeated only if it was that of a transaction that was rolled
/// back and that clock was set back, or MySQL was started twice within one second.
///
/// MySQL: `LAST_INSERT_ID()` of the session is that number afterwards.
///
/// # Cancel safety
/// A dropped call may have taken the lock or not: roll back, which releases the lock in both cases.
///
/// # Errors
/// See the [table](crate::sql#errors).
pub async fn lock_in_tx<DB: Database>(
    tx: &mut Transaction<'_, DB>,
    name: &str,
) -> Result<FencingToken, Error> {
    let name = LockName::new(name)?;
    let locked = DB::lock(tx, name.as_str().as_bytes()).await;
    let token = locked.map_err(|err| explain::<DB>(err, Operation::Lock(&name)))?;
    Ok(granted(token))
}

/// As [`lock_in_tx`], and waits for `wait` at most; zero means one try.
///
/// The limit is set for this one statement and restored afterwards. When the limit is over, the transaction can go on as
/// if the lock had not been requested: in PostgreSQL, where an error aborts a transaction, a savepoint makes that possible.
/// The limit costs one more round trip in MariaDB and two in the others.
///
/// How exact the limit is: PostgreSQL 1 ms, and 250 ms more when other transactions get the row first again and again;
/// MariaDB 1 ms; MySQL whole seconds, rounded up, at least one; SQLite 1 ms.
///
/// The first lock of a name inserts its row. In MySQL and MariaDB the insertion may wait for the transaction of a
/// neighbouring name whose first lock was just rolled back: with a very short limit a free name may seem to be locked.
///
/// # Cancel safety
/// As [`lock_in_tx`]. In MySQL (not MariaDB) and SQLite the limit of the connection may then still be `wait`.
///
/// # Errors
/// [`WaitElapsed`](ErrorKind::WaitElapsed): another transaction has the lock, and this one can go on (unless MySQL was set
/// to `innodb_rollback_on_timeout`). For the others see the [table](crate::sql#errors).
pub async fn lock_in_tx_within<DB: Database>(
    tx: &mut Transaction<'_, DB>,
    name: &str,
    wait: Duration,
) -> Result<FencingToken, Error> {
    let name = LockName::new(name)?;
    let locked = DB::lock_within(tx, name.as_str().as_bytes(), wait).await;
    let token = locked.map_err(|err| explain::<DB>(err, Operation::Lock(&name)))?;
    token
        .map(granted)
        .ok_or_else(|| wait_elapsed::<DB>(&name, wait))
}

/// Takes PostgreSQL's advisory lock of this name for the rest of the transaction, and waits for it in the database.
/// The lock needs no table, and has no number.
///
/// The key is one `bigint`: the first eight bytes, big-endian, of the SHA-256 of the name. Locks of a session by
/// `postgres://` have the same key, unless the option `keys` says otherwise, and exclude this lock.
///
/// # Cancel safety
/// As [`lock_in_tx`].
///
/// # Errors
/// See the [table](crate::sql#errors).
#[cfg(feature = "postgres")]
pub async fn advisory_lock_in_tx(
    tx: &mut Transaction<'_, sqlx::Postgres>,
    name: &str,
) -> Result<(), Error> {
    let name = LockName::new(name)?;
    let locked = super::postgres::advisory(tx, key(&name)).await;
    locked.map_err(|err| explain::<sqlx::Postgres>(err, Operation::Lock(&name)))
}

/// As [`advisory_lock_in_tx`], and waits for `wait` at most; see [`lock_in_tx_within`].
///
/// # Cancel safety
/// As [`lock_in_tx`].
///
/// # Errors
/// As [`lock_in_tx_within`].
#[cfg(feature = "postgres")]
pub async fn advisory_lock_in_tx_within(
    tx: &mut Transaction<'_, sqlx::Postgres>,
    name: &str,
    wait: Duration,
) -> Result<(), Error> {
    let name = LockName::new(name)?;
    let locked = super::postgres::advisory_within(tx, key(&name), wait).await;
    let locked = locked.map_err(|err| explain::<sqlx::Postgres>(err, Operation::Lock(&name)))?;
    locked.ok_or_else(|| wait_elapsed::<sqlx::Postgres>(&name, wait))
}

#[cfg(feature = "postgres")]
fn key(name: &LockName) -> i64 {
    crate::database::keys::bigint(name.as_str())
}

/// Refuses a `token` smaller than the greatest one that this fence has seen for `resource`, in one statement of the
/// transaction that writes to the resource.
///
/// The fence is a row, locked until the transaction ends: no other holder can pass in between. Call it before the writes,
/// and return its error, so that the transaction is rolled back: a refused transaction that is committed all the same
/// writes. `resource` is any name of 1 to 1,000 bytes; all writers must use the same name, and
/// tokens of one lock. Tokens of shared holds and permits say nothing about order; fence exclusive ones.
///
/// # Cancel safety
/// A dropped call may have raised the fence or not: roll back.
///
/// # Errors
/// [`Lost`](ErrorKind::Lost): a holder with a greater token has passed this fence. For the others see the [table](crate::sql#errors).
///
/// # Examples
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn example(pool: &sqlx::SqlitePool, guard: &tenure::Guard) -> Result<(), tenure::Error> {
/// let mut tx = pool.begin().await?;
/// tenure::sql::fence(&mut tx, "account/7", guard.token()).await?; // an error leaves, and rolls back
/// sqlx::query("UPDATE account SET balance = balance - 10 WHERE id = 7").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub async fn fence<DB: Database>(
    tx: &mut Transaction<'_, DB>,
    resource: &str,
    token: impl Into<u64>,
) -> Result<(), Error> {
    let resource = LockName::new(resource)?;
    pass::<DB>(tx, &resource, token.into()).await
}

async fn pass<DB: Database>(
    conn: &mut DB::Connection,
    resource: &LockName,
    token: u64,
) -> Result<(), Error> {
    let asked = Operation::Fence(resource);
    let signed = signed(token).map_err(|err| named::<DB>(err, asked))?;
    let passed = DB::fence(conn, resource.as_str().as_bytes(), signed).await;
    match passed.map_err(|err| explain::<DB>(err, asked))? {
        None => Ok(()),
        Some(newest) => Err(named::<DB>(stale(token, newest), asked)),
    }
}

/// Each name that the guard holds is a resource of that name. A guard of `Lock::both` is refused: its two stores may have a
/// token each for the same name.
impl<DB: Database> Fenced for Transaction<'_, DB> {
    async fn fence(&mut self, guard: &Guard) -> Result<(), Error> {
        if guard.both().is_some() {
            let message = "a guard of two stores has two tokens, which cannot be compared; fence with one of the guards that `both` gives";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        for (name, token) in guard.tokens() {
            pass::<DB>(self, name, token.get()).await?;
        }
        Ok(())
    }
}

/// The examples of the page about fencing.
#[cfg(all(doctest, feature = "postgres", feature = "redis"))]
#[doc = include_str!("../../../../docs/fencing.md")]
mod page {}

fn granted(token: i64) -> FencingToken {
    // No statement of ours makes a number below 1.
    FencingToken::new(token.unsigned_abs())
}

fn wait_elapsed<DB: Database>(name: &LockName, wait: Duration) -> Error {
    let message = if wait.is_zero() {
        "another transaction has the lock, and `wait` is zero; this one can go on without it, or roll back and retry".into()
    } else {
        format!(
            "waited {wait:?}, and another transaction still has the lock; this one can go on without it, or roll back and retry"
        )
    };
    let err = Error::new(ErrorKind::WaitElapsed, message);
    named::<DB>(err, Operation::Lock(name))
}
