//! One attempt to take a name, without waiting.

use std::fs::{File, TryLockError};

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::store::Request;

use super::directory::{LockPath, OpenOutcome};
use super::grant::{Locks, TakeOutcome, WonLock};
use super::hold::FileHold;
use super::kernel_lock::{AmbiguityTimer, KernelLock, Kind};
use super::record::{self, RecordState};
use super::side::SideOutcome;
use super::store::Shared;

/// What came of one attempt on an open file.
enum TryOutcome {
    Held(Box<FileHold>),
    /// `is_ambiguous`: it seems that the name will be free in a moment.
    Taken {
        is_ambiguous: bool,
    },
    FileReplaced,
}

/// Takes the name if it is free.
pub(super) fn try_once(
    shared: &Shared,
    request: &Request,
    lock_path: &LockPath,
) -> Result<Option<Box<FileHold>>, Error> {
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
        match attempt(&won, request, file)? {
            TryOutcome::Held(held) => return Ok(Some(held)),
            TryOutcome::FileReplaced => shared.count_replacement(&mut replacements, lock_path)?,
            // A request that waits need not find out who has the lock.
            TryOutcome::Taken { is_ambiguous } => {
                if request.wait || !is_ambiguous || !timer.pause() {
                    return Ok(None);
                }
            }
        }
    }
}

fn attempt(won: &WonLock<'_>, request: &Request, file: File) -> Result<TryOutcome, Error> {
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
            Ok(match won.take(request, Locks { side, name })? {
                TakeOutcome::Held(held) => TryOutcome::Held(held),
                TakeOutcome::FileReplaced => TryOutcome::FileReplaced,
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
        Some(RecordState::Exclusive) => false,
        // The record says that shared holders are the reason why an exclusive lock is refused.
        Some(RecordState::Shared | RecordState::Upgrading) => wanted == Kind::Shared,
        Some(RecordState::Free) | None => true,
    }
}
