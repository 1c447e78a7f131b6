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

use std::fs::TryLockError;
use std::sync::Arc;
use std::time::Duration;

use super::dir::{Dir, Id, Locked, Spot};
use super::names::{self, Entry};
use super::record::{self, Contents, State};
use super::{Backend, Inner, SCHEME};
use crate::error::{Error, ErrorKind};
use crate::rt;

/// How often a directory is cleaned without being asked.
const PERIOD: Duration = Duration::from_secs(24 * 3600);
/// With fewer files than this it is left alone.
const MANY: usize = 1_000;
/// Most files that are removed in one go without being asked: some tenths of a second of work in the background.
const BATCH: usize = 5_000;
/// Leftovers of somebody who died while breaking a lock are removed when they are this old.
const LEFTOVER: Duration = Duration::from_secs(3600);

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
        sweep(&self.0, limit).map_err(|err| err.with_backend(SCHEME))
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
        if many && let Err(err) = sweep(&inner, BATCH) {
            tracing::warn!(error = %err, "could not clean the lock directory");
        }
    });
}

fn sweep(inner: &Inner, limit: usize) -> Result<usize, Error> {
    let dir = inner.current_dir()?;
    let start = rt::wall_micros();
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
    dir: &Dir,
    file: &str,
    tokens_below: Option<u64>,
    is_floor_raised: &mut bool,
) -> Result<bool, Error> {
    let fds = inner.hold_count();
    let trouble = |what| move |err| dir.trouble(what, file, err, fds);
    let Some((opened, id)) = dir.open_existing(file, fds)? else {
        return Ok(false);
    };
    match opened.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(err)) => return Err(trouble("lock")(err)),
    }
    let locked = Locked::new(opened);
    let contents = record::read(locked.file()).map_err(trouble("read"))?;
    let spot = Spot::new(dir.path(), file.to_owned());
    if !is_stale(&contents, tokens_below) || !Id::at(&spot.path).is_ok_and(|there| there == id) {
        return Ok(false);
    }
    if let Some(start) = tokens_below
        && !*is_floor_raised
    {
        let _section = dir.enter(fds)?;
        // One floor for all: every file that is removed has its tokens below.
        dir.raise_floor(start)
            .map_err(trouble("raise the floor for"))?;
        *is_floor_raised = true;
    }
    dir.unlink(file).map_err(trouble("remove"))?;
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

fn remove_leftover(dir: &Dir, file: &str) {
    let is_temporary = file.starts_with(".break-") || file.starts_with(".check-");
    if is_temporary && dir.age(file).is_some_and(|age| age > LEFTOVER) {
        // Somebody else may have been faster.
        let _ = dir.unlink(file);
    }
}
