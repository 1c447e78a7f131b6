//! What the observers of one client hear: one channel for each name, however many observers the name has.
//!
//! A channel has the last sighting only. An observer that reads late gets that one, and leaves out those in between.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use tokio::sync::watch;

use tenure_core::error::Error;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::rt::lock;
use tenure_core::store::Sightings;

/// `None`: nothing was read yet.
type Last = Option<Result<Sighting, Error>>;
type Names = Mutex<HashMap<LockName, Arc<watch::Sender<Last>>>>;

/// The names that observers of this client observe.
#[derive(Default)]
pub(super) struct Observers(Arc<Names>);

/// The sending end of the channel of one name. Its end ends the streams of all observers of the name, which ask again.
pub(super) struct Channel {
    names: Arc<Names>,
    name: LockName,
    sender: Arc<watch::Sender<Last>>,
}

/// When an observer has come to the channel of a name.
#[derive(Debug)]
pub(super) enum Subscribed {
    /// There was no channel. The caller has to serve this one.
    First(Channel),
    /// Nothing was sent before.
    Early,
    /// Something was sent before, which the observer does not hear.
    Late,
}

impl Observers {
    /// What an observer of `name` hears from now on.
    pub(super) fn subscribe(&self, name: &LockName) -> (Sightings, Subscribed) {
        let mut names = lock(&self.0);
        if let Some(sender) = names.get(name) {
            let receiver = sender.subscribe();
            let subscribed = match *receiver.borrow() {
                Some(_) => Subscribed::Late,
                None => Subscribed::Early,
            };
            return (sightings(receiver), subscribed);
        }
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        names.insert(name.clone(), sender.clone());
        drop(names);
        let channel = Channel {
            names: self.0.clone(),
            name: name.clone(),
            sender,
        };
        (sightings(receiver), Subscribed::First(channel))
    }
}

impl Channel {
    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn send(&self, sighting: Result<Sighting, Error>) {
        self.sender.send_replace(Some(sighting));
    }

    /// Resolves when the last observer is gone. From then on the next observer gets a channel of its own. Cancel safe.
    pub(super) async fn unused(&self) {
        loop {
            self.sender.closed().await;
            let mut names = lock(&self.names);
            // An observer may have come in between.
            if self.sender.receiver_count() == 0 {
                self.remove(&mut names);
                return;
            }
        }
    }

    fn remove(&self, names: &mut HashMap<LockName, Arc<watch::Sender<Last>>>) {
        let of_name = names.get(&self.name);
        if of_name.is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
            names.remove(&self.name);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.remove(&mut lock(&self.names));
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.name).finish()
    }
}

/// The sightings of a channel, to its end.
fn sightings(receiver: watch::Receiver<Last>) -> Sightings {
    Box::pin(stream::unfold(receiver, |mut receiver| async move {
        loop {
            receiver.changed().await.ok()?;
            let last = receiver.borrow_and_update().clone();
            if let Some(sighting) = last {
                return Some((sighting, receiver));
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use tenure_core::error::ErrorKind;
    use tenure_core::rt::poll_now;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    /// The first observer of a name.
    fn first(observers: &Observers, text: &str) -> (Sightings, Channel) {
        match observers.subscribe(&name(text)) {
            (sightings, Subscribed::First(channel)) => (sightings, channel),
            (_, other) => panic!("there is a channel: {other:?}"),
        }
    }

    fn heard(sightings: &mut Sightings) -> Option<u64> {
        let next = poll_now(Box::pin(sightings.next())).ok()?;
        Some(next?.unwrap().last_token)
    }

    #[test]
    fn all_observers_of_a_name_share_a_channel_until_the_last_one_leaves() {
        let observers = Observers::default();
        let (mut first, channel) = first(&observers, "a");
        assert_eq!(heard(&mut first), None);
        let (mut early, subscribed) = observers.subscribe(&name("a"));
        assert!(matches!(subscribed, Subscribed::Early), "{subscribed:?}");
        channel.send(Ok(Sighting::of_nobody(1)));
        assert_eq!((heard(&mut first), heard(&mut early)), (Some(1), Some(1)));
        assert_eq!((heard(&mut first), heard(&mut early)), (None, None));
        drop(early);
        // An observer that comes later reads by itself first.
        let (mut second, subscribed) = observers.subscribe(&name("a"));
        assert!(matches!(subscribed, Subscribed::Late), "{subscribed:?}");
        assert_eq!(heard(&mut second), None);
        let (_other, _channel) = self::first(&observers, "b");
        channel.send(Ok(Sighting::of_nobody(2)));
        channel.send(Ok(Sighting::of_nobody(3)));
        assert_eq!((heard(&mut first), heard(&mut second)), (Some(3), Some(3)));
        drop(first);
        let unused = Box::pin(channel.unused());
        let unused = poll_now(unused).expect_err("one observer is left");
        drop(second);
        assert!(poll_now(unused).is_ok());
        drop(self::first(&observers, "a"));
    }

    #[test]
    fn the_end_of_a_channel_comes_after_its_last_error() {
        let observers = Observers::default();
        let (mut observer, channel) = first(&observers, "a");
        channel.send(Err(Error::new(ErrorKind::Unreachable, "no answer")));
        drop(channel);
        let next = |observer: &mut Sightings| poll_now(Box::pin(observer.next())).ok().unwrap();
        assert!(next(&mut observer).unwrap().is_err());
        assert!(next(&mut observer).is_none());
        // The stream has ended, and the next one has a channel of its own.
        drop(first(&observers, "a"));
    }
}
