//! Watches that report which keys were deleted or changed. They wake waiters.
//!
//! One etcd watch per lock directory is shared by all waiters of this client that want the same reports. It stays open
//! for [`IDLE_TIMEOUT`] after the last waiter left.
//!
//! etcd puts a watch that is opened while others write into its slow group, which it serves every 100 ms
//! (`syncWatchersLoop`). An open watch is served at once. Therefore a waiter subscribes before it enqueues, if a
//! watch is already open.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tonic::Streaming;

use tenure_core::error::ErrorKind;
use tenure_core::logic::pace;
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

/// How many events are kept for a waiter that has not read them yet.
const EVENT_BUFFER: usize = 256;

/// What a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reports {
    Deletions,
    /// Deletions, and new values of keys that exist.
    Changes,
}

/// What happened to a key, and at which revision.
#[derive(Clone, Debug)]
pub(super) struct KeyEvent {
    pub(super) key: Arc<[u8]>,
    pub(super) revision: i64,
    /// Otherwise the key has a new value.
    pub(super) is_deleted: bool,
}

/// The shared watches of one client.
pub(super) struct Subscriptions {
    context: Arc<Context>,
    connections: Arc<Connections>,
    /// The watches that report deletions only.
    of_deletions: Mutex<Watches>,
    of_changes: Mutex<Watches>,
}

/// By directory.
type Watches = HashMap<Vec<u8>, Arc<SharedWatch>>;

struct SharedWatch {
    events: Sender<KeyEvent>,
    /// A waiter has subscribed since this was last read.
    is_used: AtomicBool,
    closed: Flag,
}

/// What one waiter receives from a shared watch.
pub(super) struct Subscription {
    events: Receiver<KeyEvent>,
    watch: Arc<SharedWatch>,
}

pub(super) enum WatchEvent {
    Key(KeyEvent),
    /// Some events were not kept for this waiter.
    Lagged,
    /// No event will follow.
    Closed,
}

impl Subscription {
    fn new(watch: &Arc<SharedWatch>) -> Self {
        watch.is_used.store(true, Ordering::Relaxed);
        Self {
            events: watch.events.subscribe(),
            watch: watch.clone(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.watch.closed.is_raised()
    }

    /// Over which time the requests of all waiters of this watch are spread when it ends.
    pub(super) fn spread(&self) -> Duration {
        pace::spread(self.watch.events.receiver_count())
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> WatchEvent {
        tokio::select! {
            biased;
            event = self.events.recv() => match event {
                Ok(event) => WatchEvent::Key(event),
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
            of_deletions: Mutex::default(),
            of_changes: Mutex::default(),
        }
    }

    fn watches(&self, reports: Reports) -> &Mutex<Watches> {
        match reports {
            Reports::Deletions => &self.of_deletions,
            Reports::Changes => &self.of_changes,
        }
    }

    /// Subscribes to the watch on a directory, if it is open.
    pub(super) fn subscribe(
        &self,
        directory: &Directory,
        reports: Reports,
    ) -> Option<Subscription> {
        let watches = lock(self.watches(reports));
        let watch = watches.get(directory.start())?;
        (!watch.closed.is_raised()).then(|| Subscription::new(watch))
    }

    /// Opens a watch on a directory. Also returns the revision after which the watch reports.
    pub(super) async fn open_and_subscribe(
        self: &Arc<Self>,
        directory: &Directory,
        reports: Reports,
    ) -> Result<(Subscription, i64), RequestError> {
        let (start, end) = (directory.start().to_vec(), directory.end());
        let source = Watch::open(&self.connections, start.clone(), end, reports).await?;
        let after = source.after;
        let watch = Arc::new(SharedWatch {
            events: channel(EVENT_BUFFER).0,
            is_used: AtomicBool::new(true),
            closed: Flag::new(),
        });
        let subscription = Subscription::new(&watch);
        lock(self.watches(reports)).insert(start.clone(), watch.clone());
        let forward = forward_events(self.clone(), (start, reports), source, watch);
        self.context.spawner.spawn(forward);
        Ok((subscription, after))
    }

    /// Opens a watch that reports the deletion of one key.
    pub(super) async fn watch_key(&self, key: &[u8]) -> Result<Watch, RequestError> {
        let (key, end) = (key.to_vec(), Vec::new());
        Watch::open(&self.connections, key, end, Reports::Deletions).await
    }

    /// Removes a watch if no waiter has subscribed for a while. Returns whether the watch was removed.
    fn remove_if_unused(
        &self,
        (directory, reports): (&[u8], Reports),
        watch: &Arc<SharedWatch>,
    ) -> bool {
        // Under this lock no waiter subscribes.
        let mut watches = lock(self.watches(reports));
        let is_used =
            watch.is_used.swap(false, Ordering::Relaxed) || watch.events.receiver_count() > 0;
        if !is_used {
            remove(&mut watches, directory, watch);
        }
        !is_used
    }
}

fn remove(watches: &mut Watches, directory: &[u8], watch: &Arc<SharedWatch>) {
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
    (directory, reports): (Vec<u8>, Reports),
    mut source: Watch,
    watch: Arc<SharedWatch>,
) {
    let connection = source.connection.clone();
    let context = &subscriptions.context;
    let mut check_at = context.now().after(IDLE_TIMEOUT);
    loop {
        let event = tokio::select! {
            biased;
            event = source.next() => event,
            () = connection.left.raised() => break,
            () = context.closing.raised() => break,
            () = context.clock.sleep_until(check_at) => {
                if subscriptions.remove_if_unused((&directory, reports), &watch) {
                    return;
                }
                check_at = context.now().after(IDLE_TIMEOUT);
                continue;
            }
        };
        let Ok(event) = event else { break };
        // An error means that no waiter is subscribed.
        let _ = watch.events.send(event);
    }
    let mut watches = lock(subscriptions.watches(reports));
    remove(&mut watches, &directory, &watch);
}

/// One watch in the server, which ends when this is dropped.
pub(super) struct Watch {
    connections: Arc<Connections>,
    pub(super) connection: Connection,
    responses: Streaming<WatchResponse>,
    /// Received, and not passed on yet.
    events: VecDeque<wire::Event>,
    /// When this is dropped, our side of the stream ends, and then the server ends its side.
    _open: oneshot::Sender<()>,
    /// The watch reports what happens after this revision.
    pub(super) after: i64,
}

impl Watch {
    /// Opens a watch on `key`, or on the keys from `key` up to `range_end`, from now on. (A watch that starts in the
    /// past is served late, see above.)
    pub(super) async fn open(
        connections: &Arc<Connections>,
        key: Vec<u8>,
        range_end: Vec<u8>,
        reports: Reports,
    ) -> Result<Self, RequestError> {
        let opened = Self::open_once(connections, key.clone(), range_end.clone(), reports).await;
        match opened {
            // The login token may be over: some versions call that a denial. A read logs in again, or has the error.
            Err(err) if matches!(err.recovery, Recovery::LogIn | Recovery::None) => {
                check_login(connections, key.clone()).await?;
                Self::open_once(connections, key, range_end, reports).await
            }
            opened => opened,
        }
    }

    async fn open_once(
        connections: &Arc<Connections>,
        key: Vec<u8>,
        range_end: Vec<u8>,
        reports: Reports,
    ) -> Result<Self, RequestError> {
        let filters = match reports {
            // NOPUT: a key that is put from now on is behind ours.
            Reports::Deletions => vec![0],
            Reports::Changes => Vec::new(),
        };
        let create = wire::Watch {
            create: Some(wire::WatchCreate {
                key,
                range_end,
                filters,
            }),
        };
        let (open, closed) = oneshot::channel();
        let messages = stream::iter([create]).chain(stream::pending());
        let messages = messages.take_until(closed);
        let limit = connections.request_limit();
        let stream = connections.stream(path::WATCH, messages, limit);
        let (connection, mut responses) = stream.await?;
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
            events: VecDeque::new(),
            _open: open,
            after,
        })
    }

    /// The next event of a key that was there when the watch was opened, or is put again. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<KeyEvent, RequestError> {
        let event = |event: wire::Event| {
            let (kv, is_deleted) = (event.kv?, event.kind == 1);
            // A new key is behind ours.
            let is_new = !is_deleted && kv.create_revision == kv.mod_revision;
            (!is_new).then(|| KeyEvent {
                key: kv.key.into(),
                revision: kv.mod_revision,
                is_deleted,
            })
        };
        loop {
            if let Some(event) = event(self.next_event().await?) {
                return Ok(event);
            }
        }
    }

    /// The next event as the server reports it. Cancel safe.
    pub(super) async fn next_event(&mut self) -> Result<wire::Event, RequestError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let (connection, responses) = (&self.connection, &mut self.responses);
            let response = self.connections.next(connection, responses, Time::MAX);
            let response: WatchResponse = response.await?;
            if response.canceled {
                return Err(canceled(&response));
            }
            self.events.extend(response.events);
        }
    }
}

/// Reads a key, and logs in for that if there is no valid login.
async fn check_login(connections: &Connections, key: Vec<u8>) -> Result<(), RequestError> {
    let range = wire::Range {
        key,
        ..wire::Range::default()
    };
    let reply = connections.call(path::RANGE, range).await?;
    let wire::RangeResponse { .. } = reply.value;
    Ok(())
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
