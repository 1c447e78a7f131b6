//! One attempt to take a name, without waiting.

use std::fs::{File, TryLockError};

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::store::Request;

use super::detached_record::is_held;
use super::directory::{LockPath, OpenOutcome};
use super::grant::{Locks, TakeOutcome, WonLock};
use super::hold::FileHold;
use super::kernel_lock::{AmbiguityTimer, KernelLock, Kind};
use super::record::{self, RecordState};
use super::side::SideOutcome;
use super::store::Shared;

/// What came of an attempt.
pub(super) enum Attempt {
    Held(Box<FileHold>),
    Taken,
    /// Another process is in the section: the attempt has to be made where the thread may block.
    WouldBlock,
}

/// What came of one attempt on an open file.
enum TryOutcome {
    Held(Box<FileHold>),
    WouldBlock,
    /// `is_ambiguous`: it seems that the name will be free in a moment.
    Taken {
        is_ambiguous: bool,
    },
    FileReplaced,
}

/// Takes the name if it is free. `may_block`: the thread may wait for other processes that are in the section. Without that the
/// thread waits for them only if the mode is not exclusive.
pub(super) fn try_once(
    shared: &Shared,
    request: &Request,
    lock_path: &LockPath,
    may_block: bool,
) -> Result<Attempt, Error> {
    let mut replacements = 0;
    let mut timer = AmbiguityTimer::default();
    loop {
        let (directory, held_locks) = (shared.directory(), shared.hold_count());
        let OpenOutcome::File(file, id) = directory.open_lock(lock_path, held_locks)? else {
            shared.count_replacement(&mut replacements, lock_path)?;
            continue;
        };
        let won = WonLock {
            directory: &directory,
            lock_path,
            id,
            held_locks,
        };
        match attempt(&won, request, file, may_block)? {
            TryOutcome::Held(held) => return Ok(Attempt::Held(held)),
            TryOutcome::WouldBlock => return Ok(Attempt::WouldBlock),
            TryOutcome::FileReplaced => shared.count_replacement(&mut replacements, lock_path)?,
            // A request that waits need not find out who has the lock.
            TryOutcome::Taken { is_ambiguous } => {
                if request.wait || !is_ambiguous || !timer.pause() {
                    return Ok(Attempt::Taken);
                }
            }
        }
    }
}

fn attempt(
    won: &WonLock<'_>,
    request: &Request,
    file: File,
    may_block: bool,
) -> Result<TryOutcome, Error> {
    let kind = Kind::of(request.mode);
    let side = match request.mode {
        Mode::Exclusive => None,
        mode => match won.sides().lock_free(mode)? {
            SideOutcome::AllTaken { is_ambiguous } => {
                return Ok(TryOutcome::Taken { is_ambiguous });
            }
            // Asked after the side file was locked: an upgradable holder first says that it is becoming exclusive,
            // and then looks for locked side files.
            SideOutcome::Locked(side) => match won.is_upgrading(&file)? {
                true => {
                    return Ok(TryOutcome::Taken {
                        is_ambiguous: false,
                    });
                }
                false => Some(side),
            },
        },
    };
    match kind.try_lock(&file) {
        Ok(()) => {
            let name = KernelLock::new(file);
            let mut taken = won.take(request, Locks { side, name })?;
            if let TakeOutcome::InChange(locks) = taken {
                if !may_block && won.directory.is_entered() {
                    return Ok(TryOutcome::WouldBlock);
                }
                taken = won.take_in_section(request, locks)?;
            }
            Ok(match taken {
                TakeOutcome::Held(held) => TryOutcome::Held(held),
                TakeOutcome::FileReplaced => TryOutcome::FileReplaced,
                TakeOutcome::InChange(..) => TryOutcome::WouldBlock,
                TakeOutcome::Reserved(..) | TakeOutcome::Upgrading => TryOutcome::Taken {
                    is_ambiguous: false,
                },
            })
        }
        Err(TryLockError::WouldBlock) => Ok(TryOutcome::Taken {
            is_ambiguous: !request.wait && is_ambiguous(&file, kind),
        }),
        Err(TryLockError::Error(err)) => Err(won.system_error("lock", err)),
    }
}

/// Whether `file`, whose kernel lock is taken, has a record that does not say who has the lock.
fn is_ambiguous(file: &File, wanted: Kind) -> bool {
    let state = record::read(file)
        .ok()
        .and_then(|contents| contents.head().map(|head| head.state));
    match state {
        Some(RecordState::Exclusive) => wanted == Kind::Exclusive && is_shared_only(file),
        // The record says that shared holders are the reason why an exclusive lock is refused.
        Some(RecordState::Shared | RecordState::Upgrading) => wanted == Kind::Shared,
        // A waiter has the kernel lock, or the process that changes the record.
        Some(RecordState::Free) => !is_held(file).unwrap_or(false),
        None => true,
    }
}

/// Whether a shared lock is granted, so that no process has `file` exclusively: the holder of the record has died, and
/// another process looks at the name in this moment.
fn is_shared_only(file: &File) -> bool {
    let is_granted = Kind::Shared.try_lock(file).is_ok();
    // There is nothing to be done about an error. The file is closed after the attempt.
    is_granted && file.unlock().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::record::{HolderJson, write_side};

    /// An observer that looks at a name has a shared lock for an instant, also when the holder in the record has died.
    #[test]
    fn a_look_at_a_dead_holder_does_not_count_as_a_holder() {
        let path = std::env::temp_dir().join(format!("tenure-look-{}", std::process::id()));
        let open = || {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true);
            options.truncate(false).open(&path).unwrap()
        };
        let (file, other) = (open(), open());
        let is_ambiguous_now = |wanted| is_ambiguous(&file, wanted);
        other.try_lock_shared().unwrap();
        assert!(is_ambiguous_now(Kind::Exclusive), "there is no record");
        // Shared holders are in the record of the name, and their locks last.
        write_side(&file, 1, Some(&HolderJson::default())).unwrap();
        assert!(!is_ambiguous_now(Kind::Exclusive));
        write_exclusive(&file);
        assert!(is_ambiguous_now(Kind::Exclusive));
        other.try_lock().unwrap();
        assert!(!is_ambiguous_now(Kind::Exclusive), "the holder lives");
        other.unlock().unwrap();
        // The attempt itself leaves no lock behind.
        assert!(is_ambiguous_now(Kind::Exclusive));
        other.try_lock().unwrap();
        let _ = std::fs::remove_file(&path);
    }

    fn write_exclusive(file: &File) {
        let contents = record::read(file).unwrap();
        let mut plan = contents.plan(7, 0, || Ok(0)).unwrap();
        plan.raise(file, 0, RecordState::Free, None).unwrap();
        let head = record::Head {
            state: RecordState::Exclusive,
            ..record::Head::default()
        };
        plan.grant(file, head, None).unwrap();
    }
}
