//! The system calls that a lock on a file needs at least.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::bench::common::AnyError;
use crate::bench::contention::{HoldTimes, contend, pause, wait_for_start};

/// A file, which is removed when this is dropped.
pub(crate) struct RawFile {
    path: PathBuf,
    file: File,
}

impl RawFile {
    /// As long as a record of the file store.
    const RECORD_LENGTH: usize = 1024;

    pub(crate) fn new() -> io::Result<Self> {
        // The file is not in the lock directory, where all files belong to the store. The file is never synced, as the
        // store does not sync in the common case, so the kind of disk does not matter.
        let path = std::env::temp_dir().join(format!("tenure-bench-{}.raw", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all_at(&[b' '; 2 * Self::RECORD_LENGTH], 0)?;
        Ok(Self { path, file })
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    /// The system calls of an exclusive hold with a token, on a file that is kept open. The counter is read and the
    /// holder is written. The path is compared with the open file before the hold counts and before the release, because
    /// another process may have replaced the file. At last the holder is removed.
    pub(crate) fn run_round(&self) -> io::Result<()> {
        self.file.try_lock()?;
        let mut records = [0; 2 * Self::RECORD_LENGTH];
        self.file.read_exact_at(&mut records, 0)?;
        self.file.write_all_at(&records[..Self::RECORD_LENGTH], 0)?;
        rustix::fs::lstat(&self.path)?;
        rustix::fs::lstat(&self.path)?;
        self.file.write_all_at(&records[..Self::RECORD_LENGTH], 0)?;
        self.file.unlock()
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) async fn contend_for_flock(
    path: &Path,
    rounds: u32,
) -> Result<Vec<HoldTimes>, AnyError> {
    // The store opens a lock file with the same flags.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
    wait_for_start()?;
    let holds = contend(
        rounds,
        async || file.lock(),
        pause,
        async |()| {
            file.unlock()?;
            pause().await;
            Ok(())
        },
    );
    Ok(holds.await?)
}
