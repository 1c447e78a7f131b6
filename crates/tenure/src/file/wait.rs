//! Waiting: one plain thread for each contended name, blocked in the kernel's lock call.
//!
//! Polling would starve waiters (a busy process takes the lock back before a waiter asks again), and a runtime's pool of
//! blocking threads would keep the program from ending while one of them waits.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{self, Clock};

use super::directory::{Directory, FileId, LockPath, Opened};
use super::hold::{self, Held, TakeOutcome};
use super::kernel_lock::{KernelLock, Kind};
use super::store::Shared;
use super::waiter_threads::{Waiter, WaiterThread};

/// How often a waiter checks that the file its thread is blocked on is still the one at the path. After `break`, or
/// when somebody replaced the file by hand, it is not, and the kernel does not wake those who wait for the old file.
const REPLACEMENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How late a free permit is noticed at most: the kernel has no call that waits for a permit.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Stack of a waiting thread: a few hundred bytes of record and some frames.
const STACK_SIZE: usize = 128 * 1024;

/// Waits until `request` is granted. `None`: the request was stopped.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    lock_path: &LockPath,
) -> Result<Option<Box<Held>>, Error> {
    let mut stopped = pin!(request.stop.raised());
    loop {
        let waiter = enter(shared, request, lock_path)?;
        let mut check = pin!(until_next_check());
        let granted = std::future::poll_fn(|cx| {
            if let Poll::Ready(outcome) = waiter.poll(cx) {
                return Poll::Ready(Some(outcome.map(Some)));
            }
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Some(Ok(None)));
            }
            while check.as_mut().poll(cx).is_ready() {
                if waiter.waits_for_replaced_file(lock_path) {
                    return Poll::Ready(None);
                }
                check.set(until_next_check());
            }
            Poll::Pending
        });
        if let Some(outcome) = granted.await {
            return outcome;
        }
        // The thread stays blocked on a file that no path leads to; a new thread takes its place.
        let kind = Kind::of(request.mode);
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
) -> Result<Waiter, Error> {
    shared.threads.enter(request, lock_path, |thread, kind| {
        let (shared, lock_path) = (shared.clone(), lock_path.clone());
        let builder = std::thread::Builder::new().name("tenure-file-wait".into());
        let started = builder
            .stack_size(STACK_SIZE)
            .spawn(move || run_thread(&shared, &thread, &lock_path, kind));
        started.map(drop).map_err(|err| {
            Error::new(
                ErrorKind::Backend,
                "could not start a thread to wait for the lock: raise `ulimit -u`, or the memory limit",
            )
            .with_source(err)
        })
    })
}

/// The thread: waits for the request in its slot, until there was no request for a while.
fn run_thread(shared: &Arc<Shared>, thread: &Arc<WaiterThread>, lock_path: &LockPath, kind: Kind) {
    while let Some(number) = thread.next_waiter() {
        if let Err(err) = wait_for_lock(shared, thread, lock_path, kind) {
            // A waiter that has left does not need the error.
            drop(thread.deliver(number, Err(err)));
        }
    }
    shared.threads.remove(lock_path, kind, thread);
    // A waiter may have entered before the thread was closed for good.
    thread.fail_waiter();
}

/// Blocks for the lock and delivers it. Returns when there is no waiter any more.
fn wait_for_lock(
    shared: &Shared,
    thread: &WaiterThread,
    lock_path: &LockPath,
    kind: Kind,
) -> Result<(), Error> {
    let (mut replacements, mut permit_polls) = (0, 0);
    loop {
        let (directory, held_locks) = (shared.directory(), shared.hold_count());
        let Opened::File(file, id) = directory.open_lock(lock_path, held_locks)? else {
            shared.count_replacement(&mut replacements, lock_path)?;
            continue;
        };
        thread.state().blocked_on = Some(id);
        let locked = kind.lock(&file);
        thread.state().blocked_on = None;
        locked.map_err(|err| directory.system_error("lock", &lock_path.file, err, held_locks))?;
        let won = WonLock {
            directory: &directory,
            lock_path,
            id,
            held_locks,
        };
        match won.deliver(thread, KernelLock::new(file), kind, &mut permit_polls)? {
            Delivery::Done => return Ok(()),
            Delivery::LockAgain => {}
            Delivery::FileReplaced => shared.count_replacement(&mut replacements, lock_path)?,
        }
    }
}

/// What became of a lock that a thread has won.
enum Delivery {
    /// A waiter has the lock, or there is no waiter.
    Done,
    /// The waiter left at that moment, or all permits are taken: block for the lock again.
    LockAgain,
    /// The lock is on a file that is not at the path any more.
    FileReplaced,
}

/// The file whose kernel lock a thread has won.
struct WonLock<'a> {
    directory: &'a Arc<Directory>,
    lock_path: &'a LockPath,
    id: FileId,
    held_locks: usize,
}

impl WonLock<'_> {
    fn take(&self, request: &Request, lock: KernelLock) -> Result<TakeOutcome, Error> {
        let (directory, path) = (self.directory, self.lock_path);
        hold::take(directory, request, path, lock, self.id, self.held_locks)
    }

    fn deliver(
        &self,
        thread: &WaiterThread,
        mut lock: KernelLock,
        kind: Kind,
        permit_polls: &mut u32,
    ) -> Result<Delivery, Error> {
        let mut state = thread.state();
        if kind == Kind::Exclusive
            && let Some(slot) = state.waiting()
        {
            // Waking a task takes longer than recording its grant, so the task is woken first, and finds the state
            // locked for the moment that is left.
            slot.waker.take().into_iter().for_each(Waker::wake);
            let request = slot.request.clone();
            match self.take(&request, lock)? {
                TakeOutcome::Held(held) => {
                    slot.outcome = Some(Ok(held));
                    return Ok(Delivery::Done);
                }
                TakeOutcome::Again | TakeOutcome::NoPermit { .. } => {
                    return Ok(Delivery::FileReplaced);
                }
                TakeOutcome::Reserved(still_locked, _) => lock = still_locked,
            }
        }
        drop(state);
        while let Some((number, request)) = thread.waiting() {
            match self.take(&request, lock)? {
                TakeOutcome::Held(held) => {
                    return Ok(match thread.deliver(number, Ok(held)) {
                        None => Delivery::Done,
                        Some(unwanted) => {
                            unwanted.release(false);
                            Delivery::LockAgain
                        }
                    });
                }
                TakeOutcome::Again => return Ok(Delivery::FileReplaced),
                TakeOutcome::Reserved(still_locked, left) => {
                    lock = still_locked;
                    thread.pause(number, left);
                }
                TakeOutcome::NoPermit { .. } => {
                    // The shared lock is released during the pause, or a waiter for a permit would keep out those
                    // who want the name exclusively.
                    let random = Clock::system().random();
                    let interval = Some(PERMIT_POLL_INTERVAL);
                    let pause = pace::next(*permit_polls, random, interval, None);
                    thread.pause(number, pause.unwrap_or(PERMIT_POLL_INTERVAL));
                    *permit_polls += 1;
                    return Ok(Delivery::LockAgain);
                }
            }
        }
        Ok(Delivery::Done)
    }
}
