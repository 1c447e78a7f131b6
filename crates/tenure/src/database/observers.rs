//! The observers of a client, by the name that they observe, for a server that says that something has changed and not what.
//!
//! A client reads a name once after a message about it, however many observers it has, and passes the answer on to all of them.
//! What one observer wants to read by itself is read for the others too, so their next read is due as late as its own: at rest
//! a client reads a name as often as if it had one observer.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};

use futures_util::stream;
use tokio::sync::watch;

use tenure_core::error::Error;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::rt::{BackgroundTasks, Spawner, lock};
use tenure_core::store::{BoxFuture, Sightings};
use tenure_core::support::closed;

/// Reads who leads.
pub(crate) type ReadLeader = Box<dyn Fn() -> BoxFuture<Result<Sighting, Error>> + Send + Sync>;

/// All observers of one client.
pub(crate) struct Observers {
    spawner: Spawner,
    tasks: Arc<BackgroundTasks>,
    names: Mutex<HashMap<LockName, Entry>>,
    /// The channels whose messages arrive.
    heard: Mutex<BTreeSet<String>>,
}

/// A name, and how many observers it has.
struct Entry {
    observed: Arc<ObservedName>,
    count: usize,
}

/// A name that has an observer.
struct ObservedName {
    name: LockName,
    /// Where the server says that something has changed.
    channel: String,
    read_leader: ReadLeader,
    reads: Mutex<Reads>,
    /// The last answer. An observer takes the newest one, and may miss those before.
    answer: watch::Sender<Option<Answer>>,
}

/// The reads of one name, one after the other.
#[derive(Default)]
struct Reads {
    /// How many have begun. The last one may be under way.
    begun: u64,
    is_running: bool,
    /// Something may have changed since the last one began, so another one follows.
    is_due: bool,
}

/// The answer to the read with this number.
#[derive(Clone)]
struct Answer {
    number: u64,
    sighting: Result<Sighting, Error>,
}

/// One observer, until it is dropped.
struct Subscription {
    observers: Arc<Observers>,
    /// Gone after [`Observers::end`], which ends `answer`.
    observed: Weak<ObservedName>,
    answer: watch::Receiver<Option<Answer>>,
}

impl Observers {
    pub(crate) fn new(spawner: Spawner) -> Self {
        Self {
            spawner,
            tasks: Arc::default(),
            names: Mutex::default(),
            heard: Mutex::default(),
        }
    }

    /// What the server has now, and what it has after each message on `channel`.
    pub(crate) fn observe(
        self: &Arc<Self>,
        name: LockName,
        channel: String,
        read_leader: ReadLeader,
    ) -> Sightings {
        let (observed, answer) = {
            let mut names = lock(&self.names);
            let entry = names.entry(name.clone()).or_insert_with(|| Entry {
                observed: Arc::new(ObservedName {
                    name,
                    channel,
                    read_leader,
                    reads: Mutex::default(),
                    answer: watch::Sender::new(None),
                }),
                count: 0,
            });
            entry.count += 1;
            (entry.observed.clone(), entry.observed.answer.subscribe())
        };
        self.read(&observed);
        let subscription = Subscription {
            observers: self.clone(),
            observed: Arc::downgrade(&observed),
            answer,
        };
        let sightings = stream::unfold(subscription, |mut subscription| async move {
            subscription.answer.changed().await.ok()?;
            let answer = subscription.answer.borrow_and_update().clone()?;
            Some((answer.sighting, subscription))
        });
        Box::pin(sightings)
    }

    /// Where the server says that something has changed: a channel for each name that has an observer.
    pub(crate) fn channels(&self) -> BTreeSet<String> {
        let names = lock(&self.names);
        let channels = names.values().map(|it| it.observed.channel.clone());
        channels.collect()
    }

    /// The messages of these channels arrive from now on, and no others. A name whose messages did not arrive before is read. If
    /// none arrive, all names are read: so observers learn whether the server answers.
    pub(crate) fn listens_to(self: &Arc<Self>, channels: &BTreeSet<String>) {
        let before = std::mem::replace(&mut *lock(&self.heard), channels.clone());
        let may_have_missed =
            |channel: &str| channels.contains(channel) && !before.contains(channel);
        self.read_channels(|channel| channels.is_empty() || may_have_missed(channel));
    }

    /// Reads the names of these channels, and passes the answers on.
    pub(crate) fn read_channels(self: &Arc<Self>, is_one: impl Fn(&str) -> bool) {
        let observed: Vec<_> = {
            let names = lock(&self.names);
            let observed = names.values().map(|it| &it.observed);
            observed.filter(|it| is_one(&it.channel)).cloned().collect()
        };
        for observed in &observed {
            self.read(observed);
        }
    }

    /// Who leads, read from now on, together with all others who want to know. `None`: the name has no observer.
    pub(crate) fn read_now(
        self: &Arc<Self>,
        name: &LockName,
    ) -> Option<BoxFuture<Result<Sighting, Error>>> {
        let observed = lock(&self.names).get(name)?.observed.clone();
        let mut answer = observed.answer.subscribe();
        let number = self.read(&observed);
        drop(observed);
        Some(Box::pin(async move {
            loop {
                answer.changed().await.map_err(|_| closed())?;
                let answer = answer.borrow_and_update().clone();
                if let Some(answer) = answer.filter(|answer| answer.number >= number) {
                    return answer.sighting;
                }
            }
        }))
    }

    /// Ends the streams of all observers: no message will ever arrive.
    pub(crate) fn end(&self) {
        lock(&self.names).clear();
    }

    /// Resolves when no request of this is under way.
    pub(crate) async fn all_read(&self) {
        self.tasks.all_done().await;
    }

    /// Reads the name in the background: now, or once more after the request that is under way. Returns the number of the
    /// read.
    fn read(self: &Arc<Self>, observed: &Arc<ObservedName>) -> u64 {
        let mut number = {
            let mut reads = lock(&observed.reads);
            if reads.is_running {
                reads.is_due = true;
                return reads.begun + 1;
            }
            reads.begin()
        };
        let first = number;
        let mut running = Running::new(observed.clone());
        self.tasks.spawn(&self.spawner, async move {
            loop {
                let sighting = (running.observed.read_leader)().await;
                let answer = Answer { number, sighting };
                running.observed.answer.send_replace(Some(answer));
                match running.begin_next() {
                    Some(next) => number = next,
                    None => return,
                }
            }
        });
        first
    }
}

/// The task that reads a name. Its runtime may drop it.
struct Running {
    observed: Arc<ObservedName>,
    /// From then on another task may read the name.
    has_ended: bool,
}

impl Running {
    fn new(observed: Arc<ObservedName>) -> Self {
        Self {
            observed,
            has_ended: false,
        }
    }

    /// Returns the number of the next read. `None`: none is due, and the task has ended.
    fn begin_next(&mut self) -> Option<u64> {
        let mut reads = lock(&self.observed.reads);
        if reads.is_due && self.observed.answer.receiver_count() > 0 {
            return Some(reads.begin());
        }
        reads.is_running = false;
        self.has_ended = true;
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        lock(&self.observed.reads).is_running = false;
        self.observed.answer.send_replace(Some(Answer {
            number: u64::MAX,
            sighting: Err(closed()),
        }));
    }
}

impl Reads {
    /// Returns the number of the read that begins.
    fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.is_running = true;
        self.is_due = false;
        self.begun
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(observed) = self.observed.upgrade() else {
            return;
        };
        let mut names = lock(&self.observers.names);
        if let Some(entry) = names.get_mut(&observed.name)
            && Arc::ptr_eq(&entry.observed, &observed)
        {
            entry.count -= 1;
            if entry.count == 0 {
                names.remove(&observed.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::StreamExt as _;
    use tokio::sync::oneshot;

    use tenure_core::error::ErrorKind;
    use tenure_core::rt::{poll_now, yield_now};

    use super::*;

    type Reply = oneshot::Sender<Result<Sighting, Error>>;

    /// A server whose replies the test sends.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<VecDeque<Reply>>>);

    impl Server {
        fn observe(&self, observers: &Arc<Observers>) -> Sightings {
            let requests = self.0.clone();
            let read: ReadLeader = Box::new(move || {
                let (reply, answer) = oneshot::channel();
                lock(&requests).push_back(reply);
                Box::pin(async move { answer.await.expect("the test replies") })
            });
            observers.observe(name("a"), "channel".into(), read)
        }

        /// Replies to the only request.
        async fn reply(&self, answer: Result<Sighting, Error>) {
            self.settle().await;
            let reply = {
                let mut requests = lock(&self.0);
                assert_eq!(requests.len(), 1, "requests");
                requests.pop_front().unwrap()
            };
            reply.send(answer).unwrap();
            self.settle().await;
        }

        async fn settle(&self) {
            for _ in 0..20 {
                yield_now().await;
            }
        }

        fn requests(&self) -> usize {
            lock(&self.0).len()
        }
    }

    fn observers() -> Arc<Observers> {
        Arc::new(Observers::new(Spawner::current().unwrap()))
    }

    fn name(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn nobody(token: u64) -> Sighting {
        Sighting::of_nobody(token)
    }

    async fn next(sightings: &mut Sightings) -> Option<u64> {
        Some(sightings.next().await?.unwrap().last_token)
    }

    #[tokio::test]
    async fn a_name_is_read_once_for_all_its_observers() {
        let server = Server::default();
        let observers = observers();
        let observe = |_| server.observe(&observers);
        let mut all: Vec<_> = (0..100).map(observe).collect();
        server.reply(Ok(nobody(1))).await;
        for sightings in &mut all {
            assert_eq!(next(sightings).await, Some(1));
        }
        // Those that came while the first request was under way.
        server.reply(Ok(nobody(1))).await;
        assert_eq!(server.requests(), 0);
        for other in ["channel 2", ""] {
            observers.read_channels(|it| it == other);
        }
        server.settle().await;
        assert_eq!(server.requests(), 0);
        observers.read_channels(|it| it == "channel");
        // A change during the request is read once more, however many there are.
        server.settle().await;
        observers.read_channels(|it| it == "channel");
        observers.read_channels(|it| it == "channel");
        server.reply(Ok(nobody(2))).await;
        server.reply(Ok(nobody(3))).await;
        assert_eq!(server.requests(), 0);
        for sightings in &mut all {
            assert_eq!(next(sightings).await, Some(3));
        }
        // One that asks during a request gets the answer to a later one, and so do all others.
        observers.read_channels(|_| true);
        server.settle().await;
        let mut reads: Vec<_> = (0..100)
            .map(|_| observers.read_now(&name("a")).unwrap())
            .collect();
        server.reply(Ok(nobody(4))).await;
        assert!(poll_now(&mut reads[0]).is_err());
        server.reply(Ok(nobody(5))).await;
        for read in reads {
            assert_eq!(read.await.unwrap().last_token, 5);
        }
        for sightings in &mut all {
            assert_eq!(next(sightings).await, Some(5));
        }
        assert!(observers.read_now(&name("b")).is_none());
    }

    #[tokio::test]
    async fn a_name_without_observers_is_not_read() {
        let server = Server::default();
        let observers = observers();
        let first = server.observe(&observers);
        let second = server.observe(&observers);
        drop(first);
        assert_eq!(observers.channels().len(), 1);
        drop(second);
        assert!(observers.channels().is_empty());
        server.reply(Ok(nobody(1))).await;
        observers.read_channels(|_| true);
        assert!(observers.read_now(&name("a")).is_none());
        server.settle().await;
        assert_eq!(server.requests(), 0);
        observers.all_read().await;
    }

    /// The next read may begin, in another thread, before the task that has read is dropped.
    #[tokio::test]
    async fn the_end_of_a_read_is_not_the_end_of_the_next_one() {
        let server = Server::default();
        let observers = observers();
        let mut sightings = server.observe(&observers);
        server.reply(Ok(nobody(1))).await;
        assert_eq!(next(&mut sightings).await, Some(1));
        let observed = lock(&observers.names)[&name("a")].observed.clone();
        let mut running = Running::new(observed.clone());
        lock(&observed.reads).begin();
        assert_eq!(running.begin_next(), None);
        observers.read(&observed);
        drop(running);
        assert!(poll_now(sightings.next()).is_err(), "no answer has come");
        server.reply(Ok(nobody(2))).await;
        assert_eq!(next(&mut sightings).await, Some(2));
        assert_eq!(server.requests(), 0);
        // A task that its runtime drops has an answer too, and the next read is possible.
        lock(&observed.reads).begin();
        drop(Running::new(observed.clone()));
        let err = sightings.next().await.unwrap().unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Closed);
        observers.read(&observed);
        server.reply(Ok(nobody(3))).await;
        assert_eq!(next(&mut sightings).await, Some(3));
    }

    #[tokio::test]
    async fn an_error_reaches_the_observer_and_the_end_too() {
        let server = Server::default();
        let observers = observers();
        let mut sightings = server.observe(&observers);
        server
            .reply(Err(Error::new(ErrorKind::Unreachable, "cut")))
            .await;
        let err = sightings.next().await.unwrap().unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unreachable);
        observers.end();
        assert!(sightings.next().await.is_none());
        // Another one of the same name is not removed with the first.
        let _second = server.observe(&observers);
        drop(sightings);
        assert_eq!(observers.channels().len(), 1);
        server.reply(Ok(nobody(1))).await;
    }
}
