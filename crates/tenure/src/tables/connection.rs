//! One connection of a client: to a server, or to a file.

use std::time::Duration;

use tenure_core::rt::Clock;

#[cfg(feature = "mysql")]
use crate::database::PoolKind;
use crate::database::{self, DatabasePool, Row, within};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{Kind, RequestError, Server};

use super::file_id::FileId;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::names::Format;
use super::sql::{ReplyKind, Statement};

pub(super) struct Connection {
    pub(super) database: database::Connection,
    /// The file that the connection opened; `None`: it is a server's.
    pub(super) file: Option<FileId>,
    /// Stands before each statement, because the session belongs to the caller's pool and is not set up: see
    /// [`ISOLATION`]. Empty otherwise.
    before: &'static str,
}

/// The isolation of the next transaction in MySQL, where a session may have another one. A statement by itself is a
/// transaction too.
#[cfg(feature = "mysql")]
const ISOLATION: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

impl Connection {
    /// Opens a connection to a server, and sets its session up.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) async fn open(
        server: &Server,
        format: Format,
        clock: &Clock,
    ) -> Result<Self, RequestError> {
        let mut database = database::Connection::open(server, clock).await?;
        if let Some(sql) = set_up(server.kind, format) {
            within(server.timeout, clock, database.rows(sql.to_owned())).await?;
        }
        Ok(Self::of(database, None))
    }

    /// A connection whose session is set up.
    pub(super) fn of(database: database::Connection, file: Option<FileId>) -> Self {
        Self {
            database,
            file,
            before: "",
        }
    }

    /// A connection of the caller's pool.
    pub(super) async fn borrow(
        pool: &DatabasePool,
        file: Option<FileId>,
    ) -> Result<Self, sqlx::Error> {
        let database = pool.borrow().await?;
        let before = match &pool.0 {
            #[cfg(feature = "mysql")]
            PoolKind::MySql(_) => ISOLATION,
            #[allow(unreachable_patterns, reason = "with one feature there is one kind")]
            _ => "",
        };
        Ok(Self {
            database,
            file,
            before,
        })
    }

    /// Whether the session is set up for each statement by itself. After an error some of that may be left in the session.
    pub(super) fn is_set_up_each_time(&self) -> bool {
        !self.before.is_empty()
    }

    /// Runs a statement that begins outside a transaction.
    pub(super) async fn run(&mut self, statement: &Statement) -> Result<Vec<Row>, sqlx::Error> {
        let sql = format!("{}{}", self.before, statement.sql);
        self.send(statement, sql).await
    }

    /// Runs a statement inside the transaction that the one before began.
    pub(super) async fn go_on(&mut self, statement: &Statement) -> Result<Vec<Row>, sqlx::Error> {
        self.send(statement, statement.sql.clone()).await
    }

    async fn send(&mut self, statement: &Statement, sql: String) -> Result<Vec<Row>, sqlx::Error> {
        match statement.reply_kind {
            ReplyKind::Rows => self.database.rows(sql).await,
            ReplyKind::ChangedRows => {
                let count = self.database.changed_rows(sql).await?;
                Ok((0..count).map(|_| Row::new()).collect())
            }
        }
    }

    /// Ends the transaction that may be open, and keeps nothing of it. `true`: no transaction is open now.
    pub(super) async fn roll_back(&mut self, timeout: Duration, clock: &Clock) -> bool {
        let rolled_back = self.database.rows("ROLLBACK".to_owned());
        match within(timeout, clock, rolled_back).await {
            Ok(_) => true,
            // SQLite refuses ROLLBACK with this code when no transaction is open.
            Err(error) => error.code().as_deref() == Some("1"),
        }
    }
}

/// Settings for which the server may have other defaults. ShedLock's columns contain what a Java session took for UTC, so
/// our session needs the time zone that the sessions of Java have, which is the server's.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn set_up(kind: Kind, format: Format) -> Option<&'static str> {
    Some(match (kind, format) {
        (Kind::Postgres, _) => return None,
        (Kind::MySql, Format::Tenure) => {
            "SET autocommit=1;SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        }
        (Kind::MySql, Format::ShedLock) => "SET autocommit=1;SET time_zone=@@global.time_zone",
    })
}
