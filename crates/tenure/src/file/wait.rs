//! Waiting: one plain thread for each contended name, blocked in the kernel's lock call.
//!
//! A thread that waits for the exclusive lock blocks on the file of the name; `wait_shared.rs` has the others.
//! Polling would starve waiters (a busy process takes the lock back before a waiter asks again), and a runtime's pool of
//! blocking threads would keep the program from ending while one of them waits.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::rt::{self, Clock};
use tenure_core::store::Request;

use super::attempt::{Attempt, try_once};
use super::deliver::{Delivery, deliver_early, wait_for_turnstile};
use super::directory::{LockPath, OpenOutcome};
use super::grant::{Locks, WonLock};
use super::hold::FileHold;
use super::kernel_lock::{KernelLock, Kind};
use super::store::Shared;
use super::wait_shared;
use super::waiter_threads::{WaitKind, WaiterThread, WaitingRequest};

/// How often a waiter checks that the file its thread is blocked on is still the one at the path. After `break`, or
/// after the file was replaced by hand, it is not, and the kernel does not wake a thread that waits for the old file.
const REPLACEMENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Stack of a waiting thread: a few hundred bytes of record and some frames.
const STACK_SIZE: usize = 128 * 1024;

/// What ended a waiter's time with one thread.
enum WaitEnd {
    Granted(Box<FileHold>),
    Stopped,
    /// The thread is blocked on a file that is not at the path any more.
    FileReplaced,
}

/// Waits until `request` is granted. `None`: the request was stopped.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    lock_path: &LockPath,
) -> Result<Option<Box<FileHold>>, Error> {
    let mut stopped = pin!(request.stop.raised());
    let kind = WaitKind::of(request.mode);
    loop {
        let waiter = enter(shared, request, lock_path)?;
        let mut check = pin!(until_next_check());
        let end = std::future::poll_fn(|cx| {
            if let Poll::Ready(outcome) = waiter.poll(cx) {
                return Poll::Ready(outcome.map(WaitEnd::Granted));
            }
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(WaitEnd::Stopped));
            }
            while check.as_mut().poll(cx).is_ready() {
                if waiter.waits_for_replaced_file() {
                    return Poll::Ready(Ok(WaitEnd::FileReplaced));
                }
                // The first waiter for a permit may be stopped, and then the others would not learn of a free one.
                if kind == WaitKind::Permit
                    && let Attempt::Held(held) = try_once(shared, request, lock_path, false)?
                {
                    return Poll::Ready(Ok(WaitEnd::Granted(held)));
                }
                check.set(until_next_check());
            }
            Poll::Pending
        });
        match end.await? {
            WaitEnd::Granted(held) => return Ok(Some(held)),
            WaitEnd::Stopped => return Ok(None),
            WaitEnd::FileReplaced => {}
        }
        // The thread stays blocked on a file that no path leads to; a new thread takes its place.
        shared.threads.remove(lock_path, kind, &waiter.thread);
        drop(waiter);
    }
}

async fn until_next_check() {
    // Without a runtime there is no timer. The kernel wakes the thread all the same, except for replaced files.
    if rt::Spawner::current().is_none() {
        std::future::pending::<()>().await;
    }
    let clock = Clock::system();
    let next = clock.now().after(REPLACEMENT_CHECK_INTERVAL);
    clock.sleep_until(next).await;
}

fn enter(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    lock_path: &LockPath,
) -> Result<WaitingRequest, Error> {
    shared.threads.enter(request, lock_path, |thread, kind| {
        let (shared, lock_path) = (shared.clone(), lock_path.clone());
        start_thread(move || run_thread(&shared, &thread, &lock_path, kind))
    })
}

/// Starts a thread that may block in the kernel.
pub(super) fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let builder = std::thread::Builder::new().name("tenure-file-wait".into());
    let started = builder.stack_size(STACK_SIZE).spawn(work);
    started.map(drop).map_err(|err| {
        Error::new(
            ErrorKind::Store,
            "could not start a thread to wait for the lock: raise `ulimit -u`, or the memory limit",
        )
        .with_source(err)
    })
}

/// The thread: waits for the request in its slot, until there was no request for a while.
fn run_thread(
    shared: &Arc<Shared>,
    thread: &Arc<WaiterThread>,
    lock_path: &LockPath,
    kind: WaitKind,
) {
    while let Some(number) = thread.next_waiter() {
        let waited = match kind {
            WaitKind::Exclusive => wait_for_lock(shared, thread, lock_path),
            _ => wait_shared::wait(shared, thread, lock_path, kind),
        };
        if let Err(err) = waited {
            // A waiter that has left does not need the error.
            drop(thread.deliver(number, Err(err)));
        }
    }
    shared.threads.remove(lock_path, kind, thread);
    // A waiter may have entered before the thread was closed for good.
    thread.fail_waiter();
}

/// Blocks for the exclusive lock and delivers it. Returns when there is no waiter any more.
fn wait_for_lock(
    shared: &Shared,
    thread: &WaiterThread,
    lock_path: &LockPath,
) -> Result<(), Error> {
    let mut replacements = 0;
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
        thread
            .blocked_on(id, &lock_path.path, || Kind::Exclusive.lock(&file))
            .map_err(|err| won.system_error("lock", err))?;
        let name = KernelLock::new(file);
        match deliver_early(&won, thread, Locks { side: None, name })? {
            Delivery::Done => return Ok(()),
            Delivery::LockAgain => {}
            Delivery::Upgrading => wait_for_turnstile(&won.sides(), thread)?,
            Delivery::FileReplaced => shared.count_replacement(&mut replacements, lock_path)?,
        }
    }
}
