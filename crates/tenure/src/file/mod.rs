//! `file:DIR`: kernel file locks, one file per name, for many processes on one host.
//!
//! # How it works
//!
//! A hold is an exclusive (or shared) `flock(2)` on the file of the name in a private directory, see `names.rs`.
//! The kernel frees the lock when the holder releases it or dies, and at no other time: there is no lease that could run
//! out while a process is paused or the machine sleeps. `flock DIR/nightly-report COMMAND` in a shell takes the same
//! lock as this store does for the name `nightly-report`.
//!
//! The file holds the token counter and says who the holder is, see `record.rs`. The fencing token is
//! `max(last + 1, wall clock in µs)`: tokens grow across restarts of the machine, and across the loss of the file as
//! long as the clock was not set back meanwhile.
//!
//! # Waiting
//!
//! A free name is taken in the first poll. A waiter takes a plain thread that is blocked in the kernel, see `wait.rs`.
//! The first waiter for a permit blocks on a pipe of each permit (see `permit_pipes.rs`; on macOS it polls every 1 to
//! 20 ms), the others block on a lock that the first one has.
//!
//! # Upgrading
//!
//! An upgradable holder holds the file as shared holders do. When the holder is to become exclusive, all others wait at a
//! turnstile, a second lock; see `upgrading.rs`.
//!
//! # Breaking
//!
//! A kernel lock cannot be taken from a process that lives. [`break_lock`](crate::Client::break_lock) puts a new file in
//! the place of the old one: the name is free at once, and the former holder learns of the loss when it checks its hold
//! (at every third of its ttl) or releases. Waiters notice the new file within a second.
//! The hold of a shared holder or permit is ended the same way, but its process keeps the name from exclusive holders
//! until it notices.
//!
//! # Detached holds
//!
//! An exclusive hold that is to outlive its process is a record with an owner and a lease: a reservation that its owner can
//! extend and end. See `detached_record` and `detach`.
//!
//! # Elections
//!
//! The leader is the exclusive holder. Its value is in the record, observers poll, and a request to let go is a file that has
//! the token of the holder in its name; see `elections.rs`.
//!
//! # Reading order
//! `names` and `record` (the format) · `directory` and `kernel_lock` (what the operating system gives) · `grant` and `hold`
//! (from a kernel lock to a hold), with `vacancy`, `side` (the files of holders that are not exclusive) and `token_files` (the other files of
//! one hold) · `store` (the parts of a client) ·
//! `acquire` with `attempt`, `wait` with `waiter_threads`, `deliver`, `wait_shared` and `permit_pipes`, `upgrade` with
//! `upgrading` and `upgrade_state`, `renew`, `release`, `detach` with `detached_record` and `lease_wait`, `elections` with `request_listener` (the operations) · `errors` · `inspect`, `check` and `sweep` (for operators).

mod acquire;
mod attempt;
mod blocking;
mod boot;
mod check;
mod deliver;
mod detach;
mod detached_record;
mod directory;
mod elections;
mod errors;
mod file_system;
mod grant;
mod guarantees;
mod hold;
mod idle_files;
mod inspect;
mod kernel_lock;
mod lease_wait;
mod names;
mod permit_pipes;
mod record;
mod release;
mod renew;
mod request_listener;
mod side;
mod store;
mod sweep;
mod token_files;
mod upgrade;
mod upgrade_state;
mod upgrading;
mod vacancy;
mod wait;
mod wait_shared;
mod waiter_threads;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorParts as _, Step};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::{Holder, LockStatus};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{
    Answer, AnswerNow, BoxFuture, ChangeMode, Detach, Elections, Finding, Grant, Hold, Listed,
    LossNotifier, Operate, Release, Renewal, Request,
};

use crate::capabilities::stores_with;

use self::blocking::blocking;
use self::guarantees::SCHEME;
pub use self::guarantees::guarantees;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::record::fuzz as fuzz_record;
use self::store::Shared;
pub use self::store::Store;

impl Store {
    /// Opens the lock directory at `path`, and creates the directory with its parents, for this user only, when it
    /// is missing.
    ///
    /// # Errors
    /// - `Denied`: the path is a symbolic link or no directory, belongs to another user, can be written
    ///   by others, or may not be created;
    /// - `Unsupported`: kernel locks do not work on that file system;
    /// - `Store`: no space, no descriptors, or another error of the operating system.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let opened = Shared::open(path.as_ref());
        let (shared, swept) =
            opened.map_err(|err| err.with_scheme(SCHEME).with_step(Step::Connect))?;
        let shared = Arc::new(shared);
        sweep::start_if_due(&shared, swept);
        Ok(Self(shared))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Waiting threads keep the shared part alive.
        release::close(&self.0);
    }
}

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn attach(&self, notifier: LossNotifier) {
        self.0.attach(notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        let shared = self.0.clone();
        Box::pin(async move { acquire::acquire(&shared, &request).await })
    }

    fn needs_runtime(&self) -> bool {
        false
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let shared = self.0.clone();
        Box::pin(async move {
            let mut renewals = Vec::with_capacity(holds.len());
            for hold in holds {
                renewals.push(renew::renew(&shared, hold).await);
            }
            renewals
        })
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let shared = self.0.clone();
        Box::pin(async move {
            match release::release(&shared, &hold) {
                Some(release) => Ok(release),
                None => blocking(move || detach::release(&shared, &hold)).await,
            }
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || inspect::inspect(&shared, &name)))
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || inspect::list(&shared, &prefix)))
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        let shared = self.0.clone();
        Box::pin(async move { release::close(&shared) })
    }

    fn as_answer_now(self: Arc<Self>) -> Option<Arc<dyn AnswerNow>> {
        Some(self)
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        Some(self)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        Some(self)
    }

    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

impl AnswerNow for Store {
    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        acquire::acquire_now(&self.0, request)
    }

    fn release_now(&self, hold: &Hold) -> Option<Release> {
        release::release(&self.0, hold)
    }
}

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        let shared = self.0.clone();
        Box::pin(async move { upgrade::upgrade(&shared, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        let shared = self.0.clone();
        Box::pin(async move { upgrade::downgrade(&shared, &hold, mode) })
    }
}

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || {
            elections::publish(&shared, &hold, &holder)
        }))
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || elections::leader(&shared, &name)))
    }

    fn poll_interval(&self) -> Duration {
        elections::POLL_INTERVAL
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || {
            elections::ask_to_release(&shared, &name, token)
        }))
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        elections::listen(&self.0, &hold);
    }
}

impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        let shared = self.0.clone();
        let detached = blocking(move || Ok(detach::detach(&shared, &hold)));
        Box::pin(async move { detached.await.unwrap_or_else(Renewal::Unknown) })
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        let shared = self.0.clone();
        let attached = blocking(move || Ok(detach::extend(&shared, &hold)));
        Box::pin(async move { attached.await.unwrap_or_else(Renewal::Unknown) })
    }

    fn forget(&self, hold: &Hold) {
        self.0.requests.remove(hold.owner);
    }
}

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || inspect::break_lock(&shared, &name, token)))
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        let shared = self.0.clone();
        Box::pin(blocking(move || check::check(&shared)))
    }
}
