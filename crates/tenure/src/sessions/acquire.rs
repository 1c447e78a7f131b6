//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::lock;
use tenure_core::store::{Answer, Request};
use tenure_core::support::RetryBudget;

use super::attempt::{self, AttemptOutcome, Pacing, Trust};
use super::batch;
use super::errors;
use super::inspect;
use super::keep;
use super::mode::KeyMode;
use super::names::KeySource;
use super::operations::{LockRequest, OperationReply, OperationResult};
use super::pool::SessionChoice;
use super::renew;
use super::session::Session;
use super::store::Store;
use super::wait;

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    renew::start_maintenance(store);
    if request.holder.value.is_some() {
        // In a box, as everything that most requests do not need.
        let find = Box::pin(inspect::require_room_for_values(store));
        match store.until_cancelled(request, find).await {
            Some(found) => found?,
            None => return Ok(Answer::Busy),
        }
    }
    let clock = &store.context.clock;
    let Some(lock_request) = lock_request(store, request).await? else {
        return Ok(Answer::Busy);
    };
    let mut pacing = Pacing {
        // Until then a request to a server that cannot be reached is sent again.
        retries: RetryBudget::until(clock.now().after(request.ttl)),
        polls: RetryBudget::without_limit(),
    };
    let mut may_skip_try = true;
    while !store.is_cancelled(request) {
        let skip_try = std::mem::take(&mut may_skip_try);
        let err = match attempt(store, request, &lock_request, skip_try, &mut pacing).await {
            Ok(AttemptOutcome::Granted(grant)) => {
                if lock_request.is_kept {
                    Box::pin(keep::start(store, request)).await?;
                }
                return Ok(Answer::Granted(grant));
            }
            Ok(AttemptOutcome::Cancelled) => break,
            Ok(AttemptOutcome::Busy) if !request.wait => break,
            Ok(AttemptOutcome::Busy) => {
                pacing.retries.restart(clock.now().after(request.ttl));
                continue;
            }
            Ok(AttemptOutcome::NotBefore(from)) => {
                let sleep = clock.sleep_until(from);
                store.until_cancelled(request, sleep).await;
                pacing.retries.extend(clock.now().after(request.ttl));
                continue;
            }
            Ok(AttemptOutcome::SessionEnded(err) | AttemptOutcome::TakenBack(err)) => err,
            // The wait is too short for a server that was started lately.
            Err(err) if err.restart_guard().is_some() => return Err(err),
            // The server was not reached, so nothing was done.
            Err(err) if err.kind() == ErrorKind::Unreachable && request.wait => err,
            Err(err) => return Err(err),
        };
        if pacing.is_last_attempt(request.wait, clock) {
            return Err(errors::unreachable(err));
        }
        tracing::debug!(name = %request.name, store = store.guarantees.scheme, err = format_args!("{err:#}"), "asking again");
        store
            .until_cancelled(request, pacing.retries.pause(clock))
            .await;
    }
    Ok(Answer::Busy)
}

/// One try, and then one wait if the request waits.
async fn attempt(
    store: &Arc<Store>,
    request: &Request,
    lock_request: &LockRequest,
    may_skip_try: bool,
    pacing: &mut Pacing,
) -> Result<AttemptOutcome, Error> {
    let tried = match may_skip_try && is_contended(store, request, lock_request) {
        true => AttemptOutcome::Busy,
        false => try_once(store, request, lock_request).await?,
    };
    if !matches!(tried, AttemptOutcome::Busy) || !request.wait {
        return Ok(tried);
    }
    let clock = &store.context.clock;
    pacing.retries.extend(clock.now().after(request.ttl));
    // In a box: waiting is rare, and every request would have to have room for it.
    Box::pin(wait::wait(store, request, lock_request, pacing)).await
}

/// The lock that the request asks for. `None`: the request was cancelled.
async fn lock_request(store: &Store, request: &Request) -> Result<Option<LockRequest>, Error> {
    let key = match store.keys.find(&request.name)? {
        KeySource::Computed(key) => key,
        KeySource::AskServer(bytes) => {
            let ask = Box::pin(store.keys.ask(&request.name, &bytes));
            match store.until_cancelled(request, ask).await {
                Some(key) => key?,
                None => return Ok(None),
            }
        }
    };
    let (mode, is_kept) = (request.mode.into(), !request.min_hold.is_zero());
    if is_kept && mode == KeyMode::Upgradable {
        return Err(errors::kept_and_changing());
    }
    Ok(Some(LockRequest {
        key,
        mode,
        is_kept,
        ttl: store.context.dialect.idle_limit(request.ttl),
    }))
}

/// Whether to wait at once, because a try would most likely fail.
fn is_contended(store: &Store, request: &Request, lock_request: &LockRequest) -> bool {
    let now = || store.context.clock.now();
    request.wait && store.keys.contended.contains(&lock_request.key, now)
}

/// Takes the lock if it is free.
async fn try_once(
    store: &Arc<Store>,
    request: &Request,
    lock_request: &LockRequest,
) -> Result<AttemptOutcome, Error> {
    let session = loop {
        match store.sessions.choose(request.owner, lock_request) {
            SessionChoice::Busy => match store.sessions.releasing(&lock_request.key) {
                // The server may have received the release already, so that only its reply is missing.
                Some(session) if has_changed(&session).await => continue,
                _ => {
                    request.report_taken();
                    return Ok(AttemptOutcome::Busy);
                }
            },
            SessionChoice::Full if request.wait => return Ok(AttemptOutcome::Busy),
            SessionChoice::Full => return Err(errors::no_connection_left(&store.context.settings)),
            SessionChoice::Use(session) => break session,
            // Nothing was asked of a session that is not open yet.
            SessionChoice::Open => {
                let opening = Box::pin(store.sessions.open_another(lock_request));
                match store.until_cancelled(request, opening).await {
                    Some(opened) => opened?,
                    None => return Ok(AttemptOutcome::Cancelled),
                }
            }
        };
    };
    if let Trust::NotBefore(from) = attempt::begin(store, request, lock_request, &session).await? {
        request.report_taken();
        return Ok(AttemptOutcome::NotBefore(from));
    }
    match batch::request(&session, lock_request.try_lock(), Some(request.owner)).await {
        Ok(
            reply @ OperationReply {
                result: OperationResult::Granted(token),
                ..
            },
        ) => attempt::granted(store, request, &session, token, reply, None).await,
        Ok(_) => {
            request.report_taken();
            store.remove_acquisition(request.owner);
            // Readers need not wait for an upgradable hold, which may be what this request has found.
            if lock_request.mode != KeyMode::Upgradable {
                let now = store.context.clock.now();
                store.keys.contended.add(&lock_request.key, now);
            }
            Ok(AttemptOutcome::Busy)
        }
        Err(error) => Box::pin(attempt::failed(store, request, &session, error)).await,
    }
}

/// Waits until an acquisition of the session has changed, for as long as a request may take.
async fn has_changed(session: &Session) -> bool {
    let limit = session.context.request_limit();
    let changed = session.changed.notified();
    if session.is_ended() || !lock(&session.acquisitions).is_any_ending() {
        return true;
    }
    tokio::select! {
        biased;
        () = changed => true,
        () = session.context.clock.sleep_until(limit) => false,
    }
}
