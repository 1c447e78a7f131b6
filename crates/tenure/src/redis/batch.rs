//! Batches the acquire and release requests that are made within one turn of the runtime into one script call.
//!
//! A request costs server and client more than the lock in it does: the start of the script, its text of replies, a
//! switch between two tasks. No request waits for others: the batch is sent in the same turn in which each request
//! would have been sent alone.
//!
//! The batch script handles the common case only: a lock is free (or held by us), and its queue is empty. For any
//! other lock it does nothing, and that request is sent again alone.

use std::marker::PhantomData;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::oneshot;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::{lock, yield_now};

use super::connection::{Connections, Reply};
use super::context::Context;
use super::errors::unexpected_reply;
use super::names::Keys;
use super::scripts::{BatchScripts, OwnerText, Script, Text};

/// Requests under way, above which requests are batched. Fewer are served better one by one: there is little to
/// batch, and the reply to the first is on its way while the next one is made.
const BATCH_THRESHOLD: usize = 8;

/// Locks in one script: the server does nothing else for the time of some 200 commands.
const MAX_BATCH: usize = 64;

/// After the server refused a batch, requests are sent one by one for this long. A batch is refused when an access list
/// forbids one of its keys, or when a proxy spreads the keys over several servers.
const BATCH_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A lock to be acquired.
pub(super) struct AcquireItem {
    pub(super) keys: Keys,
    pub(super) owner: OwnerText,
    /// See [`Request::propose`](tenure_core::backend::Request::propose).
    pub(super) propose: Option<u64>,
    pub(super) key: BatchKey,
}

/// What all locks of one acquire script have in common.
#[derive(PartialEq, Eq)]
pub(super) struct BatchKey {
    /// The lease in ms.
    pub(super) ttl: u64,
    /// How long the token is kept, in ms.
    pub(super) token_retention: u64,
    /// What is stored about the holder.
    pub(super) holder: Arc<str>,
    pub(super) is_proposed: bool,
}

/// A lock to be released.
pub(super) struct ReleaseItem {
    pub(super) keys: Keys,
    pub(super) owner: OwnerText,
}

/// A request that can be batched with others of its kind.
pub(super) trait BatchItem: Send + Sync + Sized + 'static {
    fn queue(queues: &Queues) -> &Mutex<Vec<PendingRequest<Self>>>;
    fn script(scripts: &BatchScripts) -> &Script;
    fn keys(&self) -> &Keys;
    /// Whether one script can do both.
    fn fits(&self, other: &Self) -> bool;
    /// Adds the arguments of all these requests; there is at least one.
    fn fill(batch: &[PendingRequest<Self>], cmd: &mut Cmd, channel: &str);
}

/// A request that waits to be sent, and the sender for its reply.
pub(super) struct PendingRequest<T> {
    request: T,
    reply: oneshot::Sender<BatchReply>,
}

/// The reply that the single script would give. `Ok(None)`: nothing was done; the request has to be sent alone.
type BatchReply = Result<Option<Reply<u64>>, Error>;

/// The requests that wait for the next batch.
#[derive(Default)]
pub(super) struct Queues {
    acquires: Mutex<Vec<PendingRequest<AcquireItem>>>,
    releases: Mutex<Vec<PendingRequest<ReleaseItem>>>,
}

/// Sends requests in batches when there are many.
pub(super) struct Batcher(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    connections: Arc<Connections>,
    in_flight: AtomicUsize,
    queues: Queues,
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

/// The task that sends the requests of one queue. Dropping it before (the runtime has shut down) fails all of them.
struct BatchTask<T: BatchItem> {
    inner: Option<Arc<Inner>>,
    kind: PhantomData<fn(T)>,
}

impl<T: BatchItem> BatchTask<T> {
    fn new(inner: &Arc<Inner>) -> Self {
        Self {
            inner: Some(inner.clone()),
            kind: PhantomData,
        }
    }

    /// Lets the other tasks of this turn add their requests, and sends all of them.
    async fn run(mut self, scripts: &BatchScripts) {
        yield_now().await;
        if let Some(inner) = self.inner.take() {
            let pending = mem::take(&mut *lock(T::queue(&inner.queues)));
            inner.send_all(scripts, pending).await;
        }
    }
}

impl<T: BatchItem> Drop for BatchTask<T> {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            // Dropped after the lock is released: a dropped sender wakes a task.
            let pending = mem::take(&mut *lock(T::queue(&inner.queues)));
            drop(pending);
        }
    }
}

impl Batcher {
    pub(super) fn new(context: &Arc<Context>, connections: &Arc<Connections>) -> Self {
        Self(Arc::new(Inner {
            context: context.clone(),
            connections: connections.clone(),
            in_flight: AtomicUsize::new(0),
            queues: Queues::default(),
            one_by_one_until: AtomicU64::new(0),
        }))
    }

    /// Counts a request, batched or not, for as long as the answer lives.
    pub(super) fn enter(&self) -> InFlightGuard<'_> {
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(&self.0.in_flight)
    }

    /// The scripts for many locks. `None`: requests are sent alone, because there are few, or because one server does
    /// not have all keys.
    pub(super) fn scripts(&self) -> Option<&'static BatchScripts> {
        let inner = &self.0;
        let has_many = inner.in_flight.load(Ordering::Relaxed) > BATCH_THRESHOLD;
        let scripts = inner.connections.scripts.batch.as_ref();
        let scripts = scripts.filter(|_| has_many && !inner.connections.is_cluster())?;
        let until = inner.one_by_one_until.load(Ordering::Relaxed);
        (until == 0 || inner.context.now().as_nanos() >= until).then_some(scripts)
    }

    /// Sends a request together with the others of this turn. `None`: nothing was done; the request has to be sent
    /// alone.
    pub(super) async fn send<T: BatchItem>(
        &self,
        scripts: &'static BatchScripts,
        request: T,
    ) -> BatchReply {
        let inner = &self.0;
        let (reply, replied) = oneshot::channel();
        let is_first = {
            let mut queue = lock(T::queue(&inner.queues));
            queue.push(PendingRequest { request, reply });
            queue.len() == 1
        };
        if is_first {
            // A task of its own, which goes on when the caller that came first is dropped.
            let task = BatchTask::<T>::new(inner).run(scripts);
            let Context {
                operations,
                spawner,
                ..
            } = &*inner.context;
            operations.spawn(spawner, task);
        }
        let dropped = |_| {
            let message = "the runtime of this client ended while the request was under way";
            Err(Error::new(ErrorKind::Indeterminate, message))
        };
        replied.await.unwrap_or_else(dropped)
    }
}

impl Inner {
    async fn send_all<T: BatchItem>(
        &self,
        scripts: &BatchScripts,
        pending: Vec<PendingRequest<T>>,
    ) {
        let mut batches: Vec<Vec<PendingRequest<T>>> = Vec::new();
        for request in pending {
            let has_room = |batch: &&mut Vec<PendingRequest<T>>| {
                batch.len() < MAX_BATCH && batch[0].request.fits(&request.request)
            };
            match batches.iter_mut().find(has_room) {
                Some(batch) => batch.push(request),
                None => batches.push(vec![request]),
            }
        }
        let batches = batches.into_iter();
        join_all(batches.map(|batch| self.send_batch(scripts, batch))).await;
    }

    async fn send_batch<T: BatchItem>(
        &self,
        scripts: &BatchScripts,
        batch: Vec<PendingRequest<T>>,
    ) {
        let key = match &batch[..] {
            // The script for one lock is quicker.
            [] | [_] => return answer(batch, |_| Ok(None)),
            [first, ..] => first.request.keys().lock(),
        };
        let fill = |cmd: &mut Cmd| {
            for PendingRequest { request, .. } in &batch {
                cmd.arg(request.keys().lock());
            }
            for PendingRequest { request, .. } in &batch {
                cmd.arg(request.keys().hold());
            }
            T::fill(&batch, cmd, &self.context.events.channel);
        };
        let (script, keys) = (T::script(scripts), 2 * batch.len());
        let reply: Result<Reply<Vec<u64>>, _> =
            self.connections.call(key, script, keys, fill).await;
        match reply {
            Ok(reply) if reply.value.len() == batch.len() => answer(batch, |index| {
                let value = reply.value[index];
                Ok((value > 0).then(|| Reply {
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
}

/// Gives each request of the batch its reply.
fn answer<T>(batch: Vec<PendingRequest<T>>, reply: impl Fn(usize) -> BatchReply) {
    for (index, request) in batch.into_iter().enumerate() {
        // The caller may be gone, together with its runtime.
        let _ = request.reply.send(reply(index));
    }
}

impl BatchItem for AcquireItem {
    fn queue(queues: &Queues) -> &Mutex<Vec<PendingRequest<Self>>> {
        &queues.acquires
    }

    fn script(scripts: &BatchScripts) -> &Script {
        &scripts.acquire
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn fits(&self, other: &Self) -> bool {
        self.key == other.key
    }

    fn fill(batch: &[PendingRequest<Self>], cmd: &mut Cmd, channel: &str) {
        if let [first, ..] = batch {
            let BatchKey {
                ttl,
                token_retention,
                holder,
                ..
            } = &first.request.key;
            cmd.arg(ttl)
                .arg(Text(format_args!("0 0 {channel} {holder}")))
                .arg(token_retention);
        }
        for PendingRequest { request, .. } in batch {
            cmd.arg(&request.owner);
        }
        for PendingRequest { request, .. } in batch {
            if let Some(token) = request.propose {
                cmd.arg(token);
            }
        }
    }
}

impl BatchItem for ReleaseItem {
    fn queue(queues: &Queues) -> &Mutex<Vec<PendingRequest<Self>>> {
        &queues.releases
    }

    fn script(scripts: &BatchScripts) -> &Script {
        &scripts.release
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }

    fn fill(batch: &[PendingRequest<Self>], cmd: &mut Cmd, _: &str) {
        for PendingRequest { request, .. } in batch {
            cmd.arg(&request.owner);
        }
    }
}
