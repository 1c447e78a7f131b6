//! Acquires several names as one: all of them, or any `k` of `n`; all that is wanted or nothing.
//!
//! `logic/selection.rs` decides which names to ask for and which to keep, and says why clients do not wait for each other
//! in a circle.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::contender::{AtOnce, Contender};
use crate::driver::{Acquired as AcquiredOne, LastStatus, Until};
use crate::entry::{Entry, first_of};
use crate::error::{Error, ErrorKind, Step};
use crate::logic::lease::State;
use crate::logic::selection::{Selection, time_until_restart};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::time::Time;

/// How the acquisition ended.
pub(crate) enum Acquired {
    /// As many entries as were wanted, in the order of the names.
    All(Vec<Entry>),
    /// One of the missing names, which others held until the end of the wait.
    Busy(BusyName),
}

/// A name that others held, and what is known about it.
pub(crate) type BusyName = (LockName, LastStatus);

/// Acquires any `wanted` of `names`, which are sorted, no name twice; waits until `until`.
///
/// Cancel safe at every await: when the future is dropped, the driver gives up all requests and releases what was
/// acquired.
pub(crate) async fn acquire(
    contender: Contender<'_>,
    names: &[LockName],
    wanted: usize,
    until: Until,
) -> Result<Acquired, Error> {
    let mut choice = Choice::new(contender, names, wanted);
    match choice.acquire(until).await {
        Ok(None) => choice.finish().await,
        // An error of a release is logged where it happens; the caller gets the cause.
        Ok(Some(busy)) => {
            choice.release_all().await;
            Ok(Acquired::Busy(busy))
        }
        Err(err) => {
            choice.release_all().await;
            Err(err)
        }
    }
}

/// The names that a contender has by now.
struct Choice<'a> {
    contender: Contender<'a>,
    names: &'a [LockName],
    wanted: usize,
    /// The name that is asked for first.
    start: usize,
    selection: Selection,
    /// An entry for each name that is held.
    entries: Vec<Option<Entry>>,
}

type Wait<'a> = Pin<Box<dyn Future<Output = Result<AcquiredOne<Entry>, Error>> + Send + 'a>>;

/// What a waiter sees next.
enum Event {
    /// The wait for the name at this position has ended.
    Ended(usize, Result<AcquiredOne<Entry>, Error>),
    /// Nothing happened for a while.
    NoProgress,
    /// A name that was held is lost. Without it, the other names would be waited for in vain.
    Lost,
}

impl<'a> Choice<'a> {
    fn new(contender: Contender<'a>, names: &'a [LockName], wanted: usize) -> Self {
        let selection = Selection::new(names.len(), wanted);
        let start = match selection.begins_with_attempts() {
            // So that clients that take some of the same names spread out.
            true => contender.driver.clock.random() as usize % names.len(),
            false => 0,
        };
        Self {
            contender,
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
        let is_over = until.length(&self.contender.driver.clock).is_zero();
        if busy.is_some() && is_over && self.wanted == self.names.len() {
            return Ok(busy);
        }
        if until == Until::Once || self.selection.begins_with_attempts() {
            let busy = self.attempt(until).await?;
            if until == Until::Once || busy.is_none() {
                return Ok(busy);
            }
            for at in self.selection.give_back() {
                self.release(at).await;
            }
        }
        for attempt in 0.. {
            if let Some(outcome) = self.wait(until, attempt).await? {
                return Ok(match outcome {
                    Waited::Complete => None,
                    Waited::Busy(name) => Some(name),
                });
            }
            self.release_all().await;
        }
        unreachable!("BUG: the range of attempts has no end");
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
        match self.contender.acquire_together(&names, until).await? {
            AtOnce::All(entries) => {
                for (at, entry) in positions.into_iter().zip(entries) {
                    self.got(at, entry);
                }
                Ok(None)
            }
            AtOnce::Busy(name, last) => Ok(Some((name, last))),
            AtOnce::OneByOne => Ok(None),
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
                tried = self.contender.acquire(name, until.once()) => tried?,
            };
            match tried {
                AcquiredOne::Got(entry) => self.got(at, entry),
                AcquiredOne::Busy(last) => busy = busy.or_else(|| Some((name.clone(), last))),
            }
        }
        Ok(busy.filter(|_| self.selection.missing() > 0))
    }

    /// Waits for all names that may be asked for, at the same time, until enough are held. `None`: there was no progress
    /// for a while, and the contender has to begin again.
    async fn wait(&mut self, until: Until, attempt: u32) -> Result<Option<Waited>, Error> {
        let (contender, names) = (self.contender, self.names);
        let clock = &contender.driver.clock;
        let restart_after = time_until_restart(attempt, clock.random());
        let mut give_up_at = clock.now().after(restart_after);
        let mut waits: Vec<(usize, Wait<'a>)> = Vec::new();
        let mut busy = None;
        while self.selection.missing() > 0 {
            for at in self.asked_now() {
                waits.push((at, Box::pin(contender.acquire(&names[at], until))));
            }
            if waits.is_empty()
                && let Some(name) = busy.take()
            {
                return Ok(Some(Waited::Busy(name)));
            }
            let limit = Some(give_up_at).filter(|_| self.selection.may_begin_again());
            match self.next_event(&mut waits, limit).await {
                Event::Ended(at, outcome) => match outcome? {
                    AcquiredOne::Got(entry) => {
                        self.got(at, entry);
                        give_up_at = clock.now().after(restart_after);
                    }
                    AcquiredOne::Busy(last) => {
                        self.selection.ended(at);
                        busy.get_or_insert_with(|| (names[at].clone(), last));
                    }
                },
                Event::NoProgress => {
                    self.selection = Selection::new(names.len(), self.wanted);
                    return Ok(None);
                }
                Event::Lost => return Err(self.lost_meanwhile()),
            }
        }
        // Dropping the other waits leaves their queues, and gives back what was granted at the same moment.
        Ok(Some(Waited::Complete))
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
                Some(limit) => self.contender.driver.clock.wait_until(limit).await,
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
        let is_lost = |entry: &&Entry| matches!(entry.held().state(), State::Lost(_));
        self.entries.iter().flatten().find(is_lost)
    }

    fn got(&mut self, at: usize, entry: Entry) {
        self.entries[at] = Some(entry);
        self.selection.granted(at);
    }

    async fn release(&mut self, at: usize) {
        if let Some(entry) = self.entries[at].take() {
            let _ = entry.release().await;
        }
    }

    /// The last name first.
    async fn release_all(&mut self) {
        for at in (0..self.names.len()).rev() {
            self.release(at).await;
        }
    }

    /// The entries, if none of them was lost while the others were waited for.
    async fn finish(mut self) -> Result<Acquired, Error> {
        if self.lost_entry().is_none() {
            return Ok(Acquired::All(self.entries.into_iter().flatten().collect()));
        }
        let err = self.lost_meanwhile();
        self.release_all().await;
        Err(err)
    }
}

/// How a wait for several names ended.
enum Waited {
    /// As many names are held as are wanted.
    Complete,
    /// The name that was busy until the end.
    Busy(BusyName),
}
