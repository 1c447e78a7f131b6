//! Changing the mode of a hold.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::acquire::TableReply;
use super::store::Shared;
use super::wait::Queued;
use crate::logic::table::Verdict;
use crate::options::Mode;
use crate::store::{Answer, Hold, Request};
use crate::time::Time;

/// Makes the hold of the request's owner exclusive, or notes that it is to become that. The request was sent at `sent`.
pub(super) fn upgrade(store: &Arc<Shared>, request: &Request, sent: Time) -> TableReply {
    let Request { name, owner, .. } = request;
    store.with_state(
        |state, now| match state.table.upgrade(name, *owner, request.wait, now) {
            Verdict::Busy => TableReply::Answered(Ok(Answer::Busy)),
            Verdict::Granted { token } => {
                state
                    .table
                    .renew(name, *owner, store.lease(request.ttl), now);
                let grant = store.grant(token, sent, now.since(sent), request.ttl);
                TableReply::Answered(Ok(Answer::Granted(grant)))
            }
            Verdict::Queued => {
                let (sender, receiver) = oneshot::channel();
                state.waiting.insert(*owner, sender);
                TableReply::Queued(Queued(receiver))
            }
        },
    )
}

/// Makes the hold shared, or upgradable again. `false`: there is no such hold.
pub(super) fn downgrade(store: &Shared, hold: &Hold, mode: Mode) -> bool {
    store.with_state(|state, now| {
        state.waiting.remove(&hold.owner);
        state.table.downgrade(&hold.name, hold.owner, mode, now)
    })
}
