//! What this client sets in connections of its own, and only checks in those of the caller's pool: other users of the pool
//! rely on how their sessions are set.

#![cfg_attr(
    not(all(feature = "mysql", feature = "sqlite")),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "PostgreSQL needs nothing of this"
    )
)]

use crate::database::{Connection, DatabasePool, PoolKind, Row};

use super::names::Format;

/// Why a table of locks cannot be kept over the connections of that pool, and the remedy. `None`: it can.
pub(super) async fn check(
    pool: &DatabasePool,
    format: Format,
    connection: &mut Connection,
) -> Result<Option<String>, sqlx::Error> {
    match &pool.0 {
        #[cfg(feature = "mysql")]
        PoolKind::MySql(_) => {
            let sql = "/*tenure:pool*/ SELECT @@session.autocommit,@@session.time_zone=@@global.time_zone";
            let rows = connection.rows(sql.to_owned()).await?;
            Ok(objection_to_mysql(cells(&rows), format))
        }
        #[cfg(feature = "postgres")]
        PoolKind::Postgres(_) => Ok(None),
        #[cfg(feature = "sqlite")]
        PoolKind::Sqlite(_) => {
            let journal = connection.rows("PRAGMA journal_mode".to_owned()).await?;
            let synchronous = connection.rows("PRAGMA synchronous".to_owned()).await?;
            let cells = [cells(&journal), cells(&synchronous)].concat();
            Ok(objection_to_sqlite(&cells))
        }
    }
}

fn cells(rows: &[Row]) -> &[Option<String>] {
    rows.first().map(Vec::as_slice).unwrap_or_default()
}

fn cell(cells: &[Option<String>], at: usize) -> &str {
    cells.get(at).and_then(Option::as_deref).unwrap_or_default()
}

#[cfg(feature = "mysql")]
fn objection_to_mysql(found: &[Option<String>], format: Format) -> Option<String> {
    if cell(found, 0) != "1" {
        let text = "the sessions of the pool have autocommit=0, so a lock would be taken only when another user of the session commits; leave autocommit on";
        return Some(text.to_owned());
    }
    if format == Format::ShedLock && cell(found, 1) != "1" {
        let text = "the sessions of the pool have another time zone than the server, and ShedLock writes times in that of the server; build the pool with MySqlConnectOptions::timezone(None)";
        return Some(text.to_owned());
    }
    None
}

#[cfg(feature = "sqlite")]
fn objection_to_sqlite(found: &[Option<String>]) -> Option<String> {
    let journal = cell(found, 0);
    if journal != "wal" {
        return Some(format!(
            "the database has the journal \"{journal}\" and no write-ahead log, so readers and writers would block each other; open the pool with SqliteConnectOptions::journal_mode(SqliteJournalMode::Wal)"
        ));
    }
    if cell(found, 1) == "0" {
        let text = "the connections of the pool have synchronous=OFF, so a loss of power may damage the locks; open the pool with SqliteSynchronous::Normal or more";
        return Some(text.to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Row {
        cells.iter().map(|cell| Some((*cell).to_owned())).collect()
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn sessions_of_mysql_commit_each_statement() {
        for (cells, format, says) in [
            (&["1", "0"], Format::Tenure, None),
            (&["0", "1"], Format::Tenure, Some("autocommit")),
            (&["1", "1"], Format::ShedLock, None),
            (&["1", "0"], Format::ShedLock, Some("time zone")),
        ] {
            let objection = objection_to_mysql(&row(cells), format);
            assert_eq!(objection.is_some(), says.is_some(), "{objection:?}");
            assert!(objection.unwrap_or_default().contains(says.unwrap_or("")));
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_file_has_a_write_ahead_log() {
        for (cells, says) in [
            (&["wal", "1"], None),
            (&["wal", "2"], None),
            (&["wal", "0"], Some("synchronous")),
            (&["delete", "2"], Some("journal_mode")),
        ] {
            let objection = objection_to_sqlite(&row(cells));
            assert_eq!(objection.is_some(), says.is_some(), "{objection:?}");
            assert!(objection.unwrap_or_default().contains(says.unwrap_or("")));
        }
    }
}
