//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use zookeeper_client::Stat;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::store::{Answer, Request};
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::cache::CacheAnswer;
use super::enqueue;
use super::errors::{ClientError, RequestError};
use super::mode::{HoldState, MZXID, NodeRecord};
use super::names::{self, Dialect};
use super::queue::QueuePosition;
use super::release;
use super::renew;
use super::requests;
use super::semaphore;
use super::session::Session;
use super::store::Store;
use super::wait::{self, QueueEntry, WaitOutcome};

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    check_mode(store.settings.dialect, request.mode)?;
    let mut dir = store.directory(&request.name)?;
    if store.settings.dialect == Dialect::Semaphore {
        dir = names::semaphore_locks(&dir);
    }
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

/// The modes that other programs with the same node names know.
fn check_mode(dialect: Dialect, mode: Mode) -> Result<(), Error> {
    let what = match (dialect, mode) {
        (Dialect::Curator, _)
        | (Dialect::ReadWrite, Mode::Exclusive | Mode::Shared)
        | (Dialect::Semaphore, Mode::Permits { .. })
        | (Dialect::SessionPrefix, Mode::Exclusive) => return Ok(()),
        (Dialect::ReadWrite, _) => {
            "dialect=curator-readwrite has exclusive and shared locks only; leave `dialect` out of the URL"
        }
        (Dialect::Semaphore, _) => {
            "dialect=curator-semaphore has permits only; permits(1) exclude each other"
        }
        (Dialect::SessionPrefix, _) => {
            "dialect=session-prefix has exclusive locks only; leave `dialect` out of the URL"
        }
    };
    Err(Error::new(ErrorKind::Unsupported, what))
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
    let entry = enqueue::enqueue(store, request, session, dir).await?;
    let known = session.cache.look_up(dir, entry.node.number);
    if known == CacheAnswer::IsNext && request.mode == Mode::Exclusive {
        return Ok(renew::granted(store, request, &entry, entry.lease));
    }
    let position = match first_position(&entry, known).await {
        Err(err) if request.wait && err.is_ambiguous() => {
            *retry_until = wait::retry_until(request, &entry.session);
            wait::read_queue_with_retry(request, &entry, false, *retry_until).await
        }
        position => position,
    };
    let outcome = match position {
        // With less than half of it left, a lease is begun anew, where there is time for that.
        Ok(QueuePosition::Held { last_token })
            if !request.wait || wait::is_enough(request, &entry, entry.lease) =>
        {
            let lease = entry.lease;
            Ok(WaitOutcome::Granted { lease, last_token })
        }
        Ok(_) if !request.wait => Ok(WaitOutcome::Stopped),
        Ok(position) => {
            request.report_taken();
            wait::wait(request, &entry, position, retry_until).await
        }
        Err(err) => Err(err),
    };
    match outcome {
        Ok(WaitOutcome::Granted { .. }) if store.settings.dialect == Dialect::Semaphore => {
            // In a box, as below, since every request would have to have room for a future that is rare.
            Box::pin(semaphore::take_permit(store, request, entry, *retry_until)).await
        }
        Ok(WaitOutcome::Granted { lease, last_token }) if last_token <= entry.node.token => {
            Ok(renew::granted(store, request, &entry, lease))
        }
        Ok(WaitOutcome::Granted { .. }) => {
            Box::pin(grant_with_new_token(store, request, entry, *retry_until)).await
        }
        Ok(WaitOutcome::Stopped) => {
            let left = release::leave_queue(store, request).await;
            left.map(|()| Answer::Busy)
        }
        Ok(WaitOutcome::NodeGone) => Err(node_gone(store, request).await),
        Err(err) => Err(release::give_up(store, request, session.explain(err)).await),
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

/// The position of a node that was just made.
async fn first_position(
    entry: &QueueEntry,
    known: CacheAnswer,
) -> Result<QueuePosition, RequestError> {
    if known == CacheAnswer::Unknown
        && let Some(directory) = stat_and_watch(entry).await?
        // More contenders may come at any time, behind us.
        && directory.num_children == 1
    {
        let last_token = directory.mzxid.unsigned_abs();
        return Ok(QueuePosition::Held { last_token });
    }
    wait::read_queue(entry).await
}

/// The state of the directory; `None`: we may not know. Sets a watch on the directory, which tells us next time
/// that the directory is the same one (see [`cache`](super::cache)).
async fn stat_and_watch(entry: &QueueEntry) -> Result<Option<Stat>, RequestError> {
    match requests::watch_directory(&entry.session, &entry.dir).await {
        Ok(Some((stat, watcher))) => {
            entry.session.cache.insert(&entry.dir, watcher);
            Ok(Some(stat))
        }
        Ok(None) => Ok(None),
        // The directory is not ours to read. The list will say whether we may list it.
        Err(err) if err.is(&ClientError::NoAuth) => Ok(None),
        Err(err) => Err(err),
    }
}

/// The error of a wait whose node was deleted.
async fn node_gone(store: &Store, request: &Request) -> Error {
    // Nothing is left: another program deleted the node, or the node went with its session.
    let _ = release::leave_queue(store, request).await;
    let what = "our node in the queue was deleted; retry";
    Error::new(ErrorKind::Unreachable, what)
}

/// Grants what the node has, under a token that is new: since the node was made, a hold was upgraded.
async fn grant_with_new_token(
    store: &Arc<Store>,
    request: &Request,
    mut entry: QueueEntry,
    retry_until: Time,
) -> Result<Answer, Error> {
    let (session, clock) = (entry.session.clone(), &store.clock);
    let mut record = NodeRecord::new(&request.holder, session.timeout.min(request.ttl));
    record.hold = Some(HoldState {
        mode: None,
        last: None,
        token: Some(MZXID),
    });
    let mut retries = RetryBudget::until(retry_until);
    loop {
        let (dir, path) = (&entry.dir, &entry.node.path);
        let written = requests::grant_token(&session, dir, path, &record, None).await;
        let err = match written {
            Ok(Some((token, lease))) => {
                entry.node.token = token;
                return Ok(renew::granted(store, request, &entry, lease));
            }
            Ok(None) => unreachable!("BUG: any version will do"),
            Err(err) if err.is(&ClientError::NoNode) => return Err(node_gone(store, request).await),
            Err(err) => err,
        };
        if !err.is_ambiguous() || request.stop.is_raised() || retries.is_spent(clock) {
            return Err(release::give_up(store, request, session.explain(err)).await);
        }
        let _ = request.unless_stopped(retries.pause(clock)).await;
    }
}
