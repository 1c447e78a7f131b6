//! The directory of the lock files: opened once, checked before it is trusted, opened again when it was replaced.

use std::ffi::CString;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use tenure_core::error::{Error, ErrorKind};

use super::errors::{refused, system_error};
use super::file_system::FileSystem;
use super::kernel_lock::KernelLock;
use super::record::{self, Contents};

/// Locked for the moment in which a record is changed that several holders share.
const MUTEX: &str = ".mutex";
/// Every token of a file that was swept is at most the token in this file.
const FLOOR: &str = ".floor";
/// For the self-test; its modification time is that of the last sweep.
const PROBE: &str = ".probe";
/// How long another process may hold the mutex. Its section takes microseconds, and one sync at worst.
const MUTEX_TIMEOUT: Duration = Duration::from_secs(2);

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    dev: u64,
    ino: u64,
}

impl FileId {
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // the types differ between systems
    fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
        }
    }

    /// The file at `path` now, without following a link there.
    pub(super) fn at(path: &CString) -> io::Result<Self> {
        Ok(Self::of(&rustix::fs::lstat(path.as_c_str())?))
    }

    /// Whether this file is at `path` now.
    pub(super) fn is_at(self, path: &CString) -> bool {
        Self::at(path).is_ok_and(|there| there == self)
    }
}

/// An open lock directory.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    id: FileId,
}

/// The name of a lock file, and its path for the check that the file is still there.
#[derive(Clone, Debug)]
pub(super) struct LockPath {
    pub(super) file: String,
    pub(super) path: CString,
}

impl LockPath {
    pub(super) fn new(dir: &Path, file: String) -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = dir.as_os_str().as_bytes();
        let mut path = Vec::with_capacity(dir.len() + file.len() + 2);
        path.extend_from_slice(dir);
        path.push(b'/');
        path.extend_from_slice(file.as_bytes());
        // A path that had been opened has no NUL, and an encoded name has none by construction.
        let path = CString::new(path).unwrap_or_default();
        Self { file, path }
    }
}

/// What came of opening a lock file.
pub(super) enum OpenOutcome {
    File(File, FileId),
    /// The file or the directory was removed meanwhile: open the path again.
    Gone,
}

impl Directory {
    /// Opens the directory at `path` (absolute), after creating it with its parents where missing, and checks it.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(path)
                    .and_then(|()| sync_parent(path))
                    .map_err(|err| system_error("create the lock directory", path, err, 0))?;
                rustix::fs::open(path, flags, Mode::empty())
            }
            opened => opened,
        };
        let fd = fd.map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => refused(
                path,
                "is a symbolic link or no directory; name the real directory",
            ),
            errno => system_error("open the lock directory", path, errno.into(), 0),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| {
            system_error(
                "read the owner and mode of the lock directory",
                path,
                errno.into(),
                0,
            )
        })?;
        check_owner(path, &stat)?;
        Ok(Self {
            fd,
            path: path.to_owned(),
            id: FileId::of(&stat),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether the path still leads to this directory.
    pub(super) fn is_current(&self) -> bool {
        rustix::fs::lstat(&self.path).is_ok_and(|stat| FileId::of(&stat) == self.id)
    }

    /// Opens the lock file of `lock_path`, created when missing, and refuses what is not a private regular file.
    pub(super) fn open_lock(
        &self,
        lock_path: &LockPath,
        held_locks: usize,
    ) -> Result<OpenOutcome, Error> {
        match self.open_at(&lock_path.file, OFlags::RDWR | OFlags::CREATE) {
            Ok(fd) => self.check_file(fd, &lock_path.file),
            // The directory was removed while we had it open.
            Err(Errno::NOENT) => Ok(OpenOutcome::Gone),
            Err(errno) => Err(self.system_error(
                "open the lock file",
                &lock_path.file,
                errno.into(),
                held_locks,
            )),
        }
    }

    /// Opens a lock file to read it.
    pub(super) fn open_existing(
        &self,
        file: &str,
        held_locks: usize,
    ) -> Result<Option<(File, FileId)>, Error> {
        self.open_if_there(file, OFlags::RDONLY, held_locks)
    }

    /// Opens a lock file to change its record.
    pub(super) fn open_to_change(
        &self,
        file: &str,
        held_locks: usize,
    ) -> Result<Option<(File, FileId)>, Error> {
        self.open_if_there(file, OFlags::RDWR, held_locks)
    }

    fn open_if_there(
        &self,
        file: &str,
        flags: OFlags,
        held_locks: usize,
    ) -> Result<Option<(File, FileId)>, Error> {
        match self.open_at(file, flags) {
            Ok(fd) => match self.check_file(fd, file)? {
                OpenOutcome::File(opened, id) => Ok(Some((opened, id))),
                OpenOutcome::Gone => Ok(None),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                Err(self.system_error("open the lock file", file, errno.into(), held_locks))
            }
        }
    }

    /// Opens a named pipe, created when missing. `None`: no pipe can be had here; pipes only save waiting time.
    pub(super) fn open_pipe(&self, file: &str, flags: OFlags) -> Option<OwnedFd> {
        let fd = match self.open_at(file, flags) {
            Err(Errno::NOENT) => {
                make_pipe(&self.fd, file).ok()?;
                self.open_at(file, flags).ok()?
            }
            opened => opened.ok()?,
        };
        let stat = rustix::fs::fstat(&fd).ok()?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        (is_ours && FileType::from_raw_mode(stat.st_mode) == FileType::Fifo).then_some(fd)
    }

    /// Wakes those that wait for the end of the pipe, if there are any.
    pub(super) fn end_pipe(&self, file: &str) {
        // Without a reader a pipe cannot be opened for writing, and without a waiter there is none.
        let _ = self.open_at(file, OFlags::WRONLY);
    }

    /// Creates a file that must not exist yet.
    pub(super) fn create_new(&self, file: &str, held_locks: usize) -> Result<File, Error> {
        self.open_at(file, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
            .map(File::from)
            .map_err(|errno| self.system_error("create", file, errno.into(), held_locks))
    }

    fn open_at(&self, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Non-blocking, so that a named pipe in the place of a lock file does not block this thread.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.fd, file, flags, Mode::RUSR | Mode::WUSR)
    }

    fn check_file(&self, fd: OwnedFd, file: &str) -> Result<OpenOutcome, Error> {
        let path = || self.path.join(file);
        let stat = rustix::fs::fstat(&fd).map_err(|errno| {
            system_error(
                "read the owner and mode of the lock file",
                &path(),
                errno.into(),
                0,
            )
        })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(refused(&path(), "is no regular file; remove it"));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused(
                &path(),
                "belongs to another user; remove it, or use a lock directory of your own",
            ));
        }
        match stat.st_nlink {
            0 => Ok(OpenOutcome::Gone),
            1 => Ok(OpenOutcome::File(File::from(fd), FileId::of(&stat))),
            _ => Err(refused(
                &path(),
                "has a second name (hard link); remove one of them",
            )),
        }
    }

    /// Names in the directory, in no order.
    pub(super) fn entries(&self) -> Result<impl Iterator<Item = String>, Error> {
        let entries = rustix::fs::Dir::read_from(&self.fd).map_err(|errno| {
            system_error("list the lock directory", &self.path, errno.into(), 0)
        })?;
        Ok(entries.filter_map(|entry| {
            let name = entry.ok()?.file_name().to_str().ok()?.to_owned();
            (name != "." && name != "..").then_some(name)
        }))
    }

    /// Whether there is a regular file of this user with that name.
    pub(super) fn has_file(&self, file: &str) -> bool {
        let stat = rustix::fs::statat(&self.fd, file, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_uid == rustix::process::geteuid().as_raw()
        })
    }

    pub(super) fn unlink(&self, file: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, file, AtFlags::empty())?)
    }

    /// Time since the file was written to.
    pub(super) fn age(&self, file: &str) -> Option<Duration> {
        let written =
            std::fs::symlink_metadata(self.path.join(file)).and_then(|meta| meta.modified());
        tenure_core::rt::wall_now()
            .duration_since(written.ok()?)
            .ok()
    }

    /// Makes created and removed names durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        // There, fsync leaves the data in the drive's own memory.
        #[cfg(target_vendor = "apple")]
        let synced = rustix::fs::fcntl_fullfsync(&self.fd);
        #[cfg(not(target_vendor = "apple"))]
        let synced = rustix::fs::fsync(&self.fd);
        match synced {
            // Some file systems do not sync directories by themselves.
            Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Whether another process or thread is in the section now, so that [`enter`](Self::enter) would block.
    pub(super) fn is_entered(&self) -> bool {
        let Ok(mutex) = self.open_at(MUTEX, OFlags::RDONLY) else {
            return false;
        };
        matches!(File::from(mutex).try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Enters the section that changes records of several holders. Blocks the thread while others are in the section.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`]: another process has had the mutex for [`MUTEX_TIMEOUT`], because it was stopped in the
    /// section.
    pub(super) fn enter(&self, held_locks: usize) -> Result<KernelLock, Error> {
        let lock_path = LockPath::new(&self.path, MUTEX.to_owned());
        let start = tenure_core::rt::Clock::system().now();
        let mut pause = Duration::from_micros(20);
        loop {
            let OpenOutcome::File(file, id) = self.open_lock(&lock_path, held_locks)? else {
                return Err(refused(&self.path, "was removed; nothing was locked"));
            };
            match file.try_lock() {
                Ok(()) => {
                    let locked = KernelLock::new(file);
                    // The mutex may have been removed; that the directory is the right one is checked elsewhere.
                    let there = rustix::fs::statat(&self.fd, MUTEX, AtFlags::SYMLINK_NOFOLLOW);
                    if there.is_ok_and(|stat| FileId::of(&stat) == id) {
                        return Ok(locked);
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(err)) => {
                    return Err(self.system_error("lock", MUTEX, err, held_locks));
                }
            }
            if tenure_core::rt::Clock::system().now().since(start) > MUTEX_TIMEOUT {
                let path = self.path.join(MUTEX);
                return Err(Error::new(
                    ErrorKind::Unreachable,
                    format!(
                        "another process holds {} for more than {MUTEX_TIMEOUT:?}; \
                         it seems to be stopped: continue or end it",
                        path.display()
                    ),
                ));
            }
            tenure_core::rt::nap(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// The greatest token that may have been granted from a file that was swept.
    pub(super) fn floor(&self) -> io::Result<u64> {
        let file = match self.open_at(FLOOR, OFlags::RDONLY) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(0),
            Err(errno) => return Err(errno.into()),
        };
        // The writer of this file holds the mutex and we do not: a read during a write is repeated.
        for _ in 0..100 {
            match record::read(&file)? {
                Contents::Valid(found) => return Ok(found.head.token.max(found.head.ceiling)),
                Contents::Empty => return Ok(0),
                Contents::Torn | Contents::Foreign => std::thread::yield_now(),
            }
        }
        tracing::warn!(
            path = %self.path.join(FLOOR).display(),
            "the floor of tokens is damaged; new tokens follow the clock"
        );
        Ok(0)
    }

    /// Raises the floor to `token` at least, durably. The caller is in the mutex.
    pub(super) fn raise_floor(&self, token: u64) -> io::Result<()> {
        if self.floor()? >= token {
            return Ok(());
        }
        // A fresh file under another name, then renamed: the old floor is valid until the new one is on the disk.
        let fresh = ".floor.new";
        let fd = self.open_at(fresh, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        record::create(&File::from(fd), token, (0, 0), None)?;
        rustix::fs::renameat(&self.fd, fresh, &self.fd, FLOOR)?;
        self.sync()
    }

    /// Takes a lock on one descriptor and tries it on a second one: proves that locks exclude here.
    /// Returns how long ago the directory was swept, `None` when it is new.
    pub(super) fn self_test(&self) -> Result<Option<Duration>, Error> {
        let open = || {
            self.open_at(PROBE, OFlags::RDWR | OFlags::CREATE)
                .map(File::from)
                .map_err(|errno| self.system_error("create", PROBE, errno.into(), 0))
        };
        let (first, second) = (open()?, open()?);
        let works = match first.try_lock() {
            // Another process is at its own test: then locks exclude us, too.
            Err(TryLockError::WouldBlock) => true,
            Ok(()) => {
                let blocked = matches!(second.try_lock(), Err(TryLockError::WouldBlock));
                drop(KernelLock::new(first));
                blocked
            }
            Err(TryLockError::Error(_)) => false,
        };
        if !works {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "file locks do not work in {} (file system: {}); use a directory on a local disk",
                    self.path.display(),
                    self.file_system().map_or("unknown", |kind| kind.name)
                ),
            ));
        }
        let age = second
            .metadata()
            .and_then(|meta| Ok((meta.len(), meta.modified()?)));
        Ok(age.ok().and_then(|(len, cleaned)| {
            // Empty: no client has claimed the next sweep yet.
            if len == 0 {
                None
            } else {
                tenure_core::rt::wall_now().duration_since(cleaned).ok()
            }
        }))
    }

    /// Notes that the directory is being swept now.
    pub(super) fn mark_cleaned(&self) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let fd = self.open_at(PROBE, OFlags::RDWR | OFlags::CREATE)?;
        File::from(fd).write_all_at(
            b"the modification time tells when this directory was last cleaned\n",
            0,
        )
    }

    pub(super) fn file_system(&self) -> Option<FileSystem> {
        FileSystem::of(&rustix::fs::fstatfs(&self.fd).ok()?)
    }

    /// Bytes and files that may still be created.
    pub(super) fn free_space(&self) -> Option<(u64, u64)> {
        let stat = rustix::fs::fstatvfs(&self.fd).ok()?;
        // Some file systems have no fixed number of files and say 0 of 0.
        let files = if stat.f_files == 0 {
            u64::MAX
        } else {
            stat.f_favail
        };
        Some((stat.f_bavail.saturating_mul(stat.f_frsize), files))
    }

    pub(super) fn system_error(
        &self,
        what: &str,
        file: &str,
        err: io::Error,
        held_locks: usize,
    ) -> Error {
        system_error(what, &self.path.join(file), err, held_locks)
    }
}

#[cfg(not(target_vendor = "apple"))]
fn make_pipe(dir: &OwnedFd, file: &str) -> Result<(), Errno> {
    match rustix::fs::mkfifoat(dir, file, Mode::RUSR | Mode::WUSR) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// On Apple systems no safe interface makes a pipe.
#[cfg(target_vendor = "apple")]
fn make_pipe(_: &OwnedFd, _: &str) -> Result<(), Errno> {
    Err(Errno::NOTSUP)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        // Without this the new directory could be lost at a power failure; tokens would then follow the clock alone.
        Some(parent) => File::open(parent).and_then(|dir| dir.sync_all()),
        None => Ok(()),
    }
}

fn check_owner(path: &Path, stat: &Stat) -> Result<(), Error> {
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != me {
        return Err(refused(
            path,
            &format!(
                "belongs to user {}, not to us (user {me}); use a lock directory of your own, for example {}",
                stat.st_uid,
                path.join("locks").display()
            ),
        ));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
        return Err(refused(
            path,
            "can be written by other users, who could replace lock files; run `chmod 700` on it",
        ));
    }
    Ok(())
}
