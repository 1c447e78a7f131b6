//! One hold: recording it once the kernel lock was won, and releasing it.
//!
//! The order of the steps makes a hold safe:
//!
//! 1. the kernel lock on the file of the name is ours (exclusive or shared);
//! 2. the grant is written into the file;
//! 3. the path still leads to that file. Only then the grant counts.
//!
//! A process that replaces a file (`break`) first puts the new file in place and then reads the record in the old one
//! again. A holder writes before it reads the path, and a breaker replaces before it reads the record, so at least one of
//! the two sees the other. A process that removes a file (`sweep.rs`) has its kernel lock exclusively meanwhile; a
//! process that was blocked on that lock wins a file that no path leads to, and starts again.
//!
//! Shared holders and permits all hold the file of the name in shared mode. They count tokens in the file one at a time,
//! inside the directory's mutex; an exclusive holder needs no mutex, since the holder excludes all others.
//! Each shared holder also holds a side file of its own exclusively, which says who the holder is and whether the
//! holder still lives.

use std::borrow::Cow;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Release, Request};
use tenure_core::error::{self, Error};
use tenure_core::options::Mode;
use tenure_core::rt;

use super::directory::{Directory, FileId, LockPath, Opened};
use super::idle_files::IdleFile;
use super::kernel_lock::{KernelLock, Kind};
use super::names::{self, SideKind};
use super::record::{self, Body, Contents, Head, RecordWriter, State};

/// A name that this client holds.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: u64,
    dir: Arc<Directory>,
    lock_path: LockPath,
    id: FileId,
    writer: RecordWriter,
    /// Lock delay in µs.
    delay: u64,
    side: Option<SideFile>,
    // Last: a side file is free before its name is.
    lock: KernelLock,
}

/// The file of one shared holder or permit.
#[derive(Debug)]
struct SideFile {
    lock: KernelLock,
    id: FileId,
    lock_path: LockPath,
}

/// What came of a kernel lock that was won.
pub(super) enum TakeOutcome {
    /// We hold the name.
    Held(Box<Held>),
    /// The name has no holder, but stays reserved for that long. The kernel lock is still ours.
    Reserved(KernelLock, Duration),
    /// All permits are out; `is_ambiguous` when one of them seemed to be free.
    NoPermit { is_ambiguous: bool },
    /// The path leads to another file now, or to none: open the file again.
    Again,
}

/// Records the grant for `request` in the file behind `lock`, and confirms it.
pub(super) fn take(
    dir: &Arc<Directory>,
    request: &Request,
    lock_path: &LockPath,
    lock: KernelLock,
    id: FileId,
    held_locks: usize,
) -> Result<TakeOutcome, Error> {
    match request.mode {
        Mode::Exclusive => take_exclusive(dir, request, lock_path, lock, id, held_locks),
        Mode::Permits { limit } => take_shared(
            dir,
            request,
            lock_path,
            lock,
            id,
            held_locks,
            Some(limit.get()),
        ),
        // Shared. The driver refuses a mode that our guarantees do not name.
        _ => take_shared(dir, request, lock_path, lock, id, held_locks, None),
    }
}

fn take_exclusive(
    dir: &Arc<Directory>,
    request: &Request,
    lock_path: &LockPath,
    lock: KernelLock,
    id: FileId,
    held_locks: usize,
) -> Result<TakeOutcome, Error> {
    let system_error =
        |what: &'static str| move |err| dir.system_error(what, &lock_path.file, err, held_locks);
    let file = lock.file();
    let contents = read(dir, lock_path, file, held_locks)?;
    let now = rt::wall_micros();
    if let Some(left) = reserved(&contents, file, now).map_err(system_error("write"))? {
        return Ok(TakeOutcome::Reserved(lock, left));
    }
    let since = rt::wall_micros();
    let head = Head {
        boot: boot(),
        state: State::Exclusive,
        until: match micros(request.min_hold) {
            0 => 0,
            span => since.saturating_add(span),
        },
        span: micros(request.min_hold),
        delay: micros(request.lock_delay),
        ..Head::default()
    };
    let mut writer = grant(dir, request, lock_path, file, &contents, head, State::Free)
        .map_err(system_error("write"))?;
    if !leads_to(&lock_path.path, id) {
        // Only a breaker that replaced the file a moment ago reads this file again, and may yet put it back.
        let _ = writer.free(file, 0, 0);
        return Ok(TakeOutcome::Again);
    }
    Ok(TakeOutcome::Held(Box::new(Held {
        token: writer.token(),
        dir: dir.clone(),
        lock_path: lock_path.clone(),
        id,
        writer,
        delay: micros(request.lock_delay),
        side: None,
        lock,
    })))
}

fn take_shared(
    dir: &Arc<Directory>,
    request: &Request,
    lock_path: &LockPath,
    lock: KernelLock,
    id: FileId,
    held_locks: usize,
    limit: Option<u32>,
) -> Result<TakeOutcome, Error> {
    let system_error = |what: &'static str, file: &LockPath| {
        let file = file.file.clone();
        move |err| dir.system_error(what, &file, err, held_locks)
    };
    let (kind, count) = match limit {
        None => (SideKind::Shared, u32::MAX),
        Some(limit) => (SideKind::Permit, limit),
    };
    let side = match find_side(dir, lock_path, kind, count, held_locks)? {
        SideOutcome::Locked(side) => side,
        SideOutcome::AllTaken { is_ambiguous } => {
            return Ok(TakeOutcome::NoPermit { is_ambiguous });
        }
    };
    let writer = {
        let _section = dir.enter(held_locks)?;
        let file = lock.file();
        let contents = read(dir, lock_path, file, held_locks)?;
        let left = reserved(&contents, file, rt::wall_micros())
            .map_err(system_error("write", lock_path))?;
        if let Some(left) = left {
            return Ok(TakeOutcome::Reserved(lock, left));
        }
        let head = Head {
            boot: boot(),
            state: State::Shared,
            ..Head::default()
        };
        grant(
            dir,
            request,
            lock_path,
            file,
            &contents,
            head,
            State::Shared,
        )
        .map_err(system_error("write", lock_path))?
    };
    let body = body(request, writer.token());
    record::write_side(side.lock.file(), writer.token(), Some(&body))
        .map_err(system_error("write", &side.lock_path))?;
    if !leads_to(&lock_path.path, id) || !leads_to(&side.lock_path.path, side.id) {
        let _ = record::write_side(side.lock.file(), writer.token(), None);
        return Ok(TakeOutcome::Again);
    }
    Ok(TakeOutcome::Held(Box::new(Held {
        token: writer.token(),
        dir: dir.clone(),
        lock_path: lock_path.clone(),
        id,
        writer,
        delay: 0,
        side: Some(side),
        lock,
    })))
}

/// What came of looking for a free side file.
enum SideOutcome {
    Locked(SideFile),
    /// `is_ambiguous`: one of them is locked and not held, so it will be free in a moment.
    AllTaken {
        is_ambiguous: bool,
    },
}

/// Locks the first free side file.
fn find_side(
    dir: &Directory,
    lock_path: &LockPath,
    kind: SideKind,
    count: u32,
    held_locks: usize,
) -> Result<SideOutcome, Error> {
    let mut is_ambiguous = false;
    for index in 0..count {
        let side = LockPath::new(dir.path(), names::side(&lock_path.file, kind, index));
        let Opened::File(file, id) = dir.open_lock(&side, held_locks)? else {
            is_ambiguous = true;
            continue;
        };
        match file.try_lock() {
            Ok(()) => {
                let lock = KernelLock::new(file);
                if leads_to(&side.path, id) {
                    return Ok(SideOutcome::Locked(SideFile {
                        lock,
                        id,
                        lock_path: side,
                    }));
                }
                is_ambiguous = true;
            }
            Err(TryLockError::WouldBlock) => {
                let contents = record::read(&file);
                is_ambiguous |= !contents.is_ok_and(|contents| is_held(&contents));
            }
            Err(TryLockError::Error(err)) => {
                return Err(dir.system_error("lock", &side.file, err, held_locks));
            }
        }
    }
    Ok(SideOutcome::AllTaken { is_ambiguous })
}

/// Whether the record names a holder.
pub(super) fn is_held(contents: &Contents) -> bool {
    contents
        .head()
        .is_some_and(|head| head.state != State::Free)
}

fn grant(
    dir: &Directory,
    request: &Request,
    lock_path: &LockPath,
    file: &File,
    contents: &Contents,
    head: Head,
    meanwhile: State,
) -> io::Result<RecordWriter> {
    let mut plan = contents.plan(rt::wall_micros(), head.boot, || dir.floor())?;
    if plan.raise {
        let nameless = !matches!(contents, Contents::Valid(_)) && names::is_hashed(&lock_path.file);
        let name = nameless.then(|| request.name.as_str());
        plan.raise(file, head.boot, meanwhile, name)?;
        if !contents.is_whole() {
            // The file may have been created just now, perhaps by a process that died before it synced the directory.
            dir.sync()?;
        }
    }
    let token = plan.token;
    match meanwhile {
        State::Shared => plan.grant(file, head, None),
        _ => plan.grant(file, head, Some(&body(request, token))),
    }
}

fn read(
    dir: &Directory,
    lock_path: &LockPath,
    file: &File,
    held_locks: usize,
) -> Result<Contents, Error> {
    let contents = record::read(file)
        .map_err(|err| dir.system_error("read", &lock_path.file, err, held_locks))?;
    match contents {
        Contents::Foreign => Err(foreign(dir, &lock_path.file)),
        Contents::Torn => {
            tracing::warn!(
                path = %dir.path().join(&lock_path.file).display(),
                "the lock file is damaged; its next token follows the clock"
            );
            Ok(contents)
        }
        _ => Ok(contents),
    }
}

/// The refusal to overwrite what another program wrote.
pub(super) fn foreign(dir: &Directory, file: &str) -> Error {
    Error::new(
        error::ErrorKind::Denied,
        format!(
            "{} has contents that are not ours, and is left alone; \
             use another lock directory, or empty the file",
            dir.path().join(file).display()
        ),
    )
}

/// How long the name stays reserved without a holder. The caller has the kernel lock, so a record that says "held
/// exclusively" is that of a dead holder.
fn reserved(contents: &Contents, file: &File, now: u64) -> io::Result<Option<Duration>> {
    let Contents::Valid(found) = contents else {
        return Ok(None);
    };
    let head = &found.head;
    let (mut until, mut span) = (head.until, head.span);
    // Written with an end `span` after its time: more than that is left only if the wall clock went back.
    // How much of the reservation has passed is unknown, so the reservation begins once more.
    if until.saturating_sub(now) > span {
        until = now.saturating_add(span);
    }
    if head.state == State::Exclusive && head.delay > 0 {
        // The time of the death is unknown, so the delay counts from now.
        let end = now.saturating_add(head.delay);
        if end > until {
            (until, span) = (end, head.delay);
        }
    }
    let changed = until != head.until || (head.state == State::Exclusive && head.delay > 0);
    if changed && until > now {
        found.free_after_death(file, until, span)?;
    }
    Ok((until > now).then(|| Duration::from_micros(until - now)))
}

fn body<'a>(request: &'a Request, token: u64) -> Body<'a> {
    let (mode, limit) = match request.mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Permits { limit } => ("permit", Some(limit.get())),
        _ => ("shared", None),
    };
    // Enough to tell holders apart; a reader of the file learns 32 of the 128 bits at most.
    let digest = record::check(request.owner.as_bytes()) >> 32;
    Body {
        host: Cow::Borrowed(&request.holder.host),
        pid: request.holder.pid,
        label: Cow::Borrowed(&request.holder.label),
        client: Cow::Borrowed(&request.holder.client),
        owner: Cow::Owned(format!("{digest:08x}")),
        mode: Cow::Borrowed(mode),
        limit,
        token,
        since: rt::wall_micros(),
    }
}

impl Held {
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
        match self.dir.enter(0) {
            Ok(_section) => self.leads_here(),
            Err(_) => Ok(false),
        }
    }

    fn leads_here(&self) -> io::Result<bool> {
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

    /// Releases the name. `unclean`: the hold had ended before, so that the lock delay applies.
    pub(super) fn release(self, unclean: bool) -> Release {
        self.release_and_keep_file(unclean).0
    }

    /// Gives the name back, and hands out the open file of an exclusive hold for the next time.
    pub(super) fn release_and_keep_file(mut self, unclean: bool) -> (Release, Option<IdleFile>) {
        // An error (no rights on a parent directory any more, for example) does not mean that the name was taken.
        let ours = self.is_current().unwrap_or(true);
        if ours {
            let written = match &self.side {
                Some(side) => record::write_side(side.lock.file(), self.token, None),
                None => {
                    let (mut until, mut span) = self.writer.reservation();
                    if unclean && self.delay > 0 {
                        let end = rt::wall_micros().saturating_add(self.delay);
                        if end > until {
                            (until, span) = (end, self.delay);
                        }
                    }
                    self.writer.free(self.lock.file(), until, span)
                }
            };
            if let Err(err) = written {
                // The kernel lock decides; the next holder takes us for dead.
                tracing::warn!(file = %self.lock_path.file, error = %err, "could not note the release in the lock file");
            }
        }
        if !ours {
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
}

fn leads_to(path: &std::ffi::CString, id: FileId) -> bool {
    FileId::at(path).is_ok_and(|there| there == id)
}

/// A duration as the record keeps it, rounded up: a reservation may not end early.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Identifies the current boot of the machine; 0 when the system does not tell.
pub(super) fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    })
}

/// Whether `file`, whose kernel lock is taken, has a record that does not say who has the lock.
pub(super) fn is_ambiguous(file: &File, wanted: Kind) -> bool {
    let state = record::read(file)
        .ok()
        .and_then(|contents| contents.head().map(|head| head.state));
    match state {
        Some(State::Exclusive) => false,
        // Shared holders are why the lock cannot be had exclusively.
        Some(State::Shared) => wanted == Kind::Shared,
        Some(State::Free) | None => true,
    }
}
