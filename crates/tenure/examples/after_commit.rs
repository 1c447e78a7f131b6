//! The lock is released after COMMIT and not before, and late writes are refused: with `tokio-postgres`.
//!
//! Needs a PostgreSQL server: `cargo run --example after_commit -- "host=127.0.0.1 user=me dbname=me"`.
//! The same works with `diesel`, `sea-orm` and any other client: `guard.after(..)` takes the future that ends the
//! transaction, and the fence is a statement with two parameters.

use std::error::Error;

use tenure::sql::{Bind, Dialect, create_tables, fence_statements};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Transaction};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Adds to an account; returns its new balance. A program that reads the balance under the lock sees what was committed.
pub(crate) async fn deposit(
    locks: &tenure::Client,
    db: &mut tokio_postgres::Client,
    account: &str,
    amount: i64,
) -> Result<i64> {
    // First the lock, then BEGIN: data that the transaction reads is not older than the lock. When an error leaves this
    // function, the transaction is dropped before the guard, so the rollback comes before the release.
    let guard = locks.lock(account).acquire().await?;
    let tx = db.transaction().await?;
    fence(&tx, account, guard.token()).await?;
    let add = "INSERT INTO balances VALUES ($1, $2) ON CONFLICT (account) \
               DO UPDATE SET balance = balances.balance + $2 RETURNING balance";
    let balance = tx.query_one(add, &[&account, &amount]).await?.get(0);
    let end = async {
        match tx.commit().await {
            // The server refused, so nothing was committed: the lock need not be kept until its lease ends.
            Err(err) if is_definite(&err) => Ok(Err(err)),
            // The COMMIT was done, or its outcome is unknown.
            other => other.map(Ok),
        }
    };
    guard.after(end).await??;
    Ok(balance)
}

/// Refuses the transaction of a holder that has been overtaken.
pub(crate) async fn fence(
    tx: &Transaction<'_>,
    resource: &str,
    token: impl Into<u64>,
) -> Result<()> {
    let fence = fence_statements(Dialect::Postgres, resource, token)?;
    for statement in fence.statements() {
        let bind = |bind| match bind {
            Bind::Bytes(bytes) => Box::new(bytes) as Box<dyn ToSql + Send + Sync>,
            Bind::Integer(number) => Box::new(number),
        };
        let binds: Vec<_> = statement.binds.iter().cloned().map(bind).collect();
        let binds: Vec<_> = binds.iter().map(|bind| &**bind as _).collect();
        let row = tx.query_one(statement.sql, &binds).await?;
        fence.check(row.get(0))?;
    }
    Ok(())
}

/// Constraints that COMMIT checks, and conflicts of transactions.
pub(crate) fn is_definite(err: &tokio_postgres::Error) -> bool {
    err.code().is_some_and(|code| {
        code.code().starts_with("23") || *code == SqlState::T_R_SERIALIZATION_FAILURE
    })
}

/// Creates the tables that `deposit` needs.
pub(crate) async fn create(db: &tokio_postgres::Client) -> Result<()> {
    db.batch_execute(create_tables(Dialect::Postgres)).await?;
    let balances =
        "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, balance BIGINT NOT NULL)";
    db.batch_execute(balances).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let Some(server) = std::env::args().nth(1) else {
        println!("give a PostgreSQL server, such as \"host=127.0.0.1 user=me dbname=me\"");
        return Ok(());
    };
    let (mut db, connection) = tokio_postgres::connect(&server, NoTls).await?;
    tokio::spawn(connection);
    create(&db).await?;
    let locks = tenure::connect("file:").await?;
    let balance = deposit(&locks, &mut db, "account/7", 10).await?;
    println!("account/7 has {balance}");
    Ok(())
}
