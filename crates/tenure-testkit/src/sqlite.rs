//! An SQLite database in a file of its own.

use std::path::PathBuf;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _, ValueRef as _};

use super::process::Directory;
use super::sql_client::Row;
use super::wait::TEST_TIMEOUT;

/// A database in a file of its own.
pub struct DatabaseFile {
    dir: Directory,
}

impl Default for DatabaseFile {
    fn default() -> Self {
        Self::new()
    }
}

impl DatabaseFile {
    pub fn new() -> Self {
        Self {
            dir: Directory::new("sqlite"),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("locks.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    /// The rows of a statement, as text; blocks this thread.
    pub fn rows(&self, sql: &str) -> Vec<Row> {
        let (path, sql) = (self.path(), sql.to_owned());
        // A thread of its own, because a runtime cannot block on another one. The caller is blocked meanwhile.
        let asked = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut link = open(&path).await;
                let rows = link
                    .fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.clone())))
                    .await;
                let rows = rows.unwrap_or_else(|err| panic!("{sql}: {err}"));
                let text = |row: &sqlx::sqlite::SqliteRow, at| {
                    let raw = row.try_get_raw(at).unwrap();
                    match raw.is_null() {
                        true => None,
                        false => Some(<String as sqlx::Decode<sqlx::Sqlite>>::decode(raw).unwrap()),
                    }
                };
                rows.iter()
                    .map(|row| (0..row.len()).map(|at| text(row, at)).collect())
                    .collect()
            })
        });
        asked.join().unwrap()
    }

    /// The one value of a statement that has one.
    pub fn value(&self, sql: &str) -> String {
        let row = self.rows(sql).into_iter().next();
        let value = row.and_then(|row| row.into_iter().next()).flatten();
        value.unwrap_or_else(|| panic!("{sql}: no value"))
    }
}

/// A connection to a file. It waits while another connection writes.
pub async fn open(path: &std::path::Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(TEST_TIMEOUT);
    options.connect().await.unwrap()
}
