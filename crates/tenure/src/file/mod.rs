//! `file:DIR`: kernel file locks, one file per name, for many processes on one host.
//!
//! # How it works
//!
//! A hold is an exclusive (or shared) `flock(2)` on the file of the name in a private directory, see `names.rs`.
//! The kernel frees it when the holder gives it back or dies, and at no other time: there is no lease, so nothing can
//! run out while a process is paused or the machine sleeps. `flock DIR/nightly-report COMMAND` in a shell
//! takes the same lock as we do for the name `nightly-report`.
//!
//! The file holds the token counter and who the holder is, see `record.rs`. The fencing token is
//! `max(last + 1, wall clock in µs)`: it grows across restarts of the machine, and across the loss of the file as long
//! as the clock was not set back meanwhile.
//!
//! # Waiting
//!
//! A free name is taken in the first poll. Waiting takes a plain thread that is blocked in the kernel, see `wait.rs`.
//! Permits are the exception: who waits for one looks again every 1 to 20 ms.
//!
//! # Breaking
//!
//! A kernel lock cannot be taken from a process that lives. [`break_lock`](crate::Client::break_lock) puts a new file in the
//! place of the old one: the name is free at once, the former holder learns of it when it checks
//! (at every third of its ttl) or releases. Who waits for the name notices within a second.
//! The hold of a shared holder or permit is ended the same way, but its process keeps the name from exclusive
//! holders until it notices.

mod names;

mod record;

mod directory;

mod file_system;

mod hold;

mod wait;

mod inspect;

mod sweep;

#[cfg(feature = "_fuzzing")]
pub(crate) use self::names::fuzz as fuzz_names;
#[cfg(feature = "_fuzzing")]
pub(crate) use self::record::fuzz as fuzz_record;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Answer, BoxFuture, Finding, Grant, Hold, Release, Renewal, Request};
use tenure_core::error::{Error, ErrorKind, Step};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::guarantees::{Capability, Cell, Fault, Guarantees, Order, Promise};
use tenure_core::holder::Status;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::{self, Clock, lock};

use self::directory::{Directory, KernelLock, LockPath, Opened};
use self::hold::{Held, Idle, IdleFiles, Kind, TakeOutcome};
use crate::capabilities::stores_with;

/// The name of this backend in URLs, errors and tables.
const SCHEME: &str = "file";
/// How long a try believes that the lock, taken though the record says that nobody holds it, is in the hands of somebody
/// who is just about to write or to let go: a look from outside, or a thread whose waiter has left.
/// Such moments take microseconds.
const AMBIGUITY_TIMEOUT: Duration = Duration::from_millis(2);
/// How often in a row a lock file may be replaced while it is being locked before that is an error.
const MAX_REPLACEMENTS: u32 = 1_000;

/// Locks in one directory. See the [module](self).
///
/// Several backends on one directory, in one process or in many, exclude each other.
#[derive(Debug)]
pub struct Backend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    dir: Mutex<Arc<Directory>>,
    guarantees: Guarantees,
    holds: Mutex<HashMap<OwnerId, Box<Held>, RandomAlready>>,
    idle: IdleFiles,
    threads: wait::WaiterThreads,
    closed: AtomicBool,
}

impl Backend {
    /// Opens the lock directory at `path`, and creates it with its parents, for this user only, when it is missing.
    ///
    /// # Errors
    /// - [`ErrorKind::Denied`]: the path is a symbolic link or no directory, belongs to another user, can be written
    ///   by others, or may not be created;
    /// - [`ErrorKind::Unsupported`]: kernel locks do not work on that file system;
    /// - [`ErrorKind::Backend`]: no space, no descriptors, or anything else that the system said.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_inner(path.as_ref())
            .map_err(|err| err.with_backend(SCHEME).with_step(Step::Connect))
    }

    fn open_inner(path: &Path) -> Result<Self, Error> {
        // The current directory may change; the lock directory may not.
        let path = std::path::absolute(path).map_err(|err| {
            Error::new(
                ErrorKind::Invalid,
                "the path of the lock directory is empty or cannot be made absolute",
            )
            .with_source(err)
        })?;
        let dir = Directory::open(&path)?;
        let cleaned = dir.self_test()?;
        let inner = Arc::new(Inner {
            path,
            dir: Mutex::new(Arc::new(dir)),
            guarantees: guarantees(),
            holds: Mutex::default(),
            idle: IdleFiles::default(),
            threads: wait::WaiterThreads::default(),
            closed: AtomicBool::new(false),
        });
        sweep::now_and_then(&inner, cleaned);
        Ok(Self(inner))
    }
}

impl tenure_core::backend::Backend for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        let inner = self.0.clone();
        Box::pin(async move {
            inner.acquire(&request).await.map_err(|err| {
                err.with_backend(SCHEME)
                    .with_step(Step::Acquire)
                    .with_name(&request.name)
            })
        })
    }

    fn answers_now(&self) -> bool {
        true
    }

    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        self.0.acquire_now(request)
    }

    fn release_now(&self, hold: &Hold) -> Option<Release> {
        Some(self.0.release(hold))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        let inner = self.0.clone();
        Box::pin(async move { holds.iter().map(|hold| inner.check_hold(hold)).collect() })
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        let inner = self.0.clone();
        Box::pin(async move { Ok(inner.release(&hold)) })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        let inner = self.0.clone();
        Box::pin(
            async move { inspect::inspect(&inner, &name).map_err(|err| looking(err, Some(&name))) },
        )
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        let inner = self.0.clone();
        Box::pin(async move { inspect::list(&inner, &prefix).map_err(|err| looking(err, None)) })
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        let inner = self.0.clone();
        Box::pin(async move {
            inspect::break_lock(&inner, &name, token).map_err(|err| looking(err, Some(&name)))
        })
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        let inner = self.0.clone();
        Box::pin(async move { inspect::check(&inner).map_err(|err| looking(err, None)) })
    }

    fn close(&self) -> BoxFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.close() })
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Threads that wait keep the inner part alive.
        self.0.close();
    }
}

impl Inner {
    async fn acquire(self: &Arc<Self>, request: &Arc<Request>) -> Result<Answer, Error> {
        if self.is_closed() {
            return Err(closed());
        }
        hold::refuse_unsupported(request)?;
        if request.stop.is_raised() {
            return Ok(Answer::Busy);
        }
        let sent = Clock::system().now();
        let lock_path = LockPath::new(&self.path, names::encode(&request.name));
        let taken = match self.try_now(request, &lock_path) {
            // Once more without the files that are open only to be quick.
            Err(_) if self.idle.clear() => self.try_now(request, &lock_path),
            taken => taken,
        };
        if let Some(held) = taken? {
            let token = self.keep(request, held)?;
            return Ok(Answer::Granted(Grant::new(
                token,
                sent,
                Duration::ZERO,
                None,
            )));
        }
        if !request.wait {
            return Ok(Answer::Busy);
        }
        let Some(held) = wait::wait(self, request, &lock_path).await? else {
            return Ok(Answer::Busy);
        };
        // No request was sent in the end: the kernel handed the lock over, and it does not run out.
        let sent = Clock::system().now();
        let token = self.keep(request, held)?;
        Ok(Answer::Granted(Grant::new(
            token,
            sent,
            Duration::ZERO,
            None,
        )))
    }

    /// Takes the name if it is free; whatever else there is to say is left to `acquire`.
    fn acquire_now(&self, request: &Request) -> Option<Grant> {
        if self.is_closed() || request.mode != Mode::Exclusive {
            return None;
        }
        let Idle {
            lock_path,
            file,
            id,
        } = self.idle.take(&request.name)?;
        let sent = Clock::system().now();
        let dir = self.dir();
        file.try_lock().ok()?;
        let lock = KernelLock::new(file);
        let Ok(TakeOutcome::Held(held)) = hold::take(self, &dir, request, &lock_path, lock, id)
        else {
            return None;
        };
        let token = self.keep(request, held).ok()?;
        Some(Grant::new(token, sent, Duration::ZERO, None))
    }

    fn release(&self, hold: &Hold) -> Release {
        let held = lock(&self.holds).remove(&hold.owner);
        let Some(held) = held else {
            return Release::NotHeld;
        };
        let (release, idle) = held.release_and_keep_file(hold.unclean);
        if let Some(idle) = idle
            && !self.is_closed()
        {
            self.idle.put(&hold.name, idle);
        }
        release
    }

    /// Takes the name if it is free.
    fn try_now(&self, request: &Request, lock_path: &LockPath) -> Result<Option<Box<Held>>, Error> {
        let kind = Kind::of(request.mode);
        let mut tries = 0;
        let mut timer = AmbiguityTimer::default();
        loop {
            let dir = self.dir();
            let Opened::File(file, id) = dir.open_lock(lock_path, self.hold_count())? else {
                self.again(&mut tries, lock_path)?;
                continue;
            };
            let is_ambiguous = match kind.try_lock(&file) {
                Ok(()) => {
                    match hold::take(self, &dir, request, lock_path, KernelLock::new(file), id)? {
                        TakeOutcome::Held(held) => return Ok(Some(held)),
                        TakeOutcome::Reserved(..) => return Ok(None),
                        TakeOutcome::NoPermit { is_ambiguous } => is_ambiguous,
                        TakeOutcome::Again => {
                            self.again(&mut tries, lock_path)?;
                            continue;
                        }
                    }
                }
                // Who is going to wait need not doubt.
                Err(std::fs::TryLockError::WouldBlock) if request.wait => return Ok(None),
                Err(std::fs::TryLockError::WouldBlock) => hold::is_ambiguous(&file, kind),
                Err(std::fs::TryLockError::Error(err)) => {
                    return Err(dir.system_error("lock", &lock_path.file, err, self.hold_count()));
                }
            };
            if request.wait || !is_ambiguous || !timer.pause() {
                return Ok(None);
            }
        }
    }

    fn keep(&self, request: &Request, held: Box<Held>) -> Result<u64, Error> {
        let token = held.token;
        let mut holds = lock(&self.holds);
        // Under the lock that `close` takes to give everything back.
        if self.is_closed() {
            drop(holds);
            held.release(false);
            return Err(closed());
        }
        holds.insert(request.owner, held);
        Ok(token)
    }

    fn check_hold(&self, hold: &Hold) -> Renewal {
        let sent = Clock::system().now();
        match lock(&self.holds)
            .get(&hold.owner)
            .map(|held| held.is_current())
        {
            None => Renewal::Lost(LostReason::StoreSaysNo),
            Some(Ok(true)) => Renewal::Renewed { sent, ttl: None },
            Some(Ok(false)) => Renewal::Lost(LostReason::TakenOver),
            Some(Err(err)) => Renewal::Unknown(
                Error::new(ErrorKind::Backend, "could not look at the lock file")
                    .with_name(&hold.name)
                    .with_backend(SCHEME)
                    .with_step(Step::Renew)
                    .with_source(err),
            ),
        }
    }

    /// The directory as it was last opened.
    fn dir(&self) -> Arc<Directory> {
        lock(&self.dir).clone()
    }

    /// The directory as the path leads to it now.
    fn current_dir(&self) -> Result<Arc<Directory>, Error> {
        if self.is_closed() {
            return Err(closed());
        }
        let dir = self.dir();
        if dir.is_current() {
            return Ok(dir);
        }
        let fresh = Arc::new(Directory::open(&self.path)?);
        *lock(&self.dir) = fresh.clone();
        Ok(fresh)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// How many locks we hold; for messages.
    fn hold_count(&self) -> usize {
        lock(&self.holds).len()
    }

    /// Notes that a file was replaced under us, and opens the directory again if it was that.
    fn again(&self, tries: &mut u32, lock_path: &LockPath) -> Result<(), Error> {
        *tries += 1;
        if *tries > MAX_REPLACEMENTS {
            return Err(Error::new(
                ErrorKind::Backend,
                format!(
                    "{} is replaced again and again while we lock it; find out who does that",
                    self.path.join(&lock_path.file).display()
                ),
            ));
        }
        self.current_dir().map(drop)
    }

    fn close(&self) {
        let holds = {
            let mut holds = lock(&self.holds);
            self.closed.store(true, Ordering::SeqCst);
            std::mem::take(&mut *holds)
        };
        for held in holds.into_values() {
            held.release(false);
        }
        self.idle.clear();
        self.threads.close();
    }
}

/// Counts down [`AMBIGUITY_TIMEOUT`].
#[derive(Default)]
struct AmbiguityTimer {
    since: Option<tenure_core::time::Time>,
    pause: Duration,
}

impl AmbiguityTimer {
    /// Pauses for a moment; `false` when the time is up.
    fn pause(&mut self) -> bool {
        let now = Clock::system().now();
        if now.since(*self.since.get_or_insert(now)) >= AMBIGUITY_TIMEOUT {
            return false;
        }
        // At most 2 ms in all, in a situation that hardly ever comes up: not worth a timer.
        self.pause = (self.pause * 2).clamp(Duration::from_micros(20), Duration::from_micros(500));
        rt::nap(self.pause);
        true
    }
}

fn looking(err: Error, name: Option<&LockName>) -> Error {
    let err = err.with_backend(SCHEME).with_step(Step::Inspect);
    match name {
        Some(name) => err.with_name(name),
        None => err,
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}

pub(crate) fn guarantees() -> Guarantees {
    let cell = Cell::new;
    let faults = vec![
        cell(
            Fault::HolderKilled,
            Promise::Claims,
            "the kernel frees the lock when the process ends, and the next waiter gets it at once; a write that the process sent before may arrive after that",
        ),
        cell(
            Fault::HolderPaused,
            Promise::Effects,
            "there is no lease: a paused holder keeps the lock for as long as it is paused",
        )
        .late(),
        cell(
            Fault::Partition,
            Promise::NotApplicable,
            "there is no network in between",
        ),
        cell(
            Fault::StoreRestart,
            Promise::NotApplicable,
            "the kernel is the store",
        ),
        cell(
            Fault::PowerLoss,
            Promise::Effects,
            "all holders end with the machine; tokens continue above a limit that was synced to disk before it was used",
        ),
        cell(
            Fault::Failover,
            Promise::NotApplicable,
            "there is one kernel",
        ),
        cell(
            Fault::StoreClockForward,
            Promise::Effects,
            "the clock only decides about `min_hold` and `lock_delay`, which may end early",
        ),
        cell(
            Fault::StoreClockBack,
            Promise::Effects,
            "tokens continue from the last one; `min_hold` and `lock_delay` may start once more",
        ),
        cell(
            Fault::ClientClock,
            Promise::Effects,
            "client and store have the same clock",
        ),
        cell(
            Fault::ClientSuspended,
            Promise::Effects,
            "holder and waiters are suspended together; the lock does not change",
        )
        .late(),
    ];
    let mut guarantees = Guarantees::new(
        SCHEME,
        Order::Unordered(
            "the kernel wakes waiters in the order of their arrival, but a process that asks at that moment can be faster, \
             and shared holders keep joining while an exclusive one waits; permits are polled every 1 to 20 ms",
        ),
        faults,
    );
    guarantees.shared = true;
    guarantees.permits = true;
    guarantees.min_hold = true;
    guarantees.lock_delay = true;
    guarantees.liveness = "the process: when it ends, the kernel frees its locks";
    guarantees.clock = "none: there is no lease";
    guarantees.waiting = "a waiter blocks in the kernel, with one thread per contended name; permits are polled every 1 to 20 ms";
    guarantees.token = "max(last + 1, wall clock in µs), kept in the lock file; a limit is synced to disk ahead of use, so tokens also grow \
         over a power loss, and over the loss of the file unless the clock was set back";
    guarantees.loss = "only `break`, or replacing the file or the directory, ends a hold; noticed within a third of the ttl";
    guarantees.fit = "correctness on one host, on a local disk";
    guarantees
}
