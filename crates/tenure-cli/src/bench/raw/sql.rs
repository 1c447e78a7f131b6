//! The statements that a lock in a database needs at least, through the client library that the backend uses.

use std::str::FromStr as _;
use std::sync::Arc;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};
use tenure::Error;
use tokio::sync::Mutex;

use crate::bench::common::WORKERS;
use crate::bench::common::system;
use crate::bench::contention::{HOLD, Note, wait_for_start};
use crate::clock;

/// One connection, and what it locks with.
enum Link {
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

/// How locks lie in the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Session,
    Table,
}

/// A connection for each of those who work side by side: a session cannot do two things at a time.
#[derive(Clone)]
pub(crate) struct RawSql {
    links: Arc<Vec<Mutex<Link>>>,
    mode: Mode,
    name: Arc<str>,
}

impl Link {
    /// `None`: the URL has options that the raw side has no use for, such as TLS.
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
        let link = if base.starts_with("mysql:") {
            let options = MySqlConnectOptions::from_str(base).map_err(system)?;
            let link = MySqlConnection::connect_with(&options).await;
            Self::MySql(link.map_err(system)?)
        } else {
            let options = PgConnectOptions::from_str(base).map_err(system)?;
            let link = PgConnection::connect_with(&options).await;
            Self::Postgres(link.map_err(system)?)
        };
        Ok(Some((link, mode)))
    }

    async fn run(&mut self, sql: String) -> Result<(), Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::MySql(link) => link.execute(sql).await.map(drop),
            Self::Postgres(link) => link.execute(sql).await.map(drop),
        }
        .map_err(system)
    }

    /// Takes the lock of the session, waiting as long as it must.
    async fn lock(&mut self, name: &str, number: usize) -> Result<(), Error> {
        match self {
            Self::MySql(link) => {
                let sql = "SELECT GET_LOCK(?, 3600)";
                let row = link.fetch_one(sqlx::query(sql).bind(format!("{name}-{number}")));
                let got: Option<i64> = row.await.and_then(|row| row.try_get(0)).map_err(system)?;
                match got {
                    Some(1) => Ok(()),
                    _ => Err(system("GET_LOCK did not lock")),
                }
            }
            Self::Postgres(link) => {
                let sql = "SELECT pg_advisory_lock(hashtextextended($1, $2))";
                let number = i64::try_from(number).unwrap_or_default();
                let row = link.fetch_one(sqlx::query(sql).bind(name).bind(number));
                row.await.map(drop).map_err(system)
            }
        }
    }

    async fn unlock(&mut self, name: &str, number: usize) -> Result<(), Error> {
        match self {
            Self::MySql(link) => {
                let sql = "SELECT RELEASE_LOCK(?)";
                let row = link.fetch_one(sqlx::query(sql).bind(format!("{name}-{number}")));
                row.await.map(drop).map_err(system)
            }
            Self::Postgres(link) => {
                let sql = "SELECT pg_advisory_unlock(hashtextextended($1, $2))";
                let number = i64::try_from(number).unwrap_or_default();
                let row = link.fetch_one(sqlx::query(sql).bind(name).bind(number));
                row.await.map(drop).map_err(system)
            }
        }
    }

    /// One statement that takes a row and one that gives it back.
    async fn rows(&mut self, table: &str, number: usize) -> Result<(), Error> {
        let number = i64::try_from(number).unwrap_or_default();
        match self {
            Self::MySql(link) => {
                let take = format!(
                    "INSERT INTO {table} (id, token) VALUES (?, 1) ON DUPLICATE KEY UPDATE token = token + 1"
                );
                let give = format!("UPDATE {table} SET token = token WHERE id = ? AND token > 0");
                for sql in [take, give] {
                    let query = sqlx::query(AssertSqlSafe(sql)).bind(number);
                    link.execute(query).await.map_err(system)?;
                }
            }
            Self::Postgres(link) => {
                let take = format!(
                    "INSERT INTO {table} AS t (id, token) VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET token = t.token + 1 RETURNING token"
                );
                let give = format!("UPDATE {table} SET token = token WHERE id = $1 AND token > 0");
                for sql in [take, give] {
                    let query = sqlx::query(AssertSqlSafe(sql)).bind(number);
                    link.fetch_optional(query).await.map_err(system)?;
                }
            }
        }
        Ok(())
    }
}

impl RawSql {
    /// Connects as often as there are workers. `None`: the raw side has no use for this URL.
    pub(crate) async fn new(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some((mut first, mode)) = Link::open(url).await? else {
            return Ok(None);
        };
        // A table of its own, for the time of the measurement.
        let name: String = name.replace('-', "_");
        if mode == Mode::Table {
            let sql = format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, token BIGINT NOT NULL)");
            first.run(sql).await?;
        }
        let mut links = vec![Mutex::new(first)];
        while links.len() < WORKERS {
            let Some((link, _)) = Link::open(url).await? else {
                return Ok(None);
            };
            links.push(Mutex::new(link));
        }
        Ok(Some(Self {
            links: Arc::new(links),
            mode,
            name: name.into(),
        }))
    }

    pub(crate) fn pair_name(&self) -> &'static str {
        match self.mode {
            Mode::Session => "lock and unlock functions on a connection each",
            Mode::Table => "an upsert and an update of one row on a connection each",
        }
    }

    /// Whether waiters stand in the server's own queue, which can be measured without us.
    pub(crate) fn is_session(&self) -> bool {
        self.mode == Mode::Session
    }

    /// Locks and unlocks the name with that number.
    pub(crate) async fn pair(&self, number: usize) -> Result<(), Error> {
        let mut link = self.links[number].lock().await;
        match self.mode {
            Mode::Session => {
                link.lock(&self.name, number).await?;
                link.unlock(&self.name, number).await
            }
            Mode::Table => link.rows(&self.name, number).await,
        }
    }

    /// Removes the table.
    pub(crate) async fn end(self) {
        if self.mode == Mode::Table {
            let sql = format!("DROP TABLE {}", self.name);
            // Its name says whose it was.
            let _ = self.links[0].lock().await.run(sql).await;
        }
    }
}

/// One of two that contend by the server's own functions.
pub(crate) async fn contend_in_session(
    url: &str,
    name: &str,
    rounds: u32,
) -> Result<Vec<Note>, Box<dyn std::error::Error>> {
    let Some((mut link, _)) = Link::open(url).await? else {
        return Err("no such URL".into());
    };
    wait_for_start()?;
    let mut notes = Vec::new();
    for _ in 0..rounds {
        let asked = clock::now();
        link.lock(name, 0).await?;
        let granted = clock::now();
        std::thread::sleep(HOLD);
        notes.push(Note {
            asked,
            granted,
            released: clock::now(),
        });
        link.unlock(name, 0).await?;
        std::thread::sleep(HOLD);
    }
    Ok(notes)
}
