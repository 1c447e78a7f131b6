//! The interface of all stores: what a backend must be able to do.
//!
//! # Contract
//!
//! Backends implement [`Backend`]; only the driver calls it. A backend knows one store and no other backend.
//!
//! The driver has done before it calls:
//! - name and options are validated, and what [`Guarantees`] does not claim was refused;
//! - at most one [`Backend::acquire`] per client and name is under way;
//! - the owner id is fresh for each acquisition.
//!
//! The driver does after it called:
//! - it polls every future of `acquire`, `renew` and `release` to its end, or the runtime is gone. They are
//!   never dropped half-way: when the caller loses interest, the driver stops the [`Request`] and polls on in
//!   the background. So a backend needs no clean-up for dropped futures, only for a stopped request.
//!   Futures that only look (`inspect`, `list`, `check`), break or write may be dropped;
//! - it computes deadlines, decides when to renew and when a hold is lost;
//! - when `acquire` failed with [`ErrorKind::Indeterminate`] it calls `release`
//!   for that owner, again and again, until the answer is definite or the ttl has passed.
//!
//! In return every request to the store has a time limit: no future may hang for ever, except that of an
//! acquisition that waits for its turn.
//!
//! A returned future that is ready at its first poll costs no task switch and works without a runtime.
//! Run [`conformance`](crate::conformance) against a new backend.

mod adapter;
mod loss_notifier;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::fence::{Condition, OwnerId};
use crate::guarantees::{Capability, Guarantees};
use crate::holder::{Holder, Status};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::{Clock, Flag};
use crate::time::Time;

pub use self::adapter::AsyncBackend;
pub use self::loss_notifier::{LossListener, LossNotifier};

/// A boxed future that owns what it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A store that keeps locks. See the [module](self) for the contract.
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

    /// Whether [`acquire_now`](Backend::acquire_now) and [`release_now`](Backend::release_now) may have an answer.
    /// `false`: they are never called.
    fn answers_now(&self) -> bool {
        false
    }

    /// Takes the name at once or says `None`: for stores on this machine, which can tell without
    /// waiting for anybody. After `None` nothing of the request is left, and `acquire` is called.
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

    /// Renews these holds in as few requests as possible: one result per hold, in the same order.
    /// Holds without a lease are checked instead.
    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>>;

    /// Gives the hold back if the store still has it under this owner; never frees anybody else's.
    /// Also called for owners that may hold or wait after a request of unknown fate.
    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>>;

    /// Whether the store frees that hold by itself, a ttl after the last word about it. Not so while a session keeps it
    /// that lives on for others: then a release without an answer is repeated for as long as that lasts.
    fn ends_by_itself(&self, hold: &Hold) -> bool {
        let _ = hold;
        true
    }

    /// Sees to it that later grants of the name get greater tokens than `token`, if the hold is still there:
    /// `false` when it is not. For backends that are made of backends.
    fn raise(&self, hold: Hold, token: u64) -> BoxFuture<Result<bool, Error>> {
        let _ = (hold, token);
        Box::pin(std::future::ready(Err(unsupported_raise())))
    }

    /// Who holds this name, who waits.
    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>>;

    /// All names that start with `prefix` and are held, sorted by name.
    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>>;

    /// Ends the hold with that token and no other. `false` when there is none.
    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>>;

    /// Looks at the store and its settings: what weakens or voids the guarantees, and the cure.
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
fn only_reference_store(_: Capability) -> String {
    "`memory:`, and some of other crates".into()
}

fn unsupported_raise() -> Error {
    let message = "this backend cannot be a node of another one";
    Error::new(ErrorKind::Unsupported, message)
}

fn unsupported_write(guarantees: &Guarantees) -> Error {
    let backend = guarantees.backend;
    let message = format!(
        "{backend} keeps no data but locks; send the fencing token along with the write instead"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// One acquisition.
#[derive(Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to lock.
    pub name: LockName,
    /// Under which identity; new for each request.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Lease to ask for.
    pub ttl: Duration,
    /// `false`: answer at once, queue nowhere.
    pub wait: bool,
    /// See [`Options::fair`](crate::Options::fair).
    pub fair: Option<bool>,
    /// See [`Options::min_hold`](crate::Options::min_hold).
    pub min_hold: Duration,
    /// See [`Options::lock_delay`](crate::Options::lock_delay).
    pub lock_delay: Duration,
    /// The shortest lease to answer with, at most the ttl; a hand-over may bring less than the ttl.
    pub min_lease: Duration,
    /// The fencing token to grant under, unless the name's next one is greater: for a backend that is
    /// made of backends and wants the same token from all of them. `None`: the store's own choice.
    pub propose: Option<u64>,
    /// What others shall see of us; `since` is filled in by the backend.
    pub holder: Arc<Holder>,
    /// Raised when nobody wants the answer any more.
    pub stop: Flag,
}

impl Request {
    /// A request for an exclusive hold that does not wait. For tests and for backends made of backends.
    pub fn new(name: LockName, owner: OwnerId, ttl: Duration) -> Self {
        Self {
            name,
            owner,
            mode: Mode::Exclusive,
            ttl,
            wait: false,
            fair: None,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            min_lease: Duration::ZERO,
            propose: None,
            holder: Arc::default(),
            stop: Flag::new(),
        }
    }
}

impl Request {
    /// What `work` returns; `None` when the request is stopped before that. Cancel safe as far as `work` is.
    pub async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.raised() => None,
            output = work => Some(output),
        }
    }
}

/// The outcome of an acquisition.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer {
    /// We hold it.
    Granted(Grant),
    /// Somebody else does, or the request was stopped.
    Busy,
}

/// A backend's yes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Strictly greater than every token granted for this name before.
    pub token: u64,
    /// When the winning request was sent, on [`Backend::clock`]; read *before* sending.
    /// For a hold that somebody handed over to us: when the last request that kept our place alive was sent.
    pub sent: Time,
    /// Time between request and reply; zero where there is no network.
    pub round_trip: Duration,
    /// Granted lease from `sent` on; `None`: the hold lasts until it is released or we die.
    pub ttl: Option<Duration>,
    /// The backend raises the [`LossNotifier`] by itself when a hold without a lease ends,
    /// so that nothing has to be checked.
    pub watched: bool,
}

impl Grant {
    /// A grant that has to be renewed, or checked if it has no lease.
    pub fn new(token: u64, sent: Time, round_trip: Duration, ttl: Option<Duration>) -> Self {
        Self {
            token,
            sent,
            round_trip,
            ttl,
            watched: false,
        }
    }

    /// The same, where the backend tells by itself when it ends.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }
}

/// A hold, as far as a backend needs to know it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Hold {
    /// The name.
    pub name: LockName,
    /// Under which identity it was acquired.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// Its token; 0 when the fate of the acquisition is unknown.
    pub token: u64,
    /// The lease that was asked for.
    pub ttl: Duration,
    /// The hold ended before this release: it is not a clean end (`lock_delay` applies).
    pub unclean: bool,
}

impl Hold {
    /// The hold that an acquisition under `owner` may have led to, where nothing else is known of it.
    pub fn of(name: LockName, owner: OwnerId) -> Self {
        Self {
            name,
            owner,
            mode: Mode::Exclusive,
            token: 0,
            ttl: Duration::ZERO,
            unclean: false,
        }
    }

    /// The hold that `request` may have led to, under `token`.
    pub fn new(request: &Request, token: u64) -> Self {
        Self {
            name: request.name.clone(),
            owner: request.owner,
            mode: request.mode,
            token,
            ttl: request.ttl,
            unclean: false,
        }
    }
}

/// The outcome of a renewal.
#[derive(Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// Ours, for `ttl` from `sent` on (`None`: no lease runs, and it is still ours).
    Renewed {
        /// Read before the request was sent.
        sent: Time,
        /// The lease granted.
        ttl: Option<Duration>,
    },
    /// Definitely not ours any more.
    Lost(LostReason),
    /// Cannot tell: neither loss nor success.
    Unknown(Error),
}

/// The definite outcome of a release. What cannot be told is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// It was ours and is free now.
    Released,
    /// It was not ours (any more).
    NotHeld,
}

/// Something that `tenure check` found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found and what to change, one line.
    pub text: String,
}

impl Finding {
    /// A finding.
    pub fn new(severity: Severity, text: impl Into<String>) -> Self {
        Self {
            severity,
            text: text.into(),
        }
    }
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be; for the record.
    Good,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is void.
    Bad,
}
