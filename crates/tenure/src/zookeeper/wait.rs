//! Our side of the queue: what a node of ours waits for, and watches on the nodes in front of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use zookeeper_client::{OneshotWatcher, WatchedEvent};

use tenure_core::error::Error;
use tenure_core::logic::pace;
use tenure_core::queue::{Position, QueueRequest};
use tenure_core::rt::Clock;
use tenure_core::store::Request;

use super::contact::LeasePeriod;
use super::errors::{ClientError, RequestError};
use super::queue::{Ahead, Queue};
use super::requests::{self, Node};
use super::session::Session;
use super::store::Store;

/// One request of the driver, as the queue engine needs it.
pub(super) struct Operation<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) request: &'a Request,
    /// The token that the hold keeps when its mode changes; 0: the one that its node has.
    pub(super) token: u64,
    /// A new session was opened because the first one had ended unnoticed.
    pub(super) has_new_session: AtomicBool,
}

impl<'a> Operation<'a> {
    pub(super) fn new(store: &'a Arc<Store>, request: &'a Request, token: u64) -> Self {
        Self {
            store,
            request,
            token,
            has_new_session: AtomicBool::new(false),
        }
    }
}

/// A node of ours in the queue.
pub(super) struct QueueEntry {
    pub(super) session: Arc<Session>,
    pub(super) dir: Arc<str>,
    pub(super) node: Node,
    /// Of the request that made the node.
    pub(super) lease: LeasePeriod,
    pub(super) goal: Goal,
}

/// What a node of ours waits for.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// Its turn.
    Turn,
    /// As many nodes as permits, or fewer.
    Permit { permits: usize },
    /// The end of all other holds whose nodes are at most so many numbers behind our own.
    EndOfOthers { last: i64 },
}

impl QueueRequest for Operation<'_> {
    type Entry = QueueEntry;
    type Ahead = Ahead;

    const BEGINS_ANEW: bool = true;

    fn context(&self) -> (&Request, &Clock) {
        (self.request, &self.store.clock)
    }

    async fn read(
        &self,
        entry: &QueueEntry,
        _: Option<Ahead>,
        is_safety_poll: bool,
    ) -> Result<Position<Ahead>, Error> {
        let read = async {
            if is_safety_poll {
                confirm_session(entry).await?;
            }
            read_position(entry).await
        };
        match read.await {
            Err(err) if err.is_session_over() => Ok(Position::Gone),
            position => position.map_err(|err| entry.session.explain(err)),
        }
    }

    async fn watch(
        &self,
        entry: &QueueEntry,
        ahead: &mut Ahead,
    ) -> Result<Option<Position<Ahead>>, Error> {
        let session = &entry.session;
        let watchers = match ahead {
            Ahead::Nodes(nodes) => {
                let watchers = requests::watch_nodes(session, nodes).await;
                watchers.map_err(|err| session.explain(err))?
            }
            Ahead::Directory(watcher) => watcher.take().map(|watcher| vec![watcher]),
        };
        let Some(watchers) = watchers else {
            return Ok(None);
        };
        let mut changes: Vec<_> = watchers.into_iter().map(changed).collect();
        std::future::poll_fn(|cx| {
            let mut changes = changes.iter_mut();
            match changes.any(|change| change.as_mut().poll(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        if session.is_over() {
            // The watches end with the session, whose end is reported to each waiter at another moment.
            std::future::pending::<()>().await;
        }
        Ok(None)
    }

    async fn session_end(&self, entry: &QueueEntry) {
        let (session, clock) = (&entry.session, &self.store.clock);
        session.ended.raised().await;
        // All waiters of this session make a new node. Each has some handles of the session.
        let spread = pace::spread(Arc::strong_count(session));
        let pause = pace::fraction(spread, clock.random());
        clock.sleep_until(clock.now().after(pause)).await;
    }
}

fn changed(watcher: OneshotWatcher) -> Pin<Box<dyn Future<Output = WatchedEvent> + Send>> {
    Box::pin(watcher.changed())
}

/// A write, to which a majority of the servers has to agree. Whether our node is gone, the list will say.
async fn confirm_session(entry: &QueueEntry) -> Result<(), RequestError> {
    match requests::check_nodes(&entry.session, &[&*entry.node.path]).await {
        Err(err) if !err.is(&ClientError::NoNode) => Err(err),
        _ => Ok(()),
    }
}

async fn read_position(entry: &QueueEntry) -> Result<Position<Ahead>, RequestError> {
    let (session, dir, name) = (&entry.session, &*entry.dir, &entry.node.name);
    match entry.goal {
        Goal::Turn => Ok(match Queue::read(session, dir, name).await? {
            Some((queue, me)) => queue.position(dir, me),
            None => Position::Gone,
        }),
        Goal::Permit { permits } => {
            let Some((children, watcher)) = requests::watch_children(session, dir).await? else {
                return Ok(Position::Gone);
            };
            if !children.contains(name) {
                return Ok(Position::Gone);
            }
            Ok(match children.len() <= permits {
                true => Position::Held { last_token: 0 },
                false => Position::Behind(Ahead::Directory(Some(watcher))),
            })
        }
        Goal::EndOfOthers { last } => {
            let Some((queue, me)) = Queue::list(session, dir, name).await? else {
                return Ok(Position::Gone);
            };
            Ok(match queue.last_other(me, last) {
                Some(other) => Position::Behind(Ahead::Nodes(vec![queue.blocker(dir, other)])),
                None => Position::Held { last_token: 0 },
            })
        }
    }
}

impl Operation<'_> {
    /// The lease that comes with our turn; `None`: our node is gone.
    pub(super) async fn confirm_turn(
        &self,
        entry: &QueueEntry,
    ) -> Result<Option<LeasePeriod>, Error> {
        let (session, request) = (&entry.session, self.request);
        let lease = session.confirmed();
        if self.is_enough(entry, lease) {
            return Ok(Some(lease));
        }
        loop {
            // Once the request is stopped, any lease is enough.
            let settled = self.store.clock.sleep_until(session.settled_at());
            let _ = request.unless_stopped(settled).await;
            let lease = match requests::check_nodes(session, &[&*entry.node.path]).await {
                Ok(lease) => lease,
                Err(err) if err.is(&ClientError::NoNode) => return Ok(None),
                Err(err) => return Err(session.explain(err)),
            };
            if lease.length() >= session.whole_lease() || request.stop.is_raised() {
                return Ok(Some(lease));
            }
        }
    }

    /// Whether the lease of our node has just begun, so that it cannot be made longer.
    pub(super) fn is_new(&self, entry: &QueueEntry) -> bool {
        let (request, session, lease) = (self.request, &entry.session, entry.lease);
        let half = session.whole_lease().min(request.ttl) / 2;
        // The node was made by the first of a few requests.
        let is_new = self.store.clock.now().since(lease.sent) <= entry.node.round_trip * 4;
        is_new && lease.length() >= request.min_lease.max(half)
    }

    /// Whether as much is left of a lease as has to be, and at least half of the length of a whole lease.
    fn is_enough(&self, entry: &QueueEntry, lease: LeasePeriod) -> bool {
        let (request, session) = (self.request, &entry.session);
        let age = self.store.clock.now().since(lease.sent);
        let left = lease.length().min(request.ttl).saturating_sub(age);
        left >= request
            .min_lease
            .max(session.whole_lease().min(request.ttl) / 2)
    }
}
