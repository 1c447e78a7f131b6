//! The waiter's side: a statement that ends when it is our turn, on a session that does nothing else meanwhile.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::logic::pace;
use tenure_core::store::Request;
use tenure_core::support::RetryBudget;

use super::attempt::{self, AttemptOutcome, Pacing, Trust};
use super::batch;
use super::dialect::waiter_text;
use super::errors;
use super::operations::{LockRequest, OperationError, SessionOperation};
use super::requests;
use super::session::Session;
use super::statements::{self, WaitOutcome};
use super::store::Store;

/// How often the server is asked whether a waiting session is there: the end of a session may send no message.
const SAFETY_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The first pause between two commands to cancel a wait is as long as the pause after this many failures: the server
/// needs some time.
const SKIPPED_PAUSES: u32 = 4;

/// The statement of a waiter.
pub(super) type WaitFuture = Pin<Box<dyn Future<Output = WaitOutcome> + Send>>;

/// Waits in the server's queue. [`AttemptOutcome::Busy`]: try again.
///
/// Each time the server confirms that the session is there, the time limit of retries is extended.
pub(super) async fn wait(
    store: &Arc<Store>,
    request: &Request,
    lock_request: &LockRequest,
    pacing: &mut Pacing,
) -> Result<AttemptOutcome, Error> {
    let context = &store.context;
    let is_cancelled = || store.is_cancelled(request);
    let found = store
        .sessions
        .for_waiting(request.owner, lock_request, is_cancelled);
    let session = match store.until_cancelled(request, found).await {
        None => return Ok(AttemptOutcome::Cancelled),
        Some(Err(err)) => return Err(err),
        Some(Ok(Some(session))) => session,
        // There are as many sessions as there may be, so this waiter polls.
        Some(Ok(None)) => return Ok(poll_later(store, request, pacing).await),
    };
    if let Trust::NotBefore(from) = attempt::begin(store, request, lock_request, &session).await? {
        return Ok(AttemptOutcome::NotBefore(from));
    }
    let (key, mode) = (&lock_request.key, lock_request.mode);
    let waiter = waiter_text(&request.holder);
    let sql = context.dialect.wait(key, mode, &waiter);
    let waiting = statements::wait_for_lock(session.clone(), request.owner, sql);
    let mut waiting: WaitFuture = Box::pin(waiting);
    let retries = &mut pacing.retries;
    match until_answered(store, request, &session, &mut waiting, retries).await? {
        None => cancel(store, request, lock_request, &session, waiting).await,
        Some(WaitOutcome::Granted(token)) => confirm(store, request, &session, token).await,
        Some(WaitOutcome::Cancelled) => {
            // An administrator or a limit of the server cancelled the wait, so the place in the queue is lost.
            unlock_and_free_session(store, request, lock_request, &session).await;
            tracing::debug!(name = %request.name, store = store.guarantees.scheme, "the server cancelled the wait; queueing again at the end");
            Ok(poll_later(store, request, pacing).await)
        }
        Some(WaitOutcome::Refused(error)) => {
            // The server may have granted the lock, or a part of it, before another part of the statement failed.
            unlock_and_free_session(store, request, lock_request, &session).await;
            Err(errors::explain(error, &context.settings.server))
        }
        Some(WaitOutcome::SessionEnded(error)) => {
            let error = OperationError::SessionEnded(Some(error));
            attempt::after_session_end(store, request, &session, error).await
        }
    }
}

/// Sleeps until the next poll.
pub(super) async fn poll_later(
    store: &Store,
    request: &Request,
    pacing: &mut Pacing,
) -> AttemptOutcome {
    let pause = pacing.polls.pause(&store.context.clock);
    store.until_cancelled(request, pause).await;
    AttemptOutcome::Busy
}

/// Waits for the server's answer to the wait, and checks every [`SAFETY_POLL_INTERVAL`] whether the session is there.
/// `None`: the request was cancelled.
async fn until_answered(
    store: &Store,
    request: &Request,
    session: &Arc<Session>,
    waiting: &mut WaitFuture,
    retries: &mut RetryBudget,
) -> Result<Option<WaitOutcome>, Error> {
    let clock = &store.context.clock;
    loop {
        tokio::select! {
            biased;
            outcome = &mut *waiting => return Ok(Some(outcome)),
            () = request.stop.raised() => return Ok(None),
            () = store.context.closing.raised() => return Ok(None),
            exists = exists_later(store, session) => match exists {
                Ok(true) => retries.extend(clock.now().after(request.ttl)),
                Ok(false) => session.end(),
                Err(err) if !retries.is_spent(clock) => {
                    tracing::debug!(name = %request.name, err = format_args!("{err:#}"), "while waiting");
                }
                Err(err) => {
                    session.end();
                    return Err(errors::silence(err));
                }
            },
        }
    }
}

/// Whether the server has that session, after a while.
async fn exists_later(store: &Store, session: &Session) -> Result<bool, Error> {
    let interval = SAFETY_POLL_INTERVAL.min(session.lifetime.ttl / 3);
    let interval = interval.max(Duration::from_millis(100));
    let pause = interval * 3 / 4 + pace::fraction(interval / 4, rand::random());
    let clock = &store.context.clock;
    clock.sleep_until(clock.now().after(pause)).await;
    requests::session_exists(&store.control, session.server_info.session).await
}

/// The server has granted the lock. Its message may be old, if this process was stopped or cut off, and the session may
/// have ended meanwhile: so the server is asked once more.
pub(super) async fn confirm(
    store: &Store,
    request: &Request,
    session: &Arc<Session>,
    token: u64,
) -> Result<AttemptOutcome, Error> {
    // The row of a leader is written meanwhile: by another connection, and only if the session has the lock.
    let publishing = attempt::publish_early(store, request, session, token);
    let asking = batch::request(session, SessionOperation::Ping, None);
    let (confirmed, published) = tokio::join!(asking, publishing);
    let error = match confirmed {
        Ok(reply) => {
            session.busy.is_waiting.store(false, Ordering::SeqCst);
            session.set_held(request.owner, token, reply.sent.after(session.lifetime.ttl));
            return attempt::granted(store, request, session, token, reply, published).await;
        }
        Err(error @ OperationError::SessionEnded(_)) => error,
        Err(OperationError::TimedOut | OperationError::Refused(_)) => {
            session.end();
            OperationError::TimedOut
        }
    };
    store.holder_table.remove(request.owner);
    attempt::after_session_end(store, request, session, error).await
}

/// The caller gave up, or the client is being closed: a command on the control connection cancels the wait. The server's
/// answer to the wait then decides whether the lock was granted.
async fn cancel(
    store: &Arc<Store>,
    request: &Request,
    lock_request: &LockRequest,
    session: &Arc<Session>,
    mut waiting: WaitFuture,
) -> Result<AttemptOutcome, Error> {
    let context = &store.context;
    match cancel_statement(store, request, session, &mut waiting).await {
        Some(WaitOutcome::Cancelled) if !session.is_ended() && !context.closing.is_raised() => {
            unlock_and_free_session(store, request, lock_request, session).await;
            return Ok(AttemptOutcome::Cancelled);
        }
        // The lock, if it is ours, is released with its session.
        Some(WaitOutcome::Granted(_) | WaitOutcome::Cancelled | WaitOutcome::Refused(_)) => {
            end_session(store, request, session).await;
            return Ok(AttemptOutcome::Cancelled);
        }
        Some(WaitOutcome::SessionEnded(_)) => {}
        None => {
            session.end();
            context.spawn(async move {
                waiting.await;
            });
        }
    }
    if !session.confirm_closed().await {
        return Err(errors::unconfirmed_end(&context.settings.server));
    }
    store.remove_acquisition(request.owner);
    Ok(AttemptOutcome::Cancelled)
}

/// Cancels the wait on the control connection. `None`: the server did not end the wait in time.
///
/// A command that comes before the statement has no effect, so it is sent again. A command without an answer may come
/// later and cancel the next statement of the session; so the session ends then.
pub(super) async fn cancel_statement(
    store: &Store,
    request: &Request,
    session: &Arc<Session>,
    waiting: &mut WaitFuture,
) -> Option<WaitOutcome> {
    let clock = &store.context.clock;
    let limit = store.context.request_limit();
    let mut pauses = RetryBudget::without_limit().after_failures(SKIPPED_PAUSES);
    let mut outcome = None;
    let mut are_answered = true;
    while outcome.is_none() && !store.context.is_past(limit) {
        let id = session.server_info.session;
        let mut command = pin!(requests::cancel_statement(&store.control, id));
        let answer = loop {
            tokio::select! {
                biased;
                ended = &mut *waiting, if outcome.is_none() => outcome = Some(ended),
                answer = &mut command => break Some(answer),
                () = clock.sleep_until(limit) => break None,
            }
        };
        are_answered &= matches!(answer, Some(Ok(())));
        if let Some(Err(err)) = answer {
            tracing::debug!(name = %request.name, err = format_args!("{err:#}"), "the wait cannot be cancelled");
        }
        tokio::select! {
            biased;
            ended = &mut *waiting, if outcome.is_none() => outcome = Some(ended),
            () = pauses.pause(clock), if outcome.is_none() => {}
            else => {}
        }
    }
    if !are_answered {
        session.end();
    }
    outcome
}

/// The server cancelled or refused the wait, and others may use its session. The server may have granted the lock just
/// before, without telling us, and the session would keep the lock: so the lock is released first.
async fn unlock_and_free_session(
    store: &Store,
    request: &Request,
    lock_request: &LockRequest,
    session: &Arc<Session>,
) {
    let unlocked = batch::request(session, lock_request.unlock(), Some(request.owner)).await;
    // `close` waits for the end of each session that waits, so the session ends when the client closes.
    match unlocked {
        Ok(_) if !store.context.closing.is_raised() => {
            attempt::free_session(store, request, session)
        }
        _ => end_session(store, request, session).await,
    }
}

/// Ends a session that no other acquisition needs, and waits until the server confirms that.
async fn end_session(store: &Store, request: &Request, session: &Arc<Session>) {
    store.remove_acquisition(request.owner);
    session.end();
    session.confirm_closed().await;
}
