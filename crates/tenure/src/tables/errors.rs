//! What an error of the database means for its lease table, and the cure.

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;

use crate::database::RequestError;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{self, Kind};

use super::names::Format;
use super::settings::{Location, Settings};

/// Another transaction was in the way, and nothing was done.
pub(super) fn is_conflict(error: &RequestError) -> bool {
    matches!(
        error.code().as_deref(),
        // PostgreSQL: serialization failure, deadlock. MySQL: deadlock, also what Galera calls one.
        Some(
            "40001" | "40P01" | "1213" | "1020"
        // SQLite: somebody wrote since we began to read.
            | "517" | "261"
        )
    ) || is_locked_file(error)
}

/// SQLite: somebody else writes. No transaction was begun.
pub(super) fn is_locked_file(error: &RequestError) -> bool {
    error.code().as_deref() == Some("5")
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}

/// Nothing was done in the file that is there now.
#[cfg(feature = "sqlite")]
pub(super) fn replaced() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the database file was removed or replaced again and again",
    )
}

pub(super) fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server's answer makes no sense to this version; is the table of another layout?",
    )
}

/// The error of a request that was not fulfilled.
pub(super) fn explain(error: RequestError, settings: &Settings) -> Error {
    match &settings.location {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Location::Server(server) => {
            database::explain(error, server, |code| of_server(code, settings, server))
        }
        #[cfg(feature = "sqlite")]
        Location::File(path) => of_file(error, settings, path),
    }
}

/// The error of an attempt to connect: nothing was done, whatever it was.
pub(super) fn no_connection(error: RequestError, settings: &Settings) -> Error {
    match &settings.location {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Location::Server(server) => database::no_connection(error, server),
        #[cfg(feature = "sqlite")]
        Location::File(path) => of_file(error, settings, path),
    }
}

/// What to do about a table that is not there, or is another one.
fn make_it(settings: &Settings) -> String {
    let hint = match settings.format {
        Format::Tenure => "",
        Format::ShedLock => " (with dialect=shedlock in the URL)",
    };
    format!(
        "make it with `tenure check --init`{hint}, or with the statements of docs/stores/table.md"
    )
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn of_server(
    code: &str,
    settings: &Settings,
    server: &database::Server,
) -> Option<(ErrorKind, String)> {
    let table = settings.table();
    let user = Escaped(server.user.as_deref().unwrap_or_default()).to_string();
    let database = Escaped(server.database.as_deref().unwrap_or_default()).to_string();
    let missing = || {
        let (cure, waiters) = (make_it(settings), waiters(settings));
        (
            ErrorKind::Denied,
            format!(
                "{server}: the table {table}{waiters} is not in the database \"{database}\"; {cure}"
            ),
        )
    };
    let another = || {
        let cure = make_it(settings);
        (
            ErrorKind::Denied,
            format!(
                "{server}: the table {table} has other columns than ours; name another one (table=), or drop it and {cure}"
            ),
        )
    };
    let words = match (settings.format, server.kind) {
        (Format::Tenure, Kind::Postgres) => format!(
            "GRANT SELECT, INSERT, UPDATE ON {table} TO \"{user}\"; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}_waiters TO \"{user}\""
        ),
        (Format::Tenure, Kind::MySql) => format!(
            "GRANT SELECT, INSERT, UPDATE ON `{database}`.{table} TO '{user}'@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.{table}_waiters TO '{user}'@'%'"
        ),
        (Format::ShedLock, Kind::Postgres) => {
            format!("GRANT SELECT, INSERT, UPDATE ON {table} TO \"{user}\"")
        }
        (Format::ShedLock, Kind::MySql) => {
            format!("GRANT SELECT, INSERT, UPDATE ON `{database}`.{table} TO '{user}'@'%'")
        }
    };
    let denied = || {
        (
            ErrorKind::Denied,
            format!("{server}: \"{user}\" may not do that in the table {table}; {words}"),
        )
    };
    match (server.kind, code) {
        (Kind::Postgres, "42P01" | "3F000") | (Kind::MySql, "1146") => Some(missing()),
        (Kind::Postgres, "42703" | "42P10" | "42804" | "42883" | "23502")
        | (Kind::MySql, "1054" | "1364" | "1366") => Some(another()),
        (Kind::Postgres, "42501") | (Kind::MySql, "1142" | "1143") => Some(denied()),
        (Kind::MySql, "1205") => Some((
            ErrorKind::Unreachable,
            format!("{server}: another transaction keeps a row of {table} locked; end it"),
        )),
        (Kind::Postgres, "55P03" | "57014") => Some((
            ErrorKind::Unreachable,
            format!(
                "{server}: another transaction keeps a row of {table} locked, or a timeout is set for this user; end it, or ALTER ROLE \"{user}\" SET statement_timeout = 0"
            ),
        )),
        (Kind::MySql, "1665") => Some((
            ErrorKind::Denied,
            format!(
                "{server} writes statements to its binary log, not rows; SET GLOBAL binlog_format = 'ROW'"
            ),
        )),
        (Kind::MySql, "1792") => Some((
            ErrorKind::Denied,
            format!(
                "{server}: transactions of \"{user}\" are read-only; SET GLOBAL transaction_read_only = 0"
            ),
        )),
        _ => None,
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn waiters(settings: &Settings) -> String {
    match settings.format {
        Format::Tenure => format!(" (or {}_waiters)", settings.table()),
        Format::ShedLock => String::new(),
    }
}

#[cfg(feature = "sqlite")]
fn of_file(error: RequestError, settings: &Settings, path: &std::path::Path) -> Error {
    let shown = Escaped(&path.display().to_string()).to_string();
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    // Beyond the lowest byte it says in detail why.
    let code = code.map(|code| code & 0xff);
    let cure = make_it(settings);
    let source = match error {
        RequestError::Explained(err) => return err,
        RequestError::TimedOut(limit) => {
            return Error::new(
                ErrorKind::Indeterminate,
                format!("{shown} could not be read or written within {limit:?}"),
            );
        }
        RequestError::Broken(err) => err,
        RequestError::Refused(said) => sqlx::Error::Database(said),
    };
    let text = source.to_string();
    let (kind, what) = match code {
        Some(1) if text.contains("no such table") => (
            ErrorKind::Denied,
            format!("{shown} has no table {}; {cure}", settings.table()),
        ),
        Some(1) if text.contains("column") => (
            ErrorKind::Denied,
            format!(
                "the table {} in {shown} has other columns than ours; name another one (table=)",
                settings.table()
            ),
        ),
        Some(5 | 6) => (
            ErrorKind::Unreachable,
            format!("another process keeps {shown} locked"),
        ),
        Some(8) => (
            ErrorKind::Denied,
            format!("{shown} or its directory is read-only for this user; chmod u+w"),
        ),
        Some(14) if !path.exists() => (
            ErrorKind::Denied,
            format!(
                "the file {shown} cannot be made; its directory has to exist, and this user must be able to write there"
            ),
        ),
        Some(14) => (
            ErrorKind::Denied,
            format!(
                "{shown} cannot be opened; this user must be able to write the file and its directory"
            ),
        ),
        Some(26) => (ErrorKind::Denied, format!("{shown} is no SQLite database")),
        Some(10 | 13) => (
            ErrorKind::Backend,
            format!("{shown}: the disk is full or failing"),
        ),
        Some(_) => (ErrorKind::Backend, format!("{shown} said no")),
        None => (
            ErrorKind::Indeterminate,
            format!("the connection to {shown} broke"),
        ),
    };
    Error::new(kind, what).with_source(source)
}
