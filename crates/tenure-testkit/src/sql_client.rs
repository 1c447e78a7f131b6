//! A client that sends SQL to a server past the library, for example as its administrator.

use std::sync::Mutex;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Database, Executor as _, ValueRef as _,
};
use tokio::runtime::{Builder, Runtime};

/// A row, as text.
pub type Row = Vec<Option<String>>;

/// A client that blocks this thread. It connects again when its server was restarted.
pub struct SqlClient(Mutex<Inner>);

struct Inner {
    runtime: DetachedRuntime,
    options: Options,
    connection: Option<Connection>,
}

/// A runtime that may be dropped inside another runtime.
struct DetachedRuntime(Option<Runtime>);

impl Drop for DetachedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

enum Options {
    MySql(MySqlConnectOptions),
    Postgres(PgConnectOptions),
}

enum Connection {
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

impl SqlClient {
    pub fn mysql(options: MySqlConnectOptions) -> Self {
        // Statements of this client are not logged: tests that read all logs are about the library.
        Self::new(Options::MySql(options.disable_statement_logging()))
    }

    pub fn postgres(options: PgConnectOptions) -> Self {
        Self::new(Options::Postgres(options.disable_statement_logging()))
    }

    fn new(options: Options) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self(Mutex::new(Inner {
            runtime: DetachedRuntime(Some(runtime)),
            options,
            connection: None,
        }))
    }

    /// The rows of a statement (of the last one, if there are several).
    ///
    /// # Panics
    /// When the server refuses the statement.
    #[track_caller]
    pub fn rows(&self, sql: &str) -> Vec<Row> {
        // The server may have been restarted since the last statement; then the first answer is that it shuts down.
        let is_broken = |err: &sqlx::Error| match err {
            sqlx::Error::Database(said) => said.code().is_some_and(|it| it.starts_with("57P")),
            _ => true,
        };
        let rows = self.try_rows(sql).or_else(|err| match is_broken(&err) {
            true => {
                self.disconnect();
                self.try_rows(sql)
            }
            false => Err(err),
        });
        rows.unwrap_or_else(|err| panic!("{sql}: {err}"))
    }

    /// The one value of a statement that has one.
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        let rows = self.rows(sql);
        let value = rows
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next());
        value.flatten().unwrap_or_else(|| panic!("{sql}: no value"))
    }

    /// [`rows`](Self::rows), with the error.
    pub fn try_rows(&self, sql: &str) -> Result<Vec<Row>, sqlx::Error> {
        let mut inner = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Inner {
            runtime,
            options,
            connection,
        } = &mut *inner;
        // A thread of its own, because a runtime cannot block on another one. The caller is blocked meanwhile.
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let runtime = runtime.0.as_ref().unwrap();
                runtime.block_on(async {
                    let mut open = match (connection.take(), options) {
                        (Some(connection), _) => connection,
                        (None, Options::MySql(options)) => {
                            Connection::MySql(MySqlConnection::connect_with(options).await?)
                        }
                        (None, Options::Postgres(options)) => {
                            Connection::Postgres(PgConnection::connect_with(options).await?)
                        }
                    };
                    let rows = match &mut open {
                        Connection::MySql(connection) => connection
                            .fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
                            .await
                            .map(texts),
                        Connection::Postgres(connection) => connection
                            .fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
                            .await
                            .map(texts),
                    };
                    // A statement that was refused leaves the connection usable; any other error does not.
                    if matches!(rows, Ok(_) | Err(sqlx::Error::Database(_))) {
                        *connection = Some(open);
                    }
                    rows
                })
            });
            asked.join().unwrap()
        })
    }
}

impl SqlClient {
    /// Closes the connection: the children of a PostgreSQL that was killed may still answer for a moment.
    pub fn disconnect(&self) {
        let inner = self.0.lock();
        inner
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .connection = None;
    }
}

fn texts<R: sqlx::Row>(rows: Vec<R>) -> Vec<Row>
where
    R::Database: Database,
    for<'a> &'a str: sqlx::Decode<'a, R::Database>,
    usize: sqlx::ColumnIndex<R>,
{
    let text = |row: &R, at: usize| {
        let raw = row.try_get_raw(at).unwrap();
        if raw.is_null() {
            return None;
        }
        let text: &str = sqlx::Decode::decode(raw).unwrap();
        Some(text.to_owned())
    };
    rows.iter()
        .map(|row| (0..row.len()).map(|at| text(row, at)).collect())
        .collect()
}
