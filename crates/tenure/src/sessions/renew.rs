//! Renewal of holds, and the maintenance task: it checks sessions, releases holds that are not renewed, and closes idle
//! sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::store::{Hold, Renewal};
use tenure_core::time::Time;

use super::acquisitions::{Acquisition, AcquisitionState};
use super::batch;
use super::errors;
use super::keep;
use super::operations::{OperationError, SessionOperation};
use super::release::unlock;
use super::requests::{self, HolderRequests};
use super::server_info::SessionState;
use super::session::Session;
use super::statements;
use super::store::Store;

/// Renews holds: one request for each session that carries any of them.
pub(super) async fn renew(store: &Store, holds: &[Hold]) -> Vec<Renewal> {
    let mut sessions: Vec<Arc<Session>> = Vec::new();
    for session in holds.iter().filter_map(|hold| store.holds.get(hold.owner)) {
        if !sessions.iter().any(|it| Arc::ptr_eq(it, &session)) {
            sessions.push(session);
        }
    }
    let checks = sessions.iter().map(|session| async move {
        if session.is_ended() || was_renewed_lately(session) {
            return Ok(());
        }
        if session.is_busy() {
            return check_statement(store, session).await;
        }
        let server = &store.context.settings.server;
        let answered = ping(session).await;
        answered.map_err(|error| errors::of_check(&error, server))
    });
    let checks = join_all(checks).await;
    holds
        .iter()
        .map(|hold| renewed(store, hold, &sessions, &checks))
        .collect()
}

/// Asks the session whether it is there. The session may begin a statement of any length just before this request,
/// and the task that runs such a statement watches no limits of others: so this request has a limit of its own.
pub(super) async fn ping(session: &Arc<Session>) -> Result<(), OperationError> {
    let limit = session.context.request_limit();
    tokio::select! {
        biased;
        reply = batch::request(session, SessionOperation::Ping, None) => reply.map(drop),
        () = session.context.clock.sleep_until(limit) => Err(OperationError::TimedOut),
    }
}

/// Checks a session that waits for an upgrade or keeps its lock, on the control connection. The server does not count the time of a
/// statement as silence, so a session that runs its statement now lasts for a ttl from now on.
async fn check_statement(store: &Store, session: &Arc<Session>) -> Result<(), Error> {
    let sent = store.context.clock.now();
    let id = session.server_info.session;
    match requests::session_state(&store.control, id).await? {
        SessionState::Busy => session.lifetime.renew(sent),
        // The answer to its statement is on the way.
        SessionState::Idle => {}
        SessionState::Gone => session.end(),
    }
    Ok(())
}

/// Whether a request of a moment ago was answered, so that another request is not needed. The moment is short, because
/// the next renewal comes a third of the ttl after this one, however old the answer is.
fn was_renewed_lately(session: &Session) -> bool {
    let lifetime = &session.lifetime;
    lifetime.sent().after(lifetime.ttl / 32) > session.context.clock.now()
}

fn renewed(
    store: &Store,
    hold: &Hold,
    sessions: &[Arc<Session>],
    checks: &[Result<(), Error>],
) -> Renewal {
    let Some(session) = store.holds.get(hold.owner) else {
        return Renewal::Lost(LostReason::StoreSaysNo);
    };
    if session.is_ended() {
        return Renewal::Lost(LostReason::SessionGone);
    }
    let at = sessions.iter().position(|it| Arc::ptr_eq(it, &session));
    if let Some(Err(error)) = at.and_then(|at| checks.get(at)) {
        return Renewal::Unknown(error.clone());
    }
    let (sent, ttl) = (session.lifetime.sent(), session.lifetime.ttl);
    let mut acquisitions = lock(&session.acquisitions);
    match acquisitions.get(&hold.owner).map(|it| it.state) {
        Some(AcquisitionState::Held { token, until }) => {
            let until = sent.after(ttl).max(until);
            acquisitions.set(&hold.owner, AcquisitionState::Held { token, until });
            let ttl = Some(ttl);
            Renewal::Renewed { sent, ttl }
        }
        _ => Renewal::Lost(LostReason::StoreSaysNo),
    }
}

/// Starts the maintenance task, unless it runs.
pub(super) fn start_maintenance(store: &Arc<Store>) {
    let context = &store.context;
    let work = |store: Arc<Store>| async move { maintain(&store) };
    context
        .maintenance
        .start(&context.spawner, &context.clock, store, work);
}

/// Does what is due, and returns when the next work will be.
fn maintain(store: &Arc<Store>) -> Time {
    let now = store.context.clock.now();
    let sessions = store.sessions.all();
    let next = sessions
        .iter()
        .map(|session| maintain_one(store, session, now));
    next.fold(Time::MAX, Time::min)
}

fn maintain_one(store: &Arc<Store>, session: &Arc<Session>, now: Time) -> Time {
    let scan = scan(session, now);
    if session.is_busy() && !scan.has_holds {
        return Time::MAX;
    }
    for (owner, acquisition) in scan.expired {
        let (store, session) = (store.clone(), session.clone());
        store.clone().context.spawn(async move {
            // Without a reply it is sent again at the next expiry.
            let _ = unlock(&store, &session, owner, acquisition).await;
        });
    }
    if scan.is_empty {
        // Closed before the server ends it: else the next request would find the session gone.
        let lifetime = &session.lifetime;
        let closes_at = lifetime.used().max(lifetime.sent()).after(lifetime.ttl / 2);
        if closes_at > now {
            return closes_at;
        }
        store.sessions.close_unused(session);
        return Time::MAX;
    }
    if !scan.has_holds {
        return scan.next_expiry;
    }
    let check_due_at = session.check_due_at();
    if check_due_at > now {
        return check_due_at.min(scan.next_expiry);
    }
    if !session.busy.is_being_checked.swap(true, Ordering::SeqCst) {
        session.lifetime.check_at(now);
        let (store, session) = (store.clone(), session.clone());
        store.clone().context.spawn(async move {
            check(&store, &session).await;
            session.busy.is_being_checked.store(false, Ordering::SeqCst);
            store.context.maintenance.wake();
        });
    }
    scan.next_expiry
}

/// What the maintenance found in the acquisitions of a session.
struct Scan {
    /// Holds that were not renewed in time, and releases that had no reply in time.
    expired: Vec<(OwnerId, Acquisition)>,
    is_empty: bool,
    has_holds: bool,
    next_expiry: Time,
}

/// Looks at all acquisitions, and marks the expired ones as being released.
fn scan(session: &Session, now: Time) -> Scan {
    let retry_at = now.after(session.lifetime.ttl / 3);
    let mut acquisitions = lock(&session.acquisitions);
    let mut expired = Vec::new();
    let mut has_holds = false;
    let mut next_expiry = Time::MAX;
    for (owner, acquisition) in acquisitions.iter() {
        let (is_hold, expiry) = match acquisition.state {
            AcquisitionState::Held { until, .. } => (true, until),
            AcquisitionState::Releasing { retry_at } => (false, retry_at),
            AcquisitionState::Requested | AcquisitionState::Abandoned => continue,
        };
        if expiry <= now {
            expired.push(*owner);
            next_expiry = next_expiry.min(retry_at);
        } else {
            has_holds |= is_hold;
            next_expiry = next_expiry.min(expiry);
        }
    }
    let release = |owner| Some((owner, acquisitions.begin_release(owner, retry_at)?));
    let expired = expired.into_iter().filter_map(release).collect();
    Scan {
        expired,
        is_empty: acquisitions.is_empty(),
        has_holds,
        next_expiry,
    }
}

/// Checks whether the session is there, and whether an operator has asked to end a hold of it (`break_lock`).
async fn check(store: &Store, session: &Arc<Session>) {
    if session.is_busy() {
        return check_busy(store, session).await;
    }
    if !store.holder_table.is_usable() {
        // The end of a session is reported when it is noticed.
        let _ = ping(session).await;
        return;
    }
    let wanted = requests_to_holders(store, session).await;
    report_asked(store, session, &wanted.asked);
    for (owner, acquisition) in begin_breaks(session, &wanted.breaks) {
        // The holder learns it before the lock is free: it must not believe to hold a lock that another holder has.
        store.losses.report(owner, LostReason::TakenOver);
        // Without a reply the maintenance task sends it again.
        let _ = unlock(store, session, owner, acquisition).await;
    }
}

/// The same for a session that waits for an upgrade, or keeps its lock.
async fn check_busy(store: &Store, session: &Arc<Session>) {
    // The lease says until when the hold counts without an answer.
    let _ = check_statement(store, session).await;
    let context = &store.context;
    if context.is_past(session.check_due_at()) {
        let pause = context.settings.validate.min(session.lifetime.ttl / 3);
        let next = context.clock.now().after(pause);
        tokio::select! {
            () = context.closing.raised() => {}
            () = session.end.ended.raised() => {}
            () = context.clock.sleep_until(next) => {}
        }
    }
    if session.is_ended() || !store.holder_table.is_usable() {
        return;
    }
    let Ok(wanted) = requests::requests_to_holders(&store.control, session).await else {
        return;
    };
    report_asked(store, session, &wanted.asked);
    for (owner, acquisition) in begin_breaks(session, &wanted.breaks) {
        store.losses.report(owner, LostReason::TakenOver);
        // The session has no other hold, and cannot be asked to unlock now.
        match session.busy.is_keeping.load(Ordering::SeqCst) {
            true => drop(keep::leave(store, session, owner, &acquisition.key).await),
            false => session.end(),
        }
    }
}

/// What others want of the holders of the session. This request also checks whether the session is there.
async fn requests_to_holders(store: &Store, session: &Arc<Session>) -> HolderRequests {
    let context = &store.context;
    // As long as any lease depends on the session.
    let limit = context.request_limit().max(session.lifetime.ends());
    match statements::query(session, session.ask_for_requests(), limit).await {
        Ok(rows) => HolderRequests::read(&rows),
        Err(error) => {
            // Any other refusal is that of a statement that an operator cancelled, or of a table that another session
            // has locked. The session is there all the same, and is asked again at its next check.
            if !error.is_fatal()
                && errors::explain(error, &context.settings.server).kind() == ErrorKind::Denied
            {
                store.holder_table.disable();
            }
            HolderRequests::default()
        }
    }
}

/// Tells the holders with these tokens that they are asked to let go.
fn report_asked(store: &Store, session: &Session, tokens: &[u64]) {
    if tokens.is_empty() {
        return;
    }
    let asked: Vec<_> = {
        let acquisitions = lock(&session.acquisitions);
        let is_asked = |state| matches!(state, AcquisitionState::Held { token, .. } if tokens.contains(&token));
        let asked = acquisitions.iter().filter(|(_, it)| is_asked(it.state));
        asked.map(|(owner, _)| *owner).collect()
    };
    for owner in asked {
        store.losses.asked_to_release(owner);
    }
}

/// Marks the holds with these tokens as being released.
fn begin_breaks(session: &Session, tokens: &[u64]) -> Vec<(OwnerId, Acquisition)> {
    if tokens.is_empty() {
        return Vec::new();
    }
    let retry_at = session.release_retry_at();
    let mut acquisitions = lock(&session.acquisitions);
    let shall_end = |acquisition: &Acquisition| matches!(acquisition.state, AcquisitionState::Held { token, .. } if tokens.contains(&token));
    let broken = acquisitions.iter().filter(|(_, it)| shall_end(it));
    let broken: Vec<_> = broken.map(|(owner, _)| *owner).collect();
    let release = |owner| Some((owner, acquisitions.begin_release(owner, retry_at)?));
    broken.into_iter().filter_map(release).collect()
}
