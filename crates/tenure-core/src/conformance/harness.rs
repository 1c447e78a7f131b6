//! What the suite must know about a store, and what the suite must be able to do to the store.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Step;
use crate::guarantees::Guarantees;
use crate::rt::Clock;
use crate::store::BoxFuture;
use crate::{Client, Error};

use super::failure::Failure;

/// One store under test.
///
/// Every store has to supply the methods without a default. The others are capabilities: `None` means that
/// this harness does not have the capability, and the report shows the behaviours that are skipped for that reason.
/// A capability returns a future that does nothing until it is polled, so `is_some()` has no effect on the store.
///
/// A [`Setup`](super::Setup) opens one harness per behaviour. Harnesses may share a server: names are
/// unique, and behaviours that pause, cut off, wipe or restart the store run alone.
pub trait Harness: Send + Sync + 'static {
    /// A new client that shares nothing with the others but the store.
    fn client(&self) -> BoxFuture<Result<Client, Error>>;

    /// What the store promises. The suite skips the behaviours of what the store does not promise.
    fn guarantees(&self) -> Guarantees;

    /// Inspects the store without the library where that is possible, for example with the store's own client.
    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>>;

    /// Whether the store frees a hold that is not renewed.
    fn leases(&self) -> bool;

    /// A ttl that is short for this store, and still far above a round trip and a pause of a busy machine.
    fn ttl(&self) -> Duration;

    /// The clock that clients of this store measure deadlines on.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Stops what this harness started and removes what it made.
    fn tear_down(&self) -> BoxFuture<Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// For a store with virtual time: moves the time forward by one step, and returns when every task has done what
    /// is due by then. A step is shorter than a sixth of [`ttl`](Harness::ttl), so that no renewal is missed.
    /// `None`: the time of the store is real time.
    fn advance(&self, by: Duration) -> Option<BoxFuture<()>> {
        let _ = by;
        None
    }

    /// The URL by which other processes reach the store.
    fn url(&self) -> Option<String> {
        None
    }

    /// Connects to the store that `url` names. `None`: the store has no URL.
    fn connect(&self, url: String) -> Option<BoxFuture<Result<Client, Error>>> {
        let _ = url;
        None
    }

    /// The program `tenure-lock-holder` (or one of your own around [`lock_holder::main`](super::lock_holder::main)).
    fn lock_holder(&self) -> Option<PathBuf> {
        None
    }

    /// Why the store cannot show the behaviour of that name, although its guarantees have what the behaviour needs: for a
    /// format of another program, which the store cannot change.
    fn cannot_show(&self, behaviour: &str) -> Option<&'static str> {
        let _ = behaviour;
        None
    }

    /// A password that is part of the URL and that no output may contain.
    fn secret(&self) -> Option<String> {
        None
    }

    /// Whether a cancelled request may stay visible as a waiter until the next release, because it blocks in a call
    /// that cannot be cancelled.
    fn stale_waiters(&self) -> bool {
        false
    }

    /// Whether the store itself finds out what a request without a reply has done. Then an acquisition or a release
    /// succeeds where other stores return an error.
    fn recovers(&self) -> bool {
        false
    }

    /// Whether a hold ends with the connection on which it was acquired.
    fn ends_with_connection(&self) -> bool {
        false
    }

    /// How many requests have reached the store so far.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// Ends the hold of that name in the store without telling the holder, as an operator could: deletes the key,
    /// replaces the file. The holder learns it from its next renewal.
    fn evict(&self, name: &str) -> Option<BoxFuture<Result<(), Failure>>> {
        let _ = name;
        None
    }

    /// Injects a fault into the next request of that step, by any client of this harness.
    fn disturb(
        &self,
        step: Step,
        request_fault: RequestFault,
    ) -> Option<BoxFuture<Result<(), Failure>>> {
        let _ = (step, request_fault);
        None
    }

    /// Closes every connection of the clients of this harness. The clients may connect again.
    fn break_connection(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// From now on the store answers no request.
    fn pause_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// Ends [`pause_store`](Harness::pause_store), and sends the replies that [`RequestFault::ReplyNever`] held back.
    fn resume_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// Deletes all data of the running store, as `FLUSHALL` or `rm -rf` does.
    fn wipe_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// Kills the store and starts it again.
    fn restart_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }
}

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFault {
    /// The request does not reach the store, and the client gets an error.
    RequestLost,
    /// The request is applied, and the client learns that the reply was lost.
    ReplyLost,
    /// The request is applied, and no reply comes.
    ReplyNever,
    /// The request reaches the store this much later.
    Late(Duration),
}

/// What the store has of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContenderCounts {
    /// How many holds there are.
    pub holders: usize,
    /// How many requests wait in the store; `None` where the store does not show that.
    pub waiters: Option<usize>,
}
