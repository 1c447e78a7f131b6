//! The statements that a lock in a database needs at least, through the client library that the store uses.

use std::str::FromStr as _;
use std::sync::Arc;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};
use tenure::Error;
use tokio::sync::Mutex;

use crate::bench::common::{AnyError, TASKS, measurement_error};
use crate::bench::contention::{HoldTimes, contend, pause, wait_for_start};

enum Connection {
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

/// Where the database keeps the locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Session,
    Table,
}

/// One connection for each task: a session cannot run two statements at the same time.
#[derive(Clone)]
pub(crate) struct RawSql {
    connections: Arc<Vec<Mutex<Connection>>>,
    mode: Mode,
    /// The name of the locks, or of a table that exists only during the measurement.
    name: Arc<str>,
}

impl Connection {
    /// Returns `None` for a URL with options that the bare requests do not use, such as TLS.
    async fn open(url: &str) -> Result<Option<(Self, Mode)>, Error> {
        let (base, options) = url.split_once('?').unwrap_or((url, ""));
        let has = |wanted: &[&str]| {
            let mut options = options.split('&').filter_map(|it| it.split_once('='));
            options.any(|(key, _)| wanted.contains(&key))
        };
        if has(&["tls", "socket", "dialect"]) {
            return Ok(None);
        }
        let mode = match options.split('&').any(|option| option == "mode=table") {
            true => Mode::Table,
            false => Mode::Session,
        };
        let connection = if base.starts_with("mysql:") {
            let options = MySqlConnectOptions::from_str(base).map_err(measurement_error)?;
            let connection = MySqlConnection::connect_with(&options).await;
            connection.map(Self::MySql)
        } else {
            let options = PgConnectOptions::from_str(base).map_err(measurement_error)?;
            let connection = PgConnection::connect_with(&options).await;
            connection.map(Self::Postgres)
        };
        Ok(Some((connection.map_err(measurement_error)?, mode)))
    }

    async fn execute(&mut self, sql: String) -> Result<(), Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::MySql(connection) => connection.execute(sql).await.map(drop),
            Self::Postgres(connection) => connection.execute(sql).await.map(drop),
        }
        .map_err(measurement_error)
    }

    /// Takes the lock of the session, and waits as long as necessary.
    async fn lock(&mut self, name: &str, task: i64) -> Result<(), Error> {
        match self {
            Self::MySql(connection) => {
                let query = sqlx::query("SELECT GET_LOCK(?, 3600)").bind(format!("{name}-{task}"));
                let row = connection.fetch_one(query).await;
                match row.and_then(|row| row.try_get(0)) {
                    Ok(Some(1_i64)) => Ok(()),
                    Ok(_) => Err(measurement_error("GET_LOCK did not lock")),
                    Err(error) => Err(measurement_error(error)),
                }
            }
            Self::Postgres(connection) => {
                let sql = "SELECT pg_advisory_lock(hashtextextended($1, $2))";
                let row = connection.fetch_one(sqlx::query(sql).bind(name).bind(task));
                row.await.map(drop).map_err(measurement_error)
            }
        }
    }

    async fn unlock(&mut self, name: &str, task: i64) -> Result<(), Error> {
        match self {
            Self::MySql(connection) => {
                let query = sqlx::query("SELECT RELEASE_LOCK(?)").bind(format!("{name}-{task}"));
                connection.fetch_one(query).await.map(drop)
            }
            Self::Postgres(connection) => {
                let sql = "SELECT pg_advisory_unlock(hashtextextended($1, $2))";
                let row = connection.fetch_one(sqlx::query(sql).bind(name).bind(task));
                row.await.map(drop)
            }
        }
        .map_err(measurement_error)
    }

    /// Runs one statement that takes a row and one that releases it.
    async fn update_row(&mut self, table: &str, task: i64) -> Result<(), Error> {
        let (take, id) = match self {
            Self::MySql(_) => (
                format!(
                    "INSERT INTO {table} (id, token) VALUES (?, 1) ON DUPLICATE KEY UPDATE token = token + 1"
                ),
                "?",
            ),
            Self::Postgres(_) => (
                format!(
                    "INSERT INTO {table} AS t (id, token) VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET token = t.token + 1 RETURNING token"
                ),
                "$1",
            ),
        };
        let release = format!("UPDATE {table} SET token = token WHERE id = {id} AND token > 0");
        for sql in [take, release].map(AssertSqlSafe) {
            match self {
                Self::MySql(connection) => {
                    let done = connection.execute(sqlx::query(sql).bind(task));
                    done.await.map(drop)
                }
                Self::Postgres(connection) => {
                    let row = connection.fetch_optional(sqlx::query(sql).bind(task));
                    row.await.map(drop)
                }
            }
            .map_err(measurement_error)?;
        }
        Ok(())
    }
}

impl RawSql {
    /// Opens a connection for each task. Returns `None` for a URL with options that the bare requests do not use.
    pub(crate) async fn connect(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some((mut first, mode)) = Connection::open(url).await? else {
            return Ok(None);
        };
        let name = name.replace('-', "_");
        if mode == Mode::Table {
            let sql = format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, token BIGINT NOT NULL)");
            first.execute(sql).await?;
        }
        let mut connections = vec![Mutex::new(first)];
        while connections.len() < TASKS {
            let Some((connection, _)) = Connection::open(url).await? else {
                return Ok(None);
            };
            connections.push(Mutex::new(connection));
        }
        Ok(Some(Self {
            connections: Arc::new(connections),
            mode,
            name: name.into(),
        }))
    }

    pub(crate) fn describe_round(&self) -> &'static str {
        match self.mode {
            Mode::Session => "lock and unlock functions on a connection each",
            Mode::Table => "an upsert and an update of one row on a connection each",
        }
    }

    /// Whether waiters are in a queue of the server, so that the hand-off can be measured without `tenure`.
    pub(crate) fn is_session(&self) -> bool {
        self.mode == Mode::Session
    }

    /// Locks and unlocks the name, or the row, of this task.
    pub(crate) async fn run_round(&self, task: usize) -> Result<(), Error> {
        let mut connection = self.connections[task].lock().await;
        let task = i64::try_from(task).unwrap_or_default();
        match self.mode {
            Mode::Session => {
                connection.lock(&self.name, task).await?;
                connection.unlock(&self.name, task).await
            }
            Mode::Table => connection.update_row(&self.name, task).await,
        }
    }

    /// Removes the table.
    pub(crate) async fn clean_up(self) {
        if self.mode == Mode::Table {
            let sql = format!("DROP TABLE {}", self.name);
            // A table that stays can be recognized by its name.
            let _ = self.connections[0].lock().await.execute(sql).await;
        }
    }
}

/// One of two processes that contend by the lock functions of the server.
pub(crate) async fn contend_for_session_lock(
    url: &str,
    name: &str,
    rounds: u32,
) -> Result<Vec<HoldTimes>, AnyError> {
    let Some((connection, _)) = Connection::open(url).await? else {
        return Err("no such URL".into());
    };
    let connection = Mutex::new(connection);
    wait_for_start()?;
    let acquire = async || {
        let mut connection = connection.lock().await;
        connection.lock(name, 0).await?;
        Ok(connection)
    };
    contend(rounds, acquire, pause, async |mut connection| {
        connection.unlock(name, 0).await?;
        pause().await;
        Ok(())
    })
    .await
}
