//! Deleting the node of a hold or of a waiter, and closing the client.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Release};
use tenure_core::support::RetryBudget;

use super::errors::RequestError;
use super::names::{self, Dialect};
use super::requests;
use super::session::Session;
use super::store::{ContenderNode, Store};

/// Deletes the node of that owner, whether it holds or waits.
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
    let mut may_be_released = held.may_be_released;
    let is_deleted = loop {
        let err = match delete(&session, &held).await {
            Ok(is_deleted) => break is_deleted,
            Err(err) => err,
        };
        may_be_released |= err.is_ambiguous();
        if !err.is_ambiguous() || retries.is_spent(&store.clock) {
            let note = |held: &mut ContenderNode| held.may_be_released |= may_be_released;
            store.holds.update(hold.owner, note);
            return Err(session.explain(err));
        }
        retries.pause(&store.clock).await;
    };
    if is_deleted {
        let is_front = held.until.is_some() && held.mode == Mode::Exclusive;
        let node = held.node.as_ref().filter(|_| is_front);
        let last_holder = node.map(|node| node.number);
        held.session.cache.node_deleted(&held.dir, last_holder);
    }
    remove(store, hold.owner);
    // What is not there was deleted by a release without a reply, if there was one.
    Ok(Release::of(is_deleted || may_be_released))
}

/// The entry of an acquisition that came to nothing, as far as we know.
async fn unknown(store: &Store, hold: &Hold) -> Result<ContenderNode, Error> {
    Ok(ContenderNode {
        session: store.sessions.any().await?,
        dir: match store.settings.dialect {
            Dialect::Semaphore => names::semaphore_leases(&store.directory(&hold.name)?),
            _ => store.directory(&hold.name)?,
        },
        prefix: names::own_prefix(hold.owner).into(),
        node: None,
        mode: hold.mode,
        until: None,
        may_be_released: false,
        gate: None,
    })
}

/// Deletes the nodes of an acquisition. `false`: the node that holds, or waits, is not there.
pub(super) async fn delete(session: &Session, held: &ContenderNode) -> Result<bool, RequestError> {
    let is_deleted = delete_own(session, held).await?;
    if let Some(gate) = &held.gate {
        requests::delete_node(session, gate).await?;
    }
    Ok(is_deleted)
}

/// Deletes a node, which is looked for by its prefix if its path is not known.
async fn delete_own(session: &Session, held: &ContenderNode) -> Result<bool, RequestError> {
    let path = match &held.node {
        Some(node) => node.path.clone(),
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
