//! The end of a session: its holds are lost, and the server is told until it has ended the session too.

use std::sync::Arc;

use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::support::RetryBudget;

use super::acquisitions::AcquisitionState;
use super::requests;
use super::session::Session;
use super::store::Store;

/// Reports the holds of a session that has ended for this client, and starts to end it in the server.
pub(super) fn on_session_ended(store: Arc<Store>, session: &Arc<Session>) {
    store.sessions.remove(session);
    let acquisitions = lock(&session.acquisitions).take_all();
    for (owner, acquisition) in acquisitions {
        store.holder_table.remove(owner);
        if let AcquisitionState::Held { .. } = acquisition.state {
            store.report_loss(owner, LostReason::SessionGone);
        }
    }
    let (context, session) = (store.context.clone(), session.clone());
    context.spawn(async move { end_in_server(&store, &session).await });
}

/// Tells the server to end the session, until the server confirms that the session is gone.
async fn end_in_server(store: &Arc<Store>, session: &Arc<Session>) {
    let (context, ttl) = (&store.context, session.lease.ttl);
    // By then the server has ended the silent session by itself.
    let limit = context.clock.now().after(ttl).after(ttl / 2);
    let id = session.server_info.session;
    let mut retries = RetryBudget::until(limit);
    loop {
        match requests::session_exists(&store.control, id).await {
            Ok(false) => break,
            // Whether that had an effect, the next look shows.
            Ok(true) => drop(requests::end_session(&store.control, id).await),
            // A server that is not there has no sessions, and the next one uses their numbers for others.
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

/// Waits for the confirmation that the server has ended the session, for as long as a request may take. `false`:
/// there is none.
pub(super) async fn confirm_session_closed(session: &Session) -> bool {
    let limit = session.context.request_limit();
    tokio::select! {
        biased;
        () = session.end.closed.raised() => true,
        () = session.context.clock.sleep_until(limit) => false,
    }
}
