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
//! Shared holders, permits and the upgradable holder all hold the file of the name in shared mode. They count tokens in
//! the file one at a time, inside the directory's mutex; an exclusive holder needs no mutex, since the holder excludes
//! all others. Each of them also holds a side file of its own exclusively, from before it locks the file of the name on;
//! the side file says who the holder is and whether the holder still lives.
//!
//! While an upgradable holder is becoming exclusive, the record says so, and nothing is granted.
//!
//! The record of a detached hold is changed by processes without a kernel lock, in the section. So a name with such a record is
//! granted in the section; see `detached_record.rs`.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::rt;
use tenure_core::store::Request;
use tenure_core::support::micros_up;

use super::boot::boot_id;
use super::directory::{Directory, FileId, LockPath};
use super::hold::FileHold;
use super::kernel_lock::KernelLock;
use super::names;
use super::record::{self, Contents, Head, HolderJson, RecordState, RecordWriter};
use super::side::{SideFile, Sides};
use super::token_files::TokenFiles;
use super::vacancy::{Reservation, Vacancy, vacancy};

/// The file whose kernel lock was won.
pub(super) struct WonLock<'a> {
    pub(super) directory: &'a Arc<Directory>,
    pub(super) lock_path: &'a LockPath,
    pub(super) id: FileId,
    /// How many locks this client holds; for messages.
    pub(super) held_locks: usize,
}

/// The kernel locks of one request.
pub(super) struct Locks {
    // Dropped first: a side file is free before its name is.
    pub(super) side: Option<SideFile>,
    pub(super) name: KernelLock,
}

/// What came of a kernel lock that was won.
pub(super) enum TakeOutcome {
    /// We hold the name.
    Held(Box<FileHold>),
    /// The name stays reserved. The kernel locks are still ours.
    Reserved(Locks, Reservation),
    /// Another process may be changing the record of a detached hold. The kernel locks are still ours, and
    /// [`WonLock::take_in_section`] takes the name.
    InChange(Locks),
    /// An upgradable holder is becoming exclusive.
    Upgrading,
    /// The path leads to another file now, or to none: open the file again.
    FileReplaced,
}

impl WonLock<'_> {
    /// Records the grant for `request` in the file behind `locks`, and confirms the grant. For an exclusive hold the thread does
    /// not block.
    pub(super) fn take(&self, request: &Request, locks: Locks) -> Result<TakeOutcome, Error> {
        match locks.side {
            None => self.take_exclusive(request, locks, false),
            Some(side) => self.take_shared(request, locks.name, side),
        }
    }

    /// The same, after [`TakeOutcome::InChange`]. Blocks while others are in the section.
    pub(super) fn take_in_section(
        &self,
        request: &Request,
        locks: Locks,
    ) -> Result<TakeOutcome, Error> {
        let _section = self.directory.enter(self.held_locks)?;
        self.take_exclusive(request, locks, true)
    }

    fn take_exclusive(
        &self,
        request: &Request,
        locks: Locks,
        is_in_section: bool,
    ) -> Result<TakeOutcome, Error> {
        let file = locks.name.file();
        let contents = self.read(file)?;
        if self.sides().is_upgrading(&contents)? {
            return Ok(TakeOutcome::Upgrading);
        }
        if let Some(dead) = contents.exclusive_holder() {
            self.token_files(dead).remove();
        }
        match self.vacancy(&contents, file, is_in_section)? {
            Vacancy::Free => {}
            Vacancy::Reserved(reservation) => {
                return Ok(TakeOutcome::Reserved(locks, reservation));
            }
            Vacancy::Unknown => return Ok(TakeOutcome::InChange(locks)),
        }
        if let Some(over) = contents.head().filter(|_| contents.is_detached()) {
            self.token_files(over.token).remove();
        }
        let since = rt::wall_micros();
        let head = Head {
            boot: boot_id(),
            state: RecordState::Exclusive,
            until: match micros_up(request.min_hold) {
                0 => 0,
                span => since.saturating_add(span),
            },
            span: micros_up(request.min_hold),
            delay: micros_up(request.lock_delay),
            ..Head::default()
        };
        let mut writer = self.grant(request, file, &contents, head)?;
        if !self.id.is_at(&self.lock_path.path) {
            // Only a breaker that replaced the file a moment ago reads this file again, and may yet put it back.
            let _ = writer.free(file, 0, 0);
            return Ok(TakeOutcome::FileReplaced);
        }
        Ok(self.held(request, writer, locks))
    }

    /// Grants a hold that is not exclusive.
    fn take_shared(
        &self,
        request: &Request,
        name: KernelLock,
        side: SideFile,
    ) -> Result<TakeOutcome, Error> {
        let sides = self.sides();
        let writer = {
            let _section = self.directory.enter(self.held_locks)?;
            let contents = self.read(name.file())?;
            if sides.is_upgrading(&contents)? {
                return Ok(TakeOutcome::Upgrading);
            }
            if let Vacancy::Reserved(reservation) = self.vacancy(&contents, name.file(), true)? {
                let side = Some(side);
                return Ok(TakeOutcome::Reserved(Locks { side, name }, reservation));
            }
            let head = Head {
                boot: boot_id(),
                state: RecordState::Shared,
                ..Head::default()
            };
            self.grant(request, name.file(), &contents, head)?
        };
        let json = holder_json(request, writer.token());
        side.write(writer.token(), Some(&json), &sides)?;
        if !self.id.is_at(&self.lock_path.path) || !side.id.is_at(&side.lock_path.path) {
            let _ = side.write(writer.token(), None, &sides);
            return Ok(TakeOutcome::FileReplaced);
        }
        let side = Some(side);
        Ok(self.held(request, writer, Locks { side, name }))
    }

    fn held(&self, request: &Request, writer: RecordWriter, locks: Locks) -> TakeOutcome {
        let is_upgradable = request.mode == Mode::Upgradable;
        TakeOutcome::Held(Box::new(FileHold {
            token: writer.token(),
            mode: request.mode,
            directory: self.directory.clone(),
            lock_path: self.lock_path.clone(),
            id: self.id,
            writer,
            upgrade: is_upgradable.then(Arc::default),
            has_token_files: request.holder.value.is_some(),
            side: locks.side,
            lock: locks.name,
        }))
    }

    /// Whether an upgradable holder is becoming exclusive, so that nothing may be granted.
    pub(super) fn is_upgrading(&self, file: &File) -> Result<bool, Error> {
        self.sides().is_upgrading(&self.read(file)?)
    }

    pub(super) fn sides(&self) -> Sides<'_> {
        Sides {
            directory: self.directory,
            file: &self.lock_path.file,
            held_locks: self.held_locks,
        }
    }

    /// Writes the next grant into the file of the name. `head` says how the name is held.
    pub(super) fn grant(
        &self,
        request: &Request,
        file: &File,
        contents: &Contents,
        head: Head,
    ) -> Result<RecordWriter, Error> {
        let directory = self.directory;
        let meanwhile = match head.state {
            RecordState::Shared => RecordState::Shared,
            _ => RecordState::Free,
        };
        let raise = || -> io::Result<_> {
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
            Ok(plan)
        };
        let plan = raise().map_err(|err| self.system_error("write", err))?;
        let json = match meanwhile {
            RecordState::Shared => None,
            _ => Some(self.holder_in_record(request, plan.token)?),
        };
        plan.grant(file, head, json.as_ref())
            .map_err(|err| self.system_error("write", err))
    }

    /// What the record says about the holder. A value that the record has no room for is written to its own file, before the
    /// grant: a process that sees the leader finds the value.
    fn holder_in_record<'r>(
        &self,
        request: &'r Request,
        token: u64,
    ) -> Result<HolderJson<'r>, Error> {
        let (json, long_value) = holder_json(request, token).take_long_value();
        if let (Some(text), Some(number)) = (long_value, json.number) {
            let files = self.token_files(token);
            let written = files.write_value(number, &text, self.held_locks);
            // The next attempt has another token.
            written.inspect_err(|_| files.remove())?;
        }
        Ok(json)
    }

    fn token_files(&self, token: u64) -> TokenFiles<'_> {
        TokenFiles {
            directory: self.directory,
            file: &self.lock_path.file,
            token,
        }
    }

    pub(super) fn read(&self, file: &File) -> Result<Contents, Error> {
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

    /// Whether the name may be granted.
    fn vacancy(
        &self,
        contents: &Contents,
        file: &File,
        is_in_section: bool,
    ) -> Result<Vacancy, Error> {
        vacancy(contents, file, is_in_section).map_err(|err| self.system_error("write", err))
    }

    pub(super) fn system_error(&self, what: &str, err: io::Error) -> Error {
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

pub(super) fn holder_json<'a>(request: &'a Request, token: u64) -> HolderJson<'a> {
    let (mode, limit) = match request.mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Permits { limit } => ("permit", Some(limit.get())),
        Mode::Upgradable => ("upgradable", None),
        _ => ("shared", None),
    };
    // Enough to tell holders apart; a reader of the file learns 32 of the 128 bits at most.
    let digest = record::checksum(request.owner.as_bytes()) >> 32;
    let value = request.holder.value.as_ref();
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
        value: value.map(|value| Cow::Borrowed(&*value.text)),
        number: value.map(|value| value.number),
        detached: None,
    }
}
