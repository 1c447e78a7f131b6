//! What observers of elections hear: one etcd watch per name, shared by all observers of this client.
//!
//! A task reads each watch, also while no observer is polled: messages of a stream that nothing reads would hold up the
//! requests on the same connection. The watch ends with its last observer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use futures_util::stream;
use tokio::sync::broadcast::{Receiver, Sender, channel};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::leader::Sighting;
use tenure_core::rt::{Flag, lock};
use tenure_core::store::Sightings;

use super::connection::Connections;
use super::context::Context;
use super::errors::RequestError;
use super::leader::{self, Change, Reading};
use super::names::Directory;
use super::subscribe::{Reports, Watch};

/// How many sightings are kept for an observer that has not read them yet. The stream of one that is further behind ends.
const SIGHTING_BUFFER: usize = 64;

/// The observers of one client.
pub(super) struct Observers {
    context: Arc<Context>,
    connections: Arc<Connections>,
    /// By directory.
    watches: Mutex<HashMap<Vec<u8>, Weak<SharedWatch>>>,
}

/// The watch of one name, owned by its observers.
struct SharedWatch {
    directory: Directory,
    news: Sender<News>,
    signals: Arc<Signals>,
}

#[derive(Default)]
struct Signals {
    /// The watch is open, and observers hear of what happens from now on.
    is_open: Flag,
    /// The last observer is gone.
    is_unused: Flag,
}

impl Drop for SharedWatch {
    fn drop(&mut self) {
        self.signals.is_unused.raise();
    }
}

#[derive(Clone, Debug)]
enum News {
    Sighting(Sighting),
    /// Nothing will follow. Without an error a new watch may be opened at once.
    End(Option<Error>),
}

/// What one observer receives.
struct Observer {
    news: Receiver<News>,
    watch: Arc<SharedWatch>,
    /// The watch was open when the observer came, so nothing that the watch reports says who leads now.
    reads_first: bool,
}

/// Where the stream of one observer is.
enum Step {
    Begin(Directory),
    Follow(Observer),
    Over,
}

impl Observers {
    pub(super) fn new(context: &Arc<Context>, connections: &Arc<Connections>) -> Self {
        Self {
            context: context.clone(),
            connections: connections.clone(),
            watches: Mutex::default(),
        }
    }

    /// Who leads now, and each change after that.
    pub(super) fn observe(self: Arc<Self>, directory: Directory) -> Sightings {
        let begin = (self, Step::Begin(directory));
        Box::pin(stream::unfold(begin, |(observers, step)| async move {
            let (sighting, step) = observers.next(step).await?;
            Some((sighting, (observers, step)))
        }))
    }

    async fn next(self: &Arc<Self>, step: Step) -> Option<(Result<Sighting, Error>, Step)> {
        let mut observer = match step {
            Step::Begin(directory) => self.subscribe(&directory),
            Step::Follow(observer) => observer,
            Step::Over => return None,
        };
        if std::mem::take(&mut observer.reads_first) {
            let reading = leader::read(&self.connections, &observer.watch.directory, 0).await;
            let step = match &reading {
                Ok(_) => Step::Follow(observer),
                Err(_) => Step::Over,
            };
            return Some((reading.map(|reading| reading.sighting), step));
        }
        match observer.news.recv().await {
            Ok(News::Sighting(sighting)) => Some((Ok(sighting), Step::Follow(observer))),
            Ok(News::End(Some(err))) => Some((Err(err), Step::Over)),
            // Some sightings were not kept, or the watch has ended: the observer begins again with what is there now.
            Ok(News::End(None)) | Err(_) => None,
        }
    }

    /// Joins the watch of that name, or begins one.
    fn subscribe(self: &Arc<Self>, directory: &Directory) -> Observer {
        let mut watches = lock(&self.watches);
        let known = watches.get(directory.start()).and_then(Weak::upgrade);
        let is_new = known.is_none();
        let watch = known.unwrap_or_else(|| {
            let watch = Arc::new(SharedWatch {
                directory: directory.clone(),
                news: channel(SIGHTING_BUFFER).0,
                signals: Arc::default(),
            });
            watches.insert(directory.start().to_vec(), Arc::downgrade(&watch));
            watch
        });
        let observer = Observer {
            news: watch.news.subscribe(),
            reads_first: watch.signals.is_open.is_raised(),
            watch,
        };
        drop(watches);
        if is_new {
            self.start(&observer.watch);
        }
        observer
    }

    fn start(self: &Arc<Self>, watch: &Arc<SharedWatch>) {
        let mut forwarding = Forwarding {
            observers: self.clone(),
            directory: watch.directory.clone(),
            watch: Arc::downgrade(watch),
            signals: watch.signals.clone(),
            error: None,
        };
        self.context.spawner.spawn(async move {
            let error = forwarding.run().await;
            forwarding.set_error(error);
        });
    }
}

/// The task of one watch. When the task ends in any way, the observers hear of that.
struct Forwarding {
    observers: Arc<Observers>,
    directory: Directory,
    /// The task does not keep the watch alive.
    watch: Weak<SharedWatch>,
    signals: Arc<Signals>,
    /// Why the task has ended.
    error: Option<Error>,
}

impl Forwarding {
    /// Passes on what happens until the watch ends. Returns the error that observers are told.
    async fn run(&self) -> Option<Error> {
        let closing = &self.observers.context.closing;
        tokio::select! {
            biased;
            () = closing.raised() => None,
            () = self.signals.is_unused.raised() => None,
            error = self.open_and_forward() => error,
        }
    }

    fn set_error(&mut self, error: Option<Error>) {
        self.error = error;
    }

    async fn open_and_forward(&self) -> Option<Error> {
        let source = match self.open().await {
            Ok(source) => source,
            Err(err) => return Some(err.error),
        };
        let is_open = &self.signals.is_open;
        let err = self.forward(source).await.err()?;
        // An observer whose watch has ended asks anew, and then has the error if there still is one.
        let is_told = !is_open.is_raised() || err.kind() == ErrorKind::Denied;
        is_told.then_some(err)
    }

    /// From now on: a watch that begins in the past is served late, and may begin with what was compacted away.
    async fn open(&self) -> Result<Watch, RequestError> {
        let (start, end) = (self.directory.start().to_vec(), self.directory.end());
        Watch::open(&self.observers.connections, start, end, Reports::Changes).await
    }

    async fn forward(&self, mut source: Watch) -> Result<(), Error> {
        let connection = source.connection.clone();
        let mut reading = self.read(0).await?;
        self.signals.is_open.raise();
        self.pass_on(reading.sighting.clone());
        loop {
            let event = tokio::select! {
                biased;
                event = source.next_event() => event?,
                () = connection.left.raised() => return Ok(()),
            };
            match reading.apply(&event) {
                Change::None => {}
                Change::Value(sighting) => self.pass_on(sighting),
                Change::Unknown => {
                    let revision = event.kv.map_or(0, |kv| kv.mod_revision);
                    reading = self.read(revision).await?;
                    self.pass_on(reading.sighting.clone());
                }
            }
        }
    }

    async fn read(&self, at_least: i64) -> Result<Reading, Error> {
        leader::read(&self.observers.connections, &self.directory, at_least).await
    }

    fn pass_on(&self, sighting: Sighting) {
        self.tell(News::Sighting(sighting));
    }

    fn tell(&self, news: News) {
        if let Some(watch) = self.watch.upgrade() {
            // An error means that the last observer has just left.
            let _ = watch.news.send(news);
        }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let mut watches = lock(&self.observers.watches);
        // A newer watch of the same name stays.
        let known = watches.get(self.directory.start());
        if known.is_some_and(|known| Weak::ptr_eq(known, &self.watch)) {
            watches.remove(self.directory.start());
        }
        drop(watches);
        // No observer has joined since.
        let error = self.error.take();
        self.tell(News::End(error));
    }
}
