//! The system calls that a lock on a file needs at least.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::bench::contention::{HOLD, Note, wait_for_start};
use crate::clock;

/// A file of its own, removed at the end.
pub(crate) struct RawFile {
    path: PathBuf,
    file: File,
}

impl RawFile {
    /// As large as a record of the file backend.
    const RECORD: usize = 1024;

    pub(crate) fn new() -> io::Result<Self> {
        // Not in the lock directory: what is there belongs to the backend. The file is never synced,
        // as the backend does not sync in the common case, so the kind of disk does not matter.
        let path = std::env::temp_dir().join(format!("tenure-bench-{}.raw", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all_at(&[b' '; 2 * Self::RECORD], 0)?;
        Ok(Self { path, file })
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    /// The system calls of an exclusive hold with a token, on a file that is kept open: the counter is read, the
    /// holder is written; the path is looked at, because somebody may have replaced the file, before the hold
    /// counts and before it is given back; the holder is taken away again.
    pub(crate) fn pair(&self) -> io::Result<()> {
        self.file.try_lock()?;
        let mut records = [0; 2 * Self::RECORD];
        self.file.read_exact_at(&mut records, 0)?;
        self.file.write_all_at(&records[..Self::RECORD], 0)?;
        rustix::fs::lstat(&self.path)?;
        rustix::fs::lstat(&self.path)?;
        self.file.write_all_at(&records[..Self::RECORD], 0)?;
        self.file.unlock()
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn contend_for_flock(path: &Path, rounds: u32) -> io::Result<Vec<Note>> {
    let file = open(path)?;
    wait_for_start()?;
    let mut notes = Vec::new();
    for _ in 0..rounds {
        let asked = clock::now();
        file.lock()?;
        let granted = clock::now();
        std::thread::sleep(HOLD);
        notes.push(Note {
            asked,
            granted,
            released: clock::now(),
        });
        file.unlock()?;
        std::thread::sleep(HOLD);
    }
    Ok(notes)
}

/// Opens a lock file as the backend does.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?.into())
}
