//! A thread that waits for a hold that is not exclusive: where the thread blocks.
//!
//! | waits for | blocks on |
//! | --- | --- |
//! | the end of an exclusive hold | the file of the name |
//! | the end of an upgradable hold, to get one | the side file of the upgradable holder |
//! | a permit | a lock that the first waiter has; the first one on the pipes of the permits |
//! | the end of an upgrade | the turnstile, which the upgrading holder has locked |
//!
//! The thread keeps its side file while it blocks on the file of the name, and never the other way round: a waiter must
//! not cause the refusal of a request for the exclusive lock.

use std::fs::{File, TryLockError};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::logic::pace;
use tenure_core::options::Mode;
use tenure_core::rt::Clock;

use super::deliver::{Delivery, deliver, wait_for_turnstile};
use super::directory::{LockPath, OpenOutcome};
use super::grant::{Locks, WonLock};
use super::kernel_lock::{KernelLock, Kind};
use super::names::SideKind;
use super::permit_pipes::{PERMIT_POLL_INTERVAL, PermitPipes, PipeEvent};
use super::side::{SideFile, SideOutcome, Sides};
use super::store::Shared;
use super::waiter_threads::{WaitKind, WaiterThread};

/// How often a permit is tried after its pipe was closed, before the pipes are opened again: a process that dies may
/// lose the pipe before the lock, and another process may keep the lock on behalf of a dead holder.
const TRIES_AFTER_CLOSE: u32 = 8;

/// Waits and delivers. Returns when there is no waiter any more.
pub(super) fn wait(
    shared: &Shared,
    thread: &WaiterThread,
    lock_path: &LockPath,
    kind: WaitKind,
) -> Result<(), Error> {
    let mut replacements = 0;
    let mut permit_wait = PermitWait::default();
    let mut turn = None;
    while let Some((number, request)) = thread.waiting() {
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
        let sides = won.sides();
        if kind == WaitKind::Permit && turn.is_none() {
            turn = block_on_side(&sides, thread, SideKind::PermitQueue)?;
            continue;
        }
        let side = match (sides.lock_free(request.mode)?, request.mode) {
            (SideOutcome::Locked(side), _) => side,
            (SideOutcome::AllTaken { .. }, Mode::Permits { limit }) => {
                permit_wait.wait(&sides, thread, number, limit.get());
                continue;
            }
            (SideOutcome::AllTaken { .. }, _) => {
                match block_on_side(&sides, thread, SideKind::Upgradable)? {
                    Some(side) => side,
                    None => continue,
                }
            }
        };
        if won.is_upgrading(&file)? {
            drop(side);
            wait_for_turnstile(&sides, thread)?;
            continue;
        }
        let name = block_on_name(&won, thread, file, &side)?;
        let side = Some(side);
        match deliver(&won, thread, Locks { side, name })? {
            Delivery::Done => return Ok(()),
            Delivery::LockAgain => {}
            Delivery::Upgrading => wait_for_turnstile(&sides, thread)?,
            Delivery::FileReplaced => shared.count_replacement(&mut replacements, lock_path)?,
        }
    }
    Ok(())
}

/// Blocks until the file of the name is locked in shared mode.
fn block_on_name(
    won: &WonLock<'_>,
    thread: &WaiterThread,
    file: File,
    side: &SideFile,
) -> Result<KernelLock, Error> {
    match file.try_lock_shared() {
        Ok(()) => return Ok(KernelLock::new(file)),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(err)) => return Err(won.system_error("lock", err)),
    }
    side.clear(&won.sides())?;
    thread
        .blocked_on(won.id, &won.lock_path.path, || Kind::Shared.lock(&file))
        .map_err(|err| won.system_error("lock", err))?;
    Ok(KernelLock::new(file))
}

/// Blocks until the side file is locked. `None`: the file was replaced or removed meanwhile.
fn block_on_side(
    sides: &Sides<'_>,
    thread: &WaiterThread,
    kind: SideKind,
) -> Result<Option<SideFile>, Error> {
    let Some(side) = sides.open(kind, 0)? else {
        return Ok(None);
    };
    thread
        .blocked_on(side.id, &side.lock_path.path, || {
            Kind::Exclusive.lock(&side.file)
        })
        .map_err(|err| sides.system_error("lock", &side.lock_path.file, err))?;
    Ok(sides.locked(side))
}

/// How the first waiter for a permit waits for one.
#[derive(Default)]
struct PermitWait {
    /// The waiter for which the pipes are open.
    number: u64,
    pipes: Option<PermitPipes>,
    tries_left: u32,
    polls: u32,
}

impl PermitWait {
    /// Returns when the permits should be tried again, or when the waiter `number` has left.
    fn wait(&mut self, sides: &Sides<'_>, thread: &WaiterThread, number: u64, limit: u32) {
        if self.number != number {
            *self = Self {
                number,
                ..Self::default()
            };
        }
        if self.tries_left > 0 {
            self.tries_left -= 1;
            if self.tries_left == 0 {
                self.pipes = None;
            }
            return self.pause(thread);
        }
        let Some(pipes) = &self.pipes else {
            self.pipes = PermitPipes::open(sides, limit);
            // A permit that was released before its pipe was opened is found by the next try.
            if self.pipes.is_none() {
                self.pause(thread);
            }
            return;
        };
        match thread.pipe_of_waiter(number) {
            Ok(None) => {}
            Ok(Some(leave)) => match pipes.wait(&leave) {
                PipeEvent::Closed => (self.tries_left, self.polls) = (TRIES_AFTER_CLOSE, 0),
                PipeEvent::TimedOut => self.pipes = None,
                PipeEvent::WaiterLeft => {}
            },
            // No descriptor is left.
            Err(_) => self.pause(thread),
        }
    }

    fn pause(&mut self, thread: &WaiterThread) {
        let random = Clock::system().random();
        let pause = pace::next(self.polls, random, Some(PERMIT_POLL_INTERVAL), None);
        thread.pause(self.number, pause.unwrap_or(Duration::ZERO));
        self.polls += 1;
    }
}
