//! Keeping a lock past the end of its hold (`min_hold`): a statement that sleeps, on the session of the hold.
//!
//! The server runs the statement to its end, whether or not the client is still there, and the locks of the session stay
//! as long. So the reservation is the lock itself, which every other program knows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::store::{Release, Request};
use tenure_core::support::{RetryBudget, closed};

use crate::database::RequestError;

use super::errors;
use super::key::Key;
use super::requests;
use super::server_info::SessionState;
use super::session::Session;
use super::store::Store;

/// Starts to keep the lock that was granted to the request, and waits until the server does so: only then may the caller
/// count on it.
///
/// # Errors
/// The lock is released again, unless the error is `Indeterminate`.
pub(super) async fn start(store: &Arc<Store>, request: &Request) -> Result<(), Error> {
    let server = &store.context.settings.server;
    let Some(session) = store.holds.get(request.owner) else {
        return Err(errors::lost(server));
    };
    let sql = store.context.dialect.keep(request.min_hold);
    session.end.is_kept.store(false, Ordering::SeqCst);
    session.busy.is_keeping.store(true, Ordering::SeqCst);
    let (sender, mut outcome) = oneshot::channel();
    let keeping = session.clone();
    store.context.spawn(async move {
        // An error means that the caller does not wait any more.
        let _ = sender.send(keep(&keeping, sql).await);
    });
    store.context.maintenance.wake();
    let Err(err) = confirm(store, &session, &mut outcome).await else {
        session.end.is_kept.store(true, Ordering::SeqCst);
        return Ok(());
    };
    session.end();
    if !session.confirm_closed().await {
        return Err(errors::unconfirmed_end(server));
    }
    store.remove_acquisition(request.owner);
    Err(err)
}

/// Runs the statement. If the server does not run it to its end, the session ends, and the hold with it. If the
/// connection breaks, the hold is lost and the server goes on with the statement.
async fn keep(session: &Arc<Session>, sql: String) -> Result<(), Error> {
    let context = &session.context;
    let server = &context.settings.server;
    let mut guard = session.operations.lock().await;
    let Some(mut connection) = guard.take() else {
        session.end();
        return Err(errors::lost(server));
    };
    let rows = tokio::select! {
        biased;
        rows = connection.rows(sql) => rows,
        // The connection is closed, and the server goes on.
        () = session.end.ended.raised() => return Err(errors::lost(server)),
        () = context.closing.raised() => return Err(closed()),
    };
    match rows {
        Ok(_) => {
            *guard = Some(connection);
            session.busy.is_keeping.store(false, Ordering::SeqCst);
            context.maintenance.wake();
            Ok(())
        }
        Err(error) => {
            drop(connection);
            let error = RequestError::from(error);
            if let RequestError::Refused(_) = error {
                session.busy.is_keeping.store(false, Ordering::SeqCst);
            }
            session.end();
            Err(errors::not_kept(error, server))
        }
    }
}

/// Waits until the server runs the statement, or has run it.
async fn confirm(
    store: &Store,
    session: &Session,
    outcome: &mut oneshot::Receiver<Result<(), Error>>,
) -> Result<(), Error> {
    let (context, id) = (&store.context, session.server_info.session);
    let server = &context.settings.server;
    let mut pauses = RetryBudget::until(context.request_limit());
    loop {
        let state = tokio::select! {
            biased;
            outcome = &mut *outcome => return outcome.unwrap_or_else(|_| Err(closed())),
            state = requests::session_state(&store.control, id) => state,
        };
        match state {
            Ok(SessionState::Busy) => return Ok(()),
            Ok(SessionState::Gone) => return Err(errors::lost(server)),
            Ok(SessionState::Idle) if !pauses.is_spent(&context.clock) => {}
            Ok(SessionState::Idle) => {
                let error = RequestError::TimedOut(server.timeout);
                return Err(errors::not_kept(error, server));
            }
            Err(err) => return Err(err),
        }
        pauses.pause(&context.clock).await;
    }
}

/// Ends a hold whose lock is kept: the client leaves the session to the server.
pub(super) async fn leave(
    store: &Store,
    session: &Arc<Session>,
    owner: OwnerId,
    key: &Key,
) -> Release {
    store.holder_table.remove(owner);
    store.sessions.remove(session);
    session.leave();
    store.remove_acquisition(owner);
    // The session still has the key, so operators would take the row for that of a holder.
    let id = session.server_info.session;
    store.holder_table.stale_row_deleted(id, key).await;
    Release::Released
}

/// Ends a hold that was never used: nothing is reserved, so the session ends in the server too, and the statement
/// with it.
pub(super) async fn cancel(
    store: &Store,
    session: &Arc<Session>,
    owner: OwnerId,
) -> Result<Release, Error> {
    store.holder_table.remove(owner);
    session.end.is_kept.store(false, Ordering::SeqCst);
    session.end();
    if !session.confirm_closed().await {
        return Err(errors::unconfirmed_end(&store.context.settings.server));
    }
    store.remove_acquisition(owner);
    Ok(Release::Released)
}
