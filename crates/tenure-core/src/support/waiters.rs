//! Which waiters of a client are told what a store pushes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::fence::{OwnerId, RandomAlready};
use crate::rt::sync::{Mutex, Notify, lock};

/// Messages that are kept for owners that do not wait yet. As many acquisitions of one client may be on their way to
/// a queue at a time; a waiter that misses its message asks the store again.
const EARLY: usize = 256;

/// A message that can be merged with one that its waiter has not read yet.
pub trait Merge {
    /// One message that says what both say, in any order, as far as the waiter has to know.
    #[must_use]
    fn merge(self, other: Self) -> Self;
}

/// Passes messages `M` on to waiters, by owner or by topic (a channel of the store, for example). What a waiter has not
/// read yet is one message, however many there were.
pub struct WaiterRegistry<M>(Mutex<State<M>>);

struct State<M> {
    waiting: HashMap<OwnerId, Waiter<M>, RandomAlready>,
    /// Messages to owners that do not wait yet: a push can arrive before the reply that put the owner into the queue.
    early: VecDeque<(OwnerId, M)>,
}

struct Waiter<M> {
    topic: String,
    slot: Arc<Slot<M>>,
}

/// What one waiter has not read yet.
struct Slot<M> {
    message: Mutex<Option<M>>,
    arrived: Notify,
}

impl<M: Merge> Slot<M> {
    fn put(&self, message: M) {
        let mut pending = lock(&self.message);
        *pending = Some(match pending.take() {
            Some(earlier) => earlier.merge(message),
            None => message,
        });
        drop(pending);
        self.arrived.notify_one();
    }
}

/// One waiter's subscription, which ends when it is dropped.
pub struct Subscription<M> {
    registry: Arc<WaiterRegistry<M>>,
    owner: OwnerId,
    slot: Arc<Slot<M>>,
}

impl<M> Default for WaiterRegistry<M> {
    fn default() -> Self {
        Self(Mutex::new(State {
            waiting: HashMap::default(),
            early: VecDeque::new(),
        }))
    }
}

impl<M: Merge> WaiterRegistry<M> {
    /// Messages to `owner`, and those about `topic`, from now on. An early message to `owner` is among them.
    pub fn subscribe(
        self: &Arc<Self>,
        owner: OwnerId,
        topic: impl Into<String>,
    ) -> Subscription<M> {
        let mut state = lock(&self.0);
        let early = state.early.iter().position(|(early, _)| *early == owner);
        let early = early.and_then(|at| state.early.remove(at));
        let slot = Arc::new(Slot {
            message: Mutex::new(early.map(|(_, message)| message)),
            arrived: Notify::new(),
        });
        let waiter = Waiter {
            topic: topic.into(),
            slot: slot.clone(),
        };
        state.waiting.insert(owner, waiter);
        Subscription {
            registry: self.clone(),
            owner,
            slot,
        }
    }

    /// Tells `owner`, also if it begins to wait only later.
    pub fn notify_even_later(&self, owner: OwnerId, message: M) {
        let mut state = lock(&self.0);
        if let Some(waiter) = state.waiting.get(&owner) {
            // A waiter that is about to leave cleans up by itself.
            return waiter.slot.put(message);
        }
        let known = state.early.iter().position(|(early, _)| *early == owner);
        let message = match known.and_then(|at| state.early.remove(at)) {
            Some((_, earlier)) => earlier.merge(message),
            None => message,
        };
        if state.early.len() == EARLY {
            state.early.pop_front();
        }
        state.early.push_back((owner, message));
    }

    /// Tells `owner`, if it waits.
    pub fn notify(&self, owner: OwnerId, message: M) {
        if let Some(waiter) = lock(&self.0).waiting.get(&owner) {
            waiter.slot.put(message);
        }
    }

    /// Tells each waiter what `message` returns for its owner and its topic.
    pub fn notify_matching(&self, message: impl Fn(OwnerId, &str) -> Option<M>) {
        for (owner, waiter) in &lock(&self.0).waiting {
            if let Some(message) = message(*owner, &waiter.topic) {
                waiter.slot.put(message);
            }
        }
    }
}

impl<M> WaiterRegistry<M> {
    /// How many owners wait.
    pub fn len(&self) -> usize {
        lock(&self.0).waiting.len()
    }

    /// Whether no owner waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M> Subscription<M> {
    /// The next message. Cancel safe. Never resolves if the registry has another subscription of this owner: the
    /// messages go there.
    pub async fn next(&mut self) -> M {
        loop {
            if let Some(message) = lock(&self.slot.message).take() {
                return message;
            }
            // Resolves at once if a message arrived since the look.
            self.slot.arrived.notified().await;
        }
    }
}

impl<M> Drop for Subscription<M> {
    fn drop(&mut self) {
        let mut state = lock(&self.registry.0);
        // A newer subscription of the same owner stays.
        let is_ours = |waiter: &Waiter<M>| Arc::ptr_eq(&waiter.slot, &self.slot);
        if state.waiting.get(&self.owner).is_some_and(is_ours) {
            state.waiting.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::rt::poll_now;

    /// The greatest number is the strongest.
    impl Merge for u32 {
        fn merge(self, other: Self) -> Self {
            self.max(other)
        }
    }

    fn received<M>(subscription: &mut Subscription<M>) -> Option<M> {
        poll_now(pin!(subscription.next())).ok()
    }

    #[test]
    fn a_message_reaches_its_waiter_and_no_other() {
        let registry = Arc::<WaiterRegistry<u32>>::default();
        let (one, two) = (OwnerId::random(), OwnerId::random());
        let mut first = registry.subscribe(one, "a");
        let mut second = registry.subscribe(two, "b");
        assert_eq!(registry.len(), 2);
        assert!(!registry.is_empty());
        registry.notify(one, 1);
        registry.notify_matching(|_, topic| (topic == "b").then_some(2));
        assert_eq!(
            (received(&mut first), received(&mut first)),
            (Some(1), None)
        );
        assert_eq!(
            (received(&mut second), received(&mut second)),
            (Some(2), None)
        );
        drop((first, second));
        assert!(registry.is_empty());
        registry.notify(one, 3);
        assert_eq!(received(&mut registry.subscribe(one, "a")), None);
    }

    #[test]
    fn messages_that_are_not_read_yet_are_one() {
        let registry = Arc::<WaiterRegistry<u32>>::default();
        let owner = OwnerId::random();
        for early in [2, 5, 1] {
            registry.notify_even_later(owner, early);
        }
        let mut waiter = registry.subscribe(owner, "");
        assert_eq!(
            (received(&mut waiter), received(&mut waiter)),
            (Some(5), None)
        );
        registry.notify(owner, 3);
        registry.notify_matching(|_, _| Some(1));
        registry.notify_even_later(owner, 2);
        assert_eq!(
            (received(&mut waiter), received(&mut waiter)),
            (Some(3), None)
        );
    }

    #[test]
    fn an_early_message_is_kept_for_its_waiter() {
        let registry = Arc::<WaiterRegistry<u32>>::default();
        let owner = OwnerId::random();
        registry.notify_even_later(owner, 7);
        for other in (1..).take(EARLY - 1) {
            registry.notify_even_later(OwnerId::random(), other);
        }
        let mut waiter = registry.subscribe(owner, "");
        assert_eq!(
            (received(&mut waiter), received(&mut waiter)),
            (Some(7), None)
        );
        registry.notify_even_later(owner, 8);
        assert_eq!(received(&mut waiter), Some(8));
    }

    #[test]
    fn an_old_subscription_does_not_end_a_newer_one_of_the_same_owner() {
        let registry = Arc::<WaiterRegistry<u32>>::default();
        let owner = OwnerId::random();
        let old = registry.subscribe(owner, "");
        let mut new = registry.subscribe(owner, "");
        drop(old);
        registry.notify(owner, 1);
        assert_eq!(received(&mut new), Some(1));
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use super::*;
    use crate::rt::sync::{block_on, check, spawn};

    /// The greatest number is the strongest.
    #[derive(Debug, PartialEq)]
    struct Message(u32);

    impl Merge for Message {
        fn merge(self, other: Self) -> Self {
            Self(self.0.max(other.0))
        }
    }

    fn owner() -> OwnerId {
        OwnerId::from_hex("00000000000000000000000000000001").unwrap()
    }

    #[test]
    fn a_message_arrives_whether_its_owner_waits_already_or_not() {
        check(|| {
            let registry = Arc::<WaiterRegistry<Message>>::default();
            let notifying = {
                let registry = registry.clone();
                spawn(async move {
                    registry.notify_even_later(owner(), Message(1));
                    registry.notify_even_later(owner(), Message(2));
                })
            };
            let mut subscription = registry.subscribe(owner(), "");
            while block_on(subscription.next()) != Message(2) {}
            notifying.join().unwrap();
        });
    }

    #[test]
    fn messages_from_two_sides_are_all_read() {
        check(|| {
            let registry = Arc::<WaiterRegistry<Message>>::default();
            let mut subscription = registry.subscribe(owner(), "topic");
            let sides = [
                spawn({
                    let registry = registry.clone();
                    async move { registry.notify(owner(), Message(2)) }
                }),
                spawn({
                    let registry = registry.clone();
                    async move { registry.notify_matching(|_, _| Some(Message(1))) }
                }),
            ];
            while block_on(subscription.next()) != Message(2) {}
            for side in sides {
                side.join().unwrap();
            }
            drop(subscription);
            assert!(registry.is_empty());
        });
    }
}
