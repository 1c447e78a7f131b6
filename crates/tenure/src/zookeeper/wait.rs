//! The waiter's side of the queue: whose turn it is, and a watch on the nodes in front of ours.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use zookeeper_client::{OneshotWatcher, WatchedEvent};

use tenure_core::backend::Request;
use tenure_core::logic::pace;
use tenure_core::logic::queue::{Turn, decide};
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::contact::Lease;
use super::errors::{ClientError, RequestError};
use super::names::Child;
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

/// What the list of contenders says about our node.
pub(super) enum QueuePosition {
    Held,
    /// These nodes are in front of ours and have to go.
    Behind(Vec<String>),
    /// Our node is not in the list.
    Gone,
}

/// How a wait ends.
pub(super) enum WaitOutcome {
    Granted(Lease),
    /// The caller gave up.
    Stopped,
    /// Our node is gone.
    NodeGone,
}

/// What a waiter waits for.
enum WakeUp {
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
            QueuePosition::Held => match confirm_turn(request, entry).await? {
                Some(lease) => return Ok(WaitOutcome::Granted(lease)),
                None => Vec::new(),
            },
            QueuePosition::Behind(ahead) => ahead,
            QueuePosition::Gone => return Ok(WaitOutcome::NodeGone),
        };
        *retry_limit = retry_until(request, entry);
        let wake_up = match requests::watch_nodes(&entry.session, &ahead).await? {
            Some(watchers) if !watchers.is_empty() => next_wake_up(request, entry, watchers).await,
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
pub(super) fn retry_until(request: &Request, entry: &QueueEntry) -> Time {
    let timeout = RETRY_TIMEOUT.max(request.ttl * 3);
    entry.session.clock().now().after(timeout)
}

/// The lease that comes with our turn; `None`: it is not our turn any more.
async fn confirm_turn(
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

async fn next_wake_up(
    request: &Request,
    entry: &QueueEntry,
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
    let (session, clock) = (&entry.session, entry.session.clock());
    let pause = (request.ttl.min(session.timeout) / 3).min(SAFETY_POLL_INTERVAL);
    // Not all waiters at the same moment.
    let pause = pause - pace::fraction(pause / 4, clock.random());
    tokio::select! {
        biased;
        () = request.stop.raised() => WakeUp::Stopped,
        () = changed => WakeUp::QueueChanged,
        () = session.ended.raised() => WakeUp::QueueChanged,
        () = clock.sleep_until(clock.now().after(pause)) => WakeUp::SafetyPoll,
    }
}

fn changed(watcher: OneshotWatcher) -> Pin<Box<dyn Future<Output = WatchedEvent> + Send>> {
    Box::pin(watcher.changed())
}

/// Our position in the queue.
pub(super) async fn read_queue(entry: &QueueEntry) -> Result<QueuePosition, RequestError> {
    let (session, dir) = (&entry.session, &*entry.dir);
    let Some(children) = requests::list_children(session, dir).await? else {
        return Ok(QueuePosition::Gone);
    };
    let queue = requests::in_order(session, dir, &children).await?;
    let Some(me) = queue.iter().position(|child| child.name == entry.node.name) else {
        return Ok(QueuePosition::Gone);
    };
    let contenders: Vec<_> = queue.iter().map(Child::contender).collect();
    let ahead = match decide(&contenders, me) {
        Turn::Held => return Ok(QueuePosition::Held),
        Turn::WatchOne(at) => at..at + 1,
        Turn::WatchAll(range) => range,
    };
    let path = |child: &Child| format!("{dir}/{}", child.name);
    Ok(QueuePosition::Behind(
        queue[ahead].iter().map(path).collect(),
    ))
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
