//! The side files of a name: one for each shared holder, each permit and the upgradable holder, and two by
//! which waiters learn of their turn.
//!
//! A holder locks its side file *before* it locks the file of the name. So an upgradable holder that becomes exclusive
//! finds every holder, and every process that is about to hold, by the locks on the side files (`upgrade.rs`).

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;

use tenure_core::error::Error;
use tenure_core::options::Mode;

use super::directory::{Directory, FileId, LockPath, OpenOutcome};
use super::kernel_lock::KernelLock;
use super::names::{self, SideKind};
use super::record::{self, Contents, HolderJson, RecordState};

/// The side files of one name.
pub(super) struct Sides<'a> {
    pub(super) directory: &'a Arc<Directory>,
    /// The file of the name.
    pub(super) file: &'a str,
    /// How many locks this client holds; for messages.
    pub(super) held_locks: usize,
}

/// The file of one shared holder, permit or upgradable holder.
#[derive(Debug)]
pub(super) struct SideFile {
    pub(super) lock: KernelLock,
    pub(super) id: FileId,
    pub(super) lock_path: LockPath,
    /// Closed after the lock has ended, which wakes the first waiter for a permit. `None`: no permit, or no pipes here.
    _pipe: Option<OwnedFd>,
}

/// What came of looking for a free side file.
pub(super) enum SideOutcome {
    Locked(SideFile),
    /// `is_ambiguous`: one of them is locked and not held, so it will be free in a moment.
    AllTaken {
        is_ambiguous: bool,
    },
}

impl SideFile {
    /// Writes who holds, or with `None` that there is no holder.
    pub(super) fn write(
        &self,
        token: u64,
        json: Option<&HolderJson<'_>>,
        sides: &Sides<'_>,
    ) -> Result<(), Error> {
        record::write_side(self.lock.file(), token, json)
            .map_err(|err| sides.system_error("write", &self.lock_path.file, err))
    }

    /// Removes what a dead holder has written. Until then the process that has the lock is shown as that holder.
    pub(super) fn clear(&self, sides: &Sides<'_>) -> Result<(), Error> {
        let contents = record::read(self.lock.file())
            .map_err(|err| sides.system_error("read", &self.lock_path.file, err))?;
        match contents.head() {
            Some(head) if contents.has_holder() => self.write(head.token, None, sides),
            _ => Ok(()),
        }
    }
}

/// A side file that is open, and not locked yet.
pub(super) struct OpenSide {
    pub(super) file: File,
    pub(super) id: FileId,
    pub(super) lock_path: LockPath,
    pipe: Option<String>,
}

impl Sides<'_> {
    /// Locks the first free side file for a holder of that mode.
    pub(super) fn lock_free(&self, mode: Mode) -> Result<SideOutcome, Error> {
        let (kind, count) = match mode {
            Mode::Permits { limit } => (SideKind::Permit, limit.get()),
            Mode::Upgradable => (SideKind::Upgradable, 1),
            _ => (SideKind::Shared, u32::MAX),
        };
        let mut is_ambiguous = false;
        for index in 0..count {
            let Some(side) = self.open(kind, index)? else {
                is_ambiguous = true;
                continue;
            };
            match side.file.try_lock() {
                Ok(()) => match self.locked(side) {
                    Some(side) => return Ok(SideOutcome::Locked(side)),
                    None => is_ambiguous = true,
                },
                Err(TryLockError::WouldBlock) => {
                    let contents = record::read(&side.file);
                    is_ambiguous |= !contents.is_ok_and(|contents| contents.has_holder());
                }
                Err(TryLockError::Error(err)) => {
                    return Err(self.system_error("lock", &side.lock_path.file, err));
                }
            }
        }
        Ok(SideOutcome::AllTaken { is_ambiguous })
    }

    /// Opens a side file, created when missing. `None`: the file was removed in that moment.
    pub(super) fn open(&self, kind: SideKind, index: u32) -> Result<Option<OpenSide>, Error> {
        let file = names::side(self.file, kind, index);
        let lock_path = LockPath::new(self.directory.path(), file);
        let pipe =
            (kind == SideKind::Permit).then(|| names::side(self.file, SideKind::PermitPipe, index));
        match self.directory.open_lock(&lock_path, self.held_locks)? {
            OpenOutcome::Gone => Ok(None),
            OpenOutcome::File(file, id) => Ok(Some(OpenSide {
                file,
                id,
                lock_path,
                pipe,
            })),
        }
    }

    /// The side file whose kernel lock was acquired. `None`: the file was replaced or removed before that.
    pub(super) fn locked(&self, side: OpenSide) -> Option<SideFile> {
        let lock = KernelLock::new(side.file);
        if !side.id.is_at(&side.lock_path.path) {
            return None;
        }
        // Opened after the side file, whose descriptor is smaller as a rule: when a process dies, the kernel closes them
        // in that order, so the lock is free when the pipe tells.
        let pipe = side.pipe.and_then(|pipe| {
            let flags = OFlags::RDWR;
            self.directory.open_pipe(&pipe, flags)
        });
        Some(SideFile {
            lock,
            id: side.id,
            lock_path: side.lock_path,
            _pipe: pipe,
        })
    }

    /// Whether an upgradable holder that lives is becoming exclusive, so that nothing may be granted. `contents` is what
    /// the file of the name says.
    pub(super) fn is_upgrading(&self, contents: &Contents) -> Result<bool, Error> {
        if contents
            .head()
            .is_none_or(|head| head.state != RecordState::Upgrading)
        {
            return Ok(false);
        }
        let Some((turnstile, ..)) = self.turnstile()? else {
            return Ok(false);
        };
        match turnstile.try_lock_shared() {
            Ok(()) => {
                drop(KernelLock::new(turnstile));
                Ok(false)
            }
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(err)) => Err(self.system_error("lock", self.file, err)),
        }
    }

    /// The file that is locked while an upgradable holder is becoming exclusive, if there is one.
    pub(super) fn turnstile(&self) -> Result<Option<(File, FileId, LockPath)>, Error> {
        let file = names::side(self.file, SideKind::Turnstile, 0_u32);
        let opened = self.directory.open_existing(&file, self.held_locks)?;
        Ok(opened.map(|(opened, id)| (opened, id, LockPath::new(self.directory.path(), file))))
    }

    pub(super) fn system_error(&self, what: &str, file: &str, err: io::Error) -> Error {
        self.directory
            .system_error(what, file, err, self.held_locks)
    }
}
