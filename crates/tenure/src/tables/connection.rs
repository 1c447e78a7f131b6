//! One connection of a client: to a server, or to a file.

use std::time::Duration;

use tenure_core::rt::Clock;

use crate::database::{self, Row, within};
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
}

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
        let file = None;
        Ok(Self { database, file })
    }

    pub(super) async fn run(&mut self, statement: &Statement) -> Result<Vec<Row>, sqlx::Error> {
        let sql = statement.sql.clone();
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
