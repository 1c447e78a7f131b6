//! A connection to a database: how it is opened, and a form in which all databases return rows as text.

use std::time::Duration;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use sqlx::ConnectOptions as _;
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, ValueRef as _};

#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::error::Error;
use tenure_core::rt::Clock;
#[cfg(feature = "postgres")]
use tenure_core::rt::host_name;

#[cfg(feature = "postgres")]
use super::application::application_name;
use super::borrowed::Borrowed;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::relay::EndWatch;
use super::relay::Relay;
use super::request_error::RequestError;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::server::{Kind, Server, Tls};

/// A row of an answer, with its values as text.
pub(crate) type Row = Vec<Option<String>>;

/// Waits for the answer to a request until `timeout` is over. After that the caller closes the connection, because its
/// next answer would be the one to this request.
pub(crate) async fn within<T>(
    timeout: Duration,
    clock: &Clock,
    request: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, RequestError> {
    let limit = clock.now().after(timeout);
    tokio::select! {
        biased;
        answer = request => answer.map_err(RequestError::from),
        () = clock.sleep_until(limit) => Err(RequestError::TimedOut(timeout)),
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Server {
    #[cfg(feature = "mysql")]
    fn mysql_options(&self) -> Result<MySqlConnectOptions, Error> {
        let mut options = MySqlConnectOptions::new()
            .host(&self.host.name)
            .port(self.host.port)
            // The store sets what these options would set, in one round trip less.
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .disable_statement_logging();
        options = match &self.tls {
            Tls::Off => options.ssl_mode(MySqlSslMode::Disabled),
            Tls::Prefer => options.ssl_mode(MySqlSslMode::Preferred),
            Tls::On(files) => {
                let pem = files.read()?;
                let mut options = options.ssl_mode(MySqlSslMode::VerifyIdentity);
                if let Some(ca) = pem.ca {
                    options = options.ssl_ca_from_pem(ca);
                }
                if let Some((cert, key)) = pem.client {
                    options = options.ssl_client_cert_from_pem(cert);
                    options = options.ssl_client_key_from_pem(key);
                }
                options
            }
        };
        if let Some(path) = &self.socket {
            options = options.socket(path);
        }
        if let Some(user) = &self.user {
            options = options.username(user);
        }
        if let Some(password) = &self.password {
            options = options.password(password.reveal());
        }
        if let Some(database) = &self.database {
            options = options.database(database);
        }
        Ok(options)
    }

    /// For a client library that opens connections itself.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres_options(&self) -> Result<PgConnectOptions, Error> {
        // No file and no environment variable is read: the URL alone says what the store is.
        let mut options = PgConnectOptions::new_without_pgpass()
            .host(&self.host.name)
            .port(self.host.port)
            .application_name(&application_name(&host_name(), std::process::id()))
            // A pooler refuses this parameter, and no floats are read.
            .extra_float_digits(None)
            .disable_statement_logging();
        options = match &self.tls {
            Tls::Off => options.ssl_mode(PgSslMode::Disable),
            Tls::Prefer => options.ssl_mode(PgSslMode::Prefer),
            Tls::On(files) => {
                let pem = files.read()?;
                let mut options = options.ssl_mode(PgSslMode::VerifyFull);
                if let Some(ca) = pem.ca {
                    options = options.ssl_root_cert_from_pem(ca);
                }
                if let Some((cert, key)) = pem.client {
                    options = options.ssl_client_cert_from_pem(cert);
                    options = options.ssl_client_key_from_pem(key);
                }
                options
            }
        };
        if let Some(path) = &self.socket {
            options = options.socket(path);
        }
        if let Some(user) = &self.user {
            options = options.username(user);
        }
        if let Some(password) = &self.password {
            options = options.password(password.reveal());
        }
        if let Some(database) = &self.database {
            options = options.database(database);
        }
        Ok(options)
    }
}

/// A connection to a server, or to a file of SQLite.
pub(crate) struct Connection {
    driver: Driver,
    /// Moves the bytes of a connection whose end is watched.
    relay: Option<Relay>,
}

/// A connection of the client library: our own, or one of the caller's pool.
pub(super) enum Driver {
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
    #[cfg(feature = "mysql")]
    BorrowedMySql(Borrowed<sqlx::MySql>),
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "postgres")]
    BorrowedPostgres(Borrowed<sqlx::Postgres>),
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConnection),
    #[cfg(feature = "sqlite")]
    BorrowedSqlite(Borrowed<sqlx::Sqlite>),
}

/// Does the same with any connection.
macro_rules! with {
    ($driver:expr, $it:ident => $work:expr) => {
        match $driver {
            #[cfg(feature = "mysql")]
            Driver::MySql($it) => $work,
            #[cfg(feature = "mysql")]
            Driver::BorrowedMySql($it) => {
                let $it = $it.connection()?;
                $work
            }
            #[cfg(feature = "postgres")]
            Driver::Postgres($it) => $work,
            #[cfg(feature = "postgres")]
            Driver::BorrowedPostgres($it) => {
                let $it = $it.connection()?;
                $work
            }
            #[cfg(feature = "sqlite")]
            Driver::Sqlite($it) => $work,
            #[cfg(feature = "sqlite")]
            Driver::BorrowedSqlite($it) => {
                let $it = $it.connection()?;
                $work
            }
        }
    };
}

/// Does the same with any connection, whether it is borrowed or not.
macro_rules! with_any {
    ($driver:expr, $it:ident => $work:expr) => {
        match $driver {
            #[cfg(feature = "mysql")]
            Driver::MySql($it) => $work,
            #[cfg(feature = "mysql")]
            Driver::BorrowedMySql($it) => $work,
            #[cfg(feature = "postgres")]
            Driver::Postgres($it) => $work,
            #[cfg(feature = "postgres")]
            Driver::BorrowedPostgres($it) => $work,
            #[cfg(feature = "sqlite")]
            Driver::Sqlite($it) => $work,
            #[cfg(feature = "sqlite")]
            Driver::BorrowedSqlite($it) => $work,
        }
    };
}

#[cfg(feature = "sqlite")]
impl From<SqliteConnection> for Connection {
    fn from(connection: SqliteConnection) -> Self {
        Self::of(Driver::Sqlite(connection))
    }
}

impl Connection {
    /// A connection whose end is not watched.
    pub(super) fn of(driver: Driver) -> Self {
        let relay = None;
        Self { driver, relay }
    }

    /// Opens a connection within [`timeout`](Server::timeout). The caller sets the session up.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) async fn open(server: &Server, clock: &Clock) -> Result<Self, RequestError> {
        // In a box, because opening is large and rare: every request would have to have room for it.
        let connect = Box::pin(Options::new(server)?.connect());
        within(server.timeout, clock, connect).await.map(Self::of)
    }

    /// The same, for a connection whose end is noticed at once: see [`end_watch`](Self::end_watch).
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) async fn open_watched(server: &Server, clock: &Clock) -> Result<Self, RequestError> {
        let options = Options::new(server)?;
        let open = Box::pin(async {
            let relay = Relay::connect(server).await?;
            let options = match &relay {
                Some(relay) => options.through(relay.path()),
                None => options,
            };
            let driver = drive(relay.as_ref(), options.connect()).await?;
            Ok(Self { driver, relay })
        });
        within(server.timeout, clock, open).await
    }

    /// Resolves when the server or the network has ended the connection, also while there is no request. `None`: that is
    /// noticed by the next request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn end_watch(&self) -> Option<EndWatch> {
        self.relay.as_ref().map(Relay::end_watch)
    }

    /// What PostgreSQL reports when a connection opens, as 150018 for 15.18.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn version(&self) -> Option<u32> {
        match &self.driver {
            #[cfg(feature = "postgres")]
            Driver::Postgres(connection) => connection.server_version_num(),
            #[cfg(feature = "postgres")]
            Driver::BorrowedPostgres(borrowed) => borrowed.version(),
            #[allow(unreachable_patterns, reason = "with one feature there is none left")]
            _ => None,
        }
    }

    /// Sends statements by the simple protocol, and returns all their rows. No statement is prepared: so nothing is left
    /// in the session, and a proxy may give each transaction to another session.
    pub(crate) async fn rows(&mut self, sql: String) -> Result<Vec<Row>, sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        let driver = &mut self.driver;
        let rows =
            async { with!(driver, connection => sql.fetch_all(connection).await.map(texts)) };
        drive(self.relay.as_ref(), rows).await
    }

    /// The same, and returns how many rows were changed.
    pub(crate) async fn changed_rows(&mut self, sql: String) -> Result<u64, sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        let driver = &mut self.driver;
        let count = async {
            with!(driver, connection => sql.execute(connection).await.map(|it| it.rows_affected()))
        };
        drive(self.relay.as_ref(), count).await
    }

    /// Ends the connection in order, which spares the server a line in its log.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        let driver = self.driver;
        let close = async { with_any!(driver, connection => connection.close().await) };
        drive(self.relay.as_ref(), close).await
    }

    /// Gives a connection of the caller's pool back, in whose session nothing was changed. Closes any other connection.
    pub(crate) fn give_back(self) {
        match self.driver {
            #[cfg(feature = "mysql")]
            Driver::BorrowedMySql(borrowed) => borrowed.give_back(),
            #[cfg(feature = "postgres")]
            Driver::BorrowedPostgres(borrowed) => borrowed.give_back(),
            #[cfg(feature = "sqlite")]
            Driver::BorrowedSqlite(borrowed) => borrowed.give_back(),
            #[allow(unreachable_patterns, reason = "without a server there is one kind")]
            _ => {}
        }
    }
}

/// Does `work` on the connection of the client library, whose bytes may go through the relay.
async fn drive<T>(
    relay: Option<&Relay>,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match relay {
        Some(relay) => relay.drive(work).await,
        None => work.await,
    }
}

/// How the client library of a server opens a connection.
#[cfg(any(feature = "mysql", feature = "postgres"))]
enum Options {
    #[cfg(feature = "mysql")]
    MySql(MySqlConnectOptions),
    #[cfg(feature = "postgres")]
    Postgres(PgConnectOptions),
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Options {
    fn new(server: &Server) -> Result<Self, RequestError> {
        match server.kind {
            #[cfg(feature = "mysql")]
            Kind::MySql => server.mysql_options().map(Self::MySql),
            #[cfg(feature = "postgres")]
            Kind::Postgres => server.postgres_options().map(Self::Postgres),
            #[allow(unreachable_patterns, reason = "with both features there is none left")]
            _ => return Err(RequestError::Broken(sqlx::Error::WorkerCrashed)),
        }
        .map_err(RequestError::Explained)
    }

    /// The same server through the socket at that path.
    fn through(self, path: String) -> Self {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(options) => Self::MySql(options.socket(path)),
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => Self::Postgres(options.socket(path)),
        }
    }

    async fn connect(self) -> Result<Driver, sqlx::Error> {
        Ok(match self {
            #[cfg(feature = "mysql")]
            Self::MySql(options) => Driver::MySql(MySqlConnection::connect_with(&options).await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => {
                Driver::Postgres(PgConnection::connect_with(&options).await?)
            }
        })
    }
}

/// All values as text, as the simple protocol sends them. A value that is no text counts as NULL.
fn texts<R: sqlx::Row>(rows: Vec<R>) -> Vec<Row>
where
    R::Database: sqlx::Database,
    for<'a> &'a str: sqlx::Decode<'a, R::Database>,
    usize: sqlx::ColumnIndex<R>,
{
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
