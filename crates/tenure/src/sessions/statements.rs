//! One statement on a session, with the time limits of all callers that wait for its connection.

use std::pin::pin;
use std::sync::Arc;

use tenure_core::fence::OwnerId;
use tenure_core::rt::lock;
use tenure_core::time::Time;

use crate::database::{RequestError, Row};

use super::errors;
use super::operations::{OperationError, PendingOperation};
use super::session::Session;

/// The outcome of a wait in the server's queue.
#[derive(Debug)]
pub(super) enum WaitOutcome {
    /// The lock is ours, with this token.
    Granted(u64),
    /// The wait was cancelled by us, by an administrator, or by a limit of the server.
    Cancelled,
    Refused(RequestError),
    SessionEnded(RequestError),
}

/// Waits until `limit` for the rows of a statement.
///
/// The task that runs this statement watches the limits of all callers: of those in `batch`, whose statement this is,
/// and of those in the queue. A caller whose limit is over gets its error, but its operation stays, because the
/// outcome of the operation still matters.
pub(super) async fn await_rows(
    session: &Session,
    rows: impl Future<Output = Result<Vec<Row>, sqlx::Error>>,
    limit: Time,
    batch: &mut [PendingOperation],
) -> Result<Vec<Row>, RequestError> {
    let context = &session.context;
    let queue = || lock(&session.operations.queue);
    let mut rows = pin!(rows);
    loop {
        let in_batch = batch.iter().find_map(PendingOperation::awaited_until);
        let in_queue = queue().iter().find_map(PendingOperation::awaited_until);
        // The limit of a caller that comes later is later than this.
        let latest = context.request_limit();
        let limits = [in_batch, in_queue].into_iter().flatten();
        let next = limits.fold(latest, Time::min).min(limit);
        tokio::select! {
            biased;
            rows = &mut rows => return rows.map_err(RequestError::from),
            () = session.end.ended.raised() => break,
            () = context.clock.sleep_until(next) => {}
        }
        let now = context.clock.now();
        if now >= limit {
            break;
        }
        for pending in batch.iter_mut().chain(queue().iter_mut()) {
            if pending.limit <= now {
                pending.finish(Err(OperationError::TimedOut));
            }
        }
    }
    Err(no_answer(session))
}

/// Runs a statement that is about no acquisition. Without an answer until `limit` the session is ended.
pub(super) async fn query(
    session: &Arc<Session>,
    sql: String,
    limit: Time,
) -> Result<Vec<Row>, RequestError> {
    let context = &session.context;
    let mut guard = tokio::select! {
        biased;
        guard = session.operations.lock() => guard,
        () = context.clock.sleep_until(limit) => return Err(no_answer(session)),
    };
    // A request before this one had no answer in time.
    let Some(mut connection) = guard.take() else {
        session.end();
        return Err(no_answer(session));
    };
    let sent = context.clock.now();
    let rows = await_rows(session, connection.rows(sql), limit, &mut []).await;
    match &rows {
        Err(error) if error.is_fatal() => {
            drop(connection);
            session.end_because(errors::ended_by(error, &context.settings.server));
        }
        _ => {
            *guard = Some(connection);
            session.lifetime.renew(sent);
            session.lifetime.use_at(sent);
        }
    }
    rows
}

/// Waits in the server's queue with that statement, for as long as that takes. The session must have no other acquisition.
pub(super) async fn wait_for_lock(
    session: Arc<Session>,
    owner: OwnerId,
    sql: String,
) -> WaitOutcome {
    let context = &session.context;
    let mut guard = session.operations.lock().await;
    let Some(mut connection) = guard.take() else {
        session.end();
        return WaitOutcome::SessionEnded(no_answer(&session));
    };
    let sent = context.clock.now();
    let rows = tokio::select! {
        biased;
        rows = connection.rows(sql) => rows.map_err(RequestError::from),
        () = session.end.ended.raised() => Err(no_answer(&session)),
    };
    match rows {
        Ok(rows) => {
            *guard = Some(connection);
            session.lifetime.renew(sent);
            let token = rows.first().and_then(|row| row.get(1)?.as_deref());
            match token.and_then(|token| token.parse().ok()) {
                // The caller pings the session before the hold counts, which shows that no other session has the lock.
                Some(token) if token > 0 => {
                    let until = context.clock.now().after(session.lifetime.ttl);
                    session.set_held(owner, token, until);
                    WaitOutcome::Granted(token)
                }
                // 0 when the time was over, NULL when the statement was cancelled in MariaDB.
                _ => WaitOutcome::Cancelled,
            }
        }
        Err(error) if error.is_fatal() => {
            drop(connection);
            session.end_because(errors::ended_by(&error, &context.settings.server));
            WaitOutcome::SessionEnded(error)
        }
        Err(error) => {
            *guard = Some(connection);
            let code = error.code().unwrap_or_default();
            match context.dialect.is_cancelled(&code) {
                true => WaitOutcome::Cancelled,
                false => WaitOutcome::Refused(error),
            }
        }
    }
}

fn no_answer(session: &Session) -> RequestError {
    RequestError::TimedOut(session.context.settings.server.timeout)
}
