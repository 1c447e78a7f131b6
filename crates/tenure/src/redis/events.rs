//! What servers tell a client: messages for waiters, losses of holds, broken connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{PushInfo, Value};

use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::store::Losses;
use tenure_core::support::{HoldRegistry, Maintenance, Subscription, WaiterRegistry};
use tenure_core::time::Time;

use crate::waiting::WakeUp;

use super::connection::{PushListener, slot_tag};
use super::holds::HeldKey;
use super::watchers::Watchers;

/// Passes on what servers tell this client.
pub(super) struct ServerEvents {
    /// The id of the client.
    pub(super) client: String,
    /// The channel of the client; in a cluster there are others.
    pub(super) channel: String,
    /// Channels of Redisson locks, and the waiter of each. No topics of the registry: a message would then go through
    /// all waiters.
    lock_channels: Mutex<HashMap<String, OwnerId>>,
    waiters: Arc<WaiterRegistry<WakeUp>>,
    /// Of holds that ended without a release of this client.
    pub(super) losses: Losses,
    holds: Arc<HoldRegistry<HeldKey>>,
    /// The observers of elections.
    pub(super) watchers: Watchers,
    /// A connection was lost, so holds have to be verified.
    has_lost_connection: AtomicBool,
    /// The task that verifies holds.
    maintenance: Arc<Maintenance>,
}

impl ServerEvents {
    pub(super) fn new(maintenance: Arc<Maintenance>, holds: Arc<HoldRegistry<HeldKey>>) -> Self {
        let client = OwnerId::random().to_hex();
        Self {
            channel: format!("tenure:push:{client}"),
            client,
            lock_channels: Mutex::default(),
            waiters: Arc::default(),
            losses: Losses::default(),
            holds,
            watchers: Watchers::default(),
            has_lost_connection: AtomicBool::new(false),
            maintenance,
        }
    }

    /// The channel of this client in a slot of a cluster, for messages that stay within the nodes of the slot.
    pub(super) fn slot_channel(&self, slot: u16) -> String {
        format!("tenure:{{{}}}:push:{}", slot_tag(slot), self.client)
    }

    /// Wake-ups for `owner` from now on.
    pub(super) fn subscribe(&self, owner: OwnerId) -> Subscription<WakeUp> {
        self.waiters.subscribe(owner, "")
    }

    /// From now on a message on `channel` wakes `owner`.
    pub(super) fn add_channel(&self, channel: &str, owner: OwnerId) {
        lock(&self.lock_channels).insert(channel.to_owned(), owner);
    }

    pub(super) fn remove_channel(&self, channel: &str) {
        lock(&self.lock_channels).remove(channel);
    }

    /// Over which time the requests of all waiters of this client are spread, if all are woken together.
    pub(super) fn spread(&self) -> Duration {
        pace::spread(self.waiters.len())
    }

    /// Wakes `owner`, which may begin to wait only later: a message can arrive before the reply that put the owner into
    /// the queue.
    pub(super) fn wake(&self, owner: OwnerId, wake_up: WakeUp) {
        self.waiters.notify_even_later(owner, wake_up);
    }

    /// A request of this client that was sent at `sent` or later released what `owner` has or waits for.
    pub(super) fn released(&self, owner: OwnerId, sent: Time) {
        self.waiters.notify(owner, WakeUp::Released { sent });
    }

    /// Another client asks the holder of `owner` to let go.
    pub(super) fn asked_to_release(&self, owner: OwnerId) {
        self.holds.update(owner, |entry| entry.is_asked = true);
        self.losses.asked_to_release(owner);
    }

    /// Whether a connection was lost since the last call.
    pub(super) fn take_connection_loss(&self) -> bool {
        self.has_lost_connection.swap(false, Ordering::SeqCst)
    }
}

impl PushListener for ServerEvents {
    fn channel(&self) -> &str {
        &self.channel
    }

    /// The server may have forgotten holds.
    fn connection_lost(&self) {
        self.has_lost_connection.store(true, Ordering::SeqCst);
        self.maintenance.wake();
    }

    /// Passes a message on. Other programs may publish on the same channels, so an unknown message is ignored; a waiter
    /// that misses a message asks again in time.
    fn receive(&self, message: &PushInfo) {
        let [Value::BulkString(channel), Value::BulkString(payload)] = &message.data[..] else {
            return;
        };
        let (Ok(channel), Ok(payload)) =
            (std::str::from_utf8(channel), std::str::from_utf8(payload))
        else {
            return;
        };
        if self.watchers.tell(channel, payload) {
            return;
        }
        let waiter = lock(&self.lock_channels).get(channel).copied();
        if let Some(owner) = waiter {
            return self.wake(owner, WakeUp::AskAgain);
        }
        let mut words = payload.split(' ');
        let (word, owner) = (words.next(), words.next().and_then(OwnerId::from_hex));
        let (Some(word), Some(owner)) = (word, owner) else {
            return;
        };
        match (word, words.next().map(str::parse)) {
            ("granted", Some(Ok(token))) => self.wake(owner, WakeUp::HandedOver { token }),
            ("look", None) => self.wake(owner, WakeUp::AskAgain),
            ("lost", None) => self.losses.report(owner, LostReason::TakenOver),
            ("asked", None) => self.asked_to_release(owner),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tenure_core::rt::poll_now;

    use super::*;

    fn received(subscription: &mut Subscription<WakeUp>) -> Option<WakeUp> {
        poll_now(pin!(subscription.next())).ok()
    }

    fn push(payload: &str) -> PushInfo {
        PushInfo {
            kind: redis::PushKind::Message,
            data: vec![
                Value::BulkString(b"channel".to_vec()),
                Value::BulkString(payload.into()),
            ],
        }
    }

    #[test]
    fn a_message_wakes_the_waiter_that_it_names_and_no_other() {
        let (events, one, two) = (
            ServerEvents::new(Arc::default(), Arc::default()),
            OwnerId::random(),
            OwnerId::random(),
        );
        let (mut first, mut second) = (events.subscribe(one), events.subscribe(two));
        events.receive(&push(&format!("granted {} 17", one.to_hex())));
        events.receive(&push(&format!("look {}", two.to_hex())));
        for nonsense in ["", "granted", "granted 12 3", "look x", "granted - 1"] {
            events.receive(&push(nonsense));
        }
        events.receive(&push(&format!("granted {} x", one.to_hex())));
        assert_eq!(received(&mut first), Some(WakeUp::HandedOver { token: 17 }));
        assert_eq!(received(&mut first), None);
        assert_eq!(received(&mut second), Some(WakeUp::AskAgain));
        drop((first, second));
        events.receive(&push(&format!("granted {} 18", one.to_hex())));
    }
}
