//! The trait that every store implements.

use std::pin::Pin;
use std::sync::Arc;

use super::finding::Finding;
use super::loss_notifier::LossNotifier;
use super::messages::{AllAnswer, Answer, Grant, Hold, Release, Renewal, Request};
use crate::error::{Error, ErrorKind};
use crate::fence::Condition;
use crate::guarantees::{Capability, Guarantees};
use crate::holder::Status;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::Clock;

/// A boxed future that owns what it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A store that keeps locks. See the [module](super) for the contract.
pub trait Backend: Send + Sync + 'static {
    /// What this store, with these settings, can do and promises.
    fn guarantees(&self) -> &Guarantees;

    /// For a refusal, because [`guarantees`](Backend::guarantees) does not claim the capability: the stores that have it, as
    /// far as the crate of this one knows them.
    fn stores_with(&self, capability: Capability) -> String {
        only_reference_store(capability)
    }

    /// The clock that [`Grant::sent`] and [`Renewal::Renewed`] are measured on.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Called once, before everything else: the way to tell the driver that a hold ended.
    fn attach(&self, notifier: LossNotifier) {
        drop(notifier);
    }

    /// Takes the name for `request.owner`; waits for it when `request.wait` is set.
    ///
    /// Resolves with [`Answer::Busy`] soon after [`Request::stop`] was raised, if not granted by then;
    /// after `Busy` nothing of this request is left in the store.
    /// An error of kind `Indeterminate` means that something may be left; with any other error nothing is.
    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>>;

    /// Takes the names of all these requests, at least two and no name twice, if each is free at this moment and has no
    /// waiters; otherwise none of them. One step in the store: nothing comes between two of the names.
    ///
    /// The requests do not wait, differ in name and owner only, and are stopped together. Grants and errors are as those of
    /// [`acquire`](Backend::acquire): after an `Indeterminate` error the driver releases each owner until the answer is
    /// definite. [`AllAnswer::OneByOne`], the default, makes the driver acquire the names one after the other.
    fn acquire_all(&self, requests: Vec<Arc<Request>>) -> BoxFuture<Result<AllAnswer, Error>> {
        drop(requests);
        Box::pin(std::future::ready(Ok(AllAnswer::OneByOne)))
    }

    /// Whether [`acquire_now`](Backend::acquire_now) and [`release_now`](Backend::release_now) may have an answer.
    /// `false`: they are never called.
    fn answers_now(&self) -> bool {
        false
    }

    /// Takes the name at once or returns `None`: for stores on this machine, which answer without waiting. After `None`
    /// nothing of the request is left, and the driver calls `acquire`.
    ///
    /// Several of these may run at the same time for one name.
    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        let _ = request;
        None
    }

    /// The counterpart of [`acquire_now`](Backend::acquire_now): the outcome, or `None` when
    /// it takes a request. After `None` nothing was done, and `release` is called.
    fn release_now(&self, hold: &Hold) -> Option<Release> {
        let _ = hold;
        None
    }

    /// Makes the upgradable hold of `request.owner` exclusive, under a new token, with no other exclusive hold in between;
    /// waits for the other holders when `request.wait` is set, and from its arrival on the store grants nothing else.
    /// An owner that holds exclusively already is granted what it has. Never makes a hold of an owner that has none.
    ///
    /// Resolves with [`Answer::Busy`] soon after [`Request::stop`] was raised, if not granted by then. After `Busy`, and
    /// after an error that is not `Indeterminate`, the hold is as it was before; after an `Indeterminate` error the driver
    /// calls [`downgrade`](Backend::downgrade) until the answer is definite.
    /// The hold is renewed all the time, and the client may acquire the same name for another owner.
    fn upgrade(&self, hold: Hold, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        drop((hold, request));
        Box::pin(std::future::ready(Err(unsupported_mode_change())))
    }

    /// Makes the hold shared, or upgradable again, which also gives up a request to upgrade. May be repeated. `false`: the
    /// owner has no hold any more.
    fn downgrade(&self, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        let _ = (hold, mode);
        Box::pin(std::future::ready(Err(unsupported_mode_change())))
    }

    /// Renews these holds in as few requests as possible: one result per hold, in the same order.
    /// Holds without a lease are checked instead.
    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>>;

    /// Releases the hold if the store still has it under this owner, and never that of another owner.
    /// Also called for owners that may hold or wait after a request of unknown outcome.
    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>>;

    /// Whether the store frees the hold by itself, a ttl after the last request about it. A session that is used for other
    /// holds may keep this one: then the driver repeats a release without an answer for as long as the session lives.
    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let _ = hold;
        true
    }

    /// Raises the token of the hold to `token`, so that later grants of the name get greater tokens, and returns the token
    /// that the hold has now. That is a greater one if the hold has it already, or if `token` is not greater than every
    /// token that another hold beside this one has or had. `None`: the hold is not there any more. For backends that are
    /// made of backends.
    fn raise(&self, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        let _ = (hold, token);
        Box::pin(std::future::ready(Err(unsupported_raise())))
    }

    /// Who holds this name, who waits.
    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>>;

    /// All names that start with `prefix` and are held, sorted by name.
    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>>;

    /// Ends the hold with that token and no other. `false` when there is none.
    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>>;

    /// Checks the store and its settings: what weakens or voids the guarantees, and the cure.
    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>>;

    /// Makes what locks need and the store does not have yet, tables for example; one line for each thing made.
    /// May be called again at any time. Only an operator asks for this.
    fn init(&self) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Sets `key` in this same store to `value`, or deletes it, if all these holds are still there: in one step
    /// that nothing comes between. `false`: one is not, and nothing was written.
    fn write(
        &self,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        drop((holds, key, value));
        let refused = Err(unsupported_write(self.guarantees()));
        Box::pin(std::future::ready(refused))
    }

    /// What a transaction in this same store can be made conditional on, so that it counts only while the
    /// hold is there.
    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let _ = hold;
        None
    }

    /// Ends sessions and connections. Holds that are left end with them or run out.
    fn close(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// The reference store has every capability.
pub(super) fn only_reference_store(_: Capability) -> String {
    "`memory:`, and some of other crates".into()
}

pub(super) fn unsupported_raise() -> Error {
    let message = "this backend cannot be a node of another one";
    Error::new(ErrorKind::Unsupported, message)
}

pub(super) fn unsupported_mode_change() -> Error {
    let message =
        "this backend cannot change the mode of a hold; release the lock and acquire it again";
    Error::new(ErrorKind::Unsupported, message)
}

pub(super) fn unsupported_write(guarantees: &Guarantees) -> Error {
    let backend = guarantees.backend;
    let message = format!(
        "{backend} keeps no data but locks; send the fencing token along with the write instead"
    );
    Error::new(ErrorKind::Unsupported, message)
}
