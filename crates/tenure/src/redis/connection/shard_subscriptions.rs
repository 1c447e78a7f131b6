//! Sharded pub/sub: the subscriptions to channels in slots.
//!
//! From version 7 on, messages stay within the nodes of a slot. So a client subscribes to a channel at the node that has the
//! slot of the channel. A subscriber does not wait for the subscription: it sends its request first, and is told of a gap as
//! soon as its channel is subscribed.
//!
//! Subscriptions have connections of their own. A node that loses a slot ends subscriptions without being asked, and the
//! client library takes that message for the reply to any request that is on its way. On these connections
//! such a request is another subscription, and what counts is what the node reported about the channel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use redis::{PushInfo, PushKind, Value};

use tenure_core::error::Error;
use tenure_core::logic::pace;
use tenure_core::rt::{Flag, lock};
use tenure_core::support::Maintenance;
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::endpoint::{Endpoint, Multiplexed};
use super::environment::Environment;
use super::errors;
use super::server::{Connection, Server};
use super::slot_map::SlotMap;
use super::slots;

/// How long a subscription is kept after the last subscriber has left: the next one may come soon.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often subscriptions are checked while they are needed.
const RESYNC_INTERVAL: Duration = Duration::from_millis(500);

/// Requests that one round of maintenance has under way at a time on each connection.
const MAX_PARALLEL: usize = 64;

/// The shortest time between two rounds of maintenance, however often the task is woken.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(20);

/// The subscriptions that this client needs, and the connections that have them.
pub(super) struct ShardSubscriptions {
    map: Arc<SlotMap>,
    env: Arc<Environment>,
    /// The task that subscribes.
    maintenance: Arc<Maintenance>,
    channels: Mutex<BTreeMap<Arc<str>, Subscribers>>,
    /// Empty while the maintenance task works with them. `None`: the client was closed.
    connections: Mutex<Option<Vec<SubscriptionConnection>>>,
}

/// Called when a subscriber may have missed messages, with the time over which all that are told of it spread their
/// requests.
pub(crate) type OnGap = Arc<dyn Fn(Duration) + Send + Sync>;

/// The subscribers of one channel.
struct Subscribers {
    all: Vec<OnGap>,
    /// When the last subscriber left.
    last_left: Time,
    /// Since when the channel is subscribed without a gap. `None`: messages may be lost.
    subscribed_since: Option<Time>,
}

struct SubscriptionConnection {
    host: Host,
    multiplexed: Multiplexed,
    /// The channels that are subscribed, and since when, as the node reported it.
    subscribed: Arc<Mutex<BTreeMap<Arc<str>, Time>>>,
    ended: Arc<Flag>,
    /// The connection for requests to the same node: when that one has broken, this one counts as broken too.
    requests: Arc<Connection>,
}

/// One subscriber's subscription, which ends when it is dropped.
pub(crate) struct ShardSubscription {
    subscriptions: Arc<ShardSubscriptions>,
    channel: Arc<str>,
    on_gap: OnGap,
}

impl Drop for ShardSubscription {
    fn drop(&mut self) {
        let mut channels = lock(&self.subscriptions.channels);
        if let Some(subscribers) = channels.get_mut(&self.channel) {
            subscribers.all.retain(|it| !Arc::ptr_eq(it, &self.on_gap));
            subscribers.last_left = self.subscriptions.env.now();
        }
    }
}

impl ShardSubscriptions {
    pub(super) fn new(
        map: &Arc<SlotMap>,
        env: &Arc<Environment>,
        maintenance: &Arc<Maintenance>,
    ) -> Self {
        Self {
            map: map.clone(),
            env: env.clone(),
            maintenance: maintenance.clone(),
            channels: Mutex::default(),
            connections: Mutex::new(Some(Vec::new())),
        }
    }

    /// Closes all connections for good.
    pub(super) fn close(&self) {
        *lock(&self.connections) = None;
    }

    /// For a subscriber that sent a request at `sent`, and wants all messages of this channel since then.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        channel: &str,
        sent: Time,
        on_gap: OnGap,
    ) -> ShardSubscription {
        let channel: Arc<str> = channel.into();
        let subscribed_since = {
            let mut channels = lock(&self.channels);
            let subscribers = channels
                .entry(channel.clone())
                .or_insert_with(|| Subscribers {
                    all: Vec::new(),
                    last_left: sent,
                    subscribed_since: None,
                });
            subscribers.all.push(on_gap.clone());
            subscribers.subscribed_since
        };
        match subscribed_since {
            Some(since) if since <= sent => {}
            // A message may have been published before the channel was subscribed.
            Some(_) => on_gap(Duration::ZERO),
            None => self.maintenance.wake(),
        }
        ShardSubscription {
            subscriptions: self.clone(),
            channel,
            on_gap,
        }
    }

    /// One round of maintenance: a new map if the map is old, and subscriptions at the nodes that have the slots.
    pub(super) async fn maintain(self: Arc<Self>) -> Time {
        self.map.refresh_if_stale().await;
        self.update().await;
        let next = self.env.now().after(MIN_REFRESH_INTERVAL);
        self.env.clock.sleep_until(next).await;
        match lock(&self.channels).is_empty() {
            true => Time::MAX,
            false => self.env.now().after(RESYNC_INTERVAL),
        }
    }

    /// Subscribes where that is missing, and ends the subscriptions that are not needed any more.
    async fn update(&self) {
        let nodes = self.nodes();
        let Some(mut connections) = lock(&self.connections).as_mut().map(std::mem::take) else {
            return;
        };
        // Dropped connections are closed.
        connections.retain(|connection| {
            let is_open = !connection.ended.is_raised() && !connection.requests.ended.is_raised();
            is_open
                && nodes
                    .iter()
                    .any(|(server, _)| server.host == connection.host)
        });
        let update = nodes.into_iter().map(|(server, channels)| {
            let index = connections.iter().position(|it| it.host == server.host);
            let known = index.map(|index| connections.swap_remove(index));
            async move {
                let connection = match known {
                    Some(connection) => connection,
                    None => self.open(&server).await.ok()?,
                };
                self.adjust(&connection, &channels).await;
                Some(connection)
            }
        });
        let update: Vec<_> = update.collect();
        let connections: Vec<_> = join_all(update).await.into_iter().flatten().collect();
        self.note_subscribed(&connections);
        if let Some(current) = &mut *lock(&self.connections) {
            *current = connections;
        }
    }

    /// The channels to which this client needs subscriptions, by the node that has their slots.
    fn nodes(&self) -> Vec<(Arc<Server>, BTreeSet<Arc<str>>)> {
        let wanted: Vec<Arc<str>> = {
            let now = self.env.now();
            let mut channels = lock(&self.channels);
            channels.retain(|_, it| !it.all.is_empty() || now.since(it.last_left) < IDLE_TIMEOUT);
            channels.keys().cloned().collect()
        };
        let mut nodes: Vec<(Arc<Server>, BTreeSet<Arc<str>>)> = Vec::new();
        for channel in wanted {
            // If no node has the slot, the subscribers' own requests fail.
            let Some(server) = self.map.owner(slots::slot(&channel)) else {
                continue;
            };
            match nodes
                .iter_mut()
                .find(|(known, _)| known.host == server.host)
            {
                Some((_, channels)) => channels.extend([channel]),
                None => nodes.push((server, BTreeSet::from([channel]))),
            }
        }
        nodes
    }

    /// Notes which channels are subscribed, and tells the subscribers that may have missed a message.
    fn note_subscribed(&self, connections: &[SubscriptionConnection]) {
        let mut subscribed = BTreeMap::new();
        for connection in connections {
            let channels = lock(&connection.subscribed);
            let is_owner = |(channel, _): &(&Arc<str>, &Time)| {
                let owner = self.map.owner(slots::slot(channel));
                owner.is_some_and(|server| server.host == connection.host)
            };
            let owned = channels.iter().filter(is_owner);
            subscribed.extend(owned.map(|(channel, since)| (channel.clone(), *since)));
        }
        let mut told = Vec::new();
        for (channel, subscribers) in lock(&self.channels).iter_mut() {
            match (subscribed.get(channel), subscribers.subscribed_since) {
                (None, _) => subscribers.subscribed_since = None,
                // Another connection may have had the channel before.
                (Some(since), Some(known)) if *since <= known => {}
                (Some(_), _) => {
                    subscribers.subscribed_since = Some(self.env.now());
                    told.extend(subscribers.all.iter().cloned());
                }
            }
        }
        let spread = pace::spread(told.len());
        for on_gap in told {
            on_gap(spread);
        }
    }

    async fn open(&self, server: &Server) -> Result<SubscriptionConnection, Error> {
        let requests = server.connection().await?;
        let subscribed = Arc::<Mutex<BTreeMap<Arc<str>, Time>>>::default();
        let ended = Arc::<Flag>::default();
        let push = {
            let (subscribed, ended) = (subscribed.clone(), ended.clone());
            let (listener, maintenance) = (self.env.listener.clone(), self.maintenance.clone());
            let clock = self.env.clock.clone();
            move |info: PushInfo| {
                match info.kind {
                    PushKind::SMessage => listener.receive(&info),
                    PushKind::SSubscribe => {
                        let channel = channel_of(&info);
                        lock(&subscribed).extend(channel.map(|it| (it, clock.now())));
                    }
                    PushKind::SUnsubscribe => {
                        if let Some(channel) = channel_of(&info) {
                            lock(&subscribed).remove(&channel);
                        }
                        maintenance.wake();
                    }
                    PushKind::Disconnection => {
                        ended.raise();
                        maintenance.wake();
                    }
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let settings = &self.env.settings;
        let config = settings.connection_config().set_push_sender(push);
        let endpoint = Endpoint::new(&server.host, settings, &settings.login)?;
        let multiplexed = endpoint.connect(&self.env, config);
        let failed = |err| errors::connecting(err, &server.host, settings.is_tls());
        Ok(SubscriptionConnection {
            host: server.host.clone(),
            multiplexed: multiplexed.await.map_err(failed)?,
            subscribed,
            ended,
            requests,
        })
    }

    /// Subscribes to these channels, and to no others.
    async fn adjust(&self, connection: &SubscriptionConnection, channels: &BTreeSet<Arc<str>>) {
        let subscribed: BTreeSet<_> = lock(&connection.subscribed).keys().cloned().collect();
        let send = |command: &'static str, channel: &str| {
            let mut multiplexed = connection.multiplexed.clone();
            let mut cmd = redis::cmd(command);
            cmd.arg(channel);
            async move { cmd.query_async::<Value>(&mut *multiplexed).await }
        };
        let missing = channels.difference(&subscribed);
        let requests: Vec<_> = missing.map(|it| send("SSUBSCRIBE", it)).collect();
        let subscribe = stream::iter(requests).buffer_unordered(MAX_PARALLEL);
        let unneeded = subscribed.difference(channels);
        let requests: Vec<_> = unneeded.map(|it| send("SUNSUBSCRIBE", it)).collect();
        let unsubscribe = stream::iter(requests).buffer_unordered(MAX_PARALLEL);
        let (replies, _): (Vec<_>, Vec<_>) =
            tokio::join!(subscribe.collect(), unsubscribe.collect());
        for err in replies.into_iter().filter_map(Result::err) {
            if err.is_io_error() {
                // The node has stopped, or does not answer.
                connection.ended.raise();
            } else if err.is_cluster_error() {
                self.map.mark_stale();
            } else {
                tracing::debug!(host = %connection.host, err = format_args!("{err:#}"), "no subscription; subscribers ask again and again");
            }
        }
    }
}

/// The channel that the message is about.
fn channel_of(info: &PushInfo) -> Option<Arc<str>> {
    match info.data.first()? {
        Value::BulkString(channel) => std::str::from_utf8(channel).ok().map(Into::into),
        _ => None,
    }
}
