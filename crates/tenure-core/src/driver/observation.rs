//! One observer of an election: reads the store, hears its pushes, and shows each leader once and in order.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;

use crate::error::{Error, ErrorKind, Step};
use crate::leader::{Leader, Sighting};
use crate::logic::election::{
    FIRST_PUSH_TIMEOUT, LeaderOrder, MAX_OLDER_READS, ReopenPauses, Seen, next_read, retry_pause,
};
use crate::name::LockName;
use crate::rt::Flag;
use crate::store::{Elections, Sightings};
use crate::time::Time;

use super::detach::DetachableRequest;
use super::labels::LOG_TARGET;
use super::shared::Driver;

/// What one observer knows. It has no task of its own: it works while it is polled.
pub(crate) struct Observation {
    driver: Arc<Driver>,
    elections: Arc<dyn Elections>,
    name: LockName,
    order: LeaderOrder,
    source: Source,
    /// When the store is read next, or after a failure tried again.
    next_read: Time,
    /// Failures in a row.
    failures: u32,
    reopens: ReopenPauses,
    /// Reads in a row that were older than what was seen.
    older_reads: u32,
    is_over: bool,
}

/// Why there is a sighting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Pushed,
    Read,
}

/// How the observer learns of changes.
enum Source {
    /// The store is asked to push, for the first time or after a failure.
    NotOpen,
    /// The store has not pushed anything yet.
    Opening(Opening),
    /// The store pushes, since the time of the opening.
    Pushed(Sightings, Time),
    /// The store does not push, and is read at this pace.
    Polled(Duration),
}

/// What the store pushes first, and the pushes after that.
type FirstPush = (Option<Result<Sighting, Error>>, Sightings);

/// The store opens its pushes. An observer that is not polled any more would keep what the store needs for that from the other
/// requests of the client, so the opening goes on as a task then.
struct Opening {
    first: DetachableRequest<FirstPush>,
    since: Time,
    is_unused: Arc<Flag>,
}

impl Opening {
    fn new(driver: &Arc<Driver>, mut sightings: Sightings, since: Time) -> Self {
        let is_unused = Arc::<Flag>::default();
        let (client, unused) = (driver.clone(), is_unused.clone());
        let first = driver.send(|_| {
            Box::pin(async move {
                let first = tokio::select! {
                    biased;
                    () = unused.raised() => None,
                    () = client.closed.raised() => None,
                    first = sightings.next() => first,
                };
                Ok((first, sightings))
            })
        });
        Self {
            first,
            since,
            is_unused,
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.is_unused.raise();
    }
}

impl Observation {
    pub(crate) fn new(driver: Arc<Driver>, name: LockName) -> Result<Self, Error> {
        let elections = driver.elections();
        let elections = elections.map_err(|err| driver.explain(err, &name, Step::Inspect))?;
        Ok(Self {
            next_read: driver.clock.now(),
            driver,
            elections,
            name,
            order: LeaderOrder::default(),
            source: Source::NotOpen,
            failures: 0,
            reopens: ReopenPauses::default(),
            older_reads: 0,
            is_over: false,
        })
    }

    /// The next leader, or that nobody leads. An error is returned for the first failure of several in a row. `None` after
    /// an error that retrying does not end, and when the client is closed.
    ///
    /// Cancel safe: what the store has said and was not returned is returned later.
    pub(crate) async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        while !self.is_over {
            let driver = self.driver.clone();
            let sighting = tokio::select! {
                biased;
                () = driver.closed.raised() => {
                    self.end();
                    return None;
                }
                sighting = self.sighting() => sighting,
            };
            match sighting {
                Ok((sighting, cause)) => {
                    let seen = self.order.see(&sighting);
                    if seen == Seen::Older && cause == Cause::Pushed {
                        // It says nothing about now, and must not put off the next read.
                        continue;
                    }
                    self.failures = 0;
                    self.plan_read(&sighting);
                    self.older_reads = match seen {
                        Seen::New | Seen::Known => 0,
                        Seen::Older if self.order.is_of_last_term(&sighting) => 0,
                        Seen::Older => self.older_reads + 1,
                    };
                    if seen == Seen::New {
                        return Some(Ok(sighting.leader));
                    }
                    if self.older_reads == MAX_OLDER_READS {
                        self.end();
                        return Some(Err(self.explain(tokens_are_gone())));
                    }
                }
                // The store may have refused the request because of the end of the client.
                Err(_) if self.driver.closed.is_raised() => self.end(),
                Err(err) => {
                    let is_first = self.failed(&err);
                    if is_first || self.is_over {
                        return Some(Err(self.explain(err)));
                    }
                }
            }
        }
        None
    }

    fn explain(&self, err: Error) -> Error {
        self.driver.explain(err, &self.name, Step::Inspect)
    }

    /// What the store says next: by a push, or because it is time to read.
    ///
    /// The store's pushes are polled during a read, too: while they are opened they may have what the read needs (a connection,
    /// or the turn to connect).
    async fn sighting(&mut self) -> Result<(Sighting, Cause), Error> {
        loop {
            let clock = self.driver.clock.clone();
            let (read, next_read) = (self.read(), self.next_read);
            let reading = async {
                clock.wait_until(next_read).await;
                read.await
            };
            let (pushed, opened) = match &mut self.source {
                Source::NotOpen => {
                    clock.wait_until(next_read).await;
                    self.open();
                    continue;
                }
                Source::Polled(_) => return Ok((reading.await?, Cause::Read)),
                Source::Opening(opening) => tokio::select! {
                    biased;
                    first = &mut opening.first => {
                        let (pushed, sightings) = first?;
                        let opened = opening.since;
                        self.source = Source::Pushed(sightings, opened);
                        (pushed, opened)
                    }
                    answer = reading => return Ok((answer?, Cause::Read)),
                },
                Source::Pushed(sightings, opened) => tokio::select! {
                    biased;
                    pushed = sightings.next() => (pushed, *opened),
                    answer = reading => return Ok((answer?, Cause::Read)),
                },
            };
            match pushed {
                Some(pushed) => return Ok((pushed.map_err(Error::of_read)?, Cause::Pushed)),
                // The observer was too slow, or the connection has ended: the store is asked anew.
                None => {
                    let now = clock.now();
                    let pause = self.reopens.after(now.since(opened), clock.random());
                    self.source = Source::NotOpen;
                    self.next_read = now.after(pause);
                }
            }
        }
    }

    fn open(&mut self) {
        let watch = self.elections.clone().watch(self.name.clone());
        let now = self.driver.clock.now();
        (self.source, self.next_read) = match watch {
            // The first push says what the store has now; a store that stays silent is read.
            Some(sightings) => {
                let opening = Opening::new(&self.driver, sightings, now);
                (Source::Opening(opening), now.after(FIRST_PUSH_TIMEOUT))
            }
            None => (Source::Polled(self.elections.poll_interval()), now),
        };
    }

    /// The future borrows nothing, because pushes can be sent to another thread, and not shared with one.
    fn read(&self) -> impl Future<Output = Result<Sighting, Error>> + Send + use<> {
        let (driver, elections) = (self.driver.clone(), self.elections.clone());
        let name = self.name.clone();
        async move { driver.read(|_| elections.leader(name)).await }
    }

    fn plan_read(&mut self, sighting: &Sighting) {
        let poll = match self.source {
            Source::Polled(interval) => Some(interval),
            Source::NotOpen | Source::Opening(_) | Source::Pushed(..) => None,
        };
        let clock = &self.driver.clock;
        let pause = next_read(sighting.ttl_left, poll, clock.random());
        self.next_read = clock.now().after(pause);
    }

    /// Returns whether this is the first failure in a row. From then on the observer does not know who leads.
    fn failed(&mut self, err: &Error) -> bool {
        tracing::debug!(target: LOG_TARGET, name = %self.name, store = self.driver.scheme(), err = format_args!("{err:#}"), "observer has no answer");
        // Pushes may have got lost with the connection.
        self.source = Source::NotOpen;
        if is_final(err) {
            self.end();
        }
        let clock = &self.driver.clock;
        let pause = retry_pause(self.failures, clock.random());
        self.next_read = clock.now().after(pause);
        self.failures = self.failures.saturating_add(1);
        self.order.forget();
        self.failures == 1
    }

    fn end(&mut self) {
        self.is_over = true;
        self.source = Source::NotOpen;
    }
}

/// Whether the same observation would never succeed.
fn is_final(err: &Error) -> bool {
    matches!(
        err.kind(),
        ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Closed
    )
}

fn tokens_are_gone() -> Error {
    let message = "the tokens of the store have gone back, so it has lost data, and terms cannot be told from older ones; observe again";
    Error::new(ErrorKind::Store, message)
}
