//! The waiter's side of the queue: whose turn it is, and a watch on the nodes in front of ours.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use zookeeper_client::{OneshotWatcher, WatchedEvent};

use tenure_core::logic::pace;
use tenure_core::store::Request;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::contact::Lease;
use super::errors::{ClientError, RequestError};
use super::queue::{Queue, QueuePosition};
use super::requests::{self, Node};
use super::session::Session;

/// The longest time after which a waiter reads the queue without having been told to, in case a watch is lost.
const SAFETY_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How long a waiter asks servers that do not answer again, if three ttl are less: an election takes some seconds, and
/// whether a session expired meanwhile is known for certain only when the servers answer again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// A node of ours in the queue.
pub(super) struct QueueEntry {
    pub(super) session: Arc<Session>,
    pub(super) dir: Arc<str>,
    pub(super) node: Node,
    /// Of the request that made the node.
    pub(super) lease: Lease,
}

/// How a wait ends.
pub(super) enum WaitOutcome {
    Granted {
        lease: Lease,
        /// No token that was granted before is greater.
        last_token: u64,
    },
    /// The caller gave up.
    Stopped,
    /// Our node is gone.
    NodeGone,
}

/// What a waiter waits for.
pub(super) enum WakeUp {
    /// The caller gave up.
    Stopped,
    /// A node in front of ours may be gone.
    QueueChanged,
    /// Nothing was heard for a while.
    SafetyPoll,
}

/// Waits until our node holds. `retry_until` is moved on while the servers answer.
pub(super) async fn wait(
    request: &Request,
    entry: &QueueEntry,
    mut position: QueuePosition,
    retry_limit: &mut Time,
) -> Result<WaitOutcome, RequestError> {
    loop {
        let ahead = match position {
            QueuePosition::Held { last_token } => match confirm_turn(request, entry).await? {
                Some(lease) => return Ok(WaitOutcome::Granted { lease, last_token }),
                None => Vec::new(),
            },
            QueuePosition::Behind(ahead) => ahead,
            QueuePosition::Gone => return Ok(WaitOutcome::NodeGone),
        };
        *retry_limit = retry_until(request, &entry.session);
        let wake_up = match requests::watch_nodes(&entry.session, &ahead).await? {
            Some(watchers) if !watchers.is_empty() => {
                next_wake_up(request, &entry.session, watchers).await
            }
            _ => WakeUp::QueueChanged,
        };
        let confirms = match wake_up {
            WakeUp::Stopped => return Ok(WaitOutcome::Stopped),
            WakeUp::QueueChanged => false,
            WakeUp::SafetyPoll => true,
        };
        position = read_queue_with_retry(request, entry, confirms, *retry_limit).await?;
    }
}

/// Until when a waiter asks servers that do not answer again.
pub(super) fn retry_until(request: &Request, session: &Session) -> Time {
    let timeout = RETRY_TIMEOUT.max(request.ttl * 3);
    session.clock().now().after(timeout)
}

/// The lease that comes with our turn; `None`: it is not our turn any more.
pub(super) async fn confirm_turn(
    request: &Request,
    entry: &QueueEntry,
) -> Result<Option<Lease>, RequestError> {
    let (session, clock) = (&entry.session, entry.session.clock());
    let lease = session.confirmed();
    let is_long = remaining(request, entry, lease) >= request.min_lease;
    if is_long && is_enough(request, entry, lease) {
        return Ok(Some(lease));
    }
    loop {
        // Once the request is stopped, any lease will do.
        let settled = clock.sleep_until(session.settled_at());
        let _ = request.unless_stopped(settled).await;
        let lease = match requests::check_nodes(session, &[&*entry.node.path]).await {
            Ok(lease) => lease,
            Err(err) if err.is(&ClientError::NoNode) => return Ok(None),
            Err(err) => return Err(err),
        };
        if lease.length() >= session.whole_lease() || request.stop.is_raised() {
            return Ok(Some(lease));
        }
    }
}

/// How much of a lease is left for that request.
fn remaining(request: &Request, entry: &QueueEntry, lease: Lease) -> Duration {
    let age = entry.session.clock().now().since(lease.sent);
    lease.length().min(request.ttl).saturating_sub(age)
}

/// Whether a lease is as long as it has to be, and at least half of the length of a whole lease is left of it.
pub(super) fn is_enough(request: &Request, entry: &QueueEntry, lease: Lease) -> bool {
    let whole = entry.session.whole_lease().min(request.ttl);
    lease.length() >= request.min_lease && remaining(request, entry, lease) >= whole / 2
}

pub(super) async fn next_wake_up(
    request: &Request,
    session: &Arc<Session>,
    watchers: Vec<OneshotWatcher>,
) -> WakeUp {
    let mut changes: Vec<_> = watchers.into_iter().map(changed).collect();
    let changed = std::future::poll_fn(|cx| {
        let mut changes = changes.iter_mut();
        match changes.any(|change| change.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    let clock = session.clock();
    let pause = (request.ttl.min(session.timeout) / 3).min(SAFETY_POLL_INTERVAL);
    // Not all waiters at the same moment.
    let pause = pause - pace::fraction(pause / 4, clock.random());
    tokio::select! {
        biased;
        () = request.stop.raised() => WakeUp::Stopped,
        () = changed => WakeUp::QueueChanged,
        () = session.ended.raised() => {
            // All waiters of this session make a new node. Each has some handles of the session.
            let spread = pace::spread(Arc::strong_count(session));
            let pause = pace::fraction(spread, clock.random());
            let paused = clock.sleep_until(clock.now().after(pause));
            let _ = request.unless_stopped(paused).await;
            WakeUp::QueueChanged
        }
        () = clock.wait_until(clock.now().after(pause)) => WakeUp::SafetyPoll,
    }
}

fn changed(watcher: OneshotWatcher) -> Pin<Box<dyn Future<Output = WatchedEvent> + Send>> {
    Box::pin(watcher.changed())
}

/// Our position in the queue.
pub(super) async fn read_queue(entry: &QueueEntry) -> Result<QueuePosition, RequestError> {
    let (session, dir) = (&entry.session, &*entry.dir);
    Ok(match Queue::read(session, dir, &entry.node.name).await? {
        Some((queue, me)) => queue.position(dir, me),
        None => QueuePosition::Gone,
    })
}

/// Reads the queue until there is an answer, or the caller gives up. `confirms`: first confirms that our node is still
/// there, and the session with it.
pub(super) async fn read_queue_with_retry(
    request: &Request,
    entry: &QueueEntry,
    confirms: bool,
    retry_until: Time,
) -> Result<QueuePosition, RequestError> {
    let (mut retries, clock) = (RetryBudget::until(retry_until), entry.session.clock());
    loop {
        let position = match confirms {
            true => confirm_and_read_queue(entry).await,
            false => read_queue(entry).await,
        };
        let err = match position {
            Ok(position) => return Ok(position),
            Err(err) => err,
        };
        if !err.is_ambiguous() || request.stop.is_raised() || retries.is_spent(clock) {
            return Err(err);
        }
        // A stopped request reads the queue once more, at once.
        let _ = request.unless_stopped(retries.pause(clock)).await;
    }
}

async fn confirm_and_read_queue(entry: &QueueEntry) -> Result<QueuePosition, RequestError> {
    match requests::check_nodes(&entry.session, &[&*entry.node.path]).await {
        Err(err) if !err.is(&ClientError::NoNode) => Err(err),
        // The list will say whether our node is gone.
        _ => read_queue(entry).await,
    }
}
