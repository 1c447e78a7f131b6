//! One client, one scenario, one line of JSON. `../README.md` has the arguments.

#[path = "../../../scenarios.rs"]
mod scenarios;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_mysql::{MySqlLockHandle, MySqlLockProvider};
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;

use scenarios::{Failure, Locks};

/// A connection for each worker, because the client needs one for each lock.
const CONNECTIONS: u32 = 64;

fn main() -> ExitCode {
    scenarios::program(run)
}

async fn run(arguments: &[&str]) -> Result<String, Failure> {
    let &[_, url, ref scenario @ ..] = arguments else {
        return Err("peer PROGRAM URL SCENARIO [ARGUMENT]...".into());
    };
    let patience = Duration::from_secs(60);
    if url.starts_with("mysql:") {
        let pool = MySqlPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(patience);
        let pool = pool.connect(url).await?;
        let provider = MySqlLockProvider::builder().pool(pool).build().await?;
        scenarios::run(MySql(Arc::new(provider)), scenario).await
    } else {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(patience);
        let pool = pool.connect(url).await?;
        let provider = PostgresLockProvider::builder().pool(pool).build().await?;
        scenarios::run(Postgres(Arc::new(provider)), scenario).await
    }
}

#[derive(Clone)]
struct MySql(Arc<MySqlLockProvider>);

impl Locks for MySql {
    type Hold = MySqlLockHandle;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        // Without a limit the client asks for -1 s, which MariaDB answers with NULL.
        Ok(self.0.create_lock(name).acquire(Some(Duration::from_secs(600))).await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}

#[derive(Clone)]
struct Postgres(Arc<PostgresLockProvider>);

impl Locks for Postgres {
    type Hold = PostgresLockHandle;

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        Ok(self.0.create_lock(name).acquire(None).await?)
    }

    async fn unlock(&self, hold: Self::Hold) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}
