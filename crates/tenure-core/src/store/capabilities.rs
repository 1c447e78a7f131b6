//! What some stores can do and others cannot.

use std::sync::Arc;

use super::finding::Finding;
use super::messages::{AllAnswer, Answer, BoxFuture, Grant, Hold, Release, Request};
use crate::error::Error;
use crate::fence::Condition;
use crate::name::LockName;
use crate::options::Mode;

/// Takes several names in one step. Without it the driver takes one after the other.
pub trait AcquireAll: Send + Sync {
    /// Takes the names of all these requests, at least two and no name twice, if each is free at this moment and has no
    /// waiters; otherwise none of them. This is one atomic step in the store.
    ///
    /// The requests do not wait, differ in name and owner only, and are stopped together. Grants and errors are as those of
    /// [`Store::acquire`](super::Store::acquire): after an `Indeterminate` error the driver releases each owner until the
    /// answer is definite. [`AllAnswer::OneByOne`] makes the driver acquire the names one after the other.
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>>;
}

/// Answers without waiting: for stores on this machine.
pub trait AnswerNow: Send + Sync {
    /// Takes the name at once or returns `None`. After `None` nothing of the request is left, and the driver calls
    /// [`Store::acquire`](super::Store::acquire).
    ///
    /// Several of these may run at the same time for one name.
    fn acquire_now(&self, request: &Request) -> Option<Grant>;

    /// The counterpart of [`acquire_now`](AnswerNow::acquire_now): the outcome, or `None` when
    /// it takes a request. After `None` nothing was done, and `release` is called.
    fn release_now(&self, hold: &Hold) -> Option<Release>;
}

/// Changes the mode of a hold.
pub trait ChangeMode: Send + Sync {
    /// Makes the upgradable hold of `request.owner` exclusive, under a new token, with no other exclusive hold in between;
    /// waits for the other holders when `request.wait` is set, and from its arrival on the store grants nothing else.
    /// An owner that holds exclusively already is granted what it has. Never makes a hold of an owner that has none.
    ///
    /// Resolves with [`Answer::Busy`] soon after [`Request::stop`] was raised, if not granted by then. After `Busy`, and
    /// after an error that is not `Indeterminate`, the hold is as it was before; after an `Indeterminate` error the driver
    /// calls [`downgrade`](ChangeMode::downgrade) until the answer is definite.
    /// The hold is renewed all the time, and the client may acquire the same name for another owner.
    fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>>;

    /// Makes the hold shared, or upgradable again, which also gives up a request to upgrade. May be repeated. `false`: the
    /// owner has no hold any more.
    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>>;
}

/// Raises the token of a hold: for stores that may be nodes of another one.
pub trait RaiseToken: Send + Sync {
    /// Raises the token of the hold to `token`, so that later grants of the name get greater tokens, and returns the token
    /// that the hold has now: `token`, or the token that it had if that is greater. If another hold at the same time has or
    /// had `token` or a greater one, the hold gets one that is greater than all of these. `None`: there is no such hold.
    fn raise(self: Arc<Self>, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>>;
}

/// Writes data that counts only while holds are there.
pub trait GuardedWrite: Send + Sync {
    /// Sets `key` in this same store to `value`, or deletes it, if all these holds are still there: in one atomic step.
    /// `false`: one of the holds is not there, and nothing was written.
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>>;

    /// What a transaction in this same store can be made conditional on, so that it counts only while the
    /// hold is there.
    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let _ = hold;
        None
    }
}

/// What operators ask for.
pub trait Operate: Send + Sync {
    /// Ends the hold with that token and no other. `false` when there is none.
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>>;

    /// Checks the store and its settings: what weakens or voids the guarantees, and the remedy.
    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>>;

    /// Makes what locks need and the store does not have yet, tables for example; one line for each thing made.
    /// May be called again at any time.
    fn init(self: Arc<Self>) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
