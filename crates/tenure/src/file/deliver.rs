//! A thread that has won a kernel lock delivers the hold to its waiter.

use std::task::Waker;

use tenure_core::error::Error;

use super::grant::{Locks, TakeOutcome, WonLock};
use super::hold::End;
use super::kernel_lock::{KernelLock, Kind};
use super::lease_wait::LeaseWait;
use super::side::Sides;
use super::vacancy::Reservation;
use super::waiter_threads::WaiterThread;

/// What became of a lock that a thread has won.
pub(super) enum Delivery {
    /// A waiter has the lock, or there is no waiter.
    Done,
    /// The waiter left at that moment: block for the lock again.
    LockAgain,
    /// An upgradable holder is becoming exclusive.
    Upgrading,
    /// The lock is on a file that is not at the path any more.
    FileReplaced,
}

/// Delivers an exclusive lock.
pub(super) fn deliver_early(
    won: &WonLock<'_>,
    thread: &WaiterThread,
    mut locks: Locks,
) -> Result<Delivery, Error> {
    let mut state = thread.state();
    if let Some(slot) = state.waiting() {
        // Waking a task takes longer than recording its grant, so the task is woken first, and finds the state
        // locked for the moment that is left.
        slot.waker.take().into_iter().for_each(Waker::wake);
        let request = slot.request.clone();
        match won.take(&request, locks)? {
            TakeOutcome::Held(held) => {
                slot.outcome = Some(Ok(held));
                return Ok(Delivery::Done);
            }
            TakeOutcome::FileReplaced => return Ok(Delivery::FileReplaced),
            TakeOutcome::Upgrading => return Ok(Delivery::Upgrading),
            TakeOutcome::Reserved(still_locked, _) | TakeOutcome::InChange(still_locked) => {
                locks = still_locked;
            }
        }
    }
    drop(state);
    deliver(won, thread, locks)
}

/// Delivers a lock, after the end of a reservation or of a detached hold if there is one.
pub(super) fn deliver(
    won: &WonLock<'_>,
    thread: &WaiterThread,
    mut locks: Locks,
) -> Result<Delivery, Error> {
    let mut lease = LeaseWait::default();
    while let Some((number, request)) = thread.waiting() {
        let mut taken = won.take(&request, locks)?;
        if let TakeOutcome::InChange(still_locked) = taken {
            taken = won.take_in_section(&request, still_locked)?;
        }
        match taken {
            TakeOutcome::Held(held) => {
                return Ok(match thread.deliver(number, Ok(held)) {
                    None => Delivery::Done,
                    Some(unwanted) => {
                        unwanted.release(End::Unused);
                        Delivery::LockAgain
                    }
                });
            }
            TakeOutcome::FileReplaced => return Ok(Delivery::FileReplaced),
            TakeOutcome::Upgrading => return Ok(Delivery::Upgrading),
            TakeOutcome::InChange(still_locked) => locks = still_locked,
            TakeOutcome::Reserved(still_locked, Reservation { left, is_detached }) => {
                locks = still_locked;
                match is_detached {
                    true => lease.wait(&won.sides(), thread, number, left),
                    false => thread.pause(number, left),
                }
                if is_detached && !won.id.is_at(&won.lock_path.path) {
                    return Ok(Delivery::FileReplaced);
                }
            }
        }
    }
    Ok(Delivery::Done)
}

/// Blocks until no upgradable holder is becoming exclusive.
pub(super) fn wait_for_turnstile(sides: &Sides<'_>, thread: &WaiterThread) -> Result<(), Error> {
    let Some((turnstile, id, lock_path)) = sides.turnstile()? else {
        return Ok(());
    };
    thread
        .blocked_on(id, &lock_path.path, || Kind::Shared.lock(&turnstile))
        .map_err(|err| sides.system_error("lock", &lock_path.file, err))?;
    drop(KernelLock::new(turnstile));
    Ok(())
}
