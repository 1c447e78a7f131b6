//! The node of a request: made once, whatever happens to the reply.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::options::Mode;
use tenure_core::store::Request;

use super::errors::{ClientError, RequestError};
use super::mode::NodeRecord;
use super::names::{self, Dialect};
use super::node_data::to_write;
use super::release;
use super::requests::{self, MAX_ATTEMPTS, Node};
use super::session::Session;
use super::store::{ContenderNode, Store};
use super::wait::{Goal, QueueEntry};

/// Makes a node for the request, and remembers it before it is made, so that whatever comes of the request can be
/// deleted.
pub(super) async fn enqueue(
    store: &Store,
    request: &Request,
    session: &Arc<Session>,
    dir: &Arc<str>,
) -> Result<QueueEntry, Error> {
    let (stem, prefix) = match store.settings.dialect {
        Dialect::Curator | Dialect::Selector => (
            names::node(request.owner, request.mode),
            names::own_prefix(request.owner),
        ),
        // The node is one of the gate, a mutex.
        Dialect::Semaphore => (
            names::node(request.owner, Mode::Exclusive),
            names::own_prefix(request.owner),
        ),
        Dialect::ReadWrite => (
            names::read_write_node(request.owner, request.mode),
            names::own_prefix(request.owner),
        ),
        Dialect::Latch => (
            names::latch_node(request.owner),
            names::own_prefix(request.owner),
        ),
        Dialect::SessionPrefix => {
            let prefix = names::session_prefix(session.id());
            (prefix.clone(), prefix)
        }
    };
    let held = ContenderNode {
        session: session.clone(),
        dir: dir.clone(),
        prefix: prefix.into(),
        node: None,
        mode: request.mode,
        until: None,
        may_be_released: false,
        gate: None,
    };
    store.holds.insert(request.owner, held.clone());
    let created = create_node(request, &held, &stem).await;
    match &created {
        Ok(entry) => {
            let node = Some(entry.node.clone());
            store.holds.update(request.owner, |held| held.node = node);
        }
        Err(err) if err.kind() == ErrorKind::Indeterminate => {}
        Err(_) => release::remove(store, request.owner),
    }
    created
}

/// Makes the node, and the directory for it. After a request of unknown outcome the node is looked for by its prefix.
pub(super) async fn create_node(
    request: &Request,
    held: &ContenderNode,
    stem: &str,
) -> Result<QueueEntry, Error> {
    let (session, dir) = (&held.session, &held.dir);
    let mut record = NodeRecord::new(&request.holder, session.timeout.min(request.ttl));
    if let Some(limit) = held.limit() {
        record.limit = Some(limit);
    }
    let data = to_write(session.settings().dialect, &request.holder, &record);
    let mut attempts = 0;
    loop {
        let lease = session.begin_lease();
        let entry = |node: Node| QueueEntry {
            session: session.clone(),
            dir: dir.clone(),
            node,
            lease,
            goal: Goal::Turn,
        };
        let err = match requests::create_node(session, dir, stem, &data, lease).await {
            Ok(node) => return Ok(entry(node)),
            Err(err) => err,
        };
        let is_ambiguous = err.is_ambiguous();
        if attempts == MAX_ATTEMPTS || !(is_ambiguous || err.is(&ClientError::NoNode)) {
            return Err(session.explain(err));
        }
        if is_ambiguous {
            match requests::find_node(session, dir, &held.prefix).await {
                Ok(Some(node)) => return Ok(entry(node)),
                Ok(None) if request.stop.is_raised() || err == RequestError::Timeout => {
                    return Err(not_applied(session.explain(err)));
                }
                Ok(None) => {}
                Err(_) => return Err(session.explain(err)),
            }
        } else {
            unless_stopped(request)?;
            // The node is made next, even if the request is stopped meanwhile: the servers remove a container only
            // after it had a child.
            requests::create_directory(session, dir).await?;
        }
        attempts += 1;
    }
}

/// The error of a creation whose node is not there, and will not be made any more.
fn not_applied(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate => Error::new(
            ErrorKind::Unreachable,
            "no answer in time; nothing was applied",
        )
        .with_quoted_source(err, ""),
        _ => err,
    }
}

/// An error when the request was stopped and its node is not made yet.
fn unless_stopped(request: &Request) -> Result<(), Error> {
    match request.stop.is_raised() {
        true => Err(Error::new(
            ErrorKind::Unreachable,
            "the request was stopped",
        )),
        false => Ok(()),
    }
}
