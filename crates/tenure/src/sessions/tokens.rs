//! Tokens that are reserved for a hold, so that the tasks of a client can pass it on.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::rt::lock;
use tenure_core::store::{BoxFuture, Hold, ReserveTokens};

use super::acquisitions::{Acquisition, AcquisitionState, Acquisitions};
use super::batch;
use super::errors;
use super::mode::KeyMode;
use super::operations::{MAX_BATCH, OperationResult, SessionOperation};
use super::session::Session;
use super::store::Store;

impl ReserveTokens for Store {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { reserve(&self, &hold, last).await })
    }
}

/// See [`ReserveTokens::reserve`]. The session that has the lock is asked, so its answer also shows that the session is there.
async fn reserve(store: &Store, hold: &Hold, last: u64) -> Result<bool, Error> {
    let Some(session) = store.holds.get(hold.owner) else {
        return Ok(false);
    };
    if !is_held(&session, &lock(&session.acquisitions), hold)
        || !use_up(&session, hold.token, last).await?
    {
        return Ok(false);
    }
    // Under the lock: a release that begins later deletes the row.
    let acquisitions = lock(&session.acquisitions);
    let is_held = is_held(&session, &acquisitions, hold);
    if is_held {
        store.holder_table.reserve(hold.owner, last);
    }
    Ok(is_held)
}

/// Whether the session has the exclusive hold, under the token of its grant.
fn is_held(session: &Session, acquisitions: &Acquisitions, hold: &Hold) -> bool {
    let is_it = |it: &Acquisition| {
        it.mode == KeyMode::Exclusive
            && !it.is_kept
            && matches!(it.state, AcquisitionState::Held { token, .. } if token == hold.token)
    };
    !session.is_ended() && acquisitions.get(&hold.owner).is_some_and(is_it)
}

/// Uses up the tokens from `first` to `last` in the server, so that later grants get greater ones. `false`: the server still
/// has some of them.
async fn use_up(session: &Arc<Session>, first: u64, last: u64) -> Result<bool, Error> {
    // Each statement uses up as many tokens as it could have operations; MySQL needs one for all tokens.
    let statements = last.saturating_sub(first).div_ceil(MAX_BATCH as u64);
    for _ in 0..statements {
        let operation = SessionOperation::Reserve { first, last };
        let reply = batch::request(session, operation, None).await;
        let server = &session.context.settings.server;
        let reply = reply.map_err(|error| errors::of_operation(error, server))?;
        if reply.result == OperationResult::Reserved(true) {
            return Ok(true);
        }
    }
    Ok(false)
}
