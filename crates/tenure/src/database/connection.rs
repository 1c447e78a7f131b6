//! A connection to a MySQL or PostgreSQL server: how it is opened, and a form in which both return rows as text.

use sqlx::AssertSqlSafe;
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _};

use tenure_core::error::Error;
use tenure_core::rt::Clock;

use super::request_error::RequestError;
use super::server::{Kind, Server, Tls};

/// What the server shows our connections as.
#[cfg(feature = "postgres")]
const APPLICATION: &str = "tenure";

/// A row of an answer, as text.
pub(crate) type Row = Vec<Option<String>>;

impl Server {
    /// Opens a connection within [`timeout`](Server::timeout). The caller sets the session up.
    #[cfg(feature = "mysql")]
    pub(crate) async fn mysql(&self, clock: &Clock) -> Result<MySqlConnection, RequestError> {
        let options = self.mysql_options().map_err(RequestError::Explained)?;
        // In a box, because it is large and rarely done: every request would have to have room for it.
        self.limited(clock, Box::pin(MySqlConnection::connect_with(&options)))
            .await
    }

    /// Opens a connection within [`timeout`](Server::timeout). The caller sets the session up.
    #[cfg(feature = "postgres")]
    pub(crate) async fn postgres(&self, clock: &Clock) -> Result<PgConnection, RequestError> {
        let options = self.postgres_options().map_err(RequestError::Explained)?;
        // As above.
        self.limited(clock, Box::pin(PgConnection::connect_with(&options)))
            .await
    }

    /// Waits for the answer to a request for as long as a request may take. After that the caller closes the
    /// connection, because its next answer would be the one to this request.
    pub(crate) async fn limited<T>(
        &self,
        clock: &Clock,
        request: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, RequestError> {
        let limit = clock.now().after(self.timeout);
        tokio::select! {
            biased;
            answer = request => answer.map_err(RequestError::from),
            () = clock.sleep_until(limit) => Err(RequestError::TimedOut(self.timeout)),
        }
    }

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

    /// For a client that opens connections by itself.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres_options(&self) -> Result<PgConnectOptions, Error> {
        // Nothing from a file or from the environment: a store is what its URL says.
        let mut options = PgConnectOptions::new_without_pgpass()
            .host(&self.host.name)
            .port(self.host.port)
            .application_name(APPLICATION)
            // A pooler refuses to pass it on, and no floats are read.
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

/// A connection to either server.
pub(crate) enum Connection {
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
}

impl Connection {
    pub(crate) async fn open(server: &Server, clock: &Clock) -> Result<Self, RequestError> {
        match server.kind {
            #[cfg(feature = "mysql")]
            Kind::MySql => server.mysql(clock).await.map(Self::MySql),
            #[cfg(feature = "postgres")]
            Kind::Postgres => server.postgres(clock).await.map(Self::Postgres),
            #[allow(unreachable_patterns, reason = "with both features there is none left")]
            _ => Err(RequestError::Broken(sqlx::Error::WorkerCrashed)),
        }
    }

    /// What PostgreSQL reports when a connection opens, as 150018 for 15.18.
    pub(crate) fn version(&self) -> Option<u32> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.server_version_num(),
        }
    }

    /// Sends statements by the simple protocol, and returns all their rows. Nothing is prepared, so nothing is left in
    /// the session.
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

    /// Ends the connection in order, which spares the server a line in its log.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
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
