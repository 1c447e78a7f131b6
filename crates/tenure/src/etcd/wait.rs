//! Our side of the queue: what a key of ours waits for, and the watch that reports it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::queue::{Position, QueueRequest};
use tenure_core::rt::Clock;
use tenure_core::store::Request;
use tenure_core::time::Time;

use super::errors::{Recovery, RequestError};
use super::leases::Lease;
use super::names::Directory;
use super::queue::{EarlyToken, EventEffect, Predecessors, QueueEntry, QueueSnapshot};
use super::requests;
use super::store::Store;
use super::subscribe::{KeyEvent, Subscription, Watch, WatchEvent};

/// One request of the driver, as the queue engine needs it.
pub(super) struct Operation<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) request: &'a Arc<Request>,
    pub(super) directory: Directory,
    /// The token of the hold whose mode changes.
    pub(super) token: u64,
    /// The next key has an early token: that of the last one may be the token of another hold.
    pub(super) is_token_early: AtomicBool,
    pub(super) started: Time,
}

impl<'a> Operation<'a> {
    pub(super) fn new(store: &'a Arc<Store>, request: &'a Arc<Request>, token: u64) -> Self {
        Self {
            store,
            request,
            directory: store.directory(&request.name),
            token,
            is_token_early: AtomicBool::new(false),
            started: store.context.now(),
        }
    }
}

/// Our key in the queue.
pub(super) struct Queued {
    pub(super) entry: QueueEntry,
    pub(super) lease: Arc<Lease>,
    /// The create revision of our key.
    pub(super) created: i64,
    pub(super) early_token: EarlyToken,
    pub(super) round_trip: Duration,
}

/// What our key waits for, as it was read.
pub(super) struct Ahead {
    predecessors: Predecessors,
    /// What happened up to this revision is known.
    revision: i64,
    watch: Option<OpenWatch>,
    /// The queue has to be read as it was at this revision or later; 0: as it is.
    read_at: i64,
}

/// A watch that reports what happens to the keys ahead.
pub(super) enum OpenWatch {
    /// The shared watch on the directory.
    Directory(Subscription),
    /// A watch on the key just ahead.
    Key(Vec<u8>, Box<Watch>),
}

/// The position that a snapshot says. `watch`: opened before the queue was read.
pub(super) fn position(snapshot: QueueSnapshot, watch: Option<OpenWatch>) -> Position<Ahead> {
    match snapshot.position {
        Position::Held { last_token } => Position::Held { last_token },
        Position::Gone => Position::Gone,
        Position::Behind(predecessors) => Position::Behind(Ahead {
            predecessors,
            revision: snapshot.revision,
            watch,
            read_at: 0,
        }),
    }
}

impl QueueRequest for Operation<'_> {
    type Entry = Queued;
    type Ahead = Ahead;

    fn context(&self) -> (&Request, &Clock) {
        (self.request, &self.store.context.clock)
    }

    async fn read(
        &self,
        queued: &Queued,
        ahead: Option<Ahead>,
        is_safety_poll: bool,
    ) -> Result<Position<Ahead>, Error> {
        let (watch, read_at) = match ahead {
            Some(ahead) if is_safety_poll => (ahead.watch, 0),
            Some(ahead) => (ahead.watch, ahead.read_at),
            None => (None, 0),
        };
        let connections = &self.store.connections;
        let read = requests::read_queue(connections, &queued.entry, queued.created, read_at);
        Ok(position(read.await?, watch))
    }

    async fn watch(
        &self,
        queued: &Queued,
        ahead: &mut Ahead,
    ) -> Result<Option<Position<Ahead>>, Error> {
        Ok(match self.follow(queued, ahead).await {
            // A stream that is refused logs in again.
            Err(err) if err.recovery == Recovery::LogIn => self.follow(queued, ahead).await?,
            followed => followed?,
        })
    }

    async fn session_end(&self, queued: &Queued) {
        queued.lease.gone.raised().await;
    }
}

impl Operation<'_> {
    /// Follows what happens to the keys ahead. Cancel safe.
    async fn follow(
        &self,
        queued: &Queued,
        ahead: &mut Ahead,
    ) -> Result<Option<Position<Ahead>>, RequestError> {
        if !self.open_watch(queued, ahead).await? {
            return Ok(None);
        }
        loop {
            let Some(event) = self.next_event(ahead.watch.as_mut()).await? else {
                ahead.read_at = 0;
                return Ok(None);
            };
            // Known already. The key may have been created again since then, and be ahead of ours.
            if event.revision <= ahead.revision {
                continue;
            }
            let effect = match event.is_deleted {
                true => ahead.predecessors.deleted(&event.key, &queued.entry.key),
                false => ahead.predecessors.changed(&event.key),
            };
            match effect {
                EventEffect::None => {}
                EventEffect::Held => return Ok(Some(Position::Held { last_token: 0 })),
                EventEffect::Gone => return Ok(Some(Position::Gone)),
                EventEffect::ReadQueue => {
                    ahead.read_at = event.revision;
                    return Ok(None);
                }
            }
        }
    }

    /// Opens the watch that the keys ahead need, unless it is open. `false`: something may have happened before the watch
    /// was open, which it does not report.
    async fn open_watch(&self, queued: &Queued, ahead: &mut Ahead) -> Result<bool, RequestError> {
        let only = ahead.predecessors.only.clone();
        let is_open = match (&only, &ahead.watch) {
            (None, Some(OpenWatch::Directory(open))) => !open.is_closed(),
            (Some(only), Some(OpenWatch::Key(key, _))) => key == only,
            _ => false,
        };
        if is_open {
            return Ok(true);
        }
        let subscriptions = &self.store.subscriptions;
        let (directory, reports) = (&queued.entry.directory, queued.entry.reports());
        let (watch, after) = if let Some(key) = only {
            let watch = subscriptions.watch_key(&key).await?;
            let after = Some(watch.after);
            (OpenWatch::Key(key, Box::new(watch)), after)
        } else if let Some(open) = subscriptions.subscribe(directory, reports) {
            // The watch was open already, and reports what happens from now on.
            (OpenWatch::Directory(open), None)
        } else {
            let opened = subscriptions.open_and_subscribe(directory, reports);
            let (subscription, after) = opened.await?;
            (OpenWatch::Directory(subscription), Some(after))
        };
        ahead.watch = Some(watch);
        ahead.read_at = after.unwrap_or(0);
        Ok(after.is_some_and(|after| after <= ahead.revision))
    }

    /// The next event of a watch; `None`: some events were not kept.
    async fn next_event(
        &self,
        watch: Option<&mut OpenWatch>,
    ) -> Result<Option<KeyEvent>, RequestError> {
        let clock = &self.store.context.clock;
        match watch {
            None => Ok(None),
            Some(OpenWatch::Directory(subscription)) => match subscription.next().await {
                WatchEvent::Key(event) => Ok(Some(event)),
                WatchEvent::Lagged => Ok(None),
                WatchEvent::Closed => {
                    let pause = pace::fraction(subscription.spread(), clock.random());
                    clock.sleep_until(clock.now().after(pause)).await;
                    Err(left("the watch ended"))
                }
            },
            Some(OpenWatch::Key(_, watch)) => {
                let connection = watch.connection.clone();
                tokio::select! {
                    biased;
                    event = watch.next() => Ok(Some(event?)),
                    () = connection.left.raised() => {
                        let host = &connection.host;
                        Err(left(format!("{host} did not answer, so this client left it")))
                    }
                }
            }
        }
    }
}

fn left(what: impl Into<String>) -> RequestError {
    RequestError::new(ErrorKind::Unreachable, Recovery::AnotherMember, what)
}
