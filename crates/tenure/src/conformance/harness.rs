//! What the suite needs to know about a store, and to be able to do to it.

use std::path::PathBuf;
use std::time::Duration;

use crate::backend::BoxFuture;
use crate::error::Step;
use crate::guarantees::Guarantees;
use crate::rt::Clock;
use crate::{Client, Error};

use super::case::Failure;

/// One store under test.
///
/// The first few methods every backend has to supply. The others are capabilities: `None` means that
/// this harness cannot do it, and the behaviours that need it are skipped, visibly. A capability that
/// is there returns a future that does nothing until it is polled, so asking `is_some()` is free.
///
/// A [`Setup`](super::Setup) opens one harness per behaviour. Harnesses may share a server: names are
/// unique, and behaviours that disturb the whole store (the theme `faults`) run alone.
pub trait Harness: Send + Sync + 'static {
    /// A new client that shares nothing with the others but the store.
    fn client(&self) -> BoxFuture<Result<Client, Error>>;

    /// What the store promises; picks the behaviours.
    fn guarantees(&self) -> Guarantees;

    /// Looks at the store without the library's help where that is possible:
    /// by hand, or with the store's own tools.
    fn look(&self, name: &str) -> BoxFuture<Result<Look, Failure>>;

    /// Whether the store frees a hold that is not renewed.
    fn leases(&self) -> bool;

    /// A ttl that is short for this store and still far above its round trip and this machine's hiccups.
    fn ttl(&self) -> Duration;

    /// The clock that clients of this store measure deadlines on.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Stops what this harness started and removes what it made.
    fn tear_down(&self) -> BoxFuture<Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The store's time is virtual: moves it forward by one step that skips nothing that is due
    /// (less than a sixth of [`ttl`](Harness::ttl)), and lets every task do what it then has to do.
    /// `None`: the store's time passes by itself.
    fn advance(&self, by: Duration) -> Option<BoxFuture<()>> {
        let _ = by;
        None
    }

    /// Where other processes find the store.
    fn url(&self) -> Option<String> {
        None
    }

    /// The program `tenure-lock-holder` (or one of your own around [`lock_holder::main`](super::lock_holder::main)).
    fn lock_holder(&self) -> Option<PathBuf> {
        None
    }

    /// A password that is part of the URL and must show up nowhere.
    fn secret(&self) -> Option<String> {
        None
    }

    /// A request that was given up may be visible as a waiter until the next release, because it is
    /// blocked where it cannot be called off.
    fn stale_waiters(&self) -> bool {
        false
    }

    /// The backend finds out by itself what became of a request that had no answer, and goes on: then there
    /// is a grant, or a release, where others have an error.
    fn recovers(&self) -> bool {
        false
    }

    /// A hold ends with the connection it was acquired on.
    fn ends_with_connection(&self) -> bool {
        false
    }

    /// Requests that reached the store so far.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// Takes the name away from whoever holds it, behind everybody's back, as an operator could:
    /// deletes the key, replaces the file. The holder finds out at its next renewal.
    fn evict(&self, name: &str) -> Option<BoxFuture<Result<(), Failure>>> {
        let _ = name;
        None
    }

    /// The next request of that step, by any client of this harness, goes wrong.
    fn disturb(&self, step: Step, trouble: Trouble) -> Option<BoxFuture<Result<(), Failure>>> {
        let _ = (step, trouble);
        None
    }

    /// Cuts every connection that clients of this harness have. They may connect again.
    fn break_connection(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// From now on the store answers nobody.
    fn pause_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// Ends [`pause_store`](Harness::pause_store); also ends what [`Trouble::ReplyNever`] left hanging.
    fn resume_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// Makes the store forget everything while it runs, as `FLUSHALL` or `rm -rf` does.
    fn wipe_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }

    /// Kills the store and starts it again.
    fn restart_store(&self) -> Option<BoxFuture<Result<(), Failure>>> {
        None
    }
}

/// What can happen to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// It does not reach the store, and the client is told.
    RequestLost,
    /// It is applied; the client is told that the reply was lost.
    ReplyLost,
    /// It is applied and no reply comes.
    ReplyNever,
    /// It reaches the store this much later.
    Late(Duration),
}

/// What was seen in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// How many hold the name.
    pub holders: usize,
    /// How many requests wait for it in the store; `None` where nobody can see that.
    pub waiters: Option<usize>,
}
