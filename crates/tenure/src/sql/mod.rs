//! Locks and fences inside transactions of your own, in the database that has your data (feature `sqlx`, with
//! `mysql`, `postgres` or `sqlite` for the driver); and fences as plain SQL for any other client, without a feature.
//! The feature is for sqlx 0.9. For sqlx 0.8 the last point below applies.
//!
//! - [`lock_in_tx`] takes a lock that lasts as long as the transaction: there is no lease, no loss, no server
//!   other than the database, and nothing to release.
//! - [`Lock::transaction`](crate::Lock::transaction) runs a transaction under a lock that lies elsewhere, in Redis
//!   for example, and releases the lock after COMMIT or ROLLBACK and never before.
//! - [`Tx`] is a transaction that takes over locks which code deep inside of it acquires, and releases them in the same way.
//! - [`migrate`] runs the migrations of sqlx in one of several instances.
//! - [`fence`] refuses the transaction of a holder that has been overtaken.
//! - [`fence_statements`] is the same as SQL text with its parameters, for other libraries than `sqlx`; so is
//!   [`create_tables`] for [`init`]. [`Guard::after`](crate::Guard::after) releases a lock when their transaction has
//!   ended.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> Result<(), tenure::Error> {
//! let pool = sqlx::SqlitePool::connect("sqlite::memory:").await?;
//! tenure::sql::init(&pool).await?; // once, when the program is set up
//!
//! let mut tx = pool.begin().await?;
//! let token = tenure::sql::lock_in_tx(&mut tx, "orders/42").await?; // others wait here
//! println!("under number {token}");
//! tx.commit().await?; // the lock ends with the transaction
//! # Ok(()) }
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # How long it is held
//!
//! Until COMMIT or ROLLBACK, and there is no way to release it earlier: a holder in between would see neither what was
//! written nor that more is to come. In PostgreSQL a ROLLBACK to a savepoint that was set before the lock
//! ends it as well; in MySQL it does not.
//!
//! # Two tables
//!
//! [`init`] makes `tenure_tx_locks` and `tenure_fences`, and nothing else does. To make them by hand, run
//! `postgres.sql`, `mysql.sql` or `sqlite.sql` from the folder `src/sql` of this package.
//! The row of a name stays for ever, some sixty bytes: it remembers the greatest number.
//!
//! # Isolation
//!
//! Lock first, before the transaction reads anything: then the transaction sees what the holder before it wrote.
//!
//! | | READ COMMITTED | REPEATABLE READ and above |
//! | --- | --- | --- |
//! | PostgreSQL | the default, and as it should be | a lock that had to be waited for is an error ("somebody changed the row"); run the transaction again |
//! | MySQL, MariaDB | as it should be | the default; as it should be too, if the lock is taken before the first read. A name that is used for the first time may have to wait for the holder of its neighbour |
//! | SQLite | | begin with `BEGIN IMMEDIATE` (`pool.begin_with(..)`): one transaction writes at a time, whatever the name |
//!
//! MySQL and MariaDB, under either level: when the transaction that used a name for the very first time is rolled
//! back while several others wait for that name, the server ends some of the waiting ones as deadlocks.
//! The error says so, and the remedy is to run them again. A name that was committed once never causes this.
//!
//! # Errors
//!
//! | Error | Kind | The transaction |
//! | --- | --- | --- |
//! | the limit of [`lock_in_tx_within`] was over | `WaitElapsed` | can go on |
//! | the database's own limit was over | `WaitElapsed` | PostgreSQL: must be rolled back; in the others it can go on |
//! | deadlock, or the row was changed meanwhile | `Store` | is rolled back; run it again from its start |
//! | a table is missing | `Store` | must be rolled back |
//! | the connection broke | `Unreachable` | is rolled back |
//! | the fence has seen a newer holder | `Lost` | roll it back |

#[cfg(feature = "sqlx")]
mod in_tx;
#[cfg(all(
    feature = "sqlx",
    any(feature = "mysql", feature = "postgres", feature = "sqlite")
))]
mod migrations;
#[cfg(all(feature = "sqlx", feature = "mysql"))]
mod mysql;
#[cfg(all(feature = "sqlx", feature = "postgres"))]
mod postgres;
#[cfg(all(feature = "sqlx", feature = "sqlite"))]
mod sqlite;
mod statements;
#[cfg(feature = "sqlx")]
mod transaction_locks;
#[cfg(feature = "sqlx")]
mod tx;

#[cfg(feature = "sqlx")]
pub use in_tx::{Database, fence, init, lock_in_tx, lock_in_tx_within};
#[cfg(all(feature = "sqlx", feature = "postgres"))]
pub use in_tx::{advisory_lock_in_tx, advisory_lock_in_tx_within};
#[cfg(all(
    feature = "sqlx",
    any(feature = "mysql", feature = "postgres", feature = "sqlite")
))]
pub use migrations::{MigratedDatabase, migrate};
pub use statements::{Bind, Dialect, FenceStatements, Statement, create_tables, fence_statements};
#[cfg(feature = "sqlx")]
pub use tx::Tx;
