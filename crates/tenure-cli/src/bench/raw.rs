//! The rawest way to lock on each kind of store: what `tenure` cannot be faster than.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Raw locking on one kind of store. Kinds that have none here are measured alone.
pub(super) enum Raw {
    /// A mutex of the runtime.
    Memory(tokio::sync::Mutex<()>),
    /// `flock` on a file.
    File(RawFile),
}

/// A file of its own, removed at the end.
pub(super) struct RawFile {
    path: PathBuf,
}

impl Raw {
    pub(super) fn new(backend: &str) -> io::Result<Option<Self>> {
        Ok(match backend {
            "memory" => Some(Self::Memory(tokio::sync::Mutex::new(()))),
            "file" => Some(Self::File(RawFile::new()?)),
            _ => None,
        })
    }

    pub(super) fn pair_name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "tokio::sync::Mutex",
            Self::File(_) => "open, flock, read and write a record, write it back, unlock, close",
        }
    }

    pub(super) fn handoff_name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "tokio::sync::Mutex between two tasks",
            Self::File(_) => "blocking flock in two processes",
        }
    }

    /// Locks and unlocks.
    pub(super) async fn pair(&self) -> io::Result<()> {
        match self {
            Self::Memory(mutex) => {
                drop(mutex.lock().await);
                Ok(())
            }
            Self::File(file) => file.pair(),
        }
    }
}

impl RawFile {
    /// As large as a record of the file backend.
    const RECORD: usize = 1024;

    fn new() -> io::Result<Self> {
        // Not in the lock directory: what is there belongs to the backend. The file is never synced,
        // as the backend does not sync in the common case, so the kind of disk does not matter.
        let path = std::env::temp_dir().join(format!("tenure-bench-{}.raw", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all_at(&[b' '; 2 * Self::RECORD], 0)?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    /// The system calls that an exclusive hold with a token takes at least: the file is opened anew because another
    /// process may have replaced it, the counter is read, the holder is written, and taken away again.
    fn pair(&self) -> io::Result<()> {
        let file = open(&self.path)?;
        file.try_lock()?;
        let mut records = [0; 2 * Self::RECORD];
        file.read_exact_at(&mut records, 0)?;
        file.write_all_at(&records[..Self::RECORD], 0)?;
        file.write_all_at(&records[..Self::RECORD], 0)?;
        file.unlock()
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens a lock file as the backend does.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?.into())
}
