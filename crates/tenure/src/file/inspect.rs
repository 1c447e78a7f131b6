//! Inspection for operators: who holds, breaking one hold, and whether the directory is fit for locks.
//!
//! The record says who holds a name. The kernel says whether that is still true: a lock of the opposite kind is tried for
//! an instant on a descriptor of its own. A process that tries for the name in that instant finds the lock taken and the
//! record free, and tries again ([`AmbiguityTimer`]).

use std::fs::{File, TryLockError};
use std::num::NonZeroU32;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::RenameFlags;

use tenure_core::backend::{Finding, Severity};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::{self, Clock};

use super::directory::Directory;
use super::file_system::Trust;
use super::hold;
use super::kernel_lock::{AmbiguityTimer, KernelLock, Kind};
use super::names::{self, Entry};
use super::record::{self, Body, Contents, State};
use super::store::Shared;

/// Below this much free space `check` warns: a lock file takes a block, its name a few bytes.
const LOW_SPACE: u64 = 16 << 20;
/// Below this many free inodes `check` warns: each name takes one.
const LOW_FILES: u64 = 1_000;
/// A clock that shows less was never set: 2020-01-01 in µs.
const UNSET_CLOCK: u64 = 1_577_836_800_000_000;

/// Who holds `name`.
pub(super) fn inspect(shared: &Shared, name: &LockName) -> Result<Status, Error> {
    let dir = shared.current_directory()?;
    inspect_file(shared, &dir, &names::encode(name), name.clone(), None)
}

/// All names that start with `prefix` and are held.
pub(super) fn list(shared: &Shared, prefix: &str) -> Result<Vec<Status>, Error> {
    let dir = shared.current_directory()?;
    let mut entries: Vec<String> = dir.entries()?.collect();
    entries.sort_unstable();
    let mut found = Vec::new();
    for file in &entries {
        let name = match names::decode(file) {
            Entry::Name(name) => Some(name),
            Entry::Hashed => hashed_name(shared, &dir, file)?,
            Entry::Side | Entry::Own | Entry::Foreign => None,
        };
        let Some(name) = name.filter(|name| name.as_str().starts_with(prefix)) else {
            continue;
        };
        match inspect_file(shared, &dir, file, name, Some(&entries)) {
            Ok(status) if status.is_held() => found.push(status),
            Ok(_) => {}
            // One file of another program must not hide all others.
            Err(err) if err.kind() == ErrorKind::Denied => {
                tracing::warn!(error = %err, "left out of the list");
            }
            Err(err) => return Err(err),
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
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
) -> Result<Status, Error> {
    let held_locks = shared.hold_count();
    let mut timer = AmbiguityTimer::default();
    let mut status = Status::free(name);
    loop {
        let Some((opened, _)) = dir.open_existing(file, held_locks)? else {
            return Ok(status);
        };
        let (contents, body) = record::read_all(&opened)
            .map_err(|err| dir.system_error("read", file, err, held_locks))?;
        status.reserved = reserved(&contents);
        let head = contents.head();
        match head.map_or(State::Free, |head| head.state) {
            State::Exclusive => {
                let token = head.map(|head| head.token);
                if is_locked_by_other(dir, file, &opened, Kind::Shared, held_locks)? {
                    status.reserved = None;
                    status.holds = vec![HoldInfo::new(holder(body), Mode::Exclusive, token, None)];
                }
                return Ok(status);
            }
            State::Shared => {
                status.holds = side_holders(shared, dir, file, entries)?;
                if status.is_held() {
                    return Ok(status);
                }
            }
            // A waiter for the end of the reservation may have the kernel lock; no other process can hold the name.
            State::Free if status.reserved.is_some() => return Ok(status),
            State::Free => {}
        }
        if !is_locked_by_other(dir, file, &opened, Kind::Exclusive, held_locks)? {
            return Ok(status);
        }
        if !timer.pause() {
            let mode = if is_locked_by_other(dir, file, &opened, Kind::Shared, held_locks)? {
                Mode::Exclusive
            } else {
                Mode::Shared
            };
            // A program that writes no record, such as flock(1).
            status.holds = vec![HoldInfo::new(Holder::default(), mode, None, None)];
            return Ok(status);
        }
    }
}

/// Whether another process has a lock that excludes one of this kind.
fn is_locked_by_other(
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
        let (contents, body) = record::read_all(&opened)
            .map_err(|err| dir.system_error("read", &side, err, held_locks))?;
        if !hold::is_held(&contents)
            || !is_locked_by_other(dir, &side, &opened, Kind::Shared, held_locks)?
        {
            continue;
        }
        let limit = body
            .as_ref()
            .and_then(|body| body.limit)
            .and_then(NonZeroU32::new);
        let mode = limit.map_or(Mode::Shared, |limit| Mode::Permits { limit });
        let token = contents.head().map(|head| head.token);
        holds.push(HoldInfo::new(holder(body), mode, token, None));
    }
    holds.sort_by_key(|hold| hold.token);
    Ok(holds)
}

/// `entries`, if given, are all names in the directory, sorted.
fn side_files(
    dir: &Directory,
    file: &str,
    entries: Option<&[String]>,
) -> Result<Vec<String>, Error> {
    let is_side = |entry: &&String| names::is_side_of(entry, file);
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

fn holder(body: Option<Body<'static>>) -> Holder {
    let body = body.unwrap_or_default();
    let mut holder = Holder::new(body.host, body.pid);
    holder.label = body.label.into_owned();
    holder.client = body.client.into_owned();
    holder.since = (body.since > 0)
        .then(|| UNIX_EPOCH.checked_add(Duration::from_micros(body.since)))
        .flatten();
    holder
}

fn reserved(contents: &Contents) -> Option<Duration> {
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
        State::Free => Ok(false),
        State::Exclusive => {
            let hashed = names::is_hashed(&file).then(|| name.as_str());
            let until = if head.delay > 0 {
                rt::wall_micros().saturating_add(head.delay)
            } else {
                0
            };
            replace(shared, &dir, &file, &opened, token, |fresh| {
                // Tokens start above everything that the old file can still grant.
                record::create(fresh, head.ceiling, (until, head.delay), hashed)
            })
        }
        State::Shared => {
            for side in side_files(&dir, &file, None)? {
                let Some((opened, _)) = dir.open_existing(&side, held_locks)? else {
                    continue;
                };
                if replace(shared, &dir, &side, &opened, token, |fresh| {
                    record::write_side(fresh, token, None)
                })? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Replaces `file`, which is `opened`, if a living holder has it under `token`.
///
/// The fresh file is locked before it is put in place, so it has no holder until we know that it stays.
/// We replace, then look at the old record; a holder writes its record, then looks at the path ([`hold`]).
/// So if another process took the old file meanwhile, we see its record, or that process sees the replacement and
/// starts again.
fn replace(
    shared: &Shared,
    dir: &Directory,
    file: &str,
    opened: &File,
    token: u64,
    fill: impl FnOnce(&File) -> std::io::Result<()>,
) -> Result<bool, Error> {
    let held_locks = shared.hold_count();
    let is_it = || -> Result<bool, Error> {
        let contents =
            record::read(opened).map_err(|err| dir.system_error("read", file, err, held_locks))?;
        let head = contents.head();
        Ok(head.is_some_and(|head| head.state != State::Free && head.token == token))
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
    drop(fresh);
    dir.unlink(&spare)
        .and_then(|()| dir.sync())
        .map_err(|err| dir.system_error("remove", &spare, err, held_locks))?;
    Ok(ended)
}

/// What weakens or voids the guarantees here.
pub(super) fn check(shared: &Shared) -> Result<Vec<Finding>, Error> {
    let dir = shared.current_directory()?;
    let shown = dir.path().display();
    let mut findings = vec![Finding::new(
        Severity::Good,
        format!("{shown} is ours alone, and locks in it exclude each other"),
    )];
    let mut find = |severity, text: String| findings.push(Finding::new(severity, text));
    match dir.file_system() {
        Some(fs) => match fs.trust {
            Trust::Local => find(
                Severity::Good,
                format!("the file system is local: {}", fs.name),
            ),
            Trust::Memory => find(
                Severity::Warning,
                format!(
                    "the file system is in memory ({}): after a restart of the machine tokens follow the clock alone; \
                     use a directory on a disk",
                    fs.name
                ),
            ),
            #[cfg(not(target_vendor = "apple"))]
            Trust::Overlay => find(
                Severity::Warning,
                format!(
                    "the file system is a container's own layer ({}): other containers do not see these locks; \
                     mount a directory of the host",
                    fs.name
                ),
            ),
            Trust::Remote => find(
                Severity::Bad,
                format!(
                    "the file system may be a server's ({}): it can free a lock whose holder lives; \
                     use a directory on a local disk",
                    fs.name
                ),
            ),
        },
        None => find(
            Severity::Warning,
            "the kind of file system is unknown; what is promised holds for local disks".into(),
        ),
    }
    match try_sync(&dir) {
        Ok(took) => find(
            Severity::Good,
            format!("a sync works and took {took:.1?}; it is due about once a minute per name"),
        ),
        Err(err) => find(
            Severity::Bad,
            format!(
                "a sync fails ({err}): tokens could go backward after a power loss; use another disk"
            ),
        ),
    }
    if let Some((bytes, files)) = dir.free_space() {
        let enough = bytes >= LOW_SPACE && files >= LOW_FILES;
        let severity = if enough {
            Severity::Good
        } else {
            Severity::Warning
        };
        let files = if files == u64::MAX {
            "any number of".to_owned()
        } else {
            files.to_string()
        };
        let cure = if enough {
            ""
        } else {
            "; a name needs 4 KiB and an inode: make room"
        };
        find(
            severity,
            format!("{} MiB and {files} files are free{cure}", bytes >> 20),
        );
    }
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        let severity = if limit < 1_024 {
            Severity::Warning
        } else {
            Severity::Good
        };
        find(
            severity,
            format!(
                "this process may have {limit} open files; a hold needs one, shared holds and permits two"
            ),
        );
    }
    if rt::wall_micros() < UNSET_CLOCK {
        find(
            Severity::Bad,
            "the wall clock is not set: a token could repeat when a lock file is lost; set it"
                .into(),
        );
    }
    if hold::boot() == 0 {
        find(
            Severity::Warning,
            format!(
                "the system does not tell one boot from another, so every acquisition waits for a sync{MOUNT_PROC}"
            ),
        );
    }
    Ok(findings)
}

/// What to do on Linux. Elsewhere there is no cure.
const MOUNT_PROC: &str = if cfg!(target_os = "linux") {
    "; mount /proc"
} else {
    ""
};

fn try_sync(dir: &Directory) -> std::io::Result<Duration> {
    let start = Clock::system().now();
    let file = format!(".check-{:016x}", rand::random::<u64>());
    let opened = dir.create_new(&file, 0).map_err(std::io::Error::other)?;
    let synced = record::create(&opened, 0, (0, 0), None).and_then(|()| dir.sync());
    dir.unlink(&file)?;
    synced?;
    Ok(Clock::system().now().since(start))
}
