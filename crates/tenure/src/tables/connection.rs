//! One connection to a database: runs a statement and returns its rows as text.

#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnection;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Database, ValueRef as _};

#[cfg(feature = "sqlite")]
use super::database_file::FileConnection;
use super::file_id::FileId;
use super::sql::{ReplyKind, Statement};

/// A row of an answer, as text.
pub(super) type Row = Vec<Option<String>>;

/// A connection to a server, or to a file.
pub(super) enum Connection {
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
    #[cfg(feature = "sqlite")]
    Sqlite(FileConnection),
}

/// Sends a statement by the simple protocol: no statement is prepared, so a proxy may give each transaction to
/// another connection of its own.
macro_rules! run {
    ($connection:expr, $statement:expr) => {{
        let sql = sqlx::raw_sql(AssertSqlSafe($statement.sql.clone()));
        match $statement.reply_kind {
            ReplyKind::Rows => texts(sql.fetch_all($connection).await?),
            ReplyKind::ChangedCount => {
                let count = sql.execute($connection).await?.rows_affected();
                Ok(vec![vec![Some(count.to_string())]])
            }
        }
    }};
}

impl Connection {
    pub(super) async fn run(&mut self, statement: &Statement) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => run!(connection, statement),
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => run!(connection, statement),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => run!(&mut file.connection, statement),
        }
    }

    /// Ends the connection in order, which spares the server a line in its log.
    pub(super) async fn close(self) {
        let _ = match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.close().await,
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.close().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.connection.close().await,
        };
    }

    /// The file that the connection opened; `None`: it is a server's.
    pub(super) fn file(&self) -> Option<FileId> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => Some(file.id),
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            _ => None,
        }
    }
}

/// All values as text, which is how they travel in the simple protocol.
fn texts<R: sqlx::Row>(rows: Vec<R>) -> Result<Vec<Row>, sqlx::Error>
where
    R::Database: Database,
    for<'a> &'a str: sqlx::Decode<'a, R::Database>,
    usize: sqlx::ColumnIndex<R>,
{
    let text = |row: &R, at: usize| {
        let raw = row.try_get_raw(at)?;
        if raw.is_null() {
            return Ok(None);
        }
        let text: &str = sqlx::Decode::decode(raw).map_err(sqlx::Error::Decode)?;
        Ok(Some(text.to_owned()))
    };
    rows.iter()
        .map(|row| (0..row.len()).map(|at| text(row, at)).collect())
        .collect()
}
