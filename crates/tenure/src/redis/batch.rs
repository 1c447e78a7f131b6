//! Batches the acquire and release requests that are made within one turn of the runtime into one script call.
//!
//! A request costs server and client more than the lock in it does: the start of the script, its text of replies, a
//! switch between two tasks. No request waits for others: the batch is sent in the same turn in which each request
//! would have been sent alone.
//!
//! Exclusive requests are batched whatever their names are; shared holds with others of the same name.
//! The batch script handles the common case only: a lock is free (or held by us, or by readers), and its queue is empty. For
//! any other lock it does nothing, and that request is sent again alone.

use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::oneshot;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::rt::{lock, yield_now};

use super::connection::{Connections, ScriptReply, unexpected_reply};
use super::context::Context;
use super::format::Keys;
use super::scripts::{ManyScripts, OwnerText, Scripts, Text};

/// Requests under way, above which requests are batched. Fewer are served better one by one: there is little to
/// batch, and the reply to the first is on its way while the next one is made.
const BATCH_THRESHOLD: usize = 8;

/// Locks in one script: the server does nothing else for the time of some 200 commands.
const MAX_BATCH: usize = 64;

/// After the server refused a batch, requests are sent one by one for this long. A batch is refused when an access list
/// forbids one of its keys, or when a proxy spreads the keys over several servers.
const BATCH_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A request that can be batched with others.
pub(super) struct BatchItem {
    pub(super) keys: Keys,
    pub(super) owner: OwnerId,
    /// See [`Request::propose`](tenure_core::store::Request::propose).
    pub(super) propose: Option<u64>,
    pub(super) key: BatchKey,
}

/// What all requests of one batch have in common.
#[derive(PartialEq, Eq)]
pub(super) enum BatchKey {
    Acquire {
        /// The lease in ms.
        ttl: u64,
        /// How long the token is kept, in ms.
        token_retention: u64,
        /// What is stored about the holder.
        holder: Arc<str>,
        is_proposed: bool,
    },
    Release,
    /// Shared holds of one lock.
    AcquireShared {
        keys: Keys,
        /// What the holds have in common, as in [`BatchKey::Acquire`].
        ttl: u64,
        token_retention: u64,
        holder: Arc<str>,
    },
    ReleaseShared(Keys),
}

/// A request that waits to be sent, and the sender for its reply.
struct PendingRequest {
    item: BatchItem,
    reply: oneshot::Sender<BatchReply>,
}

/// The reply that the single script would give. `Ok(None)`: nothing was done; the request has to be sent alone.
type BatchReply = Result<Option<ScriptReply<u64>>, Error>;

/// Sends requests in batches when there are many.
pub(super) struct Batcher {
    context: Arc<Context>,
    connections: Arc<Connections>,
    scripts: Option<&'static ManyScripts>,
    in_flight: AtomicUsize,
    /// The requests that wait for the next batch.
    pending: Mutex<Vec<PendingRequest>>,
    /// Until when requests are sent one by one, in ns.
    one_by_one_until: AtomicU64,
}

/// Counts a request for as long as it lives.
pub(super) struct InFlightGuard<'a>(&'a AtomicUsize);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task that sends the pending requests. Dropping it before (the runtime has shut down) fails all of them.
struct BatchTask(Option<Arc<Batcher>>);

impl BatchTask {
    /// Lets the other tasks of this turn add their requests, and sends all of them.
    async fn run(mut self, scripts: &ManyScripts) {
        yield_now().await;
        if let Some(batcher) = self.0.take() {
            let pending = mem::take(&mut *lock(&batcher.pending));
            batcher.send_all(scripts, pending).await;
        }
    }
}

impl Drop for BatchTask {
    fn drop(&mut self) {
        if let Some(batcher) = &self.0 {
            // Dropped after the lock is released: a dropped sender wakes a task.
            let pending = mem::take(&mut *lock(&batcher.pending));
            drop(pending);
        }
    }
}

impl Batcher {
    pub(super) fn new(
        context: &Arc<Context>,
        connections: &Arc<Connections>,
        scripts: &'static Scripts,
    ) -> Self {
        Self {
            context: context.clone(),
            connections: connections.clone(),
            scripts: scripts.many.as_ref(),
            in_flight: AtomicUsize::new(0),
            pending: Mutex::default(),
            one_by_one_until: AtomicU64::new(0),
        }
    }

    /// Counts a request, batched or not, for as long as the answer lives.
    pub(super) fn enter(&self) -> InFlightGuard<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(&self.in_flight)
    }

    /// The scripts for many locks. `None`: requests are sent alone, because there are few, or because one server does
    /// not have all keys.
    pub(super) fn scripts(&self) -> Option<&'static ManyScripts> {
        let has_many = self.in_flight.load(Ordering::Relaxed) > BATCH_THRESHOLD;
        let scripts = self
            .scripts
            .filter(|_| has_many && !self.connections.is_cluster())?;
        let until = self.one_by_one_until.load(Ordering::Relaxed);
        (until == 0 || self.context.now().as_nanos() >= until).then_some(scripts)
    }

    /// Sends a request together with the others of this turn. `None`: nothing was done; the request has to be sent
    /// alone.
    pub(super) async fn send(
        self: &Arc<Self>,
        scripts: &'static ManyScripts,
        item: BatchItem,
    ) -> BatchReply {
        let (reply, replied) = oneshot::channel();
        let is_first = {
            let mut pending = lock(&self.pending);
            pending.push(PendingRequest { item, reply });
            pending.len() == 1
        };
        if is_first {
            // A task of its own, which goes on when the caller that came first is dropped.
            let task = BatchTask(Some(self.clone())).run(scripts);
            let Context {
                operations,
                spawner,
                ..
            } = &*self.context;
            operations.spawn(spawner, task);
        }
        let dropped = |_| {
            let message = "the runtime of this client ended while the request was under way";
            Err(Error::new(ErrorKind::Indeterminate, message))
        };
        replied.await.unwrap_or_else(dropped)
    }

    async fn send_all(&self, scripts: &ManyScripts, pending: Vec<PendingRequest>) {
        let mut batches: Vec<Vec<PendingRequest>> = Vec::new();
        for request in pending {
            let has_room = |batch: &&mut Vec<PendingRequest>| {
                batch.len() < MAX_BATCH && batch[0].item.key == request.item.key
            };
            match batches.iter_mut().find(has_room) {
                Some(batch) => batch.push(request),
                None => batches.push(vec![request]),
            }
        }
        let batches = batches.into_iter();
        join_all(batches.map(|batch| self.send_batch(scripts, batch))).await;
    }

    async fn send_batch(&self, scripts: &ManyScripts, batch: Vec<PendingRequest>) {
        let first = match &batch[..] {
            // The script for one lock is quicker.
            [] | [_] => return answer(batch, |_| Ok(None)),
            [first, ..] => &first.item,
        };
        let all = || batch.iter().map(|request| &request.item.keys);
        let all = || all().map(Keys::lock).chain(all().map(Keys::hold));
        let (script, keys) = match &first.key {
            BatchKey::Acquire { .. } => (&scripts.acquire, all().collect()),
            BatchKey::Release => (&scripts.release, all().collect()),
            BatchKey::AcquireShared { keys, .. } => (&scripts.acquire_shared, keys.all().to_vec()),
            BatchKey::ReleaseShared(keys) => (&scripts.release_shared, keys.all().to_vec()),
        };
        let args = |cmd: &mut Cmd| self.args(&batch, &first.key, cmd);
        let reply: Result<ScriptReply<Vec<u64>>, _> =
            self.connections.call(script, &keys, &args).await;
        match reply {
            Ok(reply) if reply.value.len() == batch.len() => answer(batch, |index| {
                let value = reply.value[index];
                Ok((value > 0).then(|| ScriptReply {
                    value,
                    sent: reply.sent,
                    connection: reply.connection.clone(),
                }))
            }),
            Ok(_) => answer(batch, |_| Err(unexpected_reply())),
            Err(err) if err.kind() == ErrorKind::Indeterminate => {
                answer(batch, |_| Err(err.clone()));
            }
            // Nothing was done. Sent alone, each request finds out whether the error is about its own lock.
            Err(_) => {
                let until = self.context.now().after(BATCH_RETRY_DELAY).as_nanos();
                self.one_by_one_until.store(until, Ordering::Relaxed);
                answer(batch, |_| Ok(None));
            }
        }
    }

    /// Adds the arguments of one script.
    fn args(&self, batch: &[PendingRequest], key: &BatchKey, cmd: &mut Cmd) {
        let items = || batch.iter().map(|request| &request.item);
        let common = match key {
            BatchKey::Acquire {
                ttl,
                token_retention,
                holder,
                ..
            }
            | BatchKey::AcquireShared {
                ttl,
                token_retention,
                holder,
                ..
            } => Some((ttl, token_retention, holder)),
            BatchKey::Release | BatchKey::ReleaseShared(_) => None,
        };
        if let Some((ttl, token_retention, holder)) = common {
            let channel = &self.context.events.channel;
            cmd.arg(ttl)
                .arg(Text(format_args!("0 0 {channel} {holder}")))
                .arg(token_retention);
        }
        for item in items() {
            let (client, owner) = (None, item.owner);
            cmd.arg(OwnerText { client, owner });
        }
        for token in items().filter_map(|item| item.propose) {
            cmd.arg(token);
        }
    }
}

/// Gives each request of the batch its reply.
fn answer(batch: Vec<PendingRequest>, reply: impl Fn(usize) -> BatchReply) {
    for (index, request) in batch.into_iter().enumerate() {
        // The caller may be gone, together with its runtime.
        let _ = request.reply.send(reply(index));
    }
}
