//! The few connections of a client, each used by one request at a time.
//!
//! The pool of sqlx serves requests in the order in which they come, so renewals and releases would wait behind requests
//! for locks; here one connection is kept for them. It gives a connection back, also one that is dropped, in a task of the
//! runtime, and panics where the runtime is gone; here nothing runs by itself, and all limits of time are those of the
//! client's clock. And a request has to know whether its connection was idle, because a server that was restarted has
//! closed such connections, and which file its connection has open; the pool of sqlx pings before each request instead.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::support::closed;
use tenure_core::time::Time;

use crate::database::{DatabasePool, RequestError, Row, within};

use super::connection::Connection;
#[cfg(feature = "sqlite")]
use super::database_file::{DatabaseFile, OpenError};
use super::errors;
use super::file_id::FileId;
use super::pool_check;
use super::settings::{Location, Settings};
use super::sql::Statement;

/// How often the pause doubles before a statement that conflicted with another transaction is sent again.
const MAX_BACKOFF_STEPS: u32 = 4;

/// A request waits for a connection for this many times the limit of an answer: all requests before it may be slow.
const PERMIT_TIMEOUTS: u32 = 10;

/// Makes the second statement of a transaction of the rows that the first one returned.
pub(super) type Decide<'a> = dyn Fn(&[Row]) -> Result<Statement, Error> + Sync + 'a;

/// The answer to one statement.
#[derive(Debug)]
pub(super) struct StatementReply {
    pub(super) rows: Vec<Row>,
    /// Read before the request was sent.
    pub(super) sent: Time,
    /// A connection broke and the request was sent once more, so it may have been done twice.
    pub(super) is_repeated: bool,
    /// The file that the answer is from; `None`: it is a server's.
    pub(super) file: Option<FileId>,
}

/// Idle connections, and permits to use or to open one.
pub(super) struct Pool {
    settings: Settings,
    clock: Clock,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
    /// Requests that are not urgent need one of these permits as well. There is one less of them, so that an urgent
    /// request never waits behind all the others.
    ordinary_permits: Semaphore,
    is_closed: AtomicBool,
    /// The database has taken a write.
    has_written: AtomicBool,
    /// `None`: the table lies in a server.
    #[cfg(feature = "sqlite")]
    file: Option<DatabaseFile>,
    /// The file that lay at the path when this client was made.
    first_file: Option<FileId>,
}

impl Pool {
    pub(super) fn new(settings: &Settings, connections: usize, clock: Clock) -> Self {
        Self {
            settings: settings.clone(),
            idle: Mutex::default(),
            permits: Semaphore::new(connections),
            ordinary_permits: Semaphore::new(connections.saturating_sub(1).max(1)),
            is_closed: AtomicBool::new(false),
            has_written: AtomicBool::new(false),
            #[cfg(feature = "sqlite")]
            file: match &settings.location {
                Location::File(path) => {
                    let (table, timeout) = (settings.table(), settings.timeout);
                    Some(DatabaseFile::new(path, table, clock.clone(), timeout))
                }
                #[cfg(any(feature = "mysql", feature = "postgres"))]
                Location::Server(_) => None,
            },
            first_file: match &settings.location {
                // `None` is an error of the first request.
                #[cfg(feature = "sqlite")]
                Location::File(path) => FileId::at(path).unwrap_or_default(),
                #[cfg(any(feature = "mysql", feature = "postgres"))]
                Location::Server(_) => None,
            },
            clock,
        }
    }

    /// Makes the file and its tables where they are missing, and says what was made.
    #[cfg(feature = "sqlite")]
    pub(super) async fn make_file(&self) -> Result<Vec<String>, Error> {
        let retry_until = self.clock.now().after(self.settings.timeout);
        let mut made = Vec::new();
        for attempt in 0.. {
            let Some(file) = &self.file else { break };
            file.look_for_tables_again();
            let error = match self.open_with_tables(file, &mut made).await {
                Ok(connection) => {
                    self.keep(connection);
                    break;
                }
                Err(OpenError::Replaced) => None,
                Err(OpenError::Failed(error)) => Some(error),
            };
            // A pool goes on with the file that it opened first.
            let may_pass = match &error {
                Some(error) => errors::is_conflict(error),
                None => self.settings.pool.is_none(),
            };
            if !may_pass || self.clock.now() >= retry_until {
                return Err(match error {
                    Some(error) => errors::no_connection(error, &self.settings),
                    None => errors::replaced(&self.settings),
                });
            }
            self.pause(attempt, &Flag::new()).await;
        }
        Ok(made)
    }

    /// A connection to a file that has the tables.
    #[cfg(feature = "sqlite")]
    async fn open_with_tables(
        &self,
        file: &DatabaseFile,
        made: &mut Vec<String>,
    ) -> Result<Connection, OpenError> {
        let Some(pool) = &self.settings.pool else {
            return file.open(made).await;
        };
        let make = async {
            let mut connection = Connection::borrow(pool, self.first_file).await?;
            file.make_tables(&mut connection.database, made).await?;
            Ok(connection)
        };
        let limit = self.clock.now().after(self.settings.timeout);
        tokio::select! {
            biased;
            made = make => made,
            () = self.clock.sleep_until(limit) => Err(OpenError::Failed(RequestError::TimedOut(self.settings.timeout))),
        }
    }

    /// Waits a little before the next attempt. `false`: `stop` was raised.
    async fn pause(&self, attempt: u32, stop: &Flag) -> bool {
        let pause = pace::next(attempt.min(MAX_BACKOFF_STEPS), rand::random(), None, None);
        let at = self.clock.now().after(pause.unwrap_or(pace::FIRST));
        tokio::select! {
            biased;
            () = stop.raised() => false,
            () = self.clock.sleep_until(at) => true,
        }
    }

    /// Opens a connection, so that the first request finds one and `connect` reports whether the server is there.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) async fn warm_up(&self) -> Result<(), Error> {
        if self.settings.pool.is_some() {
            return Ok(());
        }
        let connection = self.connect().await;
        let connection =
            connection.map_err(|error| errors::no_connection(error, &self.settings))?;
        lock(&self.idle).push(connection);
        Ok(())
    }

    /// Sends a statement. The statement is sent again if a connection broke that had been idle (its server may have been
    /// restarted since), and when it conflicted with another transaction.
    pub(super) async fn ask(&self, statement: Statement) -> Result<StatementReply, Error> {
        self.ask_unless(statement, &Flag::new()).await
    }

    /// The same, but the statement is not sent again when `stop` is raised.
    pub(super) async fn ask_unless(
        &self,
        statement: Statement,
        stop: &Flag,
    ) -> Result<StatementReply, Error> {
        self.ask_twice(statement, stop, None).await
    }

    /// The same with a statement that asks for a lock, and so writes.
    pub(super) async fn ask_for_lock(
        &self,
        statement: Statement,
        stop: &Flag,
    ) -> Result<StatementReply, Error> {
        let reply = self.ask_unless(statement, stop).await?;
        self.has_written.store(true, Ordering::Relaxed);
        Ok(reply)
    }

    /// As [`ask_unless`](Self::ask_unless); `decide` makes a second statement of the rows, which ends the transaction that the
    /// first one began. The reply has the rows of the first statement.
    pub(super) async fn ask_twice(
        &self,
        statement: Statement,
        stop: &Flag,
        decide: Option<&Decide<'_>>,
    ) -> Result<StatementReply, Error> {
        let retry_until = self.clock.now().after(self.settings.timeout);
        let mut broken = None;
        for attempt in 0.. {
            let (error, is_fresh) = match self.ask_once(&statement, stop, decide).await {
                Ok(reply) => {
                    return Ok(StatementReply {
                        is_repeated: broken.is_some(),
                        ..reply
                    });
                }
                Err(NoReply::NotSent(err)) => {
                    // A statement that was sent before may have been done.
                    return Err(broken.unwrap_or(err));
                }
                Err(NoReply::Failed { error, is_fresh }) => (error, is_fresh),
                // Whatever was written into a file that is gone does not count.
                #[cfg(feature = "sqlite")]
                Err(NoReply::Replaced)
                    if self.settings.pool.is_none() && self.clock.now() < retry_until =>
                {
                    broken = None;
                    continue;
                }
                #[cfg(feature = "sqlite")]
                Err(NoReply::Replaced) => return Err(errors::replaced(&self.settings)),
            };
            let may_repeat = self.clock.now() < retry_until && !stop.is_raised();
            if errors::is_conflict(&error) && may_repeat && self.pause(attempt, stop).await {
                continue;
            }
            let is_silent = matches!(error, RequestError::TimedOut(_));
            let is_broken = error.is_fatal() && !is_silent;
            let err = match self.has_written.load(Ordering::Relaxed) {
                true => errors::explain_later(error, &self.settings),
                false => errors::explain(error, &self.settings),
            };
            if is_broken {
                // The cause has probably broken the other connections as well.
                lock(&self.idle).clear();
            }
            if !is_broken || !statement.is_repeatable || is_fresh || broken.is_some() {
                return Err(broken.unwrap_or(err));
            }
            broken = Some(err);
        }
        Err(errors::unexpected_reply())
    }

    async fn ask_once(
        &self,
        statement: &Statement,
        stop: &Flag,
        decide: Option<&Decide<'_>>,
    ) -> Result<StatementReply, NoReply> {
        let _permit = self.permit(statement, stop).await?;
        let idle = self.take_idle()?;
        let is_fresh = idle.is_none() && self.settings.pool.is_none();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open_connection().await?,
        };
        let sent = self.clock.now();
        let run = connection.run(statement);
        let mut answer = within(self.settings.timeout, &self.clock, run).await;
        if let (Ok(rows), Some(decide)) = (&answer, decide) {
            answer = match decide(rows) {
                Ok(second) => {
                    let run = connection.go_on(&second);
                    let ended = within(self.settings.timeout, &self.clock, run).await;
                    ended.and(answer)
                }
                Err(err) => Err(RequestError::Explained(err)),
            };
        }
        let file = connection.file;
        #[cfg(feature = "sqlite")]
        if !self.is_current(&connection).map_err(NoReply::NotSent)? {
            lock(&self.idle).clear();
            return Err(NoReply::Replaced);
        }
        match answer {
            Ok(rows) => {
                self.keep(connection);
                Ok(StatementReply {
                    rows,
                    sent,
                    is_repeated: false,
                    file,
                })
            }
            Err(error) => {
                self.keep_after(&error, statement, connection).await;
                Err(NoReply::Failed { error, is_fresh })
            }
        }
    }

    /// Keeps a connection for a later request, or gives it back to the caller's pool.
    fn keep(&self, connection: Connection) {
        if self.settings.pool.is_some() {
            connection.database.give_back();
        } else if !self.is_closed.load(Ordering::SeqCst) {
            lock(&self.idle).push(connection);
        }
    }

    /// Keeps a connection whose statement has failed, if the connection is as good as before: the statement was refused, and
    /// no transaction is open. Any other connection is closed.
    async fn keep_after(
        &self,
        error: &RequestError,
        statement: &Statement,
        mut connection: Connection,
    ) {
        if errors::is_elsewhere(error) {
            // A new connection may lead to the server that has taken over.
            lock(&self.idle).clear();
            return;
        }
        let is_refusal = matches!(error, RequestError::Refused(_)) && !error.is_fatal();
        let is_clean = match statement.is_transaction {
            false => !connection.is_set_up_each_time(),
            // Several processes often want to write at the same time, so opening the file again each time would be slow.
            true if is_refusal && errors::is_locked_file(error) => {
                connection
                    .roll_back(self.settings.timeout, &self.clock)
                    .await
            }
            true => false,
        };
        if is_refusal && is_clean {
            self.keep(connection);
        }
    }

    /// The right to use a connection, or to open one.
    async fn permit(
        &self,
        statement: &Statement,
        stop: &Flag,
    ) -> Result<(Option<SemaphorePermit<'_>>, SemaphorePermit<'_>), NoReply> {
        let timeout = self.settings.timeout * PERMIT_TIMEOUTS;
        let limit = self.clock.now().after(timeout);
        let permit = async {
            let ordinary = match statement.is_urgent {
                true => None,
                false => Some(self.ordinary_permits.acquire().await?),
            };
            Ok::<_, AcquireError>((ordinary, self.permits.acquire().await?))
        };
        let busy = |text: String| Err(NoReply::NotSent(Error::new(ErrorKind::Unreachable, text)));
        let permit = tokio::select! {
            biased;
            permit = permit => permit,
            () = stop.raised() => {
                return busy("all connections were busy until the wait was over (connections=)".into());
            }
            () = self.clock.sleep_until(limit) => {
                return busy(format!("all connections were busy for {timeout:?} (connections=)"));
            }
        };
        match permit {
            Ok(permit) if !self.is_closed.load(Ordering::SeqCst) => Ok(permit),
            _ => Err(NoReply::NotSent(closed())),
        }
    }

    /// An idle connection. Connections to a file that was removed or replaced are closed.
    fn take_idle(&self) -> Result<Option<Connection>, NoReply> {
        let idle = lock(&self.idle).pop();
        #[cfg(feature = "sqlite")]
        if let Some(connection) = &idle
            && !self.is_current(connection).map_err(NoReply::NotSent)?
        {
            lock(&self.idle).clear();
            return Ok(None);
        }
        Ok(idle)
    }

    /// Whether the file of a hold is gone: other processes lock the file that lies at its path now, if there is one.
    /// `granted_by` is the file that granted the hold, as far as that is known. A server has no file.
    pub(super) fn is_file_gone(&self, granted_by: Option<Option<FileId>>) -> Result<bool, Error> {
        let _ = granted_by;
        #[cfg(feature = "sqlite")]
        if let Some(file) = &self.file {
            let now = file.id()?;
            return Ok(now.is_none() || granted_by.is_some_and(|file| file != now));
        }
        Ok(false)
    }

    /// Whether the path still leads to the file of that connection.
    #[cfg(feature = "sqlite")]
    fn is_current(&self, connection: &Connection) -> Result<bool, Error> {
        match (&self.file, connection.file) {
            (Some(file), Some(id)) => file.is_current(id),
            _ => Ok(true),
        }
    }

    /// A connection of the caller's pool. The file is the one that was there when this client was made.
    async fn borrow_connection(&self, pool: &DatabasePool) -> Result<Connection, NoReply> {
        let borrow = Connection::borrow(pool, self.first_file);
        let borrowed = within(self.settings.timeout, &self.clock, borrow).await;
        borrowed.map_err(|error| {
            NoReply::NotSent(match error {
                RequestError::TimedOut(_) | RequestError::Broken(sqlx::Error::PoolTimedOut) => {
                    errors::no_free_connection(pool, self.settings.timeout)
                }
                RequestError::Broken(sqlx::Error::PoolClosed) => errors::pool_is_closed(),
                error => errors::no_connection(error, &self.settings),
            })
        })
    }

    async fn open_connection(&self) -> Result<Connection, NoReply> {
        if let Some(pool) = &self.settings.pool {
            return self.borrow_connection(pool).await;
        }
        #[cfg(feature = "sqlite")]
        if let Some(file) = &self.file {
            let mut made = Vec::new();
            let opened = file.open(&mut made).await;
            if !made.is_empty() {
                tracing::info!("made {}", made.join(", "));
            }
            return match opened {
                Ok(connection) => Ok(connection),
                Err(OpenError::Replaced) => Err(NoReply::Replaced),
                // Other connections open, close or make the file at this moment.
                Err(OpenError::Failed(error)) if errors::is_conflict(&error) => {
                    let is_fresh = true;
                    Err(NoReply::Failed { error, is_fresh })
                }
                Err(OpenError::Failed(error)) => {
                    let err = errors::no_connection(error, &self.settings);
                    Err(NoReply::NotSent(err))
                }
            };
        }
        let connection = self.connect().await;
        connection.map_err(|error| NoReply::NotSent(errors::no_connection(error, &self.settings)))
    }

    async fn connect(&self) -> Result<Connection, RequestError> {
        match &self.settings.location {
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            Location::Server(server) => {
                Connection::open(server, self.settings.format, &self.clock).await
            }
            #[cfg(feature = "sqlite")]
            Location::File(_) => Err(RequestError::Explained(errors::unexpected_reply())),
        }
    }

    /// Borrows a connection of the caller's pool for the first time, and checks what this client sets in connections of its
    /// own.
    pub(super) async fn check_pool(&self, pool: &DatabasePool) -> Result<(), Error> {
        let mut connection = match self.borrow_connection(pool).await {
            Ok(connection) => connection,
            Err(NoReply::NotSent(err)) => return Err(err),
            Err(_) => return Err(errors::unexpected_reply()),
        };
        let database = &mut connection.database;
        let check = pool_check::check(pool, self.settings.format, database);
        let checked = within(self.settings.timeout, &self.clock, check).await;
        match checked.map_err(|error| errors::no_connection(error, &self.settings))? {
            None => {
                self.keep(connection);
                Ok(())
            }
            Some(objection) => Err(Error::new(ErrorKind::Unsupported, objection)),
        }
    }

    /// Refuses requests from now on, and drops the connections that are idle.
    pub(super) fn abandon(&self) {
        drop(self.take_closed());
    }

    /// Refuses requests from now on, and returns the connections that are idle.
    fn take_closed(&self) -> Vec<Connection> {
        self.is_closed.store(true, Ordering::SeqCst);
        self.permits.close();
        self.ordinary_permits.close();
        std::mem::take(&mut *lock(&self.idle))
    }

    /// Closes all idle connections. A connection that is in use is closed when its answer is there.
    pub(super) async fn close(&self) {
        for connection in self.take_closed() {
            // A connection that is broken is closed as well.
            let _ = connection.database.close().await;
        }
    }
}

/// Why a request has no answer.
enum NoReply {
    /// Nothing was sent by this attempt.
    NotSent(Error),
    Failed {
        error: RequestError,
        /// The connection had just been opened.
        is_fresh: bool,
    },
    /// The file was removed or replaced meanwhile.
    #[cfg(feature = "sqlite")]
    Replaced,
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use sqlx::Executor as _;
    use tenure_testkit::sqlite::{DatabaseFile, open};

    use super::super::sql::{Dialect, Statements};
    use super::*;

    /// With another journal than the write-ahead log, COMMIT is refused while another program reads. The next request that
    /// uses the connection must not run inside that transaction.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_refused_commit_leaves_no_transaction_open() {
        let file = DatabaseFile::new();
        let settings = Settings::of_file(&file.path().display().to_string()).unwrap();
        let pool = Pool::new(&settings, 1, Clock::system());
        let statements = Statements::new(Dialect::Sqlite, "tenure_locks");
        let ask = |sql: &str| pool.ask(Statement::rows(sql.to_owned()));
        ask("PRAGMA journal_mode=DELETE").await.unwrap();
        let mut reader = open(&file.path()).await;
        let reads = "BEGIN;SELECT * FROM tenure_locks";
        reader.execute(sqlx::raw_sql(reads)).await.unwrap();
        // The first attempt is the last one.
        let stop = Flag::new();
        stop.raise();
        let writes = statements.transaction("test", &["DELETE FROM tenure_locks_modes".to_owned()]);
        let refused = pool.ask_unless(writes, &stop).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
        assert_eq!(lock(&pool.idle).len(), 1);
        ask("BEGIN;ROLLBACK").await.unwrap();
    }
}
