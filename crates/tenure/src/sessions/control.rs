//! The control connection: one session for everything but locks. Its statements inspect the server, end other sessions and
//! their statements, and write the table of holders.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::lock;
use tenure_core::support::{SingleFlight, closed};

use crate::database::Row;

use super::connection::Connector;
use super::context::Context;
use super::errors;
use super::server_info::SessionId;
use super::session::Session;
use super::statements;

/// Opened when it is needed, and opened again when it has failed.
pub(super) struct ControlConnection {
    pub(super) context: Arc<Context>,
    connector: Arc<Connector>,
    current: Mutex<Option<Arc<Session>>>,
    opening: SingleFlight<Error>,
    is_closed: AtomicBool,
}

impl ControlConnection {
    pub(super) fn new(context: Arc<Context>, connector: Arc<Connector>) -> Self {
        Self {
            context,
            connector,
            current: Mutex::default(),
            opening: SingleFlight::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Runs a statement. Cancel safe: if the future is dropped, the statement goes on as a task.
    pub(super) async fn query(self: &Arc<Self>, sql: String) -> Result<Vec<Row>, Error> {
        let control = self.clone();
        self.detached(async move { control.query_now(sql).await })
            .await
    }

    /// Sends a command about that session, unless another session may have its number by now. Cancel safe, as
    /// [`query`](Self::query).
    pub(super) async fn command(
        self: &Arc<Self>,
        session: SessionId,
        sql: String,
    ) -> Result<(), Error> {
        let control = self.clone();
        self.detached(async move { control.command_now(session, sql).await })
            .await
    }

    /// Runs `work` as a task: if a statement were dropped before its answer, the connection would have to be closed.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, outcome) = tokio::sync::oneshot::channel();
        self.context.spawn(async move {
            let _ = sender.send(work.await);
        });
        outcome.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn query_now(&self, sql: String) -> Result<Vec<Row>, Error> {
        let context = &self.context;
        let mut may_retry = true;
        loop {
            let session = self.session().await?;
            let limit = context.request_limit();
            match statements::query(&session, sql.clone(), limit).await {
                Ok(rows) => return Ok(rows),
                // The connection was idle, and may have been broken for a long time.
                Err(error) if error.is_fatal() && std::mem::take(&mut may_retry) => {}
                Err(error) => return Err(errors::explain(error, &context.settings.server)),
            }
        }
    }

    async fn command_now(&self, about: SessionId, sql: String) -> Result<(), Error> {
        let context = &self.context;
        let session = self.session().await?;
        if !context.dialect.reaches(session.server_info.session, about) {
            return Ok(());
        }
        let outcome = statements::query(&session, sql, context.request_limit()).await;
        outcome
            .map(drop)
            .map_err(|error| errors::explain(error, &context.settings.server))
    }

    /// The session that is open, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        let is_usable =
            |it: &Arc<Session>| !it.is_ended() && !self.context.is_past(it.lifetime.usable_until());
        let find = || lock(&self.current).clone().filter(is_usable);
        let open = async {
            let old = lock(&self.current).take();
            if let Some(old) = old {
                self.context.spawn(async move { old.close().await });
            }
            if self.is_closed.load(Ordering::SeqCst) {
                return Err(closed());
            }
            let new = self.connector.open().await?;
            *lock(&self.current) = Some(new.clone());
            // Read after the session can be found: so either `abandon` finds the session, or we find that it was called.
            if self.is_closed.load(Ordering::SeqCst) {
                lock(&self.current).take();
                return Err(closed());
            }
            Ok(new)
        };
        self.opening.run(&self.context.clock, find, open).await
    }

    /// Whether the server refused a statement with this error, and not the login: a login that the server refused leaves no
    /// session.
    pub(super) fn is_refused_statement(&self, err: &Error) -> bool {
        err.kind() == ErrorKind::Denied && lock(&self.current).is_some()
    }

    /// Closes the connection in order. It is not opened again.
    pub(super) async fn close(&self) {
        if let Some(session) = self.abandon() {
            session.close().await;
        }
    }

    /// Gives up the connection: it is not opened again, and closed when the returned session is dropped.
    pub(super) fn abandon(&self) -> Option<Arc<Session>> {
        self.is_closed.store(true, Ordering::SeqCst);
        lock(&self.current).take()
    }
}
