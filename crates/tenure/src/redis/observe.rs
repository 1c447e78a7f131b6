//! What one observer of an election hears: first what the server has, and then each message on the channel of the name.
//!
//! All observers of one name in one client share one subscription. It is sent over the connection for requests, and ends
//! when the last of these observers is dropped. In a cluster whose messages stay within a slot, the subscription is one of
//! those that waiters have, at the node that has the slot.

use std::sync::Arc;

use futures_util::stream;
use tokio::sync::mpsc;

use tenure_core::error::Error;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::rt::Flag;
use tenure_core::store::Sightings;
use tenure_core::time::Time;

use super::connection::{Connection, OnGap, ShardSubscription};
use super::context::Context;
use super::elections;
use super::format::Keys;
use super::store::Store;
use super::watchers::{LeaderChannel, Subscribed};

/// What the server has now, and each change after that. The stream ends when a message may be lost: the observer asks anew.
pub(super) fn watch(store: Arc<Store>, name: LockName) -> Sightings {
    let begin = Watch::NotOpen { store, name };
    Box::pin(stream::unfold(begin, |watch| async {
        match watch {
            Watch::NotOpen { store, name } => {
                let mut opened = None;
                let sighting = open(&store, &name, &mut opened).await;
                Some((sighting, opened.map_or(Watch::Over, Watch::Open)))
            }
            Watch::Open(mut watcher) => {
                let sighting = watcher.next().await?;
                Some((Ok(sighting), Watch::Open(watcher)))
            }
            Watch::Over => None,
        }
    }))
}

/// Whether this user may hear messages on the channel of such a name. Where messages stay within a slot, this is not checked:
/// its user needs the same right for messages to waiters.
pub(super) async fn check(store: &Store, keys: &Keys) -> Result<(), Error> {
    let Some(channel) = keys
        .leader_channel()
        .filter(|_| !store.requests.has_slot_channels())
    else {
        return Ok(());
    };
    let connection = store.connections.connection(keys.lock()).await?;
    connection.subscribe(&channel).await?;
    // A broken connection has no subscriptions.
    let _ = connection.unsubscribe(&channel).await;
    Ok(())
}

enum Watch {
    NotOpen { store: Arc<Store>, name: LockName },
    Open(Watcher),
    Over,
}

/// One observer, from its subscription on.
struct Watcher {
    context: Arc<Context>,
    channel: Arc<LeaderChannel>,
    told: mpsc::Receiver<Sighting>,
    way: Way,
}

/// How messages arrive.
enum Way {
    /// Over a connection, until that is raised.
    Connection(Arc<Flag>),
    /// Within a slot. `gaps` has a message when earlier ones may be lost.
    Shard {
        gaps: mpsc::Receiver<()>,
        _subscription: ShardSubscription,
    },
}

/// Subscribes, and then reads what the server has: so no change is missed. `opened` is the observer, also after an error.
async fn open(
    store: &Arc<Store>,
    name: &LockName,
    opened: &mut Option<Watcher>,
) -> Result<Sighting, Error> {
    let keys = store.requests.keys(name);
    let channel = keys
        .leader_channel()
        .ok_or_else(super::redisson::no_elections)?;
    match store.requests.has_slot_channels() {
        true => subscribe_in_slot(store, &channel, opened).await,
        false => subscribe(store, &keys, &channel, opened).await?,
    }
    elections::leader(store, name).await
}

async fn subscribe(
    store: &Arc<Store>,
    keys: &Keys,
    channel: &str,
    opened: &mut Option<Watcher>,
) -> Result<(), Error> {
    let connection = store.connections.connection(keys.lock()).await?;
    let (channel, told) = store.context.events.watchers.join(channel);
    let watcher = opened.insert(Watcher {
        context: store.context.clone(),
        channel,
        told,
        way: Way::Connection(connection.ended.clone()),
    });
    watcher.channel.subscribe(&connection).await
}

/// Waits until the channel is subscribed. If that takes too long, the observer reads.
async fn subscribe_in_slot(store: &Arc<Store>, channel: &str, opened: &mut Option<Watcher>) {
    let (gap, gaps) = mpsc::channel(1);
    // A gap that was not read yet is the same gap.
    let on_gap: OnGap = Arc::new(move |_| {
        let _ = gap.try_send(());
    });
    // Without a request before it, the subscription begins with a gap.
    let subscription = store
        .connections
        .subscribe(channel, Time::default(), on_gap);
    let Some(subscription) = subscription else {
        return;
    };
    let (channel, told) = store.context.events.watchers.join(channel);
    let watcher = opened.insert(Watcher {
        context: store.context.clone(),
        channel,
        told,
        way: Way::Shard {
            gaps,
            _subscription: subscription,
        },
    });
    watcher.way.gap().await;
}

impl Way {
    /// Resolves when messages may have got lost. Cancel safe.
    async fn gap(&mut self) {
        match self {
            Self::Connection(ended) => ended.raised().await,
            Self::Shard { gaps, .. } => drop(gaps.recv().await),
        }
    }
}

impl Watcher {
    /// The next message; `None` when one may be lost. Cancel safe.
    async fn next(&mut self) -> Option<Sighting> {
        tokio::select! {
            biased;
            told = self.told.recv() => told,
            () = self.way.gap() => None,
        }
    }
}

impl LeaderChannel {
    /// Subscribes over this connection, unless another observer has done so.
    async fn subscribe(&self, connection: &Arc<Connection>) -> Result<(), Error> {
        let mut subscribed = self.subscribed.lock().await;
        let is_done = |it: &Subscribed| {
            it.is_confirmed && std::ptr::eq(it.connection.as_ptr(), Arc::as_ptr(connection))
        };
        if subscribed.as_ref().is_some_and(is_done) {
            return Ok(());
        }
        // From now on there may be a subscription, also if this future is dropped.
        let subscribing = subscribed.insert(Subscribed {
            connection: Arc::downgrade(connection),
            is_confirmed: false,
        });
        connection.subscribe(&self.name).await?;
        subscribing.is_confirmed = true;
        Ok(())
    }

    /// Ends the subscription if no observer is left.
    async fn unsubscribe_if_unused(self: Arc<Self>, context: Arc<Context>) {
        let mut subscribed = self.subscribed.lock().await;
        if self.is_used() {
            return;
        }
        let connection = subscribed.take().and_then(|it| it.connection.upgrade());
        if let Some(connection) = connection.filter(|it| !it.ended.is_raised()) {
            // A broken connection has no subscriptions.
            let _ = connection.unsubscribe(&self.name).await;
        }
        context.events.watchers.remove_if_unused(&self);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.told.close();
        let Context {
            operations,
            spawner,
            ..
        } = &*self.context;
        let unsubscribing = self
            .channel
            .clone()
            .unsubscribe_if_unused(self.context.clone());
        // Sent now, if the connection takes it.
        if let Err(Some(pending)) = spawner.poll_anywhere(Box::pin(unsubscribing)) {
            operations.spawn(spawner, pending);
        }
    }
}
