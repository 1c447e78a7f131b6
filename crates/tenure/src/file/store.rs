//! The parts of one client, and how a client opens its directory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::fence::OwnerId;
use tenure_core::guarantees::Guarantees;
use tenure_core::rt::lock;
use tenure_core::store::{LossNotifier, Request};
use tenure_core::support::{HoldRegistry, closed};

use super::directory::{Directory, LockPath};
use super::file_system::{FileSystem, FileSystemKind};
use super::guarantees::guarantees;
use super::hold::{End, FileHold};
use super::idle_files::IdleFiles;
use super::request_listener::RequestListener;
use super::waiter_threads::WaiterThreads;

/// How often in a row a lock file may be replaced while a client locks it before that is an error.
const MAX_REPLACEMENTS: u32 = 1_000;

/// Locks in one directory. See the [module](super).
///
/// Several stores on one directory, in one process or in many, exclude each other.
#[derive(Debug)]
pub struct Store(pub(super) Arc<Shared>);

/// What a client shares with its waiting threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) path: PathBuf,
    directory: Mutex<Arc<Directory>>,
    pub(super) guarantees: Guarantees,
    pub(super) holds: HoldRegistry<Box<FileHold>>,
    pub(super) idle_files: IdleFiles,
    pub(super) threads: WaiterThreads,
    pub(super) requests: RequestListener,
    notifier: OnceLock<LossNotifier>,
    is_closed: AtomicBool,
}

impl Shared {
    /// Opens the directory. Also returns how long ago the directory was swept; `None`: it is new.
    pub(super) fn open(path: &Path) -> Result<(Self, Option<Duration>), Error> {
        // The current directory of the process may change; the lock directory may not.
        let path = std::path::absolute(path).map_err(|err| {
            Error::new(
                ErrorKind::Invalid,
                "the path of the lock directory is empty or cannot be made absolute",
            )
            .with_source(err)
        })?;
        let directory = Directory::open(&path)?;
        let swept = directory.self_test()?;
        if let Some(FileSystem { name, kind }) = directory.file_system()
            && kind == FileSystemKind::Remote
        {
            tracing::warn!(
                store = "file",
                "the file system of {} may be a server's ({name}), which can free a lock whose holder lives; use a directory on a local disk",
                path.display()
            );
        }
        let shared = Self {
            path,
            directory: Mutex::new(Arc::new(directory)),
            guarantees: guarantees(),
            holds: HoldRegistry::default(),
            idle_files: IdleFiles::default(),
            threads: WaiterThreads::default(),
            requests: RequestListener::default(),
            notifier: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        };
        Ok((shared, swept))
    }

    /// The directory as it was opened last.
    pub(super) fn directory(&self) -> Arc<Directory> {
        lock(&self.directory).clone()
    }

    /// The directory as the path leads to it now.
    pub(super) fn current_directory(&self) -> Result<Arc<Directory>, Error> {
        if self.is_closed() {
            return Err(closed());
        }
        let directory = self.directory();
        if directory.is_current() {
            return Ok(directory);
        }
        let fresh = Arc::new(Directory::open(&self.path)?);
        *lock(&self.directory) = fresh.clone();
        Ok(fresh)
    }

    /// The directory for a request about a hold that may have been detached: also after the client was closed, because such a
    /// hold does not end with it.
    pub(super) fn directory_to_look_in(&self) -> Result<Arc<Directory>, Error> {
        match self.is_closed() {
            true => Ok(self.directory()),
            false => self.current_directory(),
        }
    }

    pub(super) fn attach(&self, notifier: LossNotifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Tells the driver that another process asks this holder to let go.
    pub(super) fn report_request(&self, owner: OwnerId) {
        if let Some(notifier) = self.notifier.get() {
            notifier.asked_to_release(owner);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// From now on no hold is remembered and no wait begins.
    pub(super) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// How many locks this client holds; for messages.
    pub(super) fn hold_count(&self) -> usize {
        self.holds.len()
    }

    /// Counts that a file was replaced while this client locked it, and opens the directory again if the directory
    /// was replaced.
    pub(super) fn count_replacement(
        &self,
        replacements: &mut u32,
        lock_path: &LockPath,
    ) -> Result<(), Error> {
        *replacements += 1;
        if *replacements > MAX_REPLACEMENTS {
            return Err(Error::new(
                ErrorKind::Store,
                format!(
                    "{} is replaced again and again while we lock it; find out who does that",
                    self.path.join(&lock_path.file).display()
                ),
            ));
        }
        self.current_directory().map(drop)
    }

    /// Remembers a hold that is about to be passed to the driver, and returns its token.
    pub(super) fn remember(&self, request: &Request, held: Box<FileHold>) -> Result<u64, Error> {
        let token = held.token;
        match self.insert(request.owner, held, End::Unused) {
            true => Ok(token),
            false => Err(closed()),
        }
    }

    /// Remembers a hold again that could not be detached.
    pub(super) fn restore(&self, owner: OwnerId, held: Box<FileHold>) {
        self.insert(owner, held, End::Clean);
    }

    /// `false`: the client is closed, and the hold was released.
    fn insert(&self, owner: OwnerId, held: Box<FileHold>, end: End) -> bool {
        self.holds.insert(owner, held);
        // Checked after the hold can be found: `close` releases what it finds, this function what it does not.
        if !self.is_closed() {
            return true;
        }
        if let Some(held) = self.holds.remove(owner) {
            held.release(end);
        }
        false
    }
}
