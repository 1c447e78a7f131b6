//! Releasing a hold, leaving the queue, and closing the client.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Release, Request};
use tenure_core::support::{RetryBudget, not_left};
use tenure_core::time::Time;

use super::errors::RequestError;
use super::names::{self, Dialect};
use super::requests;
use super::session::Session;
use super::store::{HeldEntry, Store};

/// Deletes the node of that owner.
pub(super) async fn release(store: &Store, hold: &Hold) -> Result<Release, Error> {
    let held = match store.holds.get(hold.owner) {
        Some(held) => held,
        None if store.settings.dialect == Dialect::SessionPrefix => return Ok(Release::NotHeld),
        None => unknown(store, hold).await?,
    };
    // A session that is over says nothing about its nodes: the servers may keep them for a while.
    let session = match held.session.ended.is_raised() {
        true => store.sessions.any().await?,
        false => held.session.clone(),
    };
    let mut retries = RetryBudget::until(store.clock.now().after(store.settings.timeout));
    let mut is_ambiguous = held.is_ambiguous;
    loop {
        let err = match delete(&session, &held).await {
            Ok(true) => {
                let is_front = held.until.is_some() && held.mode == Mode::Exclusive;
                let last_holder = is_front.then_some(held.number);
                held.session.cache.node_deleted(&held.dir, last_holder);
                remove(store, hold.owner);
                return Ok(Release::Released);
            }
            Ok(false) => {
                remove(store, hold.owner);
                // A delete without a reply was ours.
                return Ok(match is_ambiguous {
                    true => Release::Released,
                    false => Release::NotHeld,
                });
            }
            Err(err) => err,
        };
        is_ambiguous |= err.is_ambiguous();
        if !err.is_ambiguous() || retries.is_spent(&store.clock) {
            store
                .holds
                .update(hold.owner, |held| held.is_ambiguous |= is_ambiguous);
            return Err(session.explain(err));
        }
        retries.pause(&store.clock).await;
    }
}

/// The entry of an acquisition that came to nothing, as far as we know.
async fn unknown(store: &Store, hold: &Hold) -> Result<HeldEntry, Error> {
    Ok(HeldEntry {
        session: store.sessions.any().await?,
        dir: match store.settings.dialect {
            Dialect::Semaphore => names::semaphore_leases(&store.directory(&hold.name)?),
            _ => store.directory(&hold.name)?,
        },
        prefix: names::own_prefix(hold.owner).into(),
        path: None,
        number: 0,
        mode: hold.mode,
        until: None,
        is_ambiguous: false,
        gate: None,
    })
}

/// Deletes the nodes of an acquisition. `false`: the node that holds, or waits, is not there.
pub(super) async fn delete(session: &Session, held: &HeldEntry) -> Result<bool, RequestError> {
    let is_deleted = delete_own(session, held).await?;
    if let Some(gate) = &held.gate {
        requests::delete_node(session, gate).await?;
    }
    Ok(is_deleted)
}

/// Deletes a node, which is looked for by its prefix if its path is not known.
async fn delete_own(session: &Session, held: &HeldEntry) -> Result<bool, RequestError> {
    let path = match &held.path {
        Some(path) => path.clone(),
        None => match requests::find_name(session, &held.dir, &held.prefix).await? {
            Some(name) => Arc::from(format!("{}/{name}", held.dir)),
            None => return Ok(false),
        },
    };
    requests::delete_node(session, &path).await
}

/// Ends the bookkeeping of an acquisition whose node is gone.
pub(super) fn remove(store: &Store, owner: OwnerId) {
    if let Some(held) = store.holds.remove(owner) {
        held.session.vacate(&held.dir);
    }
}

/// Deletes our node, whether it waits or holds.
pub(super) async fn leave_queue(store: &Store, request: &Request) -> Result<(), Error> {
    let released = release(store, &Hold::new(request, 0)).await;
    released.map(drop).map_err(not_left)
}

/// The same, again and again until there is an answer, or the caller gives up.
pub(super) async fn leave_queue_with_retry(
    store: &Store,
    request: &Request,
    retry_until: Time,
) -> Result<(), Error> {
    let mut retries = RetryBudget::until(retry_until);
    loop {
        let left = leave_queue(store, request).await;
        if left.is_ok() || request.stop.is_raised() || retries.is_spent(&store.clock) {
            return left;
        }
        retries.pause(&store.clock).await;
    }
}

/// Deletes our node, and returns the error for the user.
pub(super) async fn give_up(store: &Store, request: &Request, err: Error) -> Error {
    if let Err(err) = leave_queue(store, request).await {
        return err;
    }
    // Our own node is gone, so the outcome is known.
    let kind = match err.kind() {
        ErrorKind::Indeterminate => ErrorKind::Unreachable,
        kind => kind,
    };
    Error::new(kind, "the queue could not be read").with_source(err)
}

/// Ends all sessions, and all nodes with them.
pub(super) async fn close(store: &Store) {
    store.sessions.closing.raise();
    store.maintenance.stop();
    // A held entry keeps its session open, and so does a task in the background.
    drop(store.holds.take_all());
    store.background.all_done().await;
    store.sessions.close().await;
}

/// Ends what is left without waiting, also of a node of a majority that was silent before `close` came to it.
pub(super) fn abandon(store: &Store) {
    store.sessions.closing.raise();
    store.maintenance.stop();
    drop(store.holds.take_all());
    store.sessions.abandon();
}
