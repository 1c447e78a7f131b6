//! Acquires several names as one: all of them, or any `k` of `n`; all that is wanted or nothing.
//!
//! `logic/selection.rs` decides which names to ask for and which to keep, and says why clients do not wait for each other
//! in a circle.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::driver::{Acquired, AcquiredAll, BusyName, Until};
use crate::entry::{Entry, first_of};
use crate::error::{Error, ErrorKind, Step};
use crate::logic::lease::HoldState;
use crate::logic::selection::{Selection, time_until_restart};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::owner::Owner;
use crate::store_lock::StoreLock;
use crate::time::Time;

/// Acquires any `wanted` of `names`, which are sorted, no name twice; waits until `until`. Returns as many entries as are
/// wanted, in the order of the names, or one of the missing names.
///
/// Cancel safe at every await: when the future is dropped, the driver gives up all requests and releases what was
/// acquired.
pub(crate) async fn acquire(
    lock: &StoreLock,
    names: &[LockName],
    wanted: usize,
    until: Until,
    fallback: Option<&Owner>,
) -> Result<Acquired<Vec<Entry>>, Error> {
    let mut choice = Choice::new(lock, fallback, names, wanted);
    match choice.acquire(until).await {
        Ok(None) => choice.finish(until).await,
        // An error of a release is logged where it happens; the caller gets the cause.
        Ok(Some(busy)) => {
            choice.release_all(until).await;
            Ok(Acquired::Busy(busy))
        }
        Err(err) => {
            choice.release_all(until).await;
            Err(err)
        }
    }
}

/// The names that one acquisition has by now.
struct Choice<'a> {
    lock: &'a StoreLock,
    /// See [`StoreLock`].
    fallback: Option<&'a Owner>,
    names: &'a [LockName],
    wanted: usize,
    /// The name that is asked for first.
    start: usize,
    selection: Selection,
    /// An entry for each name that is held.
    entries: Vec<Option<Entry>>,
}

type Wait<'a> = Pin<Box<dyn Future<Output = Result<Acquired<Entry>, Error>> + Send + 'a>>;

/// What a waiter sees next.
enum Event {
    /// The wait for the name at this position has ended.
    Ended(usize, Result<Acquired<Entry>, Error>),
    /// Nothing happened for a while.
    NoProgress,
    /// A name that was held is lost. Without it, the other names are of no use.
    Lost,
}

impl<'a> Choice<'a> {
    fn new(
        lock: &'a StoreLock,
        fallback: Option<&'a Owner>,
        names: &'a [LockName],
        wanted: usize,
    ) -> Self {
        let selection = Selection::new(names.len(), wanted);
        let start = match selection.begins_with_attempts() {
            // So that clients that take some of the same names spread out.
            true => lock.driver.clock.random() as usize % names.len(),
            false => 0,
        };
        Self {
            lock,
            fallback,
            names,
            wanted,
            start,
            selection,
            entries: names.iter().map(|_| None).collect(),
        }
    }

    /// `None`: as many names are held as are wanted. Otherwise a name that was busy until the end.
    async fn acquire(&mut self, until: Until) -> Result<Option<BusyName>, Error> {
        let busy = self.acquire_together(until).await?;
        if self.selection.missing() == 0 {
            return Ok(None);
        }
        // If every name is needed, one that is taken decides.
        let is_over = until.length(&self.lock.driver.clock).is_zero();
        if busy.is_some() && is_over && self.wanted == self.names.len() {
            return Ok(busy);
        }
        if until == Until::Once || self.selection.begins_with_attempts() {
            let busy = self.attempt(until).await?;
            if until == Until::Once || busy.is_none() {
                return Ok(busy);
            }
            let given_back = self.selection.give_back();
            self.release(given_back, until).await;
        }
        let mut restarts = 0;
        loop {
            match self.wait(until, restarts).await? {
                Waited::Complete => return Ok(None),
                Waited::Busy(busy) => return Ok(Some(busy)),
                Waited::NoProgress => self.release_all(until).await,
            }
            restarts += 1;
        }
    }

    /// Asks for as many names as are wanted with one request, if the store can do that. Returns a name that was busy; other
    /// names may be free.
    async fn acquire_together(&mut self, until: Until) -> Result<Option<BusyName>, Error> {
        if self.wanted < 2 {
            return Ok(None);
        }
        let first = (self.start..).take(self.wanted);
        let mut positions: Vec<_> = first.map(|at| at % self.names.len()).collect();
        positions.sort_unstable();
        let names: Vec<_> = positions.iter().map(|at| &self.names[*at]).collect();
        let (lock, fallback) = (self.lock, self.fallback);
        match lock.acquire_together(&names, until, fallback).await? {
            AcquiredAll::All(entries) => {
                for (at, entry) in positions.into_iter().zip(entries) {
                    self.got(at, entry);
                }
                Ok(None)
            }
            AcquiredAll::Busy(busy) => Ok(Some(busy)),
            AcquiredAll::OneByOne => Ok(None),
        }
    }

    /// Tries each name once, until `until`. Returns the first name that was not granted, if names are missing in the end.
    async fn attempt(&mut self, until: Until) -> Result<Option<BusyName>, Error> {
        let (count, mut busy) = (self.names.len(), None);
        for done in 0..count {
            if self.selection.missing() == 0 {
                return Ok(None);
            }
            if self.selection.is_out_of_reach(count - done) {
                break;
            }
            let at = (self.start + done) % count;
            let name = &self.names[at];
            let tried = tokio::select! {
                biased;
                Some(_) = self.lost() => return Err(self.lost_meanwhile()),
                tried = self.lock.acquire_name(name, until.once(), self.fallback) => tried?,
            };
            match tried {
                Acquired::Got(entry) => self.got(at, entry),
                Acquired::Busy(name) => busy = busy.or(Some(name)),
            }
        }
        Ok(busy.filter(|_| self.selection.missing() > 0))
    }

    /// Waits for all names that may be asked for, at the same time, until enough are held.
    async fn wait(&mut self, until: Until, restarts: u32) -> Result<Waited, Error> {
        let (lock, names, fallback) = (self.lock, self.names, self.fallback);
        let clock = &lock.driver.clock;
        let restart_after = time_until_restart(restarts, clock.random());
        let mut give_up_at = clock.now().after(restart_after);
        let mut waits: Vec<(usize, Wait<'a>)> = Vec::new();
        let mut busy = None;
        while self.selection.missing() > 0 {
            for at in self.asked_now() {
                let wait = lock.acquire_name(&names[at], until, fallback);
                waits.push((at, Box::pin(wait)));
            }
            if waits.is_empty()
                && let Some(name) = busy.take()
            {
                return Ok(Waited::Busy(name));
            }
            let limit = Some(give_up_at).filter(|_| self.selection.may_begin_again());
            match self.next_event(&mut waits, limit).await {
                Event::Ended(at, outcome) => match outcome? {
                    Acquired::Got(entry) => {
                        self.got(at, entry);
                        give_up_at = clock.now().after(restart_after);
                    }
                    Acquired::Busy(name) => {
                        self.selection.ended(at);
                        busy.get_or_insert(name);
                    }
                },
                Event::NoProgress => {
                    self.selection = Selection::new(names.len(), self.wanted);
                    return Ok(Waited::NoProgress);
                }
                Event::Lost => return Err(self.lost_meanwhile()),
            }
        }
        // Dropping the other waits leaves their queues, and gives back what was granted at the same moment.
        Ok(Waited::Complete)
    }

    /// The names to ask for now, the one at `start` first.
    fn asked_now(&mut self) -> Vec<usize> {
        let mut asked = self.selection.ask();
        let count = self.names.len();
        asked.sort_by_key(|at| (at + count - self.start) % count);
        asked
    }

    async fn next_event(&self, waits: &mut Vec<(usize, Wait<'a>)>, limit: Option<Time>) -> Event {
        let first = poll_fn(|cx| {
            for index in 0..waits.len() {
                if let Poll::Ready(outcome) = waits[index].1.as_mut().poll(cx) {
                    let (at, _) = waits.remove(index);
                    return Poll::Ready(Event::Ended(at, outcome));
                }
            }
            Poll::Pending
        });
        let no_progress = async {
            match limit {
                Some(limit) => self.lock.driver.clock.wait_until(limit).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(_) = self.lost() => Event::Lost,
            event = first => event,
            () = no_progress => Event::NoProgress,
        }
    }

    /// Resolves when one of the names that are held is lost.
    fn lost(&self) -> impl Future<Output = Option<LostReason>> + Send + use<> {
        first_of(self.entries.iter().flatten().map(Entry::lost).collect())
    }

    /// The error of an acquisition during which a name was lost.
    fn lost_meanwhile(&self) -> Error {
        let message = "one of the locks ended while the others were waited for; retry";
        let err = Error::new(ErrorKind::Lost, message);
        match self.lost_entry() {
            Some(lost) => lost.held().explain(err, Step::Acquire),
            None => err,
        }
    }

    fn lost_entry(&self) -> Option<&Entry> {
        let is_lost = |entry: &&Entry| matches!(entry.held().state(), HoldState::Lost(_));
        self.entries.iter().flatten().find(is_lost)
    }

    fn got(&mut self, at: usize, entry: Entry) {
        self.entries[at] = Some(entry);
        self.selection.granted(at);
    }

    /// Releases the names at these positions, in this order; in the background what is left when the wait is over.
    async fn release(&mut self, positions: impl IntoIterator<Item = usize>, until: Until) {
        let taken = positions.into_iter().map(|at| self.entries[at].take());
        let entries: Vec<_> = taken.flatten().collect();
        let clock = &self.lock.driver.clock;
        let releasing = async {
            for entry in entries {
                let _ = entry.release().await;
            }
        };
        tokio::select! {
            biased;
            () = releasing => {}
            () = clock.sleep_until(until.end_of_giving_back(clock)) => {}
        }
    }

    /// The last name first.
    async fn release_all(&mut self, until: Until) {
        self.release((0..self.names.len()).rev(), until).await;
    }

    /// The entries, if none of them was lost while the others were waited for.
    async fn finish(mut self, until: Until) -> Result<Acquired<Vec<Entry>>, Error> {
        if self.lost_entry().is_none() {
            return Ok(Acquired::Got(self.entries.into_iter().flatten().collect()));
        }
        let err = self.lost_meanwhile();
        self.release_all(until).await;
        Err(err)
    }
}

/// How a wait for several names ended.
enum Waited {
    /// As many names are held as are wanted.
    Complete,
    /// The name that was busy until the end.
    Busy(BusyName),
    /// There was no progress for a while: give back what is held, and begin again.
    NoProgress,
}
