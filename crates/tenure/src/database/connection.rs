//! A connection to a MySQL or PostgreSQL server: runs statements and returns their rows as text.

use sqlx::AssertSqlSafe;

use tenure_core::rt::Clock;

use super::errors::Trouble;
use super::server::{Kind, Server};

/// A row of an answer, as text.
pub(crate) type Row = Vec<Option<String>>;

/// A connection to either server.
pub(crate) enum Connection {
    #[cfg(feature = "mysql")]
    MySql(sqlx::mysql::MySqlConnection),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::postgres::PgConnection),
}

impl Connection {
    pub(crate) async fn open(server: &Server, clock: &Clock) -> Result<Self, Trouble> {
        match server.kind {
            #[cfg(feature = "mysql")]
            Kind::MySql => server.mysql(clock).await.map(Self::MySql),
            #[cfg(feature = "postgres")]
            Kind::Postgres => server.postgres(clock).await.map(Self::Postgres),
            #[allow(unreachable_patterns, reason = "with both features there is none left")]
            _ => Err(Trouble::Broken(sqlx::Error::WorkerCrashed)),
        }
    }

    /// What PostgreSQL says when it greets, as 150018 for 15.18.
    pub(crate) fn version(&self) -> Option<u32> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.server_version_num(),
        }
    }

    /// All rows of all statements, in the protocol for plain text: nothing is prepared, so nothing is left behind.
    pub(crate) async fn rows(&mut self, sql: String) -> Result<Vec<Row>, sqlx::Error> {
        use sqlx::Executor as _;
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.fetch_all(sql).await.map(texts),
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.fetch_all(sql).await.map(texts),
        }
    }

    /// Says goodbye.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        use sqlx::Connection as _;
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.close().await,
        }
    }
}

fn texts<R: sqlx::Row>(rows: Vec<R>) -> Vec<Row>
where
    R::Database: sqlx::Database,
    for<'a> &'a str: sqlx::Decode<'a, R::Database>,
    for<'a> &'a [u8]: sqlx::Decode<'a, R::Database>,
    usize: sqlx::ColumnIndex<R>,
{
    use sqlx::ValueRef as _;
    let text = |row: &R, at: usize| {
        let raw = row.try_get_raw(at).ok()?;
        if raw.is_null() {
            return None;
        }
        let text: &str = sqlx::Decode::decode(raw).ok()?;
        Some(text.to_owned())
    };
    rows.iter()
        .map(|row| (0..row.len()).map(|at| text(row, at)).collect())
        .collect()
}
