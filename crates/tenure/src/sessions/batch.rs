//! Many operations in one statement.
//!
//! A caller puts an operation into the queue of a session and waits for the connection. The caller who gets the
//! connection sends all operations that are in the queue at that moment, as one statement. A connection whose answer is missing
//! is closed: with the connection the session ends, and with the session its locks.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::sync::oneshot::{self, error::TryRecvError};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::rt::lock;
use tenure_core::time::Time;

use crate::database::{Connection, RequestError, Row};

use super::acquisitions::Acquisition;
use super::errors;
use super::operations::{
    Admission, MAX_BATCH, OperationError, OperationOutcome, OperationReply, OperationResult,
    PendingOperation, SessionOperation, admit,
};
use super::session::Session;
use super::statements::await_rows;

/// Sends an operation, together with the operations of other callers, and waits for its reply as long as a request may
/// take; or longer, if the session waits for a lock or keeps one.
pub(super) async fn request(
    session: &Arc<Session>,
    operation: SessionOperation,
    owner: Option<OwnerId>,
) -> OperationOutcome {
    let _unanswered = session.operations.count();
    let (caller, mut reply) = oneshot::channel();
    lock(&session.operations.queue).push_back(PendingOperation {
        operation,
        owner,
        limit: session.context.request_limit(),
        caller: Some(caller),
    });
    loop {
        // Most often the connection is free. Then this task receives its own reply, and need not be woken for it.
        let connection = match session.operations.try_lock() {
            Some(connection) => connection,
            None => tokio::select! {
                biased;
                outcome = &mut reply => return outcome.unwrap_or(Err(OperationError::SessionEnded(None))),
                connection = session.operations.lock() => connection,
            },
        };
        let batch: Vec<_> = {
            let mut queue = lock(&session.operations.queue);
            let count = queue.len().min(MAX_BATCH);
            queue.drain(..count).collect()
        };
        let mut running = Box::pin(run(session.clone(), connection, batch));
        let outcome = poll_fn(|context| {
            let is_done = running.as_mut().poll(context).is_ready();
            match reply.try_recv() {
                Ok(outcome) => Poll::Ready(Some((outcome, is_done))),
                Err(TryRecvError::Closed) => {
                    Poll::Ready(Some((Err(OperationError::SessionEnded(None)), is_done)))
                }
                // The queue had more operations than go into one statement.
                Err(TryRecvError::Empty) if is_done => Poll::Ready(None),
                Err(TryRecvError::Empty) => Poll::Pending,
            }
        });
        if let Some((outcome, is_done)) = outcome.await {
            // Our operation timed out, but other callers wait for the statement, and the connection must receive its
            // answer.
            if !is_done {
                session.context.spawn(running);
            }
            return outcome;
        }
    }
}

/// Asks to unlock what the acquisition has.
pub(super) async fn unlock(
    session: &Arc<Session>,
    owner: OwnerId,
    acquisition: Acquisition,
) -> OperationOutcome {
    let operation = SessionOperation::Unlock {
        key: acquisition.key,
        mode: acquisition.mode,
    };
    request(session, operation, Some(owner)).await
}

/// Runs one statement for all these operations.
async fn run(
    session: Arc<Session>,
    mut guard: OwnedMutexGuard<Option<Connection>>,
    batch: Vec<PendingOperation>,
) {
    let mut batch = admit_all(&session, batch);
    if batch.is_empty() {
        return;
    }
    // Taken out of the mutex: if this future is dropped, no other task finds a connection with an answer under way.
    let Some(mut connection) = guard.take() else {
        session.end();
        fail(batch, None, OperationError::SessionEnded);
        return;
    };
    let operations: Vec<_> = batch.iter().map(|it| it.operation.clone()).collect();
    let sent = session.context.clock.now();
    let server = &session.context.settings.server;
    match run_statement(&session, &mut connection, &operations, &mut batch).await {
        Ok(row) => {
            *guard = Some(connection);
            session.lifetime.renew(sent);
            complete(&session, batch, &operations, &row, sent);
        }
        Err(error) if error.is_fatal() => {
            drop(connection);
            session.end_because(errors::ended_by(&error, server));
            fail(batch, Some(error), OperationError::SessionEnded);
        }
        // The server refused the whole statement; the operations before the refused one may have been done.
        Err(error) => {
            if undo(&session, &mut connection, &operations, &mut batch).await {
                *guard = Some(connection);
                session.lifetime.renew(sent);
                refuse(&session, batch, error);
            } else {
                drop(connection);
                session.end_because(errors::ended_by(&error, server));
                fail(batch, Some(error), OperationError::SessionEnded);
            }
        }
    }
    if session.is_ended() {
        *guard = None;
    }
    drop(guard);
    session.changed.notify_waiters();
    release_abandoned(&session);
}

/// The operations of a batch that are sent. The others get their reply, or go back to the head of the queue.
fn admit_all(session: &Session, batch: Vec<PendingOperation>) -> Vec<PendingOperation> {
    let mut admitted = Vec::with_capacity(batch.len());
    let mut repeated = Vec::new();
    for mut pending in batch {
        let admission = admit(&mut lock(&session.acquisitions), &pending, &admitted);
        match admission {
            Admission::Send => admitted.push(pending),
            Admission::Abandoned => {}
            Admission::AlreadyReleased => pending.finish(already_released(session)),
            Admission::Repeated => repeated.push(pending),
        }
    }
    if !repeated.is_empty() {
        let mut queue = lock(&session.operations.queue);
        for pending in repeated.into_iter().rev() {
            queue.push_front(pending);
        }
    }
    admitted
}

/// The reply to a request to unlock what an acquisition had that has ended.
///
/// If the acquisition ended with its session, only the server can tell whether the lock is free.
fn already_released(session: &Session) -> OperationOutcome {
    match session.is_ended() {
        true => Err(OperationError::SessionEnded(None)),
        false => Ok(OperationReply {
            result: OperationResult::Unlocked(false),
            sent: session.lifetime.sent(),
            round_trip: Duration::ZERO,
        }),
    }
}

/// Runs a statement, and waits for its row as long as any lease depends on the session.
async fn run_statement(
    session: &Session,
    connection: &mut Connection,
    operations: &[SessionOperation],
    batch: &mut [PendingOperation],
) -> Result<Row, RequestError> {
    let sql = session.context.dialect.statement(operations);
    let limit = session.context.request_limit().max(session.lifetime.ends());
    let rows = await_rows(session, connection.rows(sql), limit, batch).await?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// Takes back what the operations of a refused statement may have done. `false`: it is unknown whether they are taken
/// back.
///
/// If the session has a key of the statement for another acquisition too, the server's count of that key is unknown: an
/// unlock could release what the other acquisition has.
async fn undo(
    session: &Session,
    connection: &mut Connection,
    operations: &[SessionOperation],
    batch: &mut [PendingOperation],
) -> bool {
    {
        let acquisitions = lock(&session.acquisitions);
        let mut keys = operations.iter().filter_map(SessionOperation::key);
        if keys.any(|key| acquisitions.has_several(key)) {
            return false;
        }
    }
    let undo: Vec<_> = operations
        .iter()
        .filter_map(SessionOperation::undo)
        .collect();
    undo.is_empty()
        || run_statement(session, connection, &undo, batch)
            .await
            .is_ok()
}

/// Sends the result of each operation to its caller.
fn complete(
    session: &Arc<Session>,
    batch: Vec<PendingOperation>,
    operations: &[SessionOperation],
    row: &Row,
    sent: Time,
) {
    let round_trip = session.context.clock.now().since(sent);
    let number = session.server_info.session.number.to_string();
    let is_ours = row.first().and_then(Option::as_deref) == Some(number.as_str());
    if !is_ours {
        let message = "another session answered than the one that was asked: a pooler between this client and the server shares sessions; use mode=table";
        tracing::warn!("{message}");
        session.end_because(Error::new(ErrorKind::Lost, message));
    }
    let values = session.context.dialect.replies(operations, row);
    for (mut pending, value) in batch.into_iter().zip(values) {
        let result = match is_ours {
            true => complete_one(session, &pending, value, sent),
            false => None,
        };
        pending.finish(match result {
            Some(result) => Ok(OperationReply {
                result,
                sent,
                round_trip,
            }),
            None => {
                let unknown = RequestError::Explained(errors::null());
                Err(OperationError::Refused(Some(unknown)))
            }
        });
    }
}

/// `None`: the server cannot tell.
fn complete_one(
    session: &Session,
    pending: &PendingOperation,
    value: Option<u64>,
    sent: Time,
) -> Option<OperationResult> {
    let remove = || {
        if let Some(owner) = pending.owner {
            lock(&session.acquisitions).remove(&owner);
        }
    };
    match (&pending.operation, value) {
        (SessionOperation::Ping, value) => value.map(|_| OperationResult::Alive),
        (SessionOperation::Reserve { .. }, value) => {
            value.map(|is_past| OperationResult::Reserved(is_past == 1))
        }
        (SessionOperation::Unlock { .. }, value) => {
            remove();
            Some(OperationResult::Unlocked(value == Some(1)))
        }
        (SessionOperation::TryLock { .. }, None) => {
            remove();
            None
        }
        (SessionOperation::TryLock { .. }, Some(0)) => {
            remove();
            Some(OperationResult::Busy)
        }
        (SessionOperation::TryLock { .. }, Some(token)) => {
            if let Some(owner) = pending.owner {
                session.set_held(owner, token, sent.after(session.lifetime.ttl));
            }
            Some(OperationResult::Granted(token))
        }
    }
}

/// Fails all operations of a statement that has no answer. The first caller gets the cause.
fn fail(
    batch: Vec<PendingOperation>,
    mut cause: Option<RequestError>,
    error: impl Fn(Option<RequestError>) -> OperationError,
) {
    for mut pending in batch {
        pending.finish(Err(error(cause.take())));
    }
}

/// Fails all operations of a statement that the server refused.
fn refuse(session: &Session, batch: Vec<PendingOperation>, error: RequestError) {
    for pending in &batch {
        // A lock that was to be unlocked is still ours, as far as we know; the maintenance task unlocks it again.
        if let (SessionOperation::TryLock { .. }, Some(owner)) = (&pending.operation, pending.owner)
        {
            lock(&session.acquisitions).remove(&owner);
        }
    }
    fail(batch, Some(error), OperationError::Refused);
}

/// Unlocks the locks that were granted after their callers had given up.
fn release_abandoned(session: &Arc<Session>) {
    let retry_at = session.release_retry_at();
    let abandoned: Vec<_> = {
        let queue = lock(&session.operations.queue);
        let mut acquisitions = lock(&session.acquisitions);
        let mut abandoned = acquisitions.abandoned();
        // An operation that was not sent yet is not sent any more.
        abandoned.retain(|owner| !queue.iter().any(|it| it.owner == Some(*owner)));
        let release = |owner| Some((owner, acquisitions.begin_release(owner, retry_at)?));
        abandoned.into_iter().filter_map(release).collect()
    };
    if !abandoned.is_empty() {
        session.context.maintenance.due_at(retry_at);
    }
    for (owner, acquisition) in abandoned {
        let unlocking = session.clone();
        session.context.spawn(async move {
            // Without a reply the maintenance task sends it again.
            let _ = unlock(&unlocking, owner, acquisition).await;
        });
    }
}
