//! Watches that report which keys were deleted. They wake waiters.
//!
//! One etcd watch per lock directory is shared by all waiters of this client. It stays open for [`IDLE_TIMEOUT`] after
//! the last waiter left.
//!
//! etcd puts a watch that is opened while others write into its slow group, which it serves every 100 ms
//! (`syncWatchersLoop`). An open watch is served at once. Therefore a waiter subscribes before it enqueues, if a
//! watch is already open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tonic::Streaming;

use tenure_core::error::ErrorKind;
use tenure_core::name::Escaped;
use tenure_core::rt::{Flag, lock};
use tenure_core::time::Time;

use super::connection::{Connection, Connections};
use super::context::Context;
use super::errors::{Recovery, RequestError, unexpected_reply};
use super::names::Directory;
use super::wire::{self, WatchResponse, path};

/// How long a watch without a subscription stays open, at least: longer than a client takes to want the lock again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many deletions are kept for a waiter that has not read them yet.
const EVENT_BUFFER: usize = 256;

/// A key, and the revision at which it was deleted.
pub(super) type Deletion = (Arc<[u8]>, i64);

/// The shared watches of one client.
pub(super) struct Subscriptions {
    context: Arc<Context>,
    connections: Arc<Connections>,
    /// By directory.
    watches: Mutex<HashMap<Vec<u8>, Arc<SharedWatch>>>,
}

struct SharedWatch {
    deletions: Sender<Deletion>,
    /// A waiter has subscribed since this was last read.
    is_used: AtomicBool,
    closed: Flag,
}

/// What one waiter receives from a shared watch.
pub(super) struct Subscription {
    deletions: Receiver<Deletion>,
    watch: Arc<SharedWatch>,
}

pub(super) enum WatchEvent {
    KeyDeleted(Deletion),
    /// Some deletions were not kept for this waiter.
    Lagged,
    /// No event will follow.
    Closed,
}

impl Subscription {
    fn new(watch: &Arc<SharedWatch>) -> Self {
        watch.is_used.store(true, Ordering::Relaxed);
        Self {
            deletions: watch.deletions.subscribe(),
            watch: watch.clone(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.watch.closed.is_raised()
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> WatchEvent {
        tokio::select! {
            biased;
            deletion = self.deletions.recv() => match deletion {
                Ok(deletion) => WatchEvent::KeyDeleted(deletion),
                Err(RecvError::Lagged(_)) => WatchEvent::Lagged,
                Err(RecvError::Closed) => WatchEvent::Closed,
            },
            () = self.watch.closed.raised() => WatchEvent::Closed,
        }
    }
}

impl Subscriptions {
    pub(super) fn new(context: &Arc<Context>, connections: &Arc<Connections>) -> Self {
        Self {
            context: context.clone(),
            connections: connections.clone(),
            watches: Mutex::default(),
        }
    }

    /// Subscribes to the watch on a directory, if it is open.
    pub(super) fn subscribe(&self, directory: &Directory) -> Option<Subscription> {
        let watches = lock(&self.watches);
        let watch = watches.get(directory.start())?;
        (!watch.closed.is_raised()).then(|| Subscription::new(watch))
    }

    /// Opens a watch on a directory. Also returns the revision after which the watch reports deletions.
    pub(super) async fn open_and_subscribe(
        self: &Arc<Self>,
        directory: &Directory,
    ) -> Result<(Subscription, i64), RequestError> {
        let (start, end) = (directory.start().to_vec(), directory.end());
        let source = Watch::open(&self.connections, start.clone(), end).await?;
        let after = source.after;
        let watch = Arc::new(SharedWatch {
            deletions: channel(EVENT_BUFFER).0,
            is_used: AtomicBool::new(true),
            closed: Flag::new(),
        });
        let subscription = Subscription::new(&watch);
        lock(&self.watches).insert(start.clone(), watch.clone());
        let forward = forward_events(self.clone(), start, source, watch);
        self.context.spawner.spawn(forward);
        Ok((subscription, after))
    }

    /// Opens a watch on one key.
    pub(super) async fn watch_key(&self, key: &[u8]) -> Result<Watch, RequestError> {
        Watch::open(&self.connections, key.to_vec(), Vec::new()).await
    }

    /// Removes a watch if no waiter has subscribed for a while. Returns whether the watch was removed.
    fn remove_if_unused(&self, directory: &[u8], watch: &Arc<SharedWatch>) -> bool {
        // Under this lock no waiter subscribes.
        let mut watches = lock(&self.watches);
        let is_used =
            watch.is_used.swap(false, Ordering::Relaxed) || watch.deletions.receiver_count() > 0;
        if !is_used {
            remove(&mut watches, directory, watch);
        }
        !is_used
    }
}

fn remove(
    watches: &mut HashMap<Vec<u8>, Arc<SharedWatch>>,
    directory: &[u8],
    watch: &Arc<SharedWatch>,
) {
    // A newer watch of the same directory stays.
    if watches
        .get(directory)
        .is_some_and(|known| Arc::ptr_eq(known, watch))
    {
        watches.remove(directory);
    }
    watch.closed.raise();
}

/// Passes the events of a watch on to the subscriptions, until the watch ends or is not used for a while.
async fn forward_events(
    subscriptions: Arc<Subscriptions>,
    directory: Vec<u8>,
    mut source: Watch,
    watch: Arc<SharedWatch>,
) {
    let connection = source.connection.clone();
    let context = &subscriptions.context;
    let mut check_at = context.now().after(IDLE_TIMEOUT);
    loop {
        let deletions = tokio::select! {
            biased;
            deletions = source.next() => deletions,
            () = connection.left.raised() => break,
            () = context.closing.raised() => break,
            () = context.clock.sleep_until(check_at) => {
                if subscriptions.remove_if_unused(&directory, &watch) {
                    return;
                }
                check_at = context.now().after(IDLE_TIMEOUT);
                continue;
            }
        };
        let Ok(deletions) = deletions else { break };
        for deletion in deletions {
            // An error means that no waiter is subscribed.
            let _ = watch.deletions.send(deletion);
        }
    }
    remove(&mut lock(&subscriptions.watches), &directory, &watch);
}

/// One watch in the server, which ends when this is dropped.
pub(super) struct Watch {
    connections: Arc<Connections>,
    pub(super) connection: Connection,
    responses: Streaming<WatchResponse>,
    /// When this is dropped, our side of the stream ends, and then the server ends its side.
    _open: oneshot::Sender<()>,
    /// The watch reports deletions after this revision.
    pub(super) after: i64,
}

impl Watch {
    /// Opens a watch on `key`, or on the keys from `key` up to `range_end`, from now on. (A watch that starts in the
    /// past is served late, see above.)
    async fn open(
        connections: &Arc<Connections>,
        key: Vec<u8>,
        range_end: Vec<u8>,
    ) -> Result<Self, RequestError> {
        let create = wire::Watch {
            create: Some(wire::WatchCreate {
                key,
                range_end,
                // NOPUT: a key that is put from now on is behind ours.
                filters: vec![0],
            }),
        };
        let (open, closed) = oneshot::channel();
        let messages = stream::iter([create]).chain(stream::pending());
        let messages = messages.take_until(closed);
        let (connection, mut responses) = connections.stream(path::WATCH, messages).await?;
        let limit = connections.request_limit();
        let response: WatchResponse = connections.next(&connection, &mut responses, limit).await?;
        if response.canceled {
            return Err(canceled(&response));
        }
        let after = response.header.map_or(0, |header| header.revision);
        if !response.created || after == 0 {
            return Err(RequestError {
                error: unexpected_reply(),
                recovery: Recovery::None,
            });
        }
        Ok(Self {
            connections: connections.clone(),
            connection,
            responses,
            _open: open,
            after,
        })
    }

    /// The next deletions, in their order. Cancel safe.
    pub(super) async fn next(
        &mut self,
    ) -> Result<impl Iterator<Item = Deletion> + use<>, RequestError> {
        let (connection, responses) = (&self.connection, &mut self.responses);
        let response = self.connections.next(connection, responses, Time::MAX);
        let response = response.await?;
        if response.canceled {
            return Err(canceled(&response));
        }
        let deleted = response.events.into_iter().filter(|event| event.kind == 1);
        let deleted = deleted.filter_map(|event| event.kv);
        Ok(deleted.map(|kv| (kv.key.into(), kv.mod_revision)))
    }
}

/// The server ended a watch: its events were compacted away, or this user may not watch these keys.
fn canceled(response: &WatchResponse) -> RequestError {
    let kind = match response.cancel_reason.contains("permission denied") {
        true => ErrorKind::Denied,
        false => ErrorKind::Unreachable,
    };
    let reason = Escaped(&response.cancel_reason);
    let message = format!("the server ended the watch: {reason}");
    RequestError::new(kind, Recovery::None, message)
}
