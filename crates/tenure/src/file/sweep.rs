//! Removing lock files that nobody uses any more.
//!
//! A lock file cannot simply be unlinked: somebody may have it open and lock it a moment later, beside somebody else who
//! locked its successor; and its token counter would be gone. So:
//!
//! 1. its kernel lock is taken exclusively, without waiting: nobody holds it;
//! 2. its record must say that no reservation is left and that all its tokens lie below the clock;
//! 3. the path must still lead to it;
//! 4. the floor of all tokens in this directory is raised above them, and synced;
//! 5. it is unlinked while the lock is ours. Whoever was blocked on it finds out by looking at the path again.

use std::fs::{File, TryLockError};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt;

use super::directory::{Directory, FileId, KernelLock, LockPath};
use super::names::{self, Entry};
use super::record::{self, Contents, State};
use super::{Backend, Inner, SCHEME};

/// How often a directory is cleaned without being asked.
const PERIOD: Duration = Duration::from_secs(24 * 3600);
/// With fewer files than this it is left alone.
const MANY: usize = 1_000;
/// Most files that are removed in one go without being asked: some tenths of a second of work in the background.
const BATCH: usize = 5_000;
/// Leftovers of somebody who died while breaking a lock are removed when they are this old.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

impl Backend {
    /// Removes at most `limit` lock files of names that are free and have not been used for about a minute.
    /// Returns how many it removed.
    ///
    /// It may run at any time, beside everything else. Tokens go on growing: the directory keeps a floor.
    /// There is no need to call this: opening a directory with more than 1,000 files does it, once a day.
    ///
    /// # Errors
    /// As for [`open`](Backend::open). Files that are not ours are left alone and are no error.
    pub fn sweep(&self, limit: usize) -> Result<usize, Error> {
        sweep(&self.0, limit, rt::wall_micros()).map_err(|err| err.with_backend(SCHEME))
    }
}

/// Cleans in the background if that is due; `age` is the time since it was last done.
pub(super) fn now_and_then(inner: &Arc<Inner>, age: Option<Duration>) {
    if age.is_some_and(|age| age < PERIOD) {
        return;
    }
    // Failing to note it means that the next one tries, too.
    let noted = inner.dir().mark_cleaned();
    if age.is_none() || noted.is_err() {
        return;
    }
    let inner = inner.clone();
    let thread = std::thread::Builder::new().name("tenure-file-sweep".into());
    // Without a thread it is left for another day.
    let _ = thread.spawn(move || {
        let many = inner
            .dir()
            .entries()
            .is_ok_and(|entries| entries.take(MANY + 1).count() > MANY);
        if many && let Err(err) = sweep(&inner, BATCH, rt::wall_micros()) {
            tracing::warn!(error = %err, "could not clean the lock directory");
        }
    });
}

/// Removes at most `limit` files of free names whose tokens lie below `start`, the wall clock in µs.
fn sweep(inner: &Inner, limit: usize, start: u64) -> Result<usize, Error> {
    let dir = inner.current_dir()?;
    let mut is_floor_raised = false;
    let mut removed = 0;
    for file in dir.entries()? {
        if removed == limit || inner.is_closed() {
            break;
        }
        let is_lock = match names::decode(&file) {
            Entry::Name(_) | Entry::Hashed => true,
            Entry::Side => false,
            Entry::Own => {
                remove_leftover(&dir, &file);
                continue;
            }
            Entry::Foreign => continue,
        };
        match remove(
            inner,
            &dir,
            &file,
            is_lock.then_some(start),
            &mut is_floor_raised,
        ) {
            Ok(true) => removed += 1,
            Ok(false) => {}
            Err(err) if err.kind() == ErrorKind::Denied => {}
            Err(err) => return Err(err),
        }
    }
    Ok(removed)
}

/// Removes one file if nobody uses it. Tokens count only in lock files: those have to lie below `tokens_below`.
fn remove(
    inner: &Inner,
    dir: &Directory,
    file: &str,
    tokens_below: Option<u64>,
    is_floor_raised: &mut bool,
) -> Result<bool, Error> {
    match dir.open_existing(file, inner.hold_count())? {
        Some(opened) => remove_opened(inner, dir, file, opened, tokens_below, is_floor_raised),
        None => Ok(false),
    }
}

fn remove_opened(
    inner: &Inner,
    dir: &Directory,
    file: &str,
    (opened, id): (File, FileId),
    tokens_below: Option<u64>,
    is_floor_raised: &mut bool,
) -> Result<bool, Error> {
    let fds = inner.hold_count();
    let system_error = |what| move |err| dir.system_error(what, file, err, fds);
    match opened.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(err)) => return Err(system_error("lock")(err)),
    }
    let locked = KernelLock::new(opened);
    let contents = record::read(locked.file()).map_err(system_error("read"))?;
    let lock_path = LockPath::new(dir.path(), file.to_owned());
    if !is_stale(&contents, tokens_below)
        || !FileId::at(&lock_path.path).is_ok_and(|there| there == id)
    {
        return Ok(false);
    }
    if let Some(start) = tokens_below
        && !*is_floor_raised
    {
        let _section = dir.enter(fds)?;
        // One floor for all: every file that is removed has its tokens below.
        dir.raise_floor(start)
            .map_err(system_error("raise the floor for"))?;
        *is_floor_raised = true;
    }
    dir.unlink(file).map_err(system_error("remove"))?;
    Ok(true)
}

/// Whether nothing is lost with this file, whose lock is ours.
fn is_stale(contents: &Contents, tokens_below: Option<u64>) -> bool {
    match (contents, tokens_below) {
        // An empty one may be somebody's about to be written, or made by flock(1): not ours to remove.
        (Contents::Empty | Contents::Foreign | Contents::Torn, _) => false,
        (Contents::Valid(_), None) => true,
        (Contents::Valid(found), Some(below)) => {
            let head = &found.head;
            let dead_with_delay = head.state == State::Exclusive && head.delay > 0;
            head.ceiling < below && head.until <= rt::wall_micros() && !dead_with_delay
        }
    }
}

fn remove_leftover(dir: &Directory, file: &str) {
    let is_temporary = file.starts_with(".break-") || file.starts_with(".check-");
    if is_temporary && dir.age(file).is_some_and(|age| age > LEFTOVER_AGE) {
        // Somebody else may have been faster.
        let _ = dir.unlink(file);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tenure_core::backend::{Answer, Backend as _, Hold, Request};
    use tenure_core::fence::OwnerId;
    use tenure_core::name::LockName;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let unique = format!("tenure-sweep-{}-{test}", std::process::id());
            Self(std::env::temp_dir().join(unique))
        }

        fn open(&self) -> Backend {
            Backend::open(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn take(backend: &Backend, name: &str, min_hold: Duration) -> Hold {
        let name = LockName::new(name).unwrap();
        let mut request = Request::new(name, OwnerId::random(), Duration::from_secs(30));
        request.min_hold = min_hold;
        request.wait = true;
        let request = Arc::new(request);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        match runtime.block_on(backend.acquire(request.clone())).unwrap() {
            Answer::Granted(grant) => Hold::new(&request, grant.token),
            other => panic!("{other:?}"),
        }
    }

    fn give(backend: &Backend, hold: Hold) {
        let released = rt::poll_now(backend.release(hold));
        assert!(matches!(
            released,
            Ok(Ok(tenure_core::backend::Release::Released))
        ));
    }

    /// Past the block of tokens that files written now have reserved.
    fn later(steps: u64) -> u64 {
        rt::wall_micros() + steps * 100_000_000
    }

    #[test]
    fn only_what_nobody_uses_is_removed_and_tokens_go_on() {
        let scratch = Scratch::new("stale");
        let backend = scratch.open();
        let free = take(&backend, "free", Duration::ZERO);
        let token = free.token;
        give(&backend, free);
        let kept = take(&backend, "kept", Duration::from_secs(3600));
        give(&backend, kept);
        let _held = take(&backend, "held", Duration::ZERO);
        std::fs::write(scratch.0.join("theirs"), "text").unwrap();
        std::fs::write(scratch.0.join("empty"), "").unwrap();
        // Its tokens may lie ahead of the clock for a minute.
        assert_eq!(backend.sweep(usize::MAX).unwrap(), 0);
        assert_eq!(sweep(&backend.0, 0, later(1)).unwrap(), 0);
        let start = later(1);
        assert_eq!(sweep(&backend.0, usize::MAX, start).unwrap(), 1);
        let exists = |name: &str| scratch.0.join(name).exists();
        assert!(!exists("free") && exists("kept") && exists("held"));
        assert!(exists("theirs") && exists("empty"));
        let again = take(&backend, "free", Duration::ZERO);
        assert!(again.token > token && again.token > start);
    }

    /// Somebody else was faster: what lies at the path now is not what was looked at.
    #[test]
    fn a_file_that_was_replaced_meanwhile_is_left_alone() {
        let scratch = Scratch::new("replaced");
        let backend = scratch.open();
        give(&backend, take(&backend, "a", Duration::ZERO));
        let dir = backend.0.dir();
        let opened = dir.open_existing("a", 0).unwrap().unwrap();
        std::fs::remove_file(scratch.0.join("a")).unwrap();
        let held = take(&backend, "a", Duration::ZERO);
        let removed = remove_opened(&backend.0, &dir, "a", opened, Some(later(1)), &mut false);
        assert!(!removed.unwrap());
        give(&backend, held);
    }

    #[test]
    fn sweeping_beside_acquirers_harms_nobody() {
        let scratch = Scratch::new("race");
        let removed = AtomicUsize::new(0);
        let is_going_on = || removed.load(Ordering::SeqCst) < 20;
        let tokens = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let backend = scratch.open();
                    for step in 1.. {
                        let count = sweep(&backend.0, usize::MAX, later(step)).unwrap();
                        removed.fetch_add(count, Ordering::SeqCst);
                        if !is_going_on() {
                            break;
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let backend = scratch.open();
                    while is_going_on() {
                        let hold = take(&backend, "a", Duration::ZERO);
                        // Never contended unless two hold at once.
                        tokens.try_lock().unwrap().push(hold.token);
                        give(&backend, hold);
                    }
                });
            }
        });
        let tokens: Vec<u64> = tokens.into_inner().unwrap();
        assert!(tokens.is_sorted_by(|a, b| a < b), "a token went back");
    }

    fn make_older(path: &std::path::Path, by: Duration) {
        let times = std::fs::FileTimes::new().set_modified(rt::wall_now() - by);
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_times(times)
            .unwrap();
    }

    #[test]
    fn leftovers_of_the_dead_are_removed() {
        let scratch = Scratch::new("leftover");
        let backend = scratch.open();
        let (old, young) = (scratch.0.join(".break-0"), scratch.0.join(".break-1"));
        std::fs::write(&old, "").unwrap();
        std::fs::write(&young, "").unwrap();
        make_older(&old, 2 * LEFTOVER_AGE);
        assert_eq!(backend.sweep(usize::MAX).unwrap(), 0);
        assert!(!old.exists() && young.exists());
    }

    #[test]
    fn opening_a_directory_with_many_files_cleans_it_once_a_day() {
        let scratch = Scratch::new("daily");
        drop(scratch.open());
        for i in 0..=MANY {
            let file = std::fs::File::create_new(scratch.0.join(format!("n{i}"))).unwrap();
            // Without the sync of `record::create`, a thousand times.
            record::write_side(&file, 1, None).unwrap();
        }
        let files = || std::fs::read_dir(&scratch.0).unwrap().count();
        let many = files();
        // Not due yet.
        drop(scratch.open());
        assert_eq!(files(), many);
        make_older(&scratch.0.join(".probe"), 2 * PERIOD);
        let backend = scratch.open();
        while files() > 10 {
            std::thread::yield_now();
        }
        drop(backend);
    }
}
