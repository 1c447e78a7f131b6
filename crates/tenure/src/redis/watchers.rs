//! The observers of elections, as one client has them: by the channel of the name, however many observe that name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::mpsc;

use tenure_core::leader::Sighting;
use tenure_core::rt::lock;

use super::connection::Connection;
use super::sighting;

/// Changes that an observer has not read yet. The stream of an observer that is further behind ends, and it asks anew.
const WATCH_BUFFER: usize = 64;

/// The observers of one client.
#[derive(Default)]
pub(super) struct Watchers(Mutex<HashMap<String, Arc<LeaderChannel>>>);

/// The channel of one name, while it is observed.
pub(super) struct LeaderChannel {
    pub(super) name: String,
    senders: Mutex<Vec<mpsc::Sender<Sighting>>>,
    /// `None`: there is no subscription. Locked by the task that subscribes or unsubscribes. Not used where messages stay
    /// within a slot, because those subscriptions are counted in `connection`.
    pub(super) subscribed: tokio::sync::Mutex<Option<Subscribed>>,
}

/// A subscription to the channel.
pub(super) struct Subscribed {
    /// Keeps no connection open.
    pub(super) connection: Weak<Connection>,
    /// The server has confirmed the subscription.
    pub(super) is_confirmed: bool,
}

impl Watchers {
    /// A new observer, to which all messages on the channel are passed until the receiver is dropped.
    pub(super) fn join(&self, name: &str) -> (Arc<LeaderChannel>, mpsc::Receiver<Sighting>) {
        let (sender, receiver) = mpsc::channel(WATCH_BUFFER);
        let mut channels = lock(&self.0);
        let channel = channels.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(LeaderChannel {
                name: name.to_owned(),
                senders: Mutex::default(),
                subscribed: tokio::sync::Mutex::default(),
            })
        });
        lock(&channel.senders).push(sender);
        (channel.clone(), receiver)
    }

    /// Passes a message on to the observers of the channel. Returns whether it is such a channel.
    pub(super) fn tell(&self, channel: &str, message: &str) -> bool {
        let Some(channel) = lock(&self.0).get(channel).cloned() else {
            return false;
        };
        // Other programs may publish on the same channel.
        if let Some(sighting) = sighting::parse(message) {
            let mut senders = lock(&channel.senders);
            senders.retain(|sender| sender.try_send(sighting.clone()).is_ok());
        }
        true
    }

    /// Forgets the channel, unless it has observers.
    pub(super) fn remove_if_unused(&self, channel: &Arc<LeaderChannel>) {
        let mut channels = lock(&self.0);
        let is_this = |known: &Arc<LeaderChannel>| Arc::ptr_eq(known, channel);
        if channels.get(&channel.name).is_some_and(is_this) && !channel.is_used() {
            channels.remove(&channel.name);
        }
    }
}

impl LeaderChannel {
    /// Whether the channel has an observer.
    pub(super) fn is_used(&self) -> bool {
        let mut senders = lock(&self.senders);
        senders.retain(|sender| !sender.is_closed());
        !senders.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_observer_of_a_name_is_told_until_it_leaves_or_is_too_slow() {
        let watchers = Watchers::default();
        assert!(!watchers.tell("x", "nobody 1"), "no observer");
        let (channel, mut first) = watchers.join("x");
        let (same, mut second) = watchers.join("x");
        assert!(Arc::ptr_eq(&channel, &same));
        assert!(watchers.tell("x", "nobody 1") && watchers.tell("x", "nonsense"));
        assert_eq!(first.try_recv().unwrap(), Sighting::of_nobody(1));
        assert_eq!(second.try_recv().unwrap(), Sighting::of_nobody(1));
        assert!(second.try_recv().is_err() && !watchers.tell("y", "nobody 1"));
        drop(second);
        assert!(channel.is_used());
        for token in 0..=WATCH_BUFFER {
            watchers.tell("x", &format!("nobody {token}"));
        }
        let told = std::iter::from_fn(|| first.blocking_recv());
        assert_eq!(told.count(), WATCH_BUFFER, "then it ends");
        assert!(!channel.is_used());
        // One that is asked for meanwhile stays.
        let (_, third) = watchers.join("x");
        watchers.remove_if_unused(&channel);
        assert!(watchers.tell("x", "nobody 1"));
        drop(third);
        watchers.remove_if_unused(&channel);
        assert!(!watchers.tell("x", "nobody 1"));
    }
}
