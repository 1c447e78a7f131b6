//! One acquisition: the name is taken in the first poll, or a thread waits for it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::rt::Clock;
use tenure_core::store::{Answer, Grant, Request};
use tenure_core::support::closed;
use tenure_core::time::Time;

use super::attempt::{Attempt, try_once};
use super::blocking::blocking;
use super::directory::LockPath;
use super::grant::{Locks, TakeOutcome, WonLock};
use super::hold::FileHold;
use super::idle_files::IdleFile;
use super::kernel_lock::KernelLock;
use super::names;
use super::store::Shared;
use super::wait;

pub(super) async fn acquire(shared: &Arc<Shared>, request: &Arc<Request>) -> Result<Answer, Error> {
    if shared.is_closed() {
        return Err(closed());
    }
    refuse_unsupported(request)?;
    if request.stop.is_raised() {
        return Ok(Answer::Busy);
    }
    let sent = Clock::system().now();
    let lock_path = LockPath::new(&shared.path, names::encode(&request.name));
    let must_block = request.mode != Mode::Exclusive && shared.directory().is_entered();
    let mut attempt = match must_block {
        true => Attempt::WouldBlock,
        false => take(shared, request, &lock_path, false)?,
    };
    if let Attempt::WouldBlock = attempt {
        // Another process may be stopped in the section that changes records of several holders.
        let (shared, request, lock_path) = (shared.clone(), request.clone(), lock_path.clone());
        attempt = blocking(move || take(&shared, &request, &lock_path, true)).await?;
    }
    if let Attempt::Held(held) = attempt {
        return Ok(Answer::Granted(grant(shared, request, held, sent)?));
    }
    if !request.wait {
        return Ok(Answer::Busy);
    }
    request.report_taken();
    let Some(held) = wait::wait(shared, request, &lock_path).await? else {
        return Ok(Answer::Busy);
    };
    // The kernel handed the lock over without a request that was sent at some time, and the lock does not expire.
    let sent = Clock::system().now();
    Ok(Answer::Granted(grant(shared, request, held, sent)?))
}

/// Takes the name if it is free.
fn take(
    shared: &Shared,
    request: &Request,
    lock_path: &LockPath,
    may_block: bool,
) -> Result<Attempt, Error> {
    match try_once(shared, request, lock_path, may_block) {
        // A second try without the idle files: with many open files, the error may be that no descriptor is left.
        Err(_) if shared.idle_files.clear() => try_once(shared, request, lock_path, may_block),
        taken => taken,
    }
}

/// Takes the name if it is free and its file is open. Every other case is left to [`acquire`].
pub(super) fn acquire_now(shared: &Shared, request: &Request) -> Option<Grant> {
    if shared.is_closed() || request.mode != Mode::Exclusive {
        return None;
    }
    let IdleFile {
        lock_path,
        file,
        id,
    } = shared.idle_files.take(&request.name)?;
    let sent = Clock::system().now();
    let directory = shared.directory();
    file.try_lock().ok()?;
    let lock = KernelLock::new(file);
    let won = WonLock {
        directory: &directory,
        lock_path: &lock_path,
        id,
        held_locks: shared.hold_count(),
    };
    let locks = Locks {
        side: None,
        name: lock,
    };
    match won.take(request, locks) {
        Ok(TakeOutcome::Held(held)) => grant(shared, request, held, sent).ok(),
        _ => None,
    }
}

fn grant(
    shared: &Shared,
    request: &Request,
    held: Box<FileHold>,
    sent: Time,
) -> Result<Grant, Error> {
    let token = shared.remember(request, held)?;
    Ok(Grant::new(token, sent, Duration::ZERO, None))
}

/// Refuses what this store cannot combine, before any file is touched.
fn refuse_unsupported(request: &Request) -> Result<(), Error> {
    let reserves = !request.min_hold.is_zero() || !request.lock_delay.is_zero();
    if reserves && request.mode != Mode::Exclusive {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "`file:` keeps `min_hold` and `lock_delay` for exclusive holds only; leave these options out, \
             hold the name exclusively, or use `redis:`, `etcd:`, `sqlite:` or mode=table, which have both for every mode",
        ));
    }
    Ok(())
}
