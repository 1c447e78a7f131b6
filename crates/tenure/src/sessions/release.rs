//! Releasing a hold, ending an acquisition of unknown outcome, ending a session in the server, and closing the client.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::store::{Hold, Release};
use tenure_core::support::RetryBudget;

use super::acquisitions::{Acquisition, AcquisitionState};
use super::batch;
use super::errors;
use super::keep;
use super::operations::OperationResult;
use super::requests;
use super::session::Session;
use super::store::Store;

/// What the release of one acquisition has to do next.
enum ReleaseStep {
    /// The acquisition is gone.
    NotHeld,
    /// The session is over for this client, and perhaps not for the server.
    ConfirmSessionClosed,
    /// A request of unknown outcome is the only acquisition: nothing else is lost with the session.
    EndSession,
    /// A request of unknown outcome: its reply decides.
    AwaitChange,
    Unlock(Acquisition),
}

/// Releases the lock that the owner has or may have.
pub(super) async fn release(store: &Store, hold: &Hold) -> Result<Release, Error> {
    let owner = hold.owner;
    let Some(session) = store.holds.get(owner) else {
        return Ok(Release::NotHeld);
    };
    let (context, server) = (&store.context, &store.context.settings.server);
    let limit = context.request_limit();
    loop {
        let changed = session.changed.notified();
        match next_step(&session, owner) {
            ReleaseStep::NotHeld => {
                store.remove_acquisition(owner);
                return Ok(Release::NotHeld);
            }
            ReleaseStep::ConfirmSessionClosed => {
                if !session.confirm_closed().await {
                    return Err(errors::unconfirmed_end(server));
                }
                store.remove_acquisition(owner);
                return Ok(Release::NotHeld);
            }
            ReleaseStep::EndSession => session.end(),
            ReleaseStep::AwaitChange => tokio::select! {
                biased;
                () = changed => {}
                () = context.clock.sleep_until(limit) => {
                    return Err(errors::unconfirmed_end(server));
                }
            },
            ReleaseStep::Unlock(_)
                if hold.unused && session.busy.is_keeping.load(Ordering::SeqCst) =>
            {
                return keep::cancel(store, &session, owner).await;
            }
            ReleaseStep::Unlock(acquisition) => {
                return unlock(store, &session, owner, acquisition).await;
            }
        }
    }
}

/// Decides what to do next, and marks the acquisition accordingly.
fn next_step(session: &Session, owner: OwnerId) -> ReleaseStep {
    let mut acquisitions = lock(&session.acquisitions);
    let is_alone = acquisitions.len() == 1;
    let state = acquisitions.get(&owner).map(|it| it.state);
    match state {
        _ if session.is_ended() => ReleaseStep::ConfirmSessionClosed,
        None => ReleaseStep::NotHeld,
        Some(AcquisitionState::Requested | AcquisitionState::Abandoned) => {
            acquisitions.set(&owner, AcquisitionState::Abandoned);
            match is_alone {
                true => ReleaseStep::EndSession,
                false => ReleaseStep::AwaitChange,
            }
        }
        Some(AcquisitionState::Held { .. } | AcquisitionState::Releasing { .. }) => {
            let retry_at = session.release_retry_at();
            session.context.maintenance.due_at(retry_at);
            let acquisition = acquisitions.begin_release(owner, retry_at);
            acquisition.map_or(ReleaseStep::NotHeld, ReleaseStep::Unlock)
        }
    }
}

/// Unlocks a lock that is ours as far as we know.
pub(super) async fn unlock(
    store: &Store,
    session: &Arc<Session>,
    owner: OwnerId,
    acquisition: Acquisition,
) -> Result<Release, Error> {
    if session.busy.is_keeping.load(Ordering::SeqCst) {
        return Ok(keep::leave(store, session, owner, &acquisition.key).await);
    }
    let was_leader = store.holder_table.is_leader(owner);
    match was_leader {
        // Observers read the name when the row is deleted, and then the lock has to be free.
        true => store.holder_table.begin_removal(owner),
        false => store.holder_table.remove(owner),
    }
    match batch::unlock(session, owner, acquisition).await {
        Ok(reply) => {
            store.holder_table.remove(owner);
            store.remove_acquisition(owner);
            let was_held = matches!(reply.result, OperationResult::Unlocked(true));
            Ok(Release::of(was_held))
        }
        Err(error) => Err(errors::of_operation(error, &store.context.settings.server)),
    }
}

/// Reports the holds of a session that has ended for this client, and starts to end it in the server. A lock that is
/// kept stays reserved, as after the end of the process of its holder.
pub(super) fn on_session_ended(store: Arc<Store>, session: &Arc<Session>) {
    store.sessions.remove(session);
    let acquisitions = lock(&session.acquisitions).take_all();
    let mut leaders = Vec::new();
    for (owner, acquisition) in acquisitions {
        match store.holder_table.is_leader(owner) && !session.is_left_to_server() {
            true => leaders.push(owner),
            false => store.holder_table.remove(owner),
        }
        if let AcquisitionState::Held { .. } = acquisition.state {
            let losses = &store.losses;
            match session.end.cause.get() {
                Some(cause) => losses.report_by(owner, LostReason::SessionGone, cause.clone()),
                None => losses.report(owner, LostReason::SessionGone),
            }
        }
    }
    if session.is_left_to_server() {
        return session.end.closed.raise();
    }
    let (context, session) = (store.context.clone(), session.clone());
    context.spawn(async move {
        end_in_server(&store, &session).await;
        // Observers read the name when the row is deleted, and then the lock has to be free.
        for owner in leaders {
            store.holder_table.remove(owner);
        }
    });
}

/// Tells the server to end the session, until the server confirms that the session is gone.
async fn end_in_server(store: &Arc<Store>, session: &Arc<Session>) {
    let (context, ttl) = (&store.context, session.lifetime.ttl);
    // By then the server has ended a silent session by itself, unless the session runs a statement.
    let limit = context.clock.now().after(ttl).after(ttl / 2);
    let id = session.server_info.session;
    let mut retries = RetryBudget::until(limit);
    loop {
        match requests::session_exists(&store.control, id).await {
            Ok(false) => break,
            // The next request shows whether the command had an effect.
            Ok(true) => drop(requests::end_session(&store.control, id).await),
            // A server that has stopped has no sessions, and uses their numbers for others after its next start.
            Err(_) => {}
        }
        if retries.is_spent(&context.clock) || context.closing.is_raised() {
            break;
        }
        tokio::select! {
            () = retries.pause(&context.clock) => {}
            // The last chance to tell the server.
            () = context.closing.raised() => {}
        }
    }
    session.end.closed.raise();
}

/// Ends all sessions, and with them what they hold and wait for.
pub(super) async fn close(store: &Store) {
    let context = &store.context;
    context.closing.raise();
    context.maintenance.stop();
    #[cfg(feature = "postgres")]
    if let Some(listener) = &store.listener {
        listener.stop();
    }
    let is_waiting = |it: &Arc<Session>| it.busy.is_waiting.load(Ordering::SeqCst);
    let mut waiting = store.sessions.all();
    waiting.retain(is_waiting);
    // A server does not notice that a client that waits in its queue has closed the connection; so each waiter
    // cancels its wait first.
    join_all(waiting.iter().map(|it| it.end.ended.raised())).await;
    let sessions = store.sessions.take_all();
    join_all(sessions.iter().map(|it| it.close())).await;
    store.holder_table.clear().await;
    #[cfg(feature = "postgres")]
    if let Some(listener) = &store.listener {
        listener.ended().await;
        listener.subscribers.observers.all_read().await;
    }
    // The tasks end sessions in the server, over the control connection.
    context.tasks.all_done().await;
    store.control.close().await;
    store.connector.close().await;
}

/// Ends what is left without waiting: a session that was not closed in time ends with its connection.
pub(super) fn abandon(store: &Store) {
    store.context.closing.raise();
    store.context.maintenance.stop();
    #[cfg(feature = "postgres")]
    if let Some(listener) = &store.listener {
        listener.stop();
    }
    for session in store.sessions.take_all() {
        session.end.ended.raise();
    }
    drop(store.control.abandon());
}
