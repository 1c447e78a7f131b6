//! One attempt to get a lock, from the choice of its session to its outcome: common to a try and to a wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::error::Error;
use tenure_core::rt::{Clock, lock};
use tenure_core::store::{Grant, Hold, Request};
use tenure_core::support::{RetryBudget, not_trusted_yet};
use tenure_core::time::Time;

use super::errors;
use super::holder_row::HolderRow;
use super::operations::{LockRequest, OperationError, OperationReply};
use super::release::release;
use super::session::Session;
use super::store::Store;

/// The outcome of one attempt. After anything but `Granted`, nothing of the attempt is left in the server.
pub(super) enum AttemptOutcome {
    Granted(Grant),
    /// Another holder has the lock.
    Busy,
    /// The caller gave up, or the client is being closed.
    Cancelled,
    /// The server is not trusted before that time.
    NotBefore(Time),
    /// The session ended during the attempt.
    SessionEnded(Error),
    /// The server did not answer, and what it may have done is taken back.
    TakenBack(Error),
}

/// How often a request that does not wait is sent, if its session ends meanwhile.
const MAX_ATTEMPTS: u32 = 3;

/// The pauses between the attempts of one acquisition.
pub(super) struct Pacing {
    /// The pauses after failures of the server, and for how long requests are sent again after them.
    pub(super) retries: RetryBudget,
    /// The pauses of an acquisition that has to poll.
    pub(super) polls: RetryBudget,
}

impl Pacing {
    /// Whether the request is not sent again if the attempt that runs now fails.
    pub(super) fn is_last_attempt(&self, waits: bool, clock: &Clock) -> bool {
        match waits {
            true => self.retries.is_spent(clock),
            false => self.retries.failures() + 1 >= MAX_ATTEMPTS,
        }
    }
}

/// Remembers which session carries the acquisition, and waits until the session may be asked for the lock. After anything
/// but [`Trust::Full`] the session is free for others.
pub(super) async fn begin(
    store: &Store,
    request: &Request,
    lock_request: &LockRequest,
    session: &Arc<Session>,
) -> Result<Trust, Error> {
    store.holds.insert(request.owner, session.clone());
    match trust(session, request) {
        Ok(Trust::Full) => {}
        not_trusted => {
            free_session(store, request, session);
            return not_trusted;
        }
    }
    let id = session.server_info.session;
    let stale_row_deleted = store.holder_table.stale_row_deleted(id, &lock_request.key);
    stale_row_deleted.await;
    Ok(Trust::Full)
}

/// The attempt is over without a grant, and others may use its session.
pub(super) fn free_session(store: &Store, request: &Request, session: &Session) {
    store.remove_acquisition(request.owner);
    session.busy.is_waiting.store(false, Ordering::SeqCst);
}

/// Whether the server of a session knows who holds what.
pub(super) enum Trust {
    Full,
    NotBefore(Time),
}

/// Whether a grant to that request counts now: a server forgets all locks of sessions when it starts, so a server that was
/// started lately is not trusted until every lease from before its start is over (`restart_guard`).
///
/// # Errors
/// `Unreachable`: a grant does not count yet, and the request does not wait for long enough.
fn trust(session: &Session, request: &Request) -> Result<Trust, Error> {
    let Some(guard) = session.context.settings.restart_guard else {
        return Ok(Trust::Full);
    };
    let from = session.server_start().trusted_from(guard, request.ttl);
    // Most often the server was started long ago, and the clock need not be read.
    if from <= session.lifetime.sent() || session.context.is_past(from) {
        return Ok(Trust::Full);
    }
    let report = session.restart_guard(guard);
    // A wait that ends before the restart guard ends would gain nothing.
    if !request.wait || request.until < from {
        return Err(not_trusted_yet(report, request.ttl));
    }
    let why = report.describe(request.ttl);
    tracing::warn!(name = %request.name, "waiting: {why}");
    Ok(Trust::NotBefore(from))
}

/// The server has granted the lock, as this reply says. If the session has ended meanwhile, the lock has ended with it.
pub(super) async fn granted(
    store: &Store,
    request: &Request,
    session: &Session,
    token: u64,
    reply: OperationReply,
    published: Option<Result<bool, Error>>,
) -> Result<AttemptOutcome, Error> {
    let ttl = session.lifetime.ttl;
    let expires = reply.sent.after(ttl);
    let due = session.check_due_at().min(expires);
    store.context.maintenance.due_at(due);
    let has_table = store.holder_table.is_usable();
    let found = lock(&session.acquisitions)
        .get(&request.owner)
        .map(|it| has_table.then(|| it.key.clone()));
    match found {
        Some(Some(key)) => {
            let id = session.server_info.session;
            let row = HolderRow::new((id, ttl), key, token, request);
            if row.value_number().is_some() {
                return Box::pin(lead(store, request, session, (row, published), reply)).await;
            }
            store.holder_table.add(request.owner, row);
        }
        // The loss was reported before the driver knew of the hold.
        None if session.is_ended() => {
            let error = OperationError::SessionEnded(None);
            return Box::pin(after_session_end(store, request, session, error)).await;
        }
        // The server has refused the table since the request began.
        Some(None) if request.holder.value.is_some() => {
            give_back(store, request, token).await?;
            return Err(errors::no_room_for_values(&store.context.settings.server));
        }
        Some(None) => store.holder_table.warn_of_hidden_label(request),
        None => {}
    }
    let grant = Grant::new(token, reply.sent, reply.round_trip, Some(ttl));
    Ok(AttemptOutcome::Granted(grant))
}

/// Writes the row of a candidate whose session is about to be confirmed. `None`: the request is not one of a candidate, or
/// there is no table.
pub(super) async fn publish_early(
    store: &Store,
    request: &Request,
    session: &Session,
    token: u64,
) -> Option<Result<bool, Error>> {
    if request.holder.value.is_none() || !store.holder_table.is_usable() {
        return None;
    }
    let key = {
        let acquisitions = lock(&session.acquisitions);
        acquisitions.get(&request.owner)?.key.clone()
    };
    let of = (session.server_info.session, session.lifetime.ttl);
    let row = HolderRow::new(of, key, token, request);
    note_leader(store, request, session, &row);
    Some(store.holder_table.publish_grant(&row).await)
}

/// The row is about to be written, and will be deleted with the others.
fn note_leader(store: &Store, request: &Request, session: &Session, row: &HolderRow) {
    session.finds_requests.store(true, Ordering::SeqCst);
    store.holder_table.note_leader(request.owner, row.clone());
}

/// Writes the row of a leader, unless it was written early: no observer sees the leader without its value. If that fails, the
/// lock is released.
async fn lead(
    store: &Store,
    request: &Request,
    session: &Session,
    (row, early): (HolderRow, Option<Result<bool, Error>>),
    reply: OperationReply,
) -> Result<AttemptOutcome, Error> {
    let is_early = early.is_some();
    let published = match early {
        Some(published) => published,
        None => {
            note_leader(store, request, session, &row);
            store.holder_table.publish(&row).await
        }
    };
    // A session that has ended has reported the loss already.
    if matches!(published, Ok(true)) && !session.is_ended() {
        let ttl = Some(session.lifetime.ttl);
        let grant = Grant::new(row.token, reply.sent, reply.round_trip, ttl);
        if is_early {
            store.holder_table.tell_observers(row.key);
        }
        return Ok(AttemptOutcome::Granted(grant));
    }
    give_back(store, request, row.token).await?;
    match published {
        // Without the lock the session has ended in the server.
        Ok(_) => Ok(AttemptOutcome::SessionEnded(errors::lost(
            &store.context.settings.server,
        ))),
        Err(err) if err.is_retryable() => Ok(AttemptOutcome::TakenBack(err)),
        Err(err) => Err(err),
    }
}

/// Releases a lock that was granted and does not count.
async fn give_back(store: &Store, request: &Request, token: u64) -> Result<(), Error> {
    let hold = Hold::new(request, token).unused();
    let released = release(store, &hold).await;
    store.holder_table.remove(request.owner);
    // The driver releases the lock again until the outcome is known.
    let unknown = |_| errors::unconfirmed_end(&store.context.settings.server);
    released.map(drop).map_err(unknown)
}

/// The server did not do what was asked of the session, or did not say so.
pub(super) async fn failed(
    store: &Store,
    request: &Request,
    session: &Session,
    error: OperationError,
) -> Result<AttemptOutcome, Error> {
    match error {
        OperationError::Refused(_) => {
            store.remove_acquisition(request.owner);
            Err(errors::of_operation(error, &store.context.settings.server))
        }
        OperationError::TimedOut => {
            let err = errors::of_operation(error, &store.context.settings.server);
            after_timeout(store, request, err).await
        }
        OperationError::SessionEnded(_) => after_session_end(store, request, session, error).await,
    }
}

/// The session ended during the attempt. As soon as the server confirms the end, a lock that the attempt may have taken
/// is free.
pub(super) async fn after_session_end(
    store: &Store,
    request: &Request,
    session: &Session,
    error: OperationError,
) -> Result<AttemptOutcome, Error> {
    let err = errors::of_operation(error, &store.context.settings.server);
    // A server that starts confirms the end later than a request may take, and one that waits has the time.
    let is_confirmed = match request.wait {
        true => {
            let confirmed = store.until_cancelled(request, session.end.closed.raised());
            confirmed.await.is_some() || session.confirm_closed().await
        }
        false => session.confirm_closed().await,
    };
    if !is_confirmed {
        return Err(err);
    }
    store.remove_acquisition(request.owner);
    Ok(AttemptOutcome::SessionEnded(err))
}

/// The server did not answer an attempt in time. A request that waits takes back what the attempt may have done, and can ask
/// again then.
async fn after_timeout(
    store: &Store,
    request: &Request,
    err: Error,
) -> Result<AttemptOutcome, Error> {
    let clock = &store.context.clock;
    let mut retries = RetryBudget::until(clock.now().after(request.ttl));
    while request.wait && !store.is_cancelled(request) && !retries.is_spent(clock) {
        if give_back(store, request, 0).await.is_ok() {
            return Ok(AttemptOutcome::TakenBack(err));
        }
        store.until_cancelled(request, retries.pause(clock)).await;
    }
    Err(err)
}
