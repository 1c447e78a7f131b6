//! The subscriptions that wake one waiter.
//!
//! Messages for a client come on its own channel, which every connection subscribes when it is opened, and in a cluster
//! on channels of slots. In Redisson's format each lock has a channel, or each waiter of a fair lock, to which the waiter
//! subscribes.

use std::sync::Arc;

use tenure_core::logic::pace;
use tenure_core::store::Request;
use tenure_core::support;
use tenure_core::time::Time;

use crate::waiting::{self, WakeUp};

use super::connection::{Connection, OnGap, ShardSubscription};
use super::context::Context;
use super::format::Keys;
use super::store::Store;

/// What wakes one waiter, until it is dropped.
pub(super) struct Subscription<'a> {
    /// In a cluster, the channel of the slot.
    _shard: Option<ShardSubscription>,
    /// In Redisson's format, the channel of the lock.
    on_channel: Option<ChannelSubscription>,
    /// Dropped after the subscriptions: until then their messages find the waiter.
    wake_ups: support::Subscription<WakeUp>,
    store: &'a Store,
    keys: &'a Keys,
    request: &'a Request,
    /// To the server that was asked last. `None` after a failure.
    connection: Option<Arc<Connection>>,
    /// The channel of the lock was subscribed just now: an earlier message is lost.
    is_new: bool,
    /// The waiter has a hold, which is to become exclusive.
    is_upgrade: bool,
}

/// A subscription to the channel of a lock over one connection, until it is dropped.
struct ChannelSubscription {
    context: Arc<Context>,
    connection: Arc<Connection>,
    channel: String,
}

impl<'a> Subscription<'a> {
    /// Wake-ups for a request that was sent at `sent`, for the lock with these keys.
    pub(super) fn new(
        store: &'a Store,
        request: &'a Request,
        keys: &'a Keys,
        is_upgrade: bool,
        sent: Time,
    ) -> Self {
        let (events, owner) = (&store.context.events, request.owner);
        // First: the shard's subscription may wake the owner at once.
        let wake_ups = events.subscribe(owner);
        let on_gap: OnGap = {
            let events = events.clone();
            Arc::new(move |spread| events.wake(owner, WakeUp::ask_within(spread)))
        };
        let channel = store.requests.channel(keys.lock());
        let subscribe = || store.connections.subscribe(&channel, sent, on_gap);
        let is_on_slot = store.requests.has_slot_channels();
        Self {
            _shard: is_on_slot.then(subscribe).flatten(),
            on_channel: None,
            wake_ups,
            store,
            keys,
            request,
            connection: None,
            is_new: false,
            is_upgrade,
        }
    }

    /// Subscribes to the channel of the lock over this connection, if there is such a channel and no subscription over
    /// this connection. Whether that was done.
    async fn follow(&mut self, connection: &Arc<Connection>) -> bool {
        let is_on = |it: &ChannelSubscription| Arc::ptr_eq(&it.connection, connection);
        let Keys::Redisson(keys) = self.keys else {
            return false;
        };
        let events = &self.store.context.events;
        let channel = &*keys.waiter_channel(&events.client, self.request.owner);
        if self.on_channel.as_ref().is_some_and(is_on) {
            return false;
        }
        // The old one first: its end must not remove the new one.
        self.on_channel = None;
        events.add_channel(channel, self.request.owner);
        let subscription = ChannelSubscription {
            context: self.store.context.clone(),
            connection: connection.clone(),
            channel: channel.to_owned(),
        };
        // After an error the connection is broken, and the next one is tried.
        if connection.subscribe(channel).await.is_ok() {
            self.on_channel = Some(subscription);
        }
        self.on_channel.is_some()
    }

    /// Whether a grant counts that the server made without being asked again.
    fn trusts_hand_over(&self) -> bool {
        let is_trusted = |connection: &Arc<Connection>| {
            let context = &self.store.context;
            let untrusted = context.untrusted_until(connection, self.request.ttl);
            !connection.ended.is_raised() && untrusted.is_none()
        };
        // Nothing says how many replicas have the grant. An upgrade keeps the lease of its hold, which may be longer than
        // that of a place in the queue.
        let may_count = self.store.context.settings.wait_replicas == 0 && !self.is_upgrade;
        may_count && self.connection.as_ref().is_some_and(is_trusted)
    }
}

impl waiting::WakeUps for Subscription<'_> {
    async fn prepare(&mut self, has_failed: bool) {
        // After a failure the next request opens the connection when it is due, after its pause.
        self.connection = match has_failed {
            true => None,
            false => self
                .store
                .connections
                .connection(self.keys.lock())
                .await
                .ok(),
        };
        self.is_new = match self.connection.clone() {
            Some(connection) => self.follow(&connection).await,
            None => false,
        };
    }

    async fn next(&mut self) -> WakeUp {
        let Context { events, clock, .. } = &*self.store.context;
        let must_ask = async {
            match &self.connection {
                _ if self.is_new => {}
                Some(connection) => {
                    connection.ended.raised().await;
                    // All waiters that this connection woke notice its end.
                    let pause = pace::fraction(events.spread(), clock.random());
                    clock.sleep_until(clock.now().after(pause)).await;
                }
                None => std::future::pending().await,
            }
        };
        let wake_up = tokio::select! {
            biased;
            wake_up = self.wake_ups.next() => wake_up,
            () = must_ask => WakeUp::AskAgain,
        };
        match wake_up {
            WakeUp::HandedOver { .. } if !self.trusts_hand_over() => WakeUp::AskAgain,
            wake_up => wake_up,
        }
    }

    /// A foreign holder does not wake a waiter, as the [`QueuePosition`](waiting::QueuePosition) says.
    fn has_push(&self) -> bool {
        true
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
        // Sent now: otherwise it could end the subscription of the next waiter for this lock, to the same channel.
        if let Err(Some(pending)) = spawner.poll_anywhere(unsubscribe) {
            operations.spawn(spawner, pending);
        }
    }
}
