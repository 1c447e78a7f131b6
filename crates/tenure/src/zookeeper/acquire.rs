//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use tenure_core::backend::{Answer, Grant, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::cache::CacheAnswer;
use super::contact::Lease;
use super::errors::{ClientError, RequestError};
use super::names;
use super::release;
use super::renew;
use super::requests::{self, MAX_ATTEMPTS, Node, NodeRecord};
use super::session::Session;
use super::settings::Dialect;
use super::store::{HeldEntry, Store};
use super::wait::{self, QueueEntry, QueuePosition, WaitOutcome};

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    check_mode(store.settings.dialect, request.mode)?;
    let dir = store.directory(&request.name)?;
    let mut retry_until = store.clock.now().after(request.ttl);
    let mut retries = RetryBudget::without_limit();
    loop {
        let session = store.sessions.for_lease(request.ttl, Some(&dir)).await;
        let outcome = match &session {
            Ok(session) => acquire_in(store, request, session, &dir, &mut retry_until).await,
            Err(err) => Err(err.clone()),
        };
        let err = match outcome {
            Ok(answer) => return Ok(answer),
            Err(err) => err,
        };
        if request.stop.is_raised() && err.kind() != ErrorKind::Indeterminate {
            return Ok(Answer::Busy);
        }
        // A session that ended unnoticed is no reason to fail: there is a new one.
        let is_stale = retries.failures() == 0 && session.is_ok_and(|session| session.is_over());
        let is_temporary = matches!(
            err.kind(),
            ErrorKind::Unreachable | ErrorKind::Indeterminate
        );
        let is_retried = is_temporary
            && (request.wait || is_stale)
            && !request.stop.is_raised()
            && store.clock.now() < retry_until;
        if !is_retried {
            return Err(err);
        }
        // A node that may be there is deleted before the next one is made: one node at a time.
        release::leave_queue_with_retry(store, request, retry_until).await?;
        tracing::warn!(name = %request.name, %err, "once more, from the end of the queue");
        let pause = retries.pause(&store.clock);
        if request.unless_stopped(pause).await.is_none() {
            return Ok(Answer::Busy);
        }
    }
}

/// In the dialect of ZooKeeper's own recipes there is no room for a mode.
fn check_mode(dialect: Dialect, mode: Mode) -> Result<(), Error> {
    if dialect == Dialect::SessionPrefix && mode != Mode::Exclusive {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "dialect=session-prefix has exclusive locks only; leave that option out",
        ));
    }
    Ok(())
}

/// One attempt. `retry_until` is moved on when the servers have shown that they are there.
async fn acquire_in(
    store: &Arc<Store>,
    request: &Request,
    session: &Arc<Session>,
    dir: &Arc<str>,
    retry_until: &mut Time,
) -> Result<Answer, Error> {
    check_lease(session, request).inspect_err(|_| session.vacate(dir))?;
    let entry = enqueue(store, request, session, dir).await?;
    let known = session.cache.look_up(dir, entry.node.number);
    if known == CacheAnswer::IsNext && request.mode == Mode::Exclusive {
        return Ok(granted(store, request, &entry, entry.lease));
    }
    let position = match first_position(&entry, known).await {
        Err(err) if request.wait && err.is_ambiguous() => {
            *retry_until = wait::retry_until(request, &entry);
            wait::read_queue_with_retry(request, &entry, false, *retry_until).await
        }
        position => position,
    };
    let outcome = match position {
        // With less than half of it left, a lease is begun anew, where there is time for that.
        Ok(QueuePosition::Held)
            if !request.wait || wait::is_enough(request, &entry, entry.lease) =>
        {
            Ok(WaitOutcome::Granted(entry.lease))
        }
        Ok(_) if !request.wait => Ok(WaitOutcome::Stopped),
        Ok(position) => wait::wait(request, &entry, position, retry_until).await,
        Err(err) => Err(err),
    };
    match outcome {
        Ok(WaitOutcome::Granted(lease)) => Ok(granted(store, request, &entry, lease)),
        Ok(WaitOutcome::Stopped) => {
            let left = release::leave_queue(store, request).await;
            left.map(|()| Answer::Busy)
        }
        Ok(WaitOutcome::NodeGone) => {
            // Nothing is left: another program deleted the node, or the node went with its session.
            let _ = release::leave_queue(store, request).await;
            let what = "our node in the queue was deleted; retry";
            Err(Error::new(ErrorKind::Unreachable, what))
        }
        Err(err) => Err(give_up(store, request, session.explain(err)).await),
    }
}

fn check_lease(session: &Session, request: &Request) -> Result<(), Error> {
    let lease = session.whole_lease();
    if lease >= request.min_lease {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "the servers keep a silent session for {:?} (maxSessionTimeout), which makes leases of {lease:?}, and {:?} was asked for; lower `ttl`",
            session.timeout, request.min_lease
        ),
    ))
}

/// Makes a node for the request, and remembers it before it is made, so that whatever comes of the request can be
/// deleted.
async fn enqueue(
    store: &Store,
    request: &Request,
    session: &Arc<Session>,
    dir: &Arc<str>,
) -> Result<QueueEntry, Error> {
    let (stem, prefix) = match store.settings.dialect {
        Dialect::Curator => (
            names::node(request.owner, request.mode),
            names::own_prefix(request.owner),
        ),
        Dialect::SessionPrefix => {
            let prefix = names::session_prefix(session.id());
            (prefix.clone(), prefix)
        }
    };
    let held = HeldEntry {
        session: session.clone(),
        dir: dir.clone(),
        prefix: prefix.into(),
        path: None,
        number: 0,
        mode: request.mode,
        until: None,
        is_ambiguous: false,
    };
    store.holds.insert(request.owner, held.clone());
    let created = create_node(request, &held, &stem).await;
    match &created {
        Ok(entry) => {
            store.holds.update(request.owner, |held| {
                held.path = Some(entry.node.path.clone());
                held.number = entry.node.number;
            });
        }
        Err(err) if err.kind() == ErrorKind::Indeterminate => {}
        Err(_) => release::remove(store, request.owner),
    }
    created
}

/// Makes the node, and the directory for it. After a request of unknown outcome the node is looked for by its prefix.
async fn create_node(request: &Request, held: &HeldEntry, stem: &str) -> Result<QueueEntry, Error> {
    let (session, dir) = (&held.session, &held.dir);
    let record = NodeRecord::new(&request.holder, session.timeout.min(request.ttl));
    let data = serde_json::to_vec(&record).expect("strings and numbers can be written");
    let mut attempts = 0;
    loop {
        let lease = session.begin_lease();
        let entry = |node: Node| QueueEntry {
            session: session.clone(),
            dir: dir.clone(),
            node,
            lease,
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
            requests::create_directory(session, dir).await?;
        }
        unless_stopped(request)?;
        attempts += 1;
    }
}

/// The error of a creation whose node is not there, and will not be made any more.
fn not_applied(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate => Error::new(
            ErrorKind::Unreachable,
            "no answer in time; nothing was applied",
        ),
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

/// The position of a node that was just made.
async fn first_position(
    entry: &QueueEntry,
    known: CacheAnswer,
) -> Result<QueuePosition, RequestError> {
    let is_watched = known != CacheAnswer::Unknown;
    // More contenders may come at any time, behind us.
    if !is_watched && count_and_watch(entry).await? == Some(1) {
        return Ok(QueuePosition::Held);
    }
    wait::read_queue(entry).await
}

/// How many nodes the directory has; `None`: we may not know. Sets a watch on the directory, which tells us next time
/// that the directory is the same one (see [`cache`](super::cache)).
async fn count_and_watch(entry: &QueueEntry) -> Result<Option<i32>, RequestError> {
    match requests::watch_directory(&entry.session, &entry.dir).await {
        Ok(Some((children, watcher))) => {
            entry.session.cache.insert(&entry.dir, watcher);
            Ok(Some(children))
        }
        Ok(None) => Ok(None),
        // The directory is not ours to read. The list will say whether we may list it.
        Err(err) if err.is(&ClientError::NoAuth) => Ok(None),
        Err(err) => Err(err),
    }
}

fn granted(store: &Arc<Store>, request: &Request, entry: &QueueEntry, lease: Lease) -> Answer {
    let ttl = Some(renew::record_grant(store, request, lease));
    let Node {
        token, round_trip, ..
    } = entry.node;
    Answer::Granted(Grant::new(token, lease.sent, round_trip, ttl))
}

/// Deletes our node, and returns the error for the user.
async fn give_up(store: &Store, request: &Request, err: Error) -> Error {
    if let Err(err) = release::leave_queue(store, request).await {
        return err;
    }
    // Our own node is gone, so the outcome is known.
    let kind = match err.kind() {
        ErrorKind::Indeterminate => ErrorKind::Unreachable,
        kind => kind,
    };
    Error::new(kind, "the queue could not be read").with_source(err)
}
