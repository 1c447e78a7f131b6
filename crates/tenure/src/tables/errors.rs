//! What an error of the database means for its lease table, and the remedy.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "sqlite")]
use tenure_core::error::ErrorKind::Store;
use tenure_core::error::{
    Error,
    ErrorKind::{self, Denied, Unreachable},
    ErrorParts as _,
};
#[cfg(feature = "sqlite")]
use tenure_core::name::Escaped;

#[cfg(feature = "sqlite")]
use crate::database::find;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::{self, Kind, Server};
use crate::database::{DatabasePool, Meaning, RequestError, with_names};

use super::names::Format;
use super::settings::{Location, Settings};

/// Another transaction was in the way, and nothing was done.
pub(super) fn is_conflict(error: &RequestError) -> bool {
    matches!(
        error.code().as_deref(),
        // PostgreSQL: serialization failure, deadlock. MySQL: deadlock, also what Galera calls one, and a transaction that the
        // group has rolled back.
        Some(
            "40001" | "40P01" | "1213" | "1020" | "3101"
        // SQLite: another connection has written since we began to read, or restores the file after a crash.
            | "517" | "261"
        )
    ) || is_locked_file(error)
}

/// Another server may do it: this one takes no writes, as a replica, or is not part of its cluster now.
pub(super) fn is_elsewhere(error: &RequestError) -> bool {
    matches!(
        error.code().as_deref(),
        // PostgreSQL: a read-only transaction. MySQL: `read_only`, a read-only transaction, a node of Galera that is not ready,
        // `offline_mode`; ProxySQL: no server in time.
        Some("25006" | "1290" | "1836" | "1792" | "1047" | "3032" | "9001")
    )
}

/// Whether the database takes no writes.
fn is_read_only(error: &RequestError) -> bool {
    let code = error.code();
    matches!(code.as_deref(), Some("25006" | "1290" | "1836" | "1792"))
}

/// SQLite: another connection uses the file. Either no transaction was begun, or COMMIT was refused, and the transaction is
/// still open.
pub(super) fn is_locked_file(error: &RequestError) -> bool {
    error.code().as_deref() == Some("5")
}

/// Nothing was done in the file that is there now.
#[cfg(feature = "sqlite")]
pub(super) fn replaced(settings: &Settings) -> Error {
    let text = match &settings.pool {
        None => "the database file was removed or replaced again and again",
        Some(_) => {
            "the database file was removed or replaced since the client was made; open the pool and the client again"
        }
    };
    Error::new(ErrorKind::Unreachable, text)
}

/// The caller's pool gave no connection in time.
pub(super) fn no_free_connection(pool: &DatabasePool, limit: Duration) -> Error {
    let most = pool.max_connections();
    let text = match pool.is_used_up() {
        true => format!(
            "no connection of the program's pool was free within {limit:?}: all {most} (max_connections) are in use; a transaction under a lock uses one, and its lease is renewed over another one, so allow more"
        ),
        false => format!(
            "the program's pool gave no connection within {limit:?}; does the database answer?"
        ),
    };
    Error::new(ErrorKind::Unreachable, text).with_timeout()
}

pub(super) fn pool_is_closed() -> Error {
    let text =
        "the program's pool is closed, so the locks that use its connections are out of reach";
    Error::new(ErrorKind::Closed, text)
}

pub(super) fn unexpected_reply() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server's reply has an unexpected shape; does the table have another layout?",
    )
}

/// The error of a request that was not fulfilled.
pub(super) fn explain(error: RequestError, settings: &Settings) -> Error {
    match &settings.location {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Location::Server(server) => {
            let name = |word: &str| name_of_server_table(settings, server, word);
            database::explain(error, server, SERVER, &name)
        }
        #[cfg(feature = "sqlite")]
        Location::File(path) => of_file(error, settings, path),
    }
}

/// The same, from a database that has taken writes before: one that takes none now takes over or is taken over from.
pub(super) fn explain_later(error: RequestError, settings: &Settings) -> Error {
    let is_read_only = is_read_only(&error);
    let err = explain(error, settings);
    match is_read_only {
        true => Error::new(
            ErrorKind::Unreachable,
            "the database takes no writes any more; another server may take over",
        )
        .with_source(err),
        false => err,
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

/// What error codes of a server mean for a lease table. [`name_of_server_table`] has the words in braces.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const SERVER: &[Meaning] = &[
    (
        &["42P01", "3F000", "1146"],
        Denied,
        "{server}: the table {table}{or_waiters} is not in the database \"{database}\"; {make_it}",
    ),
    (
        &[
            "42703", "42P10", "42804", "42883", "23502", "1054", "1364", "1366",
        ],
        Denied,
        "{server}: the table {table} has other columns than ours; name another one (table=), or drop it and {make_it}",
    ),
    (
        &["42501", "1142", "1143"],
        Denied,
        "{server}: \"{user}\" may not do that in the table {table}; {grant}",
    ),
    (
        &["1205"],
        Unreachable,
        "{server}: another transaction keeps a row of {table} locked; end it",
    ),
    (
        &["55P03", "57014"],
        Unreachable,
        "{server}: another transaction keeps a row of {table} locked, or a timeout is set for this user; end it, or ALTER ROLE \"{user}\" SET statement_timeout = 0",
    ),
    (
        &["1665"],
        Denied,
        "{server} writes statements to its binary log, not rows; SET GLOBAL binlog_format = 'ROW'",
    ),
    (
        &["1792"],
        Denied,
        "{server}: transactions of \"{user}\" are read-only; SET GLOBAL transaction_read_only = 0",
    ),
];

/// The statement that gives a user the rights on the table.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn grant(format: Format, kind: Kind) -> &'static str {
    match (format, kind) {
        (Format::Tenure, Kind::Postgres) => {
            "GRANT SELECT, INSERT, UPDATE ON {table} TO \"{user}\"; GRANT SELECT, INSERT, UPDATE, DELETE ON {table}_waiters TO \"{user}\"; the same on {table}_modes"
        }
        (Format::Tenure, Kind::MySql) => {
            "GRANT SELECT, INSERT, UPDATE ON `{database}`.{table} TO '{user}'@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.{table}_waiters TO '{user}'@'%'; the same on {table}_modes"
        }
        (Format::ShedLock, Kind::Postgres) => {
            "GRANT SELECT, INSERT, UPDATE ON {table} TO \"{user}\""
        }
        (Format::ShedLock, Kind::MySql) => {
            "GRANT SELECT, INSERT, UPDATE ON `{database}`.{table} TO '{user}'@'%'"
        }
    }
}

/// What a word in a text of [`SERVER`] stands for. `None`: a word that every server has.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn name_of_server_table(settings: &Settings, server: &Server, word: &str) -> Option<String> {
    let table = settings.table();
    match word {
        "table" => Some(table.to_owned()),
        "or_waiters" => Some(match settings.format {
            Format::Tenure => format!(" (or {table}_waiters or {table}_modes)"),
            Format::ShedLock => String::new(),
        }),
        "make_it" => Some(make_it(settings)),
        "grant" => Some(with_names(grant(settings.format, server.kind), |word| {
            let name = name_of_server_table(settings, server, word);
            name.unwrap_or_else(|| server.name(word))
        })),
        _ => None,
    }
}

/// What error codes of SQLite mean. [`of_file`] has the words in braces and [`file_code`] the codes that are not
/// SQLite's own.
#[cfg(feature = "sqlite")]
const FILE: &[Meaning] = &[
    (
        &[NO_TABLE],
        Denied,
        "{file} has no table {table}; {make_it}",
    ),
    (
        &[OTHER_COLUMNS],
        Denied,
        "the table {table} in {file} has other columns than ours; name another one (table=)",
    ),
    (
        &["5", "6"],
        Unreachable,
        "another process keeps {file} locked",
    ),
    (
        &["8"],
        Denied,
        "{file} or its directory is read-only for this user; chmod u+w",
    ),
    (
        &[NO_FILE],
        Denied,
        "the file {file} cannot be made; its directory has to exist, and this user must be able to write there",
    ),
    (
        &["14"],
        Denied,
        "{file} cannot be opened; this user must be able to write the file and its directory",
    ),
    (&["26"], Denied, "{file} is no SQLite database"),
    (&["10", "13"], Store, "{file}: the disk is full or failing"),
];

#[cfg(feature = "sqlite")]
const NO_TABLE: &str = "no such table";
#[cfg(feature = "sqlite")]
const OTHER_COLUMNS: &str = "column";
#[cfg(feature = "sqlite")]
const NO_FILE: &str = "no file";

/// The code under which [`FILE`] has an error of SQLite. Some codes of SQLite have several causes.
#[cfg(feature = "sqlite")]
fn file_code(code: &str, text: &str, path: &Path) -> String {
    // The lowest byte is the code, the others are details.
    let code = code.parse().unwrap_or(0_u32) & 0xff;
    match code {
        1 if text.contains(NO_TABLE) => NO_TABLE.to_owned(),
        1 if text.contains(OTHER_COLUMNS) => OTHER_COLUMNS.to_owned(),
        14 if !path.exists() => NO_FILE.to_owned(),
        code => code.to_string(),
    }
}

#[cfg(feature = "sqlite")]
fn of_file(error: RequestError, settings: &Settings, path: &Path) -> Error {
    let shown = Escaped(&path.display().to_string()).to_string();
    let code = error.code();
    let source = match error {
        RequestError::Explained(err) => return err,
        RequestError::TimedOut(limit) => {
            return Error::new(
                ErrorKind::Indeterminate,
                format!("{shown} could not be read or written within {limit:?}"),
            )
            .with_timeout();
        }
        RequestError::Broken(err) => err,
        RequestError::Refused(said) => sqlx::Error::Database(said),
    };
    let (kind, text) = match code {
        None => (ErrorKind::Indeterminate, "the connection to {file} broke"),
        Some(code) => {
            let code = file_code(&code, &source.to_string(), path);
            find(FILE, &code).unwrap_or((Store, "{file} refused the request"))
        }
    };
    let text = with_names(text, |word| match word {
        "table" => settings.table().to_owned(),
        "make_it" => make_it(settings),
        _ => shown.clone(),
    });
    Error::new(kind, text).with_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_in_braces_are_known() {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        {
            let (server, _, url) = Server::parse("mysql://me@h/jobs?mode=table").unwrap();
            let settings = Settings::of_server(server.clone(), url).unwrap();
            for (_, _, text) in SERVER {
                with_names(text, |word| {
                    let is_common = matches!(word, "server" | "user" | "database");
                    let name = name_of_server_table(&settings, &server, word);
                    assert_eq!(name.is_none(), is_common, "{word} in {text}");
                    String::new()
                });
            }
            assert_eq!(
                name_of_server_table(&settings, &server, "grant").unwrap(),
                "GRANT SELECT, INSERT, UPDATE ON `jobs`.tenure_locks TO 'me'@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON `jobs`.tenure_locks_waiters TO 'me'@'%'; the same on tenure_locks_modes"
            );
        }
        #[cfg(feature = "sqlite")]
        for (_, _, text) in FILE {
            with_names(text, |word| {
                assert!(matches!(word, "table" | "make_it" | "file"), "{text}");
                String::new()
            });
        }
    }
}
