//! Requests that a client makes at the same time go to the server together, as one script.
//!
//! A request costs the server and the client more than the lock in it does: the script's start, its text of
//! answers, a turn of two tasks. So what many tasks ask for within one turn of the runtime is gathered, and
//! nothing waits for it: the request is sent in the same turn, as each of them would have been.
//!
//! A script about many locks knows the common case only, in which a lock is free, or ours, and nobody waits.
//! Where it meets another one it does nothing, and that request is made again by itself.

use std::marker::PhantomData;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::oneshot;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::rt::{lock, yield_now};

use super::connection::Reply;
use super::hold::{OwnerText, Store, Text, keep, lease, nonsense};
use super::names::Keys;
use super::scripts::{BatchScripts, Script};

/// Requests under way, from which on those that come are gathered. Fewer are better served one by one: there
/// is little to gather, and the answer to the first is on its way while the next one is made.
const BATCH_THRESHOLD: usize = 8;

/// Locks in one script: the server does nothing else for the time of some 200 commands.
const MAX_BATCH: usize = 64;

/// For so long requests are made one by one after a server would not have them together: one name of theirs may be
/// forbidden to this user, or the locks lie on several servers behind the one that we know.
const BATCH_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A free lock to be taken.
struct AcquireItem {
    keys: Keys,
    owner: OwnerText,
    /// See [`Request::propose`].
    propose: Option<u64>,
    alike: BatchKey,
}

/// What is the same for all locks in one script.
#[derive(PartialEq, Eq)]
struct BatchKey {
    /// The lease in ms.
    ttl: u64,
    /// For how long the token is kept, in ms.
    keep: u64,
    /// What others may know of the holder.
    holder: Arc<str>,
    /// Whether there is a token to grant under.
    is_proposed: bool,
}

/// A lock to be given back.
struct ReleaseItem {
    keys: Keys,
    owner: OwnerText,
}

/// A request that can be made together with others of its kind.
trait BatchItem: Send + Sync + Sized + 'static {
    fn standing(crowd: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>>;
    fn script(many: &BatchScripts) -> &Script;
    fn keys(&self) -> &Keys;
    fn is_like(&self, other: &Self) -> bool;
    /// Adds the arguments about all of them; there is one at least.
    fn fill(all: &[PendingRequest<Self>], cmd: &mut Cmd, channel: &str);
}

/// A request, and who is to get the answer.
struct PendingRequest<T> {
    request: T,
    answer: oneshot::Sender<BatchReply>,
}

/// `Ok(None)`: nothing was done, it is to be asked for by itself. The number is that of the single script.
type BatchReply = Result<Option<Reply<u64>>, Error>;

/// The requests of one client that are under way, and those that stand together.
#[derive(Default)]
pub(super) struct Batcher {
    under_way: AtomicUsize,
    takes: Mutex<Vec<PendingRequest<AcquireItem>>>,
    gives: Mutex<Vec<PendingRequest<ReleaseItem>>>,
    /// Until when everybody asks alone, in ns.
    apart_until: AtomicU64,
}

/// Counts a request for as long as it lives.
pub(super) struct InFlightGuard<'a>(&'a Batcher);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task that is to make the requests. If it is dropped, because the runtime ended, nobody goes on standing there.
struct BatchTask<T: BatchItem> {
    store: Option<Arc<Store>>,
    kind: PhantomData<fn(T)>,
}

impl<T: BatchItem> BatchTask<T> {
    fn new(store: &Arc<Store>) -> Self {
        Self {
            store: Some(store.clone()),
            kind: PhantomData,
        }
    }

    /// All that stand there by now.
    fn done(mut self) -> Option<(Arc<Store>, Vec<PendingRequest<T>>)> {
        let store = self.store.take()?;
        let all = mem::take(&mut *lock(T::standing(&store.crowd)));
        Some((store, all))
    }
}

impl<T: BatchItem> Drop for BatchTask<T> {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            let all = mem::take(&mut *lock(T::standing(&store.crowd)));
            drop(all);
        }
    }
}

impl Batcher {
    /// A request begins.
    pub(super) fn enter(&self) -> InFlightGuard<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self)
    }
}

impl Store {
    /// Takes a lock together with others. `None`: it is to be asked for by itself.
    pub(super) async fn take_with_others(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
    ) -> Result<Option<Reply<u64>>, Error> {
        let rests = !request.min_hold.is_zero() || !request.lock_delay.is_zero();
        let Some(many) = self.many().filter(|_| !rests) else {
            return Ok(None);
        };
        let take = AcquireItem {
            keys: keys.clone(),
            owner: self.owner(request.owner),
            propose: request.propose,
            alike: BatchKey {
                ttl: lease(request),
                keep: keep(request.ttl),
                holder: self.written(&request.holder),
                is_proposed: request.propose.is_some(),
            },
        };
        self.together(many, take).await
    }

    /// Gives a lock back together with others. `false`: nothing was done.
    pub(super) async fn give_with_others(
        self: &Arc<Self>,
        keys: &Keys,
        owner: OwnerId,
    ) -> Result<bool, Error> {
        let Some(many) = self.many() else {
            return Ok(false);
        };
        let give = ReleaseItem {
            keys: keys.clone(),
            owner: self.owner(owner),
        };
        Ok(self.together(many, give).await?.is_some())
    }

    /// The scripts for many locks, when there are many requests and the server has all keys.
    fn many(&self) -> Option<&'static BatchScripts> {
        let is_crowd = self.crowd.under_way.load(Ordering::Relaxed) > BATCH_THRESHOLD;
        let many = self.nodes.scripts.many.as_ref();
        let many = many.filter(|_| is_crowd && !self.nodes.is_cluster())?;
        let apart_until = self.crowd.apart_until.load(Ordering::Relaxed);
        (apart_until == 0 || self.clock.now().as_nanos() >= apart_until).then_some(many)
    }

    /// Makes a request together with those that are made at the same time.
    async fn together<T: BatchItem>(
        self: &Arc<Self>,
        many: &'static BatchScripts,
        request: T,
    ) -> BatchReply {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut all = lock(T::standing(&self.crowd));
            all.push(PendingRequest { request, answer });
            all.len() == 1
        };
        if is_first {
            let gathering = BatchTask::<T>::new(self);
            // In a task of its own, which does not end with whoever came first.
            self.operations.spawn(&self.spawner, async move {
                yield_now().await;
                if let Some((store, all)) = gathering.done() {
                    store.make_all(many, all).await;
                }
            });
        }
        let ended = |_| {
            let message = "the runtime of this client ended while the request was under way";
            Err(Error::new(ErrorKind::Indeterminate, message))
        };
        answered.await.unwrap_or_else(ended)
    }

    async fn make_all<T: BatchItem>(&self, many: &BatchScripts, all: Vec<PendingRequest<T>>) {
        let mut batches: Vec<Vec<PendingRequest<T>>> = Vec::new();
        for standing in all {
            let fits = |batch: &&mut Vec<PendingRequest<T>>| {
                batch.len() < MAX_BATCH && batch[0].request.is_like(&standing.request)
            };
            match batches.iter_mut().find(fits) {
                Some(batch) => batch.push(standing),
                None => batches.push(vec![standing]),
            }
        }
        let batches = batches.into_iter().map(|batch| self.make(many, batch));
        futures_util::future::join_all(batches).await;
    }

    async fn make<T: BatchItem>(&self, many: &BatchScripts, batch: Vec<PendingRequest<T>>) {
        let first = match &batch[..] {
            // Alone it is better off with the script for one.
            [] | [_] => return batch.into_iter().for_each(|it| it.say(Ok(None))),
            [first, ..] => first.request.keys().lock(),
        };
        let fill = |cmd: &mut Cmd| {
            for PendingRequest { request, .. } in &batch {
                cmd.arg(request.keys().lock());
            }
            for PendingRequest { request, .. } in &batch {
                cmd.arg(request.keys().hold());
            }
            T::fill(&batch, cmd, &self.inbox.channel);
        };
        let script = T::script(many);
        let keys = 2 * batch.len();
        let answers: Result<Reply<Vec<u64>>, _> = self.nodes.call(first, script, keys, fill).await;
        let answers = match answers {
            Ok(answers) if answers.value.len() == batch.len() => answers,
            Ok(_) => return batch.into_iter().for_each(|it| it.say(Err(nonsense()))),
            Err(err) => {
                if err.kind() != ErrorKind::Indeterminate {
                    let until = self.clock.now().after(BATCH_RETRY_DELAY).as_nanos();
                    self.crowd.apart_until.store(until, Ordering::Relaxed);
                }
                for standing in batch {
                    standing.say(match err.kind() {
                        ErrorKind::Indeterminate => Err(Error::new(err.kind(), err.to_string())),
                        // Nothing was done. Each finds out for itself what is wrong, which may be with one of them.
                        _ => Ok(None),
                    });
                }
                return;
            }
        };
        for (standing, value) in batch.into_iter().zip(answers.value) {
            let done = (value > 0).then(|| Reply {
                value,
                sent: answers.sent,
                connection: answers.connection.clone(),
            });
            standing.say(Ok(done));
        }
    }
}

impl<T> PendingRequest<T> {
    fn say(self, gotten: BatchReply) {
        // Whoever asked may be gone, with the runtime it was in.
        let _ = self.answer.send(gotten);
    }
}

impl BatchItem for AcquireItem {
    fn standing(crowd: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>> {
        &crowd.takes
    }

    fn script(many: &BatchScripts) -> &Script {
        &many.acquire
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn is_like(&self, other: &Self) -> bool {
        self.alike == other.alike
    }

    fn fill(all: &[PendingRequest<Self>], cmd: &mut Cmd, channel: &str) {
        if let [first, ..] = all {
            let BatchKey {
                ttl, keep, holder, ..
            } = &first.request.alike;
            cmd.arg(ttl)
                .arg(Text(format_args!("0 0 {channel} {holder}")))
                .arg(keep);
        }
        for PendingRequest { request, .. } in all {
            cmd.arg(&request.owner);
        }
        for PendingRequest { request, .. } in all {
            if let Some(token) = request.propose {
                cmd.arg(token);
            }
        }
    }
}

impl BatchItem for ReleaseItem {
    fn standing(crowd: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>> {
        &crowd.gives
    }

    fn script(many: &BatchScripts) -> &Script {
        &many.release
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn is_like(&self, _: &Self) -> bool {
        true
    }

    fn fill(all: &[PendingRequest<Self>], cmd: &mut Cmd, _: &str) {
        for PendingRequest { request, .. } in all {
            cmd.arg(&request.owner);
        }
    }
}
