//! One hold: whether it is still there, and its release.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use tenure_core::options::Mode;
use tenure_core::rt;
use tenure_core::store::{Hold, Release};

use super::directory::{Directory, FileId, LockPath};
use super::idle_files::IdleFile;
use super::kernel_lock::KernelLock;
use super::record::{self, RecordWriter};
use super::side::SideFile;
use super::upgrade_state::Upgrade;

/// A name that this client holds.
#[derive(Debug)]
pub(super) struct FileHold {
    pub(super) token: u64,
    pub(super) mode: Mode,
    pub(super) directory: Arc<Directory>,
    pub(super) lock_path: LockPath,
    pub(super) id: FileId,
    pub(super) writer: RecordWriter,
    /// Of a hold that is upgradable, or was and is exclusive now.
    pub(super) upgrade: Option<Arc<Upgrade>>,
    /// A value, or a request to let go, may lie beside the lock file (`token_files.rs`).
    pub(super) has_token_files: bool,
    pub(super) side: Option<SideFile>,
    // Last: a side file is free before its name is.
    pub(super) lock: KernelLock,
}

/// How a hold ends, which decides what stays reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By its release: `min_hold` applies.
    Clean,
    /// The hold had ended before its release: `lock_delay` applies as well.
    Unclean,
    /// No caller has ever had the hold: nothing stays reserved.
    Unused,
}

impl End {
    pub(super) fn of(hold: &Hold) -> Self {
        match hold {
            Hold { unused: true, .. } => Self::Unused,
            Hold { unclean: true, .. } => Self::Unclean,
            Hold { .. } => Self::Clean,
        }
    }
}

impl FileHold {
    /// Whether the name still leads to what we hold.
    ///
    /// # Errors
    /// When that cannot be told.
    pub(super) fn is_current(&self) -> io::Result<bool> {
        if self.leads_here()? {
            return Ok(true);
        }
        // A breaker may find that it came too late and put the file back; until it leaves the mutex, nothing is decided.
        // A directory without a mutex is no directory of locks any more.
        match self.directory.enter(0) {
            Ok(_section) => self.leads_here(),
            Err(_) => Ok(false),
        }
    }

    /// The same, for a caller that is in the section.
    pub(super) fn leads_here(&self) -> io::Result<bool> {
        let same = |lock_path: &LockPath, id| match FileId::at(&lock_path.path) {
            Ok(there) => Ok(there == id),
            Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(err) => Err(err),
        };
        let side = self
            .side
            .as_ref()
            .map_or(Ok(true), |side| same(&side.lock_path, side.id));
        Ok(same(&self.lock_path, self.id)? && side?)
    }

    /// Releases the name.
    pub(super) fn release(self, end: End) -> Release {
        self.release_and_keep_file(end).0
    }

    /// Releases the name, and returns the open file of an exclusive hold for the next acquisition.
    pub(super) fn release_and_keep_file(mut self, end: End) -> (Release, Option<IdleFile>) {
        if let Some(upgrade) = &self.upgrade {
            upgrade.end();
        }
        // An error (no rights on a parent directory any more, for example) does not mean that the name was taken.
        let is_ours = self.is_current().unwrap_or(true);
        if is_ours && let Err(err) = self.write_release(end) {
            // The kernel lock decides: the next holder finds the record of a dead holder.
            tracing::warn!(file = %self.lock_path.file, error = format_args!("{err:#}"), "could not record the release in the lock file");
        }
        if self.has_token_files {
            // After the release was recorded: a process that asks the holder later finds that, and leaves no request.
            self.token_files().remove();
        }
        if !is_ours {
            return (Release::NotHeld, None);
        }
        if self.side.is_some() {
            return (Release::Released, None);
        }
        let (lock_path, id) = (self.lock_path, self.id);
        let idle = self.lock.unlock().map(|file| IdleFile {
            lock_path,
            file,
            id,
        });
        (Release::Released, idle)
    }

    fn write_release(&mut self, end: End) -> io::Result<()> {
        if self.mode == Mode::Exclusive {
            let (mut until, mut span) = match end {
                End::Unused => (0, 0),
                End::Clean | End::Unclean => self.writer.reservation(),
            };
            let delay = self.writer.delay();
            if end == End::Unclean && delay > 0 {
                let end = rt::wall_micros().saturating_add(delay);
                if end > until {
                    (until, span) = (end, delay);
                }
            }
            self.writer.free(self.lock.file(), until, span)?;
        }
        match &self.side {
            Some(side) => record::write_side(side.lock.file(), self.token, None),
            None => Ok(()),
        }
    }
}
