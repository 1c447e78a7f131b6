//! What the errors of a database mean: whether something may have been done, and the cure.

use std::time::Duration;

use sqlx::error::DatabaseError;

use tenure_core::error::Error;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::error::ErrorKind;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::name::Escaped;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::tls;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::server::{Kind, Server};

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Our own settings are wrong; nothing was sent.
    Settings(Error),
    /// The server said no. The connection is as good as before, and the statement did nothing.
    Said(Box<dyn DatabaseError>),
    /// No answer within this time: it may have been done.
    Silence(Duration),
    /// The connection is broken: it may have been done.
    Broken(sqlx::Error),
}

impl From<sqlx::Error> for Trouble {
    fn from(err: sqlx::Error) -> Self {
        match err {
            sqlx::Error::Database(said) => Self::Said(said),
            err => Self::Broken(err),
        }
    }
}

impl Trouble {
    /// What the server calls it: SQLSTATE in PostgreSQL, the number of the error in MySQL.
    pub(crate) fn code(&self) -> Option<String> {
        let Self::Said(said) = self else {
            return None;
        };
        #[cfg(feature = "mysql")]
        if let Some(said) = said.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            return Some(said.number().to_string());
        }
        said.code().map(Into::into)
    }

    /// Whether the server ended the connection with these words, or the network did: whatever was asked may
    /// have been done, and no further answer comes on it.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Settings(_) => false,
            Self::Silence(_) | Self::Broken(_) => true,
            Self::Said(_) => matches!(
                self.code().as_deref(),
                // PostgreSQL: terminated by an administrator, crash of another backend, starting or stopping,
                // idle for too long. Class 08: connection errors, from a pooler for example.
                Some(
                    "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "08000" | "08003" | "08006" | "08P01"
                // MySQL and MariaDB: shutdown, killed, gone while idle (MySQL 8.0.24 says so).
                    | "1053" | "1927" | "4031" | "3169"
                )
            ),
        }
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    /// The server was not reached at all, or would not have us: nothing was done.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Settings(_) | Self::Said(_)) && !self.is_fatal()
    }
}

/// The error of a request that `server` did not fulfil. `cure` is told the code of what the server said and
/// answers for what only the backend can know (its table, its privileges): the kind, and what to do.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn explain(
    trouble: Trouble,
    server: &Server,
    cure: impl FnOnce(&str) -> Option<(ErrorKind, String)>,
) -> Error {
    let code = trouble.code();
    let known = code
        .as_deref()
        .and_then(|code| cure(code).or_else(|| common(code, server)));
    let is_refusal = trouble.is_refusal();
    match trouble {
        Trouble::Settings(err) => err,
        Trouble::Silence(limit) => Error::new(
            ErrorKind::Indeterminate,
            format!("{server} did not answer within {limit:?}"),
        ),
        Trouble::Said(said) => {
            let (kind, what) = known.unwrap_or_else(|| {
                let kind = if is_refusal {
                    ErrorKind::Backend
                } else {
                    ErrorKind::Indeterminate
                };
                (kind, format!("{server} said no"))
            });
            Error::new(kind, what).with_source(sqlx::Error::Database(said))
        }
        Trouble::Broken(sqlx::Error::Tls(why)) => match why.downcast::<rustls::Error>() {
            Ok(why) => tls::explain(&why, server, "tls=off"),
            Err(why) => Error::new(
                ErrorKind::Unreachable,
                format!("{server} and we found no common TLS; write tls=off if it has none"),
            )
            .with_source(why),
        },
        Trouble::Broken(err) => {
            // What went wrong in a handshake comes as trouble with the connection.
            if let sqlx::Error::Io(io) = &err
                && let Some(why) = handshake(io)
            {
                return tls::explain(why, server, "tls=off");
            }
            let what = format!("the connection to {server} broke");
            Error::new(ErrorKind::Indeterminate, what).with_source(err)
        }
    }
}

/// What TLS itself says in an error of a connection.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn handshake(err: &std::io::Error) -> Option<&rustls::Error> {
    err.get_ref()?.downcast_ref()
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn is_about_tls(err: &sqlx::Error) -> bool {
    match err {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(err) => handshake(err).is_some(),
        _ => false,
    }
}

/// The error of an attempt to connect: nothing was done, whatever it was.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn no_connection(trouble: Trouble, server: &Server) -> Error {
    let silent = |limit: Duration| {
        Error::new(
            ErrorKind::Unreachable,
            format!("{server} did not answer within {limit:?}"),
        )
    };
    match trouble {
        Trouble::Silence(limit) => silent(limit),
        Trouble::Broken(err) if !is_about_tls(&err) => Error::new(
            ErrorKind::Unreachable,
            format!("{server} cannot be reached"),
        )
        .with_source(err),
        trouble => {
            let err = explain(trouble, server, |_| None);
            match err.kind() {
                ErrorKind::Indeterminate => Error::new(
                    ErrorKind::Unreachable,
                    format!("{server} would not have us"),
                )
                .with_source(err),
                _ => err,
            }
        }
    }
}

/// What any statement and any attempt to connect may run into.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn common(code: &str, server: &Server) -> Option<(ErrorKind, String)> {
    let user = Escaped(server.user.as_deref().unwrap_or_default()).to_string();
    let database = Escaped(server.database.as_deref().unwrap_or_default()).to_string();
    let postgres = |code| match code {
        "28P01" | "28000" => Some((
            ErrorKind::Denied,
            format!(
                "{server} does not let \"{user}\" in; check user and password in the URL, or: ALTER ROLE \"{user}\" LOGIN PASSWORD '..'"
            ),
        )),
        "3D000" => Some((
            ErrorKind::Denied,
            format!(
                "{server} has no database \"{database}\"; CREATE DATABASE \"{database}\", or name another one in the URL"
            ),
        )),
        "42501" => Some((
            ErrorKind::Denied,
            format!("\"{user}\" may not do that in {server}"),
        )),
        "53300" => Some((
            ErrorKind::Unreachable,
            format!(
                "{server} has no connection left; ALTER SYSTEM SET max_connections = .. and restart it, ALTER ROLE \"{user}\" CONNECTION LIMIT -1, or let others use fewer"
            ),
        )),
        "53100" | "53200" => Some((
            ErrorKind::Backend,
            format!("{server} has run out of disk or memory"),
        )),
        "25006" => Some((
            ErrorKind::Denied,
            format!(
                "{server} is read-only: a standby, or ALTER DATABASE .. SET default_transaction_read_only = off"
            ),
        )),
        "57P03" => Some((
            ErrorKind::Unreachable,
            format!("{server} is starting or stopping"),
        )),
        "57P01" | "57P02" | "57P05" | "08000" | "08003" | "08006" | "08P01" => Some((
            ErrorKind::Indeterminate,
            format!("{server} ended the connection"),
        )),
        _ => None,
    };
    let mysql = |code| match code {
        "1045" | "1698" => Some((
            ErrorKind::Denied,
            format!(
                "{server} does not let \"{user}\" in; check user and password in the URL, or: ALTER USER '{user}'@'%' IDENTIFIED BY '..'"
            ),
        )),
        "1044" => Some((
            ErrorKind::Denied,
            format!(
                "\"{user}\" may not use the database \"{database}\" of {server}; GRANT ALL ON `{database}`.* TO '{user}'@'%'"
            ),
        )),
        "1049" => Some((
            ErrorKind::Denied,
            format!(
                "{server} has no database \"{database}\"; CREATE DATABASE `{database}`, or name another one in the URL"
            ),
        )),
        "1142" | "1227" | "1370" => Some((
            ErrorKind::Denied,
            format!("\"{user}\" may not do that in {server}"),
        )),
        "1203" | "1226" => Some((
            ErrorKind::Unreachable,
            format!(
                "{server} has no connection left for \"{user}\"; ALTER USER .. WITH MAX_USER_CONNECTIONS 0, SET GLOBAL max_user_connections = 0, or let others use fewer"
            ),
        )),
        "1040" => Some((
            ErrorKind::Unreachable,
            format!(
                "{server} has no connection left; SET GLOBAL max_connections = .., or let others use fewer"
            ),
        )),
        "1290" | "1836" => Some((
            ErrorKind::Denied,
            format!("{server} is read-only: a replica, or SET GLOBAL read_only = 0"),
        )),
        "1021" | "1041" | "1114" => Some((
            ErrorKind::Backend,
            format!("{server} has run out of disk or memory"),
        )),
        "1053" | "1927" | "4031" => Some((
            ErrorKind::Indeterminate,
            format!("{server} ended the connection"),
        )),
        _ => None,
    };
    match server.kind {
        Kind::Postgres => postgres(code),
        Kind::MySql => mysql(code),
    }
}
