//! From a kernel lock to a hold: the grant is recorded in the file, and confirmed.
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
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::rt;

use super::directory::{Directory, FileId, LockPath, Opened};
use super::hold::{Held, SideFile};
use super::kernel_lock::KernelLock;
use super::names::{self, SideKind};
use super::record::{self, Contents, Head, HolderJson, RecordWriter, State};

/// The file whose kernel lock was won.
pub(super) struct WonLock<'a> {
    pub(super) directory: &'a Arc<Directory>,
    pub(super) lock_path: &'a LockPath,
    pub(super) id: FileId,
    /// How many locks this client holds; for messages.
    pub(super) held_locks: usize,
}

/// What came of a kernel lock that was won.
pub(super) enum TakeOutcome {
    /// We hold the name.
    Held(Box<Held>),
    /// The name has no holder, but stays reserved for that long. The kernel lock is still ours.
    Reserved(KernelLock, Duration),
    /// All permits are taken; `is_ambiguous` when one of them seemed to be free.
    NoPermit { is_ambiguous: bool },
    /// The path leads to another file now, or to none: open the file again.
    FileReplaced,
}

/// What came of looking for a free side file.
enum SideOutcome {
    Locked(SideFile),
    /// `is_ambiguous`: one of them is locked and not held, so it will be free in a moment.
    AllTaken {
        is_ambiguous: bool,
    },
}

impl WonLock<'_> {
    /// Records the grant for `request` in the file behind `lock`, and confirms the grant.
    pub(super) fn take(&self, request: &Request, lock: KernelLock) -> Result<TakeOutcome, Error> {
        match request.mode {
            Mode::Exclusive => self.take_exclusive(request, lock),
            Mode::Permits { limit } => {
                self.take_shared(request, lock, SideKind::Permit, limit.get())
            }
            // Shared. The driver refuses a mode that our guarantees do not name.
            _ => self.take_shared(request, lock, SideKind::Shared, u32::MAX),
        }
    }

    fn take_exclusive(&self, request: &Request, lock: KernelLock) -> Result<TakeOutcome, Error> {
        let file = lock.file();
        let contents = self.read(file)?;
        if let Some(left) = self.reserved(&contents, file)? {
            return Ok(TakeOutcome::Reserved(lock, left));
        }
        let since = rt::wall_micros();
        let head = Head {
            boot: boot_id(),
            state: State::Exclusive,
            until: match micros(request.min_hold) {
                0 => 0,
                span => since.saturating_add(span),
            },
            span: micros(request.min_hold),
            delay: micros(request.lock_delay),
            ..Head::default()
        };
        let mut writer = self.grant(request, file, &contents, head, State::Free)?;
        if !self.id.is_at(&self.lock_path.path) {
            // Only a breaker that replaced the file a moment ago reads this file again, and may yet put it back.
            let _ = writer.free(file, 0, 0);
            return Ok(TakeOutcome::FileReplaced);
        }
        Ok(self.held(writer, lock, None))
    }

    fn take_shared(
        &self,
        request: &Request,
        lock: KernelLock,
        kind: SideKind,
        count: u32,
    ) -> Result<TakeOutcome, Error> {
        let directory = self.directory;
        let side = match self.find_side(kind, count)? {
            SideOutcome::Locked(side) => side,
            SideOutcome::AllTaken { is_ambiguous } => {
                return Ok(TakeOutcome::NoPermit { is_ambiguous });
            }
        };
        let writer = {
            let _section = directory.enter(self.held_locks)?;
            let file = lock.file();
            let contents = self.read(file)?;
            if let Some(left) = self.reserved(&contents, file)? {
                return Ok(TakeOutcome::Reserved(lock, left));
            }
            let head = Head {
                boot: boot_id(),
                state: State::Shared,
                ..Head::default()
            };
            self.grant(request, file, &contents, head, State::Shared)?
        };
        let json = holder_json(request, writer.token());
        record::write_side(side.lock.file(), writer.token(), Some(&json)).map_err(|err| {
            directory.system_error("write", &side.lock_path.file, err, self.held_locks)
        })?;
        if !self.id.is_at(&self.lock_path.path) || !side.id.is_at(&side.lock_path.path) {
            let _ = record::write_side(side.lock.file(), writer.token(), None);
            return Ok(TakeOutcome::FileReplaced);
        }
        Ok(self.held(writer, lock, Some(side)))
    }

    fn held(&self, writer: RecordWriter, lock: KernelLock, side: Option<SideFile>) -> TakeOutcome {
        TakeOutcome::Held(Box::new(Held {
            token: writer.token(),
            directory: self.directory.clone(),
            lock_path: self.lock_path.clone(),
            id: self.id,
            writer,
            side,
            lock,
        }))
    }

    /// Locks the first free side file.
    fn find_side(&self, kind: SideKind, count: u32) -> Result<SideOutcome, Error> {
        let directory = self.directory;
        let mut is_ambiguous = false;
        for index in 0..count {
            let file = names::side(&self.lock_path.file, kind, index);
            let side = LockPath::new(directory.path(), file);
            let Opened::File(file, id) = directory.open_lock(&side, self.held_locks)? else {
                is_ambiguous = true;
                continue;
            };
            match file.try_lock() {
                Ok(()) => {
                    let lock = KernelLock::new(file);
                    if id.is_at(&side.path) {
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
                    is_ambiguous |= !contents.is_ok_and(|contents| contents.has_holder());
                }
                Err(TryLockError::Error(err)) => {
                    return Err(directory.system_error("lock", &side.file, err, self.held_locks));
                }
            }
        }
        Ok(SideOutcome::AllTaken { is_ambiguous })
    }

    fn grant(
        &self,
        request: &Request,
        file: &File,
        contents: &Contents,
        head: Head,
        meanwhile: State,
    ) -> Result<RecordWriter, Error> {
        let directory = self.directory;
        let write = || {
            let mut plan = contents.plan(rt::wall_micros(), head.boot, || directory.floor())?;
            if plan.must_raise {
                let is_nameless = !matches!(contents, Contents::Valid(_))
                    && names::is_hashed(&self.lock_path.file);
                let name = is_nameless.then(|| request.name.as_str());
                plan.raise(file, head.boot, meanwhile, name)?;
                if !contents.is_whole() {
                    // The file may have been created just now, perhaps by a process that died before it synced the
                    // directory.
                    directory.sync()?;
                }
            }
            let token = plan.token;
            match meanwhile {
                State::Shared => plan.grant(file, head, None),
                _ => plan.grant(file, head, Some(&holder_json(request, token))),
            }
        };
        write().map_err(|err| self.system_error("write", err))
    }

    fn read(&self, file: &File) -> Result<Contents, Error> {
        let contents = record::read(file).map_err(|err| self.system_error("read", err))?;
        match contents {
            Contents::Foreign => return Err(foreign(self.directory, &self.lock_path.file)),
            Contents::Torn => tracing::warn!(
                path = %self.directory.path().join(&self.lock_path.file).display(),
                "the lock file is damaged; its next token follows the clock"
            ),
            _ => {}
        }
        Ok(contents)
    }

    /// How long the name stays reserved without a holder.
    fn reserved(&self, contents: &Contents, file: &File) -> Result<Option<Duration>, Error> {
        reserved(contents, file, rt::wall_micros()).map_err(|err| self.system_error("write", err))
    }

    fn system_error(&self, what: &str, err: io::Error) -> Error {
        let file = &self.lock_path.file;
        self.directory
            .system_error(what, file, err, self.held_locks)
    }
}

/// The refusal to overwrite what another program wrote.
pub(super) fn foreign(dir: &Directory, file: &str) -> Error {
    Error::new(
        ErrorKind::Denied,
        format!(
            "{} has contents that are not ours, and is left alone; \
             use another lock directory, or empty the file",
            dir.path().join(file).display()
        ),
    )
}

/// The caller has the kernel lock, so a record that says "held exclusively" is that of a dead holder.
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

fn holder_json<'a>(request: &'a Request, token: u64) -> HolderJson<'a> {
    let (mode, limit) = match request.mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Permits { limit } => ("permit", Some(limit.get())),
        _ => ("shared", None),
    };
    // Enough to tell holders apart; a reader of the file learns 32 of the 128 bits at most.
    let digest = record::checksum(request.owner.as_bytes()) >> 32;
    HolderJson {
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

/// A duration as the record keeps it, rounded up: a reservation may not end early.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Identifies the current boot of the machine; 0 when the system does not tell.
pub(super) fn boot_id() -> u64 {
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
