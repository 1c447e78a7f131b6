//! What the engine needs of a store.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::rt::Clock;
use crate::store::{Answer, Grant, Request};
use crate::time::Time;

/// What the store replies to one request.
pub trait Reply<T>: Future<Output = Result<T, Error>> + Send {}

impl<T, F: Future<Output = Result<T, Error>> + Send> Reply<T> for F {}

/// What every request of the engine needs. Its futures are dropped when the request is stopped.
pub trait QueueRequest: Sync {
    /// An entry of ours in the queue, and what it waits for: its turn, or the end of other holds.
    type Entry: Send + Sync;
    /// The entries that an entry waits for, and what the store has to watch them.
    type Ahead: Send;

    /// Whether an operation is made again after an error that may be temporary: for an acquisition that means a new entry
    /// at the end of the queue. Otherwise the error is the answer.
    const BEGINS_ANEW: bool = false;

    /// The request of the driver, and the clock of the store.
    fn context(&self) -> (&Request, &Clock);

    /// Reads the position of our entry. `ahead`: what the entry has waited for up to now. `is_safety_poll`: the
    /// watch has reported nothing for a while, so the store also makes sure that the session exists, if that needs a
    /// request.
    fn read(
        &self,
        entry: &Self::Entry,
        ahead: Option<Self::Ahead>,
        is_safety_poll: bool,
    ) -> impl Reply<Position<Self::Ahead>>;

    /// Resolves when one of the entries ahead is gone or has changed since `ahead` was read, or may be: with the new
    /// position of our entry, or with `None` if the queue has to be read.
    fn watch(
        &self,
        entry: &Self::Entry,
        ahead: &mut Self::Ahead,
    ) -> impl Reply<Option<Position<Self::Ahead>>>;

    /// Resolves when the session of our entry has ended, and the entry with it.
    fn session_end(&self, entry: &Self::Entry) -> impl Future<Output = ()> + Send;
}

/// An acquisition.
pub trait Acquisition: QueueRequest {
    /// Creates an entry. Remembers the entry before the request for it is sent, and forgets the entry again before it
    /// returns an error that is not `Indeterminate`.
    fn create(&self) -> impl Reply<Created<Self::Entry, Self::Ahead>>;

    /// The answer for an entry that holds; `None`: the entry is gone. `last_token`: see [`Position::Held`].
    fn grant(&self, entry: &Self::Entry, last_token: u64) -> impl Reply<Option<Answer>>;

    /// Deletes what the request has in the queue, if anything.
    fn leave(&self) -> impl Reply<()>;
}

/// A change of the mode of a hold.
pub trait ModeChange: QueueRequest {
    /// The entry of the hold as it was read or written last, with its version.
    type Own: Send + Sync;

    /// Reads the entry of the hold. `None`: the entry is gone.
    fn read_own(&self) -> impl Reply<Option<Self::Own>>;

    /// Whether the entry says that the hold is exclusive.
    fn is_exclusive(&self, own: &Self::Own) -> bool;

    /// Writes another mode into the entry, under the same token, if the entry has not changed since it was read.
    fn replace(&self, own: &mut Self::Own, mode: HoldMode) -> impl Reply<Replaced<()>>;

    /// The other contenders that hold, among those that were there when the upgrade was announced; `None`: no other contender.
    fn others(&self, own: &mut Self::Own) -> impl Reply<Option<Others<Self::Entry, Self::Ahead>>>;

    /// Makes the entry exclusive under a new token, if the entry has not changed since it was read or written. No other
    /// contender holds. An entry that is exclusive already keeps its token.
    fn become_exclusive(&self, own: &mut Self::Own) -> impl Reply<Replaced<Grant>>;

    /// The answer of a store that can give one without an announcement. `None`: the upgrade is to be announced.
    fn upgrade_at_once(&self, own: &mut Self::Own) -> impl Reply<Option<Answer>> {
        let _ = own;
        std::future::ready(Ok(None))
    }
}

/// The other holds that a hold which is to become exclusive waits for.
#[derive(Debug)]
pub struct Others<E, A> {
    /// The last contender that holds, as [`HoldMode::Upgrading`] has it.
    pub last_holder: i64,
    /// Our entry, as one that waits for the end of all other holds up to that one.
    pub entry: E,
    /// The position of that entry; `None`: it has to be read.
    pub position: Option<Position<A>>,
}

/// Where an entry stands in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position<A> {
    /// The entry holds.
    Held {
        /// No token that was granted before the queue was read is greater. 0: the token of the entry is the greatest.
        last_token: u64,
    },
    /// The entry waits.
    Behind(A),
    /// The entry is not in the queue.
    Gone,
}

/// What the request for an entry came to.
#[derive(Debug)]
pub enum Created<E, A> {
    /// The entry is in the queue. `None`: its position has to be read.
    Entry(E, Option<Position<A>>),
    /// The name is taken and the request does not wait. Nothing was created.
    Busy,
    /// Nothing is left of this attempt, and the next one may succeed.
    Again,
}

/// What an entry is to say about the mode of its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldMode {
    /// Shared.
    Shared,
    /// Upgradable.
    Upgradable,
    /// Upgradable, and an upgrade is announced.
    Upgrading {
        /// The last contender that held when the upgrade was announced; `None`: not known yet.
        last_holder: Option<i64>,
    },
}

/// What became of a request to replace an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced<T> {
    /// The entry was replaced.
    Done(T),
    /// The entry has changed since it was read.
    Refused,
    /// The entry is gone.
    Gone,
}

impl<T> Replaced<T> {
    /// The same with what `map` returns.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Replaced<U> {
        match self {
            Self::Done(done) => Replaced::Done(map(done)),
            Self::Refused => Replaced::Refused,
            Self::Gone => Replaced::Gone,
        }
    }
}

/// How long requests that fail are sent again after the last answer of the store, if three ttl are less: an election takes
/// some seconds.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Until when requests that fail are sent again if the store answers now.
pub fn retry_limit(request: &Request, clock: &Clock) -> Time {
    clock.now().after(RETRY_TIMEOUT.max(request.ttl * 3))
}

/// Whether the store may give an answer to the next request after this error.
pub fn is_temporary(err: &Error) -> bool {
    matches!(
        err.kind(),
        ErrorKind::Unreachable | ErrorKind::Indeterminate
    )
}
