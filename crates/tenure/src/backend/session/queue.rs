//! Who has something to ask on a session, and who asks for them.
//!
//! A request that is alone is made by whoever wants it, without a task: [`Turn`]. It is kept where others find it, since
//! that one may stop polling it (a `select!` by reference is enough) while everybody else stands behind it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::sync::{Notify, oneshot};

use crate::fence::OwnerId;
use crate::rt::lock;

use super::dialect::Ask;
use super::link::{Link, Outcome};

/// Requests in one statement.
pub(super) const BATCH: usize = 32;

/// One request.
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) owner: Option<OwnerId>,
    pub(super) answer: oneshot::Sender<Outcome>,
}

/// Those that have not been sent.
#[derive(Default)]
pub(super) struct Queue {
    line: Mutex<Line>,
    /// Wakes the one who is to serve next.
    next: Notify,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    served: Served,
}

/// Who asks for those who stand in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Served {
    /// Nobody: it is empty.
    #[default]
    Not,
    /// Whoever is told first: see [`Queue::turn`].
    Soon,
    /// A [`Server`].
    Now,
}

impl Queue {
    /// `true`: nobody serves the queue, so whoever puts this in it has to.
    pub(super) fn push(&self, job: Job) -> bool {
        let mut line = lock(&self.line);
        line.jobs.push_back(job);
        let is_first = line.served == Served::Not;
        if is_first {
            line.served = Served::Now;
        }
        is_first
    }

    /// Waits until it is the caller's turn to serve the queue. Cancel safe.
    pub(super) async fn turn(&self) {
        loop {
            self.next.notified().await;
            if self.takes_turn() {
                return;
            }
        }
    }

    /// Whether nobody else serves the queue though there is something to do; from now on the caller does.
    pub(super) fn takes_turn(&self) -> bool {
        let mut line = lock(&self.line);
        let is_free = line.served == Served::Soon;
        if is_free {
            line.served = Served::Now;
        }
        is_free
    }

    /// What goes into the next statement.
    pub(super) fn next(&self) -> Vec<Job> {
        let mut line = lock(&self.line);
        let count = line.jobs.len().min(BATCH);
        line.jobs.drain(..count).collect()
    }

    pub(super) fn has(&self, owner: OwnerId) -> bool {
        lock(&self.line)
            .jobs
            .iter()
            .any(|job| job.owner == Some(owner))
    }

    /// Nobody is going to answer these.
    pub(super) fn clear(&self) {
        // Dropped without the lock: it wakes those who wait.
        let jobs = std::mem::take(&mut lock(&self.line).jobs);
        drop(jobs);
    }
}

/// Whoever serves the queue of a session. There is one at most.
pub(super) struct Server(Arc<Link>);

impl Server {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }

    pub(super) fn boxed(self) -> Serving {
        Box::pin(self.serve())
    }

    /// Asks for all who stand in the queue. Those who come meanwhile are served by one of them.
    async fn serve(self) {
        let link = &self.0;
        let connection = link.connection.clone().lock_owned().await;
        link.clone().run(connection, link.queue.next()).await;
    }
}

impl Drop for Server {
    /// The next one is told after those who were answered, and those who come back stand behind it: so all of them are
    /// in the queue again when it is served, and statements carry many requests when there are many.
    fn drop(&mut self) {
        let queue = &self.0.queue;
        let mut line = lock(&queue.line);
        let is_alone = line.jobs.is_empty() && self.0.asked() <= 1;
        line.served = match is_alone {
            true => Served::Not,
            false => Served::Soon,
        };
        drop(line);
        if !is_alone {
            queue.next.notify_one();
        }
    }
}

pub(super) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the server is while it is polled inside somebody's request.
#[derive(Default)]
pub(super) struct Place(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    turn: u64,
    serving: Option<Serving>,
}

impl Place {
    /// Takes it away from whoever polls it, if anybody does.
    pub(super) fn take(&self) -> Option<Serving> {
        lock(&self.0).serving.take()
    }
}

/// The right to poll it, and the duty.
pub(super) struct Turn<'a> {
    link: &'a Arc<Link>,
    number: u64,
}

impl<'a> Turn<'a> {
    pub(super) fn new(link: &'a Arc<Link>, server: Server) -> Self {
        let mut inside = lock(&link.place.0);
        inside.turn += 1;
        inside.serving = Some(server.boxed());
        Self {
            link,
            number: inside.turn,
        }
    }

    /// Until it has ended, or somebody else carries it on.
    pub(super) async fn end(&self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = lock(&self.link.place.0);
        if inside.turn != self.number {
            return Poll::Ready(());
        }
        let polled = match &mut inside.serving {
            Some(serving) => serving.as_mut().poll(cx),
            None => Poll::Ready(()),
        };
        if polled.is_ready() {
            inside.serving = None;
        }
        polled
    }
}

impl Drop for Turn<'_> {
    /// Others may depend on it.
    fn drop(&mut self) {
        if lock(&self.link.place.0).turn == self.number {
            self.link.carry_on();
        }
    }
}
