//! `file:`, one directory for each behaviour. The operating system reports the numbers of holders and waiters.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, Verdict};
use tenure::file;
use tenure::guarantees::Guarantees;
use tenure::store::{BoxFuture, Store as _};
use tenure::{Client, Error};

struct Directory {
    dir: PathBuf,
}

pub(crate) fn open() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    Box::pin(async {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = format!("tenure-conformance-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        Ok(Arc::new(Directory { dir }) as _)
    })
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Removes what a failed behaviour left.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Harness for Directory {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let url = format!("file:{}", self.dir.display());
        Box::pin(async move { tenure::connect(&url).await })
    }

    fn guarantees(&self) -> Guarantees {
        file::Store::open(&self.dir)
            .expect("the temporary directory can be used")
            .guarantees()
            .clone()
    }

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let (dir, name) = (self.dir.clone(), name.to_owned());
        Box::pin(async move { Ok(counts(&dir, &name)?) })
    }

    fn leases(&self) -> bool {
        false
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn tear_down(&self) -> BoxFuture<Verdict> {
        let dir = self.dir.clone();
        Box::pin(async move { Ok(fs::remove_dir_all(dir)?) })
    }

    fn url(&self) -> Option<String> {
        Some(format!("file:{}", self.dir.display()))
    }

    fn lock_holder(&self) -> Option<PathBuf> {
        Some(env!("CARGO_BIN_EXE_tenure-lock-holder").into())
    }

    /// A thread that is blocked in the kernel's lock call cannot be cancelled.
    fn stale_waiters(&self) -> bool {
        true
    }

    /// What `rm` does to a lock file.
    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let (dir, name) = (self.dir.clone(), name.to_owned());
        Some(Box::pin(async move {
            let file = file_of(&dir, &name)?.ok_or_else(|| Failure::new("no such lock file"))?;
            Ok(fs::remove_file(file)?)
        }))
    }

    /// What `rm -rf` does to a lock directory.
    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        let dir = self.dir.clone();
        Some(Box::pin(async move { Ok(fs::remove_dir_all(dir)?) }))
    }
}

fn counts(dir: &Path, name: &str) -> std::io::Result<ContenderCounts> {
    let Some(path) = file_of(dir, name)? else {
        return Ok(ContenderCounts {
            holders: 0,
            waiters: Some(0),
        });
    };
    let holders = if is_locked(&path)? {
        1
    } else {
        let own = path.file_name().unwrap_or_default().to_string_lossy();
        let mut sides = 0;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let side = entry.file_name();
            let tail = side.to_str().and_then(|side| side.strip_prefix(&*own));
            let is_holder =
                |tail: &str| ["%s", "%p", "%u"].iter().any(|kind| tail.starts_with(kind));
            if tail.is_some_and(is_holder) {
                sides += usize::from(is_locked(&entry.path())?);
            }
        }
        sides
    };
    Ok(ContenderCounts {
        holders,
        waiters: waiters(&path)?,
    })
}

/// Whether another process or thread has the file locked exclusively. The test asks with a shared lock, for an instant.
fn is_locked(path: &Path) -> std::io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        // The file was removed after the directory was listed.
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(err) => return Err(err),
    };
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(err)) => Err(err),
    }
}

/// The number of threads, of this process and of its holders, that are blocked in the kernel's lock call on this file.
///
/// `/proc` has the system call of each thread. The kernel's list of all locks, `/proc/locks`, would be simpler, but a
/// list of more than a page is read in pieces, and a change between two of them makes other entries appear twice or not
/// at all. `None` where the number of the system call is not known here.
fn waiters(path: &Path) -> std::io::Result<Option<usize>> {
    let flock = match std::env::consts::ARCH {
        "x86_64" => "73",
        "aarch64" | "riscv64" => "32",
        _ => return Ok(None),
    };
    let wanted = match fs::metadata(path) {
        Ok(stat) => (stat.dev(), stat.ino()),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Some(0)),
        Err(err) => return Err(err),
    };
    let blocked = |thread: &Path| -> Option<bool> {
        // `73 0x5 0x2 ..`: the call and its arguments, of which the first is the descriptor.
        let call = fs::read_to_string(thread.join("syscall")).ok()?;
        let mut words = call.split_whitespace();
        if words.next()? != flock {
            return Some(false);
        }
        let fd = u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        let stat = fs::metadata(thread.join("fd").join(fd.to_string())).ok()?;
        Some((stat.dev(), stat.ino()) == wanted)
    };
    let mut count = 0;
    for process in family()? {
        // Processes and threads may end meanwhile; then they wait for nothing.
        for thread in fs::read_dir(process.join("task")).into_iter().flatten() {
            count += usize::from(blocked(&thread?.path()).unwrap_or(false));
        }
    }
    Ok(Some(count))
}

/// This process and its children, in `/proc`.
fn family() -> std::io::Result<Vec<PathBuf>> {
    let own = std::process::id().to_string();
    let mut family = vec![Path::new("/proc").join(&own)];
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes()[0].is_ascii_digit() {
            continue;
        }
        // `4711 (name) S 4242 ..`: the parent comes after the state.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.split(' ').nth(1));
        if parent == Some(own.as_str()) {
            family.push(entry.path());
        }
    }
    Ok(family)
}

/// The lock file of a name, if there is one: by the published encoding, not by the library's code.
fn file_of(dir: &Path, name: &str) -> std::io::Result<Option<PathBuf>> {
    let mut file = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => file.push(byte.into()),
            b'.' if at > 0 => file.push('.'),
            _ => file.push_str(&format!("%{byte:02x}")),
        }
    }
    if file.len() <= 180 {
        let path = dir.join(file);
        return Ok(path.exists().then_some(path));
    }
    // The file of a long name has a digest in its own name, and the name inside.
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    for entry in entries {
        let path = entry?.path();
        if !path.to_string_lossy().contains("%~") {
            continue;
        }
        let mut inside = vec![0; 2 * tenure::LockName::MAX_LEN];
        let length = File::open(&path)?.read_at(&mut inside, 2048)?;
        let inside = String::from_utf8_lossy(&inside[..length]);
        if inside.trim_end_matches(['\0', '\n']) == name || inside.starts_with(name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
