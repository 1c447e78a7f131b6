//! Inspection for operators: who holds, and breaking one hold.
//!
//! The record says who holds a name. The kernel says whether that is still true: a lock of the opposite kind is tried for
//! an instant on a descriptor of its own. A process that tries for the name in that instant finds the lock taken and the
//! record free, and tries again ([`AmbiguityTimer`]).

use std::fs::{File, TryLockError};
use std::num::NonZeroU32;
use std::time::Duration;
use tenure_core::store::Listed;

use rustix::fs::RenameFlags;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, LockStatus};
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt;

use super::detach;
use super::detached_record::DetachedRecord;
use super::directory::Directory;
use super::kernel_lock::{AmbiguityTimer, KernelLock, Kind};
use super::names::{self, DirectoryEntry, SideKind};
use super::record::{self, Contents, HolderJson, RecordState};
use super::store::Shared;
use super::token_files::{TokenFiles, holder, holder_without_files};

/// Who holds `name`.
pub(super) fn inspect(shared: &Shared, name: &LockName) -> Result<LockStatus, Error> {
    let dir = shared.current_directory()?;
    inspect_file(shared, &dir, &names::encode(name), name.clone(), None)
}

/// All names that start with `prefix` and are held.
pub(super) fn list(shared: &Shared, prefix: &str) -> Result<Listed, Error> {
    let dir = shared.current_directory()?;
    let mut entries: Vec<String> = dir.entries()?.collect();
    entries.sort_unstable();
    let mut found = Vec::new();
    for file in &entries {
        let name = match names::decode(file) {
            DirectoryEntry::Name(name) => Some(name),
            DirectoryEntry::Hashed => hashed_name(shared, &dir, file)?,
            DirectoryEntry::Side
            | DirectoryEntry::Pipe
            | DirectoryEntry::Own
            | DirectoryEntry::Foreign => None,
        };
        let Some(name) = name.filter(|name| name.as_str().starts_with(prefix)) else {
            continue;
        };
        match inspect_file(shared, &dir, file, name, Some(&entries)) {
            Ok(status) => found.push(status),
            // One file of another program must not hide all others.
            Err(err) if err.kind() == ErrorKind::Denied => {
                tracing::warn!(error = format_args!("{err:#}"), "left out of the list");
            }
            Err(err) => return Err(err),
        }
    }
    Ok(Listed::Statuses(found))
}

fn hashed_name(shared: &Shared, dir: &Directory, file: &str) -> Result<Option<LockName>, Error> {
    let Some((opened, _)) = dir.open_existing(file, shared.hold_count())? else {
        return Ok(None);
    };
    let text = record::read_name(&opened)
        .map_err(|err| dir.system_error("read", file, err, shared.hold_count()))?;
    // The name counts only if its file name is this one.
    let name = text.and_then(|text| LockName::new(text).ok());
    Ok(name.filter(|name| names::encode(name) == file))
}

fn inspect_file(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    name: LockName,
    entries: Option<&[String]>,
) -> Result<LockStatus, Error> {
    let held_locks = shared.hold_count();
    let mut timer = AmbiguityTimer::default();
    let mut status = LockStatus::free(name);
    loop {
        let Some((opened, _)) = dir.open_existing(file, held_locks)? else {
            return Ok(status);
        };
        let (contents, json) = record::read_all(&opened)
            .map_err(|err| dir.system_error("read", file, err, held_locks))?;
        // The record of a detached hold may be read while it is written.
        if (contents.is_half() || (contents.is_detached() && json.is_none())) && timer.pause() {
            continue;
        }
        if let Some(hold) = detached_hold(&contents, json.clone()) {
            status.reserved = None;
            status.holds = vec![hold];
            return Ok(status);
        }
        status.reserved = reserved(&contents);
        let head = contents.head();
        match head.map_or(RecordState::Free, |head| head.state) {
            RecordState::Exclusive => {
                if is_locked_by_other(dir, file, &opened, Kind::Shared, held_locks)? {
                    let token = head.map(|head| head.token);
                    status.reserved = None;
                    status.holds = vec![exclusive_hold(dir, file, token, json, held_locks)?];
                }
                return Ok(status);
            }
            RecordState::Shared | RecordState::Upgrading => {
                status.holds = side_holders(shared, dir, file, entries)?;
                if status.is_held() {
                    return Ok(status);
                }
            }
            // A waiter for the end of the reservation may have the kernel lock; no other process can hold the name.
            RecordState::Free if status.reserved.is_some() => return Ok(status),
            RecordState::Free => {}
        }
        if !is_locked_by_other(dir, file, &opened, Kind::Exclusive, held_locks)? {
            return Ok(status);
        }
        if !timer.pause() {
            let keeps_readers_out =
                is_locked_by_other(dir, file, &opened, Kind::Shared, held_locks)?;
            status.holds = vec![hold_without_record(keeps_readers_out)];
            return Ok(status);
        }
    }
}

/// The hold of a program that writes no record, such as flock(1).
fn hold_without_record(keeps_readers_out: bool) -> HoldInfo {
    let mode = match keeps_readers_out {
        true => Mode::Exclusive,
        false => Mode::Shared,
    };
    HoldInfo::new(Holder::default(), mode, None, None)
}

/// The exclusive hold of a process that lives, as its record and its files show it.
fn exclusive_hold(
    directory: &Directory,
    file: &str,
    token: Option<u64>,
    json: Option<HolderJson<'static>>,
    held_locks: usize,
) -> Result<HoldInfo, Error> {
    let files = TokenFiles {
        directory,
        file,
        token: token.unwrap_or_default(),
    };
    let known = holder_in_record(json.clone());
    let holder = holder(json, &files, held_locks)?.unwrap_or(known);
    Ok(HoldInfo::new(holder, Mode::Exclusive, token, None))
}

/// Whether another process has a lock that excludes one of this kind.
pub(super) fn is_locked_by_other(
    dir: &Directory,
    name: &str,
    file: &File,
    kind: Kind,
    held_locks: usize,
) -> Result<bool, Error> {
    match kind.try_lock(file) {
        Ok(()) => {
            file.unlock()
                .map_err(|err| dir.system_error("unlock", name, err, held_locks))?;
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(err)) => Err(dir.system_error("lock", name, err, held_locks)),
    }
}

/// The shared holders and permits that live.
fn side_holders(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    entries: Option<&[String]>,
) -> Result<Vec<HoldInfo>, Error> {
    let held_locks = shared.hold_count();
    let mut holds = Vec::new();
    for side in side_files(dir, file, entries)? {
        let Some((opened, _)) = dir.open_existing(&side, held_locks)? else {
            continue;
        };
        let (contents, json) = record::read_all(&opened)
            .map_err(|err| dir.system_error("read", &side, err, held_locks))?;
        if !contents.has_holder()
            || !is_locked_by_other(dir, &side, &opened, Kind::Shared, held_locks)?
        {
            continue;
        }
        let mode = mode_of(&side, file, json.as_ref());
        let token = contents.head().map(|head| head.token);
        holds.push(HoldInfo::new(holder_in_record(json), mode, token, None));
    }
    holds.sort_by_key(|hold| hold.token);
    // A hold that is changing its mode has two side files for a moment.
    holds.dedup_by_key(|hold| hold.token);
    Ok(holds)
}

fn mode_of(side: &str, file: &str, json: Option<&HolderJson<'_>>) -> Mode {
    match names::side_of(side, file) {
        Some((SideKind::Upgradable, _)) => Mode::Upgradable,
        _ => {
            let limit = json.and_then(|json| json.limit).and_then(NonZeroU32::new);
            limit.map_or(Mode::Shared, |limit| Mode::Permits { limit })
        }
    }
}

/// The files of shared holders, permits and the upgradable holder. `entries`, if given, are all names in the directory,
/// sorted.
fn side_files(
    dir: &Directory,
    file: &str,
    entries: Option<&[String]>,
) -> Result<Vec<String>, Error> {
    let is_side =
        |entry: &&String| names::side_of(entry, file).is_some_and(|(kind, _)| kind.has_record());
    match entries {
        Some(entries) => {
            let start = format!("{file}%");
            let first = entries.partition_point(|entry| *entry < start);
            let near = entries[first..]
                .iter()
                .take_while(|entry| entry.starts_with(&start));
            Ok(near.filter(is_side).cloned().collect())
        }
        None => Ok(dir.entries()?.filter(|entry| is_side(&entry)).collect()),
    }
}

/// The detached hold in a record, if its lease is not over.
pub(super) fn detached_hold(
    contents: &Contents,
    json: Option<HolderJson<'static>>,
) -> Option<HoldInfo> {
    DetachedRecord::of(contents, json)?.hold_info()
}

fn holder_in_record(json: Option<HolderJson<'static>>) -> Holder {
    json.map(holder_without_files).unwrap_or_default()
}

/// How long the name stays reserved without a holder.
pub(super) fn reserved(contents: &Contents) -> Option<Duration> {
    let head = contents.head()?;
    let left = head.until.saturating_sub(rt::wall_micros()).min(head.span);
    (left > 0).then(|| Duration::from_micros(left))
}

/// Ends the hold of `name` under `token`: puts a fresh file in the place of the one that is locked.
pub(super) fn break_lock(shared: &Shared, name: &LockName, token: u64) -> Result<bool, Error> {
    let held_locks = shared.hold_count();
    let dir = shared.current_directory()?;
    let file = names::encode(name);
    // Two breakers of the same lock would undo each other.
    let _section = dir.enter(held_locks)?;
    let Some((opened, _)) = dir.open_existing(&file, held_locks)? else {
        return Ok(false);
    };
    let contents =
        record::read(&opened).map_err(|err| dir.system_error("read", &file, err, held_locks))?;
    let Some(head) = contents.head().copied() else {
        return Ok(false);
    };
    match head.state {
        RecordState::Free if contents.is_detached() => {
            detach::break_hold(&dir, &file, token, held_locks)
        }
        RecordState::Free => Ok(false),
        RecordState::Exclusive => {
            let hashed = names::is_hashed(&file).then(|| name.as_str());
            let until = if head.delay > 0 {
                rt::wall_micros().saturating_add(head.delay)
            } else {
                0
            };
            let fill = |fresh: &File| {
                // Tokens start above everything that the old file can still grant.
                record::create(fresh, head.ceiling, (until, head.delay), hashed)
            };
            replace(shared, &dir, &file, &opened, token, fill, || {
                // Waiters that are blocked on the old file have some of them locked.
                remove_sides(&dir, &file, |_| true)
            })
        }
        RecordState::Shared | RecordState::Upgrading => {
            for side in side_files(&dir, &file, None)? {
                let Some((opened, _)) = dir.open_existing(&side, held_locks)? else {
                    continue;
                };
                let fill = |fresh: &File| record::write_side(fresh, token, None);
                if replace(shared, &dir, &side, &opened, token, fill, || {
                    // The turnstile too, if that hold was becoming exclusive. No other hold has locked the turnstile.
                    let is_upgradable = matches!(
                        names::side_of(&side, &file),
                        Some((SideKind::Upgradable, _))
                    );
                    remove_sides(&dir, &file, |kind| {
                        is_upgradable && kind == SideKind::Turnstile
                    })
                })? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Removes the side files of those kinds.
fn remove_sides(
    dir: &Directory,
    file: &str,
    selects: impl Fn(SideKind) -> bool,
) -> Result<(), Error> {
    for entry in dir.entries()? {
        if names::side_of(&entry, file).is_some_and(|(kind, _)| selects(kind)) {
            // Another process may have removed the file.
            let _ = dir.unlink(&entry);
        }
    }
    Ok(())
}

/// Replaces `file`, which is `opened`, if a living holder has it under `token`.
///
/// The fresh file is locked before it is put in place, so it has no holder until we know that it stays.
/// We replace the file, then read the old record; a holder writes its record, then checks the path (`grant.rs`).
/// So if another process took the old file meanwhile, we see its record, or that process sees the replacement and
/// starts again.
fn replace(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    opened: &File,
    token: u64,
    fill: impl FnOnce(&File) -> std::io::Result<()>,
    after: impl FnOnce() -> Result<(), Error>,
) -> Result<bool, Error> {
    let held_locks = shared.hold_count();
    let is_it = || -> Result<bool, Error> {
        let contents =
            record::read(opened).map_err(|err| dir.system_error("read", file, err, held_locks))?;
        let head = contents.head();
        Ok(head.is_some_and(|head| head.state != RecordState::Free && head.token == token))
    };
    if !is_it()? || !is_locked_by_other(dir, file, opened, Kind::Shared, held_locks)? {
        return Ok(false);
    }
    let spare = format!(".break-{:016x}", rand::random::<u64>());
    let fresh = dir.create_new(&spare, held_locks)?;
    let swap = || {
        rustix::fs::renameat_with(dir.fd(), &spare, dir.fd(), file, RenameFlags::EXCHANGE)
            .map_err(std::io::Error::from)
    };
    let swapped = fresh
        .lock()
        .and_then(|()| fill(&fresh))
        .and_then(|()| swap());
    // Unlocked by an explicit call, whatever happens from here on.
    let fresh = KernelLock::new(fresh);
    if let Err(err) = swapped {
        let _ = dir.unlink(&spare);
        return Err(dir.system_error("replace", file, err, held_locks));
    }
    let ended = is_it()?;
    if !ended {
        // The hold ended by itself in that instant, and the name may have another holder by now.
        swap().map_err(|err| dir.system_error("put back", file, err, held_locks))?;
    }
    let cleaned = if ended { after() } else { Ok(()) };
    drop(fresh);
    dir.unlink(&spare)
        .and_then(|()| dir.sync())
        .map_err(|err| dir.system_error("remove", &spare, err, held_locks))?;
    cleaned.map(|()| ended)
}
