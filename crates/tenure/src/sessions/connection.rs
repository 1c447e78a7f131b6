//! Opens connections, and sets up sessions on them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::lock;
use tenure_core::time::Time;

use crate::database::{Connection, DatabasePool, RequestError, no_connection, within};

use super::context::Context;
use super::errors;
use super::operations::SessionOperation;
use super::session::{Session, SessionLifetime, SessionObserver};

/// The ttl of a session that takes no locks.
pub(super) const CONTROL_SESSION_TTL: Duration = Duration::from_secs(60);

/// Opens sessions.
pub(super) struct Connector {
    context: Arc<Context>,
    observer: Weak<dyn SessionObserver>,
    /// Connections that are known to be sessions of the server, for the first sessions.
    proven: Mutex<Vec<Connection>>,
    /// A session whose connection will be used for the first session that takes locks.
    prewarmed: Mutex<Option<Arc<Session>>>,
    /// The client has found a server that can keep locks.
    has_connected: AtomicBool,
}

impl Connector {
    pub(super) fn new(context: Arc<Context>, observer: Weak<dyn SessionObserver>) -> Self {
        Self {
            context,
            observer,
            proven: Mutex::default(),
            prewarmed: Mutex::default(),
            has_connected: AtomicBool::new(false),
        }
    }

    /// The client is connected. From now on a server that cannot keep locks is one that takes over or is taken over from, and
    /// the next attempt may find another one.
    pub(super) fn note_connected(&self) {
        self.has_connected.store(true, Ordering::SeqCst);
    }

    /// The kind of the error that a session cannot keep locks.
    fn objection_kind(&self) -> ErrorKind {
        match self.has_connected.load(Ordering::SeqCst) {
            true => ErrorKind::Unreachable,
            false => ErrorKind::Unsupported,
        }
    }

    /// Opens a session that takes no locks.
    pub(super) async fn open(&self) -> Result<Arc<Session>, Error> {
        let (connection, opened) = self.connect().await?;
        self.set_up(connection, CONTROL_SESSION_TTL, opened, "")
            .await
    }

    /// Makes a session that takes locks and that the server ends after `ttl` of silence. It has the prewarmed
    /// connection, if there is one.
    pub(super) async fn open_for_locks(&self, ttl: Duration) -> Result<Arc<Session>, Error> {
        let prewarmed = lock(&self.prewarmed).take();
        if let Some(prewarmed) = prewarmed
            && let Some(session) = self.reuse(&prewarmed, ttl).await
        {
            return Ok(session);
        }
        let (connection, opened) = self.connect().await?;
        let more = self.context.dialect.prepare();
        self.set_up(connection, ttl, opened, &more).await
    }

    /// Opens two connections, and proves with them that each connection is a session of the server of its own. A pooler gives
    /// the two the same session, or another one for each request. Nothing is set before that is known, because it would stay
    /// in sessions of other clients.
    ///
    /// # Errors
    /// `Unsupported`: there is a pooler.
    pub(super) async fn refuse_pooler(&self) -> Result<(), Error> {
        let ((mut one, _), (mut other, _)) = (self.connect().await?, self.connect().await?);
        let first = self.session_number(&mut one).await?;
        let second = self.session_number(&mut other).await?;
        let again = self.session_number(&mut one).await?;
        if first == second || first != again {
            let server = &self.context.settings.server;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a pooler between this client and {server} gives the sessions of the server to other clients after each transaction, and the locks with them; use its session mode, name the server itself, or use mode=table"
                ),
            ));
        }
        lock(&self.proven).extend([other, one]);
        Ok(())
    }

    /// The number of the server's session that answers on this connection.
    async fn session_number(&self, connection: &mut Connection) -> Result<String, Error> {
        let (server, clock) = (&self.context.settings.server, &self.context.clock);
        let ping = self.context.dialect.statement(&[SessionOperation::Ping]);
        let rows = within(server.timeout, clock, connection.rows(ping)).await;
        let rows = rows.map_err(|error| no_connection(error, server))?;
        let number = rows.first().and_then(|row| row.first()?.clone());
        number.ok_or_else(errors::unexpected_reply)
    }

    /// Opens the connection of the first session that takes locks.
    pub(super) async fn prewarm(&self) -> Result<(), Error> {
        let session = self.open().await?;
        *lock(&self.prewarmed) = Some(session);
        Ok(())
    }

    /// Closes the prewarmed connection.
    pub(super) async fn close(&self) {
        let prewarmed = lock(&self.prewarmed).take();
        if let Some(prewarmed) = prewarmed {
            prewarmed.close().await;
        }
    }

    /// Takes a connection out of the caller's pool. It is changed by the set-up of a session, so it is closed in the end and
    /// not given back.
    async fn borrow(&self, pool: &DatabasePool) -> Result<Connection, Error> {
        let (server, clock) = (&self.context.settings.server, &self.context.clock);
        let borrowed = within(server.timeout, clock, pool.borrow()).await;
        let mut connection = borrowed.map_err(|error| match error {
            RequestError::TimedOut(_) | RequestError::Broken(sqlx::Error::PoolTimedOut) => {
                errors::no_free_connection(pool, server.timeout)
            }
            error => no_connection(error, server),
        })?;
        let Some(count) = self.context.dialect.counts_own_locks() else {
            return Ok(connection);
        };
        let rows = within(server.timeout, clock, connection.rows(count)).await;
        let rows = rows.map_err(|error| no_connection(error, server))?;
        let count = rows.first().and_then(|row| row.first()?.as_deref());
        match count {
            Some("0") => Ok(connection),
            _ => {
                connection.give_back();
                Err(errors::locks_in_pool(self.objection_kind()))
            }
        }
    }

    /// Opens a connection, and says when that began.
    async fn connect(&self) -> Result<(Connection, Time), Error> {
        let proven = lock(&self.proven).pop();
        if let Some(connection) = proven {
            // The time from which on the age of the server is counted, so not one that is long ago.
            return Ok((connection, self.context.clock.now()));
        }
        if let Some(pool) = &self.context.settings.pool {
            let opened = self.context.clock.now();
            return Ok((self.borrow(pool).await?, opened));
        }
        let server = &self.context.settings.server;
        let opened = self.context.clock.now();
        let connection = Connection::open_watched(server, &self.context.clock).await;
        let connection = connection.map_err(|error| no_connection(error, server))?;
        Ok((connection, opened))
    }

    /// Makes a session that takes locks on the connection of another session. `None`: that connection is closed.
    async fn reuse(&self, other: &Session, ttl: Duration) -> Option<Arc<Session>> {
        let usable_until = other.lifetime.sent().after(other.lifetime.ttl / 2);
        let opened = self.context.clock.now();
        let connection = other.take_connection().await;
        let connection = connection.filter(|_| opened < usable_until)?;
        let more = self.context.dialect.prepare();
        self.set_up(connection, ttl, opened, &more).await.ok()
    }

    async fn set_up(
        &self,
        mut connection: Connection,
        ttl: Duration,
        opened: Time,
        more: &str,
    ) -> Result<Arc<Session>, Error> {
        let (context, server) = (&self.context, &self.context.settings.server);
        let version = connection.version();
        let sent = context.clock.now();
        let set_up = context.dialect.set_up(ttl, version) + more;
        let rows = within(server.timeout, &context.clock, connection.rows(set_up))
            .await
            .map_err(|error| no_connection(error, server))?;
        let server_info = context.dialect.server_info(&rows, version);
        let server_info = server_info.ok_or_else(errors::unexpected_reply)?;
        if let Some(objection) = &server_info.objection {
            let kind = self.objection_kind();
            return Err(Error::new(kind, format!("{server} {objection}")));
        }
        let lifetime = SessionLifetime::new(ttl, opened, sent);
        let end_watch = connection.end_watch();
        let (context, observer) = (context.clone(), self.observer.clone());
        let session = Session::new(context, observer, connection, server_info, lifetime);
        if let Some(end_watch) = end_watch {
            session.watch(end_watch);
        }
        Ok(session)
    }
}
