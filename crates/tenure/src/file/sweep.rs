//! Removing unused lock files.
//!
//! A lock file cannot simply be unlinked: another process may have the file open and lock it a moment later, while a
//! third process locks its successor; and the token counter would be gone. So:
//!
//! 1. the kernel lock of the file is taken exclusively, without waiting: the name has no holder;
//! 2. the record must say that no reservation is left and that all its tokens are below the clock;
//! 3. the path must still lead to the file;
//! 4. the floor of all tokens in this directory is raised above those of the file, and synced;
//! 5. the file is unlinked while the lock is ours. A process that was blocked on the file reads the path again.

use std::fs::{File, TryLockError};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::rt;

use super::detached_record::is_held;
use super::directory::{Directory, FileId, LockPath};
use super::elections::is_held_exclusively;
use super::guarantees::SCHEME;
use super::kernel_lock::KernelLock;
use super::names::{self, DirectoryEntry};
use super::record::{self, Contents, RecordState};
use super::store::{Shared, Store};

/// How often a directory is swept without a request.
const SWEEP_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// A directory with fewer files is not swept without a request.
const SWEEP_THRESHOLD: usize = 1_000;
/// Files that are removed at a time without a request: some tenths of a second of work in the background.
const MAX_REMOVED: usize = 5_000;
/// Temporary files of a process that died while it broke a lock, and the files of a hold that is over, are removed when they
/// are this old.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

impl Store {
    /// Removes at most `limit` lock files of names that are free and have not been used for about a minute.
    /// Returns how many were removed.
    ///
    /// Sweeping may run at any time, also while names are acquired. Tokens still grow, because the directory keeps a floor.
    /// There is no need to call this: opening a directory with more than 1,000 files sweeps it, once a day.
    ///
    /// # Errors
    /// As for [`open`](Store::open). Files that are not ours are left alone and are no error.
    pub fn sweep(&self, limit: usize) -> Result<usize, Error> {
        sweep(&self.0, limit, rt::wall_micros()).map_err(|err| err.with_scheme(SCHEME))
    }
}

/// Sweeps in the background if that is due; `age` is the time since the last sweep.
pub(super) fn start_if_due(shared: &Arc<Shared>, age: Option<Duration>) {
    if age.is_some_and(|age| age < SWEEP_INTERVAL) {
        return;
    }
    // If the note fails, the next client sweeps, too.
    let noted = shared.directory().mark_cleaned();
    if age.is_none() || noted.is_err() {
        return;
    }
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name("tenure-file-sweep".into());
    // Without a thread the directory is swept another day.
    let _ = thread.spawn(move || {
        let many = shared
            .directory()
            .entries()
            .is_ok_and(|entries| entries.take(SWEEP_THRESHOLD + 1).count() > SWEEP_THRESHOLD);
        if many && let Err(err) = sweep(&shared, MAX_REMOVED, rt::wall_micros()) {
            tracing::warn!(
                error = format_args!("{err:#}"),
                "could not clean the lock directory"
            );
        }
    });
}

/// Removes at most `limit` files of free names whose tokens are below `start`, the wall clock in µs.
fn sweep(shared: &Shared, limit: usize, start: u64) -> Result<usize, Error> {
    let dir = shared.current_directory()?;
    let mut is_floor_raised = false;
    let mut removed = 0;
    for file in dir.entries()? {
        if removed == limit || shared.is_closed() {
            break;
        }
        let is_lock = match names::decode(&file) {
            DirectoryEntry::Name(_) | DirectoryEntry::Hashed => true,
            DirectoryEntry::Side => false,
            DirectoryEntry::Own => {
                remove_leftover(&dir, &file);
                continue;
            }
            // A pipe is removed with its permit.
            DirectoryEntry::Pipe | DirectoryEntry::Foreign => continue,
        };
        let tokens_below = is_lock.then_some(start);
        let swept = match names::token_of(&file) {
            Some((of, token)) => remove_token_file(shared, &dir, &file, of, token),
            None => remove(shared, &dir, &file, tokens_below, &mut is_floor_raised),
        };
        match swept {
            Ok(true) => removed += 1,
            Ok(false) => {}
            Err(err) if err.kind() == ErrorKind::Denied => {}
            Err(err) => return Err(err),
        }
    }
    Ok(removed)
}

/// Removes one file if it is unused. Tokens count only in lock files: those have to be below `tokens_below`.
fn remove(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    tokens_below: Option<u64>,
    is_floor_raised: &mut bool,
) -> Result<bool, Error> {
    match dir.open_existing(file, shared.hold_count())? {
        Some(opened) => remove_opened(shared, dir, file, opened, tokens_below, is_floor_raised),
        None => Ok(false),
    }
}

fn remove_opened(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    (opened, id): (File, FileId),
    tokens_below: Option<u64>,
    is_floor_raised: &mut bool,
) -> Result<bool, Error> {
    let held_locks = shared.hold_count();
    let system_error = |what| move |err| dir.system_error(what, file, err, held_locks);
    match opened.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(err)) => return Err(system_error("lock")(err)),
    }
    let locked = KernelLock::new(opened);
    let contents = record::read(locked.file()).map_err(system_error("read"))?;
    let lock_path = LockPath::new(dir.path(), file.to_owned());
    if !is_stale(&contents, tokens_below) || !id.is_at(&lock_path.path) {
        return Ok(false);
    }
    let raises = tokens_below.filter(|_| !*is_floor_raised);
    let _section = match raises.is_some() || contents.is_detached() {
        true => Some(dir.enter(held_locks)?),
        false => None,
    };
    // An attached client extends its hold in the section, without the kernel lock.
    if contents.is_detached() && is_held(locked.file()).map_err(system_error("read"))? {
        return Ok(false);
    }
    if let Some(start) = raises {
        // One floor for all: every file that is removed has its tokens below.
        dir.raise_floor(start)
            .map_err(system_error("raise the floor for"))?;
        *is_floor_raised = true;
    }
    if let Some(pipe) = names::pipe_of(file) {
        // The pipe does not exist if no process has waited for it, or on systems where pipes cannot be made.
        let _ = dir.unlink(&pipe);
    }
    dir.unlink(file).map_err(system_error("remove"))?;
    Ok(true)
}

/// Whether nothing is lost with this file, whose lock is ours.
fn is_stale(contents: &Contents, tokens_below: Option<u64>) -> bool {
    match (contents, tokens_below) {
        // A side file counts for a process that has locked it and found it at its path, and for no other.
        (Contents::Empty | Contents::Valid(_), None) => true,
        // An empty file may be about to be written, or was made by flock(1): so it is not removed.
        (Contents::Empty | Contents::Foreign | Contents::Torn, _) => false,
        (Contents::Valid(found), Some(below)) => {
            let head = &found.head;
            let dead_with_delay = head.state == RecordState::Exclusive && head.delay > 0;
            head.ceiling < below && head.until <= rt::wall_micros() && !dead_with_delay
        }
    }
}

/// Removes a value or a request of a hold that is over. A hold that is being granted has its value before its token is in
/// the record, so a file that is young is not removed.
fn remove_token_file(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    of: &str,
    token: u64,
) -> Result<bool, Error> {
    let is_young = dir.age(file).is_none_or(|age| age <= LEFTOVER_AGE);
    if is_young || is_held_exclusively(dir, of, token, shared.hold_count())? {
        return Ok(false);
    }
    // Another process may have removed the file.
    Ok(dir.unlink(file).is_ok())
}

fn remove_leftover(dir: &Directory, file: &str) {
    let is_temporary = file.starts_with(".break-") || file.starts_with(".check-");
    if is_temporary && dir.age(file).is_some_and(|age| age > LEFTOVER_AGE) {
        // Another process may have removed the file.
        let _ = dir.unlink(file);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tenure_core::fence::OwnerId;
    use tenure_core::name::LockName;
    use tenure_core::store::{Answer, Hold, Request, Store as _};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let unique = format!("tenure-sweep-{}-{test}", std::process::id());
            Self(std::env::temp_dir().join(unique))
        }

        fn open(&self) -> Arc<Store> {
            Arc::new(Store::open(&self.0).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn take(store: &Arc<Store>, name: &str, min_hold: Duration) -> Hold {
        let name = LockName::new(name).unwrap();
        let mut request = Request::new(name, OwnerId::random(), Duration::from_secs(30));
        request.min_hold = min_hold;
        request.wait = true;
        let request = Arc::new(request);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        match runtime
            .block_on(store.clone().acquire(request.clone()))
            .unwrap()
        {
            Answer::Granted(grant) => Hold::new(&request, grant.token),
            other => panic!("{other:?}"),
        }
    }

    fn give(store: &Arc<Store>, hold: Hold) {
        let released = rt::poll_now(store.clone().release(hold));
        assert!(matches!(
            released,
            Ok(Ok(tenure_core::store::Release::Released))
        ));
    }

    /// Past the block of tokens that files written now have reserved.
    fn later(steps: u64) -> u64 {
        rt::wall_micros() + steps * 100_000_000
    }

    #[test]
    fn only_what_nobody_uses_is_removed_and_tokens_go_on() {
        let scratch = Scratch::new("stale");
        let store = scratch.open();
        let free = take(&store, "free", Duration::ZERO);
        let token = free.token;
        give(&store, free);
        let kept = take(&store, "kept", Duration::from_secs(3600));
        give(&store, kept);
        let _held = take(&store, "held", Duration::ZERO);
        std::fs::write(scratch.0.join("theirs"), "text").unwrap();
        std::fs::write(scratch.0.join("empty"), "").unwrap();
        // The tokens of the file may be ahead of the clock for a minute.
        assert_eq!(store.sweep(usize::MAX).unwrap(), 0);
        assert_eq!(sweep(&store.0, 0, later(1)).unwrap(), 0);
        let start = later(1);
        assert_eq!(sweep(&store.0, usize::MAX, start).unwrap(), 1);
        let exists = |name: &str| scratch.0.join(name).exists();
        assert!(!exists("free") && exists("kept") && exists("held"));
        assert!(exists("theirs") && exists("empty"));
        let again = take(&store, "free", Duration::ZERO);
        assert!(again.token > token && again.token > start);
    }

    #[test]
    fn a_detached_hold_keeps_its_file_until_its_lease_is_over() {
        use tenure_core::store::{Detach as _, Renewal};
        let scratch = Scratch::new("detached");
        let store = scratch.open();
        let detach = |name: &str, ttl| {
            let mut hold = take(&store, name, Duration::ZERO);
            hold.ttl = ttl;
            let detached = rt::poll_now(store.clone().detach(hold.clone()));
            assert!(matches!(detached, Ok(Renewal::Renewed { .. })));
            hold
        };
        let kept = detach("kept", Duration::from_secs(3600));
        let over = detach("over", Duration::from_micros(1));
        for name in ["kept", "over"] {
            let pipe = names::lease_pipe(name);
            let pipe = store
                .0
                .directory()
                .open_pipe(&pipe, rustix::fs::OFlags::RDONLY);
            assert!(pipe.is_some() || cfg!(target_vendor = "apple"));
        }
        assert_eq!(sweep(&store.0, usize::MAX, later(1)).unwrap(), 1);
        let files = |name: &str| {
            let dir = store.0.directory();
            let entries = dir.entries().unwrap();
            entries.filter(|entry| entry.starts_with(name)).count()
        };
        assert_eq!(files("over"), 0);
        assert!(files("kept") >= 1 && over.name != kept.name);
        give(&store, kept);
    }

    /// Another process was faster: the file at the path is not the one that was opened.
    #[test]
    fn a_file_that_was_replaced_meanwhile_is_left_alone() {
        let scratch = Scratch::new("replaced");
        let store = scratch.open();
        give(&store, take(&store, "a", Duration::ZERO));
        let dir = store.0.directory();
        let opened = dir.open_existing("a", 0).unwrap().unwrap();
        std::fs::remove_file(scratch.0.join("a")).unwrap();
        let held = take(&store, "a", Duration::ZERO);
        let removed = remove_opened(&store.0, &dir, "a", opened, Some(later(1)), &mut false);
        assert!(!removed.unwrap());
        give(&store, held);
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
                    let store = scratch.open();
                    for step in 1.. {
                        let count = sweep(&store.0, usize::MAX, later(step)).unwrap();
                        removed.fetch_add(count, Ordering::SeqCst);
                        if !is_going_on() {
                            break;
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let store = scratch.open();
                    while is_going_on() {
                        let hold = take(&store, "a", Duration::ZERO);
                        // Never contended unless two hold at once.
                        tokens.try_lock().unwrap().push(hold.token);
                        give(&store, hold);
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
        let store = scratch.open();
        let (old, young) = (scratch.0.join(".break-0"), scratch.0.join(".break-1"));
        std::fs::write(&old, "").unwrap();
        std::fs::write(&young, "").unwrap();
        make_older(&old, 2 * LEFTOVER_AGE);
        assert_eq!(store.sweep(usize::MAX).unwrap(), 0);
        assert!(!old.exists() && young.exists());
    }

    #[test]
    fn the_files_of_a_hold_are_removed_after_its_end() {
        let scratch = Scratch::new("token-files");
        let store = scratch.open();
        let held = take(&store, "held", Duration::ZERO);
        let [kept, over, young] = [held.token, held.token - 1, held.token + 1]
            .map(|token| scratch.0.join(format!("held%r{token}")));
        let gone = scratch.0.join("gone%v17");
        for path in [&kept, &over, &young, &gone] {
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(store.sweep(usize::MAX).unwrap(), 0, "all are young");
        for path in [&kept, &over, &gone] {
            make_older(path, 2 * LEFTOVER_AGE);
        }
        assert_eq!(store.sweep(usize::MAX).unwrap(), 2);
        assert!(kept.exists() && young.exists() && !over.exists() && !gone.exists());
        give(&store, held);
        assert_eq!(store.sweep(usize::MAX).unwrap(), 1);
        assert!(!kept.exists());
    }

    #[test]
    fn opening_a_directory_with_many_files_cleans_it_once_a_day() {
        let scratch = Scratch::new("daily");
        drop(scratch.open());
        for i in 0..=SWEEP_THRESHOLD {
            let file = std::fs::File::create_new(scratch.0.join(format!("n{i}"))).unwrap();
            // Without the sync of `record::create`, a thousand times.
            record::write_side(&file, 1, None).unwrap();
        }
        let files = || std::fs::read_dir(&scratch.0).unwrap().count();
        let many = files();
        // Not due yet.
        drop(scratch.open());
        assert_eq!(files(), many);
        make_older(&scratch.0.join(".probe"), 2 * SWEEP_INTERVAL);
        let store = scratch.open();
        while files() > 10 {
            std::thread::yield_now();
        }
        drop(store);
    }
}
