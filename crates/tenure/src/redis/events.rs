//! What the server tells this client, and whom it is for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use redis::{PushInfo, Value};

use tenure_core::backend::Alarm;
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::support::{Maintenance, Subscription, WaiterRegistry};
use tenure_core::time::Time;

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeUp {
    /// The lock was handed over, under this token.
    HandedOver(u64),
    /// Something changed: ask again.
    AskAgain,
    /// A release of ours, sent at that time or later, has taken the place away, or the lock that came of it.
    Released(Time),
}

/// Who of this client waits for news.
pub(super) struct ServerEvents {
    /// The client's id.
    pub(super) client: String,
    /// The client's own; in a cluster there are others beside it.
    pub(super) channel: String,
    /// Other channels that are listened to, for whom.
    others: Mutex<HashMap<String, OwnerId>>,
    waiters: Arc<WaiterRegistry<WakeUp>>,
    alarm: OnceLock<Alarm>,
    /// A connection was lost, so holds have to be verified.
    has_lost_connection: AtomicBool,
    maintenance: Arc<Maintenance>,
}

impl ServerEvents {
    pub(super) fn new(maintenance: Arc<Maintenance>) -> Self {
        let client = OwnerId::random().to_hex();
        Self {
            channel: format!("tenure:push:{client}"),
            client,
            others: Mutex::default(),
            waiters: Arc::default(),
            alarm: OnceLock::new(),
            has_lost_connection: AtomicBool::new(false),
            maintenance,
        }
    }

    pub(super) fn attach(&self, alarm: Alarm) {
        // Once per backend, as the door says.
        let _ = self.alarm.set(alarm);
    }

    /// Wake-ups for `owner` from now on.
    pub(super) fn subscribe(&self, owner: OwnerId) -> Subscription<WakeUp> {
        self.waiters.subscribe(owner, "")
    }

    /// What `owner` waited for was given back by the same client, with a request of `sent` or later.
    pub(super) fn left(&self, owner: OwnerId, sent: Time) {
        self.waiters.notify(owner, WakeUp::Released(sent));
    }

    /// Whatever is said on `channel` means that `owner` is to ask again.
    pub(super) fn listen(&self, channel: &str, owner: OwnerId) {
        lock(&self.others).insert(channel.to_owned(), owner);
    }

    pub(super) fn stop_listening(&self, channel: &str) {
        lock(&self.others).remove(channel);
    }

    /// A connection was lost: the server may have been restarted, and may have forgotten holds.
    pub(super) fn connection_lost(&self) {
        self.has_lost_connection.store(true, Ordering::SeqCst);
        self.maintenance.wake();
    }

    /// Whether a connection was lost since the last call.
    pub(super) fn take_connection_loss(&self) -> bool {
        self.has_lost_connection.swap(false, Ordering::SeqCst)
    }

    /// A hold ended that nobody of this client released.
    pub(super) fn lost(&self, owner: OwnerId, reason: LostReason) {
        if let Some(alarm) = self.alarm.get() {
            alarm.lost(owner, reason);
        }
    }

    /// A message came in. What is not understood is ignored: every request is repeated in time anyway.
    pub(super) fn receive(&self, push: &PushInfo) {
        let [Value::BulkString(channel), Value::BulkString(payload)] = &push.data[..] else {
            return;
        };
        let (Ok(channel), Ok(payload)) =
            (std::str::from_utf8(channel), std::str::from_utf8(payload))
        else {
            return;
        };
        let listener = lock(&self.others).get(channel).copied();
        if let Some(owner) = listener {
            return self.wake(owner, WakeUp::AskAgain);
        }
        let mut words = payload.split(' ');
        let (word, owner) = (words.next(), words.next().and_then(owner));
        let (Some(word), Some(owner)) = (word, owner) else {
            return;
        };
        let news = match (word, words.next().map(str::parse)) {
            ("granted", Some(Ok(token))) => WakeUp::HandedOver(token),
            ("look", None) => WakeUp::AskAgain,
            ("lost", None) => return self.lost(owner, LostReason::TakenOver),
            _ => return,
        };
        self.wake(owner, news);
    }

    /// Wakes `owner`, which may begin to wait only later: the message can arrive before the reply that put the owner
    /// into the queue.
    pub(super) fn wake(&self, owner: OwnerId, news: WakeUp) {
        self.waiters.notify_even_later(owner, news);
    }
}

/// The owner that [`OwnerId::to_hex`] wrote.
pub(super) fn owner(hex: &str) -> Option<OwnerId> {
    let number = u128::from_str_radix(hex, 16).ok()?;
    (hex.len() == 32).then(|| OwnerId::from_bytes(number.to_be_bytes()))
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
    fn news_reach_the_waiter_they_are_for_and_no_other() {
        let (events, one, two) = (
            ServerEvents::new(Arc::default()),
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
        assert_eq!(received(&mut first), Some(WakeUp::HandedOver(17)));
        assert_eq!(received(&mut first), None);
        assert_eq!(received(&mut second), Some(WakeUp::AskAgain));
        drop((first, second));
        events.receive(&push(&format!("granted {} 18", one.to_hex())));
    }

    #[test]
    fn owners_are_read_as_they_are_written() {
        let id = OwnerId::from_bytes([0x0a; 16]);
        assert_eq!(owner(&id.to_hex()), Some(id));
        assert_eq!(owner("0a"), None);
        assert_eq!(owner(""), None);
    }
}
