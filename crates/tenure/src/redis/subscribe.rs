//! The subscriptions that wake one waiter.
//!
//! Messages for a client come on its own channel, which every connection subscribes when it is opened, and in a cluster
//! on channels of slots. In Redisson's format each lock has a channel, to which its waiter subscribes.

use std::sync::Arc;

use tenure_core::fence::OwnerId;
use tenure_core::support;
use tenure_core::time::Time;

use super::connection::{Connection, Connections, ShardSubscription};
use super::context::Context;
use super::events::WakeUp;
use super::names::Keys;

/// What wakes one waiter, until it is dropped.
pub(super) struct Subscription {
    /// In a cluster, the channel of the slot.
    _shard: Option<ShardSubscription>,
    /// In Redisson's format, the channel of the lock.
    on_channel: Option<ChannelSubscription>,
    /// Dropped after the subscriptions: until then their messages find the waiter.
    wake_ups: support::Subscription<WakeUp>,
    owner: OwnerId,
    /// Empty if the lock has no channel.
    channel: String,
    context: Arc<Context>,
}

/// A subscription to the channel of a lock over one connection, until it is dropped.
struct ChannelSubscription {
    context: Arc<Context>,
    connection: Arc<Connection>,
    channel: String,
}

impl Subscription {
    /// Wake-ups for `owner`, which sent a request for the lock with these keys at `sent`.
    pub(super) fn new(
        context: &Arc<Context>,
        connections: &Connections,
        keys: &Keys,
        owner: OwnerId,
        sent: Time,
    ) -> Self {
        // First: the shard's subscription may wake the owner at once.
        let wake_ups = context.events.subscribe(owner);
        Self {
            _shard: connections.subscribe(keys.lock(), owner, sent),
            on_channel: None,
            wake_ups,
            owner,
            channel: keys.channel().to_owned(),
            context: context.clone(),
        }
    }

    /// The next reason to wake up. Cancel safe.
    pub(super) async fn next(&mut self) -> WakeUp {
        self.wake_ups.next().await
    }

    /// Subscribes to the channel of the lock over this connection, if there is such a channel and no subscription over
    /// this connection. Whether that was done.
    pub(super) async fn follow(&mut self, connection: &Arc<Connection>) -> bool {
        let is_on = |it: &ChannelSubscription| Arc::ptr_eq(&it.connection, connection);
        if self.channel.is_empty() || self.on_channel.as_ref().is_some_and(is_on) {
            return false;
        }
        // The old one first: its end must not remove the new one.
        self.on_channel = None;
        self.context.events.add_channel(&self.channel, self.owner);
        let subscription = ChannelSubscription {
            context: self.context.clone(),
            connection: connection.clone(),
            channel: self.channel.clone(),
        };
        // After an error the connection is broken, and the next one is tried.
        if connection.subscribe(&self.channel).await.is_ok() {
            self.on_channel = Some(subscription);
        }
        self.on_channel.is_some()
    }
}

impl Drop for ChannelSubscription {
    fn drop(&mut self) {
        let Context {
            events,
            operations,
            spawner,
            ..
        } = &*self.context;
        events.remove_channel(&self.channel);
        let (connection, channel) = (self.connection.clone(), std::mem::take(&mut self.channel));
        let unsubscribe = Box::pin(async move {
            // A broken connection has no subscriptions.
            let _ = connection.unsubscribe(&channel).await;
        });
        // Sent now: the next waiter for this lock may subscribe to the same channel in a moment.
        if let Err(Some(pending)) = spawner.poll_anywhere(unsubscribe) {
            operations.spawn(spawner, pending);
        }
    }
}
