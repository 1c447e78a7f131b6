//! Waiting: one plain thread per contended name, blocked in the kernel's lock call.
//!
//! Polling would starve waiters (an eager process takes the lock back before anybody looks again), and a
//! runtime's blocking pool would keep the program from ending while one of them waits.
//!
//! A blocked lock call cannot be called off. So a waiter who gives up leaves its thread where it is:
//! a later waiter for the same name takes the free slot, and a thread that wins with an empty slot
//! unlocks at once. A thread that has delivered stays for [`IDLE_THREAD_TIMEOUT`], ready to wait for the same name again.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{self, Clock, lock};

use super::Inner;
use super::directory::{FileId, KernelLock, LockPath, Opened};
use super::hold::{self, Held, Kind, TakeOutcome};

/// How long a thread without work is kept: longer than the gap between two waits for a busy name,
/// short enough that nobody finds idle threads in a quiet program.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a waiter looks whether the file its thread is blocked on is still the right one. It is not after
/// `break` or when somebody replaced it by hand, and the kernel does not wake those who wait for the old one.
const REPLACEMENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How late a free permit is noticed at most: permits are the one thing that cannot be waited for in the kernel.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// All threads of a client that wait or have waited.
#[derive(Debug, Default)]
pub(super) struct WaiterThreads(Mutex<HashMap<(String, Kind), Arc<WaiterThread>>>);

/// One thread's thread: the slot in front of it and the wake_up that wakes it when it is not blocked in the kernel.
#[derive(Debug, Default)]
struct WaiterThread {
    state: Mutex<WaitState>,
    wake_up: Condvar,
}

#[derive(Debug, Default)]
struct WaitState {
    slot: Option<WaitSlot>,
    /// Number of the next waiter.
    next: u64,
    /// The file that the thread is blocked on.
    blocked_on: Option<FileId>,
    /// The thread has ended or is about to; no slot here.
    closed: bool,
}

#[derive(Debug)]
struct WaitSlot {
    number: u64,
    request: Arc<Request>,
    outcome: Option<Result<Box<Held>, Error>>,
    waker: Option<Waker>,
}

/// Somebody who sits at a thread. Leaves it when dropped; what was delivered and not taken is given back.
struct Waiter {
    thread: Arc<WaiterThread>,
    number: u64,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let left = {
            let mut state = lock(&self.thread.state);
            state.slot.take_if(|slot| slot.number == self.number)
        };
        self.thread.wake_up.notify_one();
        if let Some(Ok(held)) = left.and_then(|slot| slot.outcome) {
            held.release(false);
        }
    }
}

/// Waits until `request` is granted. `None` once it was stopped.
pub(super) async fn wait(
    inner: &Arc<Inner>,
    request: &Arc<Request>,
    lock_path: &LockPath,
) -> Result<Option<Box<Held>>, Error> {
    let mut stopped = pin!(request.stop.raised());
    loop {
        let waiter = enter_slot(inner, request, lock_path)?;
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
        // The thread stays behind, blocked on a file that no path leads to; a new one takes its place.
        inner
            .threads
            .forget(lock_path, Kind::of(request.mode), &waiter.thread);
        drop(waiter);
    }
}

async fn until_next_check() {
    // Without a runtime there is no timer. The kernel wakes us all the same, save for replaced files.
    if rt::Spawner::current().is_none() {
        std::future::pending::<()>().await;
    }
    let clock = Clock::system();
    clock
        .sleep_until(clock.now().after(REPLACEMENT_CHECK_INTERVAL))
        .await;
}

fn enter_slot(
    inner: &Arc<Inner>,
    request: &Arc<Request>,
    lock_path: &LockPath,
) -> Result<Waiter, Error> {
    let key = (lock_path.file.clone(), Kind::of(request.mode));
    let mut threads = lock(&inner.threads.0);
    if let Some(thread) = threads.get(&key)
        && let Some(number) = thread.take_slot(request)
    {
        let waiter = Waiter {
            thread: thread.clone(),
            number,
        };
        thread.wake_up.notify_one();
        return Ok(waiter);
    }
    let thread = Arc::new(WaiterThread::default());
    // A new thread has a free slot.
    let number = thread.take_slot(request).unwrap_or_default();
    let waiter = Waiter {
        thread: thread.clone(),
        number,
    };
    let builder = std::thread::Builder::new().name("tenure-file-wait".into());
    // The stack holds a few hundred bytes of record and some frames.
    let builder = builder.stack_size(128 * 1024);
    let (owner, place, kind, theirs) = (inner.clone(), lock_path.clone(), key.1, thread.clone());
    builder
        .spawn(move || run_thread(&owner, &theirs, &place, kind))
        .map_err(|err| {
            Error::new(
            ErrorKind::Backend,
            "could not start a thread to wait for the lock: raise `ulimit -u`, or the memory limit",
        )
        .with_source(err)
        })?;
    threads.insert(key, thread);
    Ok(waiter)
}

impl WaiterThreads {
    /// Takes `thread` out of the list, so that nobody sits down there any more.
    fn forget(&self, lock_path: &LockPath, kind: Kind, thread: &Arc<WaiterThread>) {
        let mut threads = lock(&self.0);
        let key = (lock_path.file.clone(), kind);
        if threads
            .get(&key)
            .is_some_and(|there| Arc::ptr_eq(there, thread))
        {
            threads.remove(&key);
        }
        lock(&thread.state).closed = true;
    }

    /// Fails all waiters, and ends all threads that are not blocked in the kernel.
    pub(super) fn close(&self) {
        let threads = std::mem::take(&mut *lock(&self.0));
        for thread in threads.into_values() {
            lock(&thread.state).closed = true;
            thread.answer_any(|| Err(super::closed()));
            thread.wake_up.notify_one();
        }
    }
}

impl Waiter {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Box<Held>, Error>> {
        let mut state = lock(&self.thread.state);
        let Some(slot) = state
            .slot
            .as_mut()
            .filter(|slot| slot.number == self.number)
        else {
            return Poll::Pending;
        };
        match slot.outcome.take() {
            Some(outcome) => {
                state.slot = None;
                Poll::Ready(outcome)
            }
            None => {
                // Cloning a waker counts references; skipped when it is the one we have.
                if !slot
                    .waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(cx.waker()))
                {
                    slot.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Whether the thread is blocked on a file that is not the one at the path.
    fn waits_for_replaced_file(&self, lock_path: &LockPath) -> bool {
        let blocked_on = lock(&self.thread.state).blocked_on;
        blocked_on.is_some_and(|id| FileId::at(&lock_path.path).map_or(true, |there| there != id))
    }
}

impl WaiterThread {
    fn take_slot(&self, request: &Arc<Request>) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.closed || state.slot.is_some() {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.slot = Some(WaitSlot {
            number,
            request: request.clone(),
            outcome: None,
            waker: None,
        });
        Some(number)
    }

    /// Who sits here and waits.
    fn waiting(&self) -> Option<(u64, Arc<Request>)> {
        lock(&self.state)
            .waiting()
            .map(|slot| (slot.number, slot.request.clone()))
    }

    /// Sleeps until somebody sits here; `None` when nobody came or the thread is closed.
    fn next_waiter(&self) -> Option<(u64, Arc<Request>)> {
        let clock = Clock::system();
        let until = clock.now().after(IDLE_THREAD_TIMEOUT);
        let mut state = lock(&self.state);
        loop {
            if let Some(slot) = state.waiting() {
                return Some((slot.number, slot.request.clone()));
            }
            let left = until.since(clock.now());
            if left.is_zero() || state.closed {
                // Decided under the state's lock: nobody can sit down in between.
                state.closed = true;
                return None;
            }
            state = self
                .wake_up
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Sleeps for `pause`, or until the waiter `number` has left. Returns whether it is still there.
    fn pause(&self, number: u64, pause: Duration) -> bool {
        let clock = Clock::system();
        let until = clock.now().after(pause);
        let mut state = lock(&self.state);
        loop {
            if state.waiting().is_none_or(|slot| slot.number != number) {
                return false;
            }
            let left = until.since(clock.now());
            if left.is_zero() {
                return true;
            }
            state = self
                .wake_up
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Hands `outcome` to the waiter `number`, or back when that one has left.
    fn answer(&self, number: u64, outcome: Result<Box<Held>, Error>) -> Result<(), Box<Held>> {
        let mut state = lock(&self.state);
        match state.waiting().filter(|slot| slot.number == number) {
            Some(slot) => {
                slot.outcome = Some(outcome);
                let waker = slot.waker.take();
                // Woken without the lock: it would be the first thing the waiter asks for.
                drop(state);
                waker.into_iter().for_each(Waker::wake);
                Ok(())
            }
            None => outcome.map_or(Ok(()), Err),
        }
    }

    fn answer_any(&self, outcome: impl FnOnce() -> Result<Box<Held>, Error>) {
        if let Some((number, _)) = self.waiting()
            && let Err(held) = self.answer(number, outcome())
        {
            held.release(false);
        }
    }
}

impl WaitState {
    fn waiting(&mut self) -> Option<&mut WaitSlot> {
        self.slot.as_mut().filter(|slot| slot.outcome.is_none())
    }
}

/// The thread: waits for whoever sits at the thread, until nobody came for a while.
fn run_thread(inner: &Arc<Inner>, thread: &Arc<WaiterThread>, lock_path: &LockPath, kind: Kind) {
    while let Some((number, _)) = thread.next_waiter() {
        if let Err(err) = wait_for_lock(inner, thread, lock_path, kind) {
            // Whoever has left does not want to know.
            let _ = thread.answer(number, Err(err));
        }
    }
    inner.threads.forget(lock_path, kind, thread);
    // Somebody may have sat down before the thread was closed for good.
    thread.answer_any(|| Err(super::closed()));
}

/// Blocks for the lock and delivers it. Returns when there is nobody to wait for any more.
fn wait_for_lock(
    inner: &Arc<Inner>,
    thread: &WaiterThread,
    lock_path: &LockPath,
    kind: Kind,
) -> Result<(), Error> {
    let mut tries = 0;
    let mut permit_tries = 0;
    loop {
        let dir = inner.dir();
        let Opened::File(file, id) = dir.open_lock(lock_path, inner.hold_count())? else {
            inner.again(&mut tries, lock_path)?;
            continue;
        };
        lock(&thread.state).blocked_on = Some(id);
        let won = kind.lock(&file);
        let mut state = lock(&thread.state);
        state.blocked_on = None;
        won.map_err(|err| dir.system_error("lock", &lock_path.file, err, inner.hold_count()))?;
        let mut locked = KernelLock::new(file);
        if kind == Kind::Exclusive
            && let Some(slot) = state.waiting()
        {
            // Waking a task takes longer than recording its grant, so it is woken first, and finds the
            // state locked for the moment that is left.
            slot.waker.take().into_iter().for_each(Waker::wake);
            let request = slot.request.clone();
            match hold::take(inner, &dir, &request, lock_path, locked, id)? {
                TakeOutcome::Held(held) => {
                    slot.outcome = Some(Ok(held));
                    return Ok(());
                }
                TakeOutcome::Again | TakeOutcome::NoPermit { .. } => {
                    drop(state);
                    inner.again(&mut tries, lock_path)?;
                    continue;
                }
                TakeOutcome::Reserved(still, _) => locked = still,
            }
        }
        drop(state);
        loop {
            let Some((number, request)) = thread.waiting() else {
                return Ok(());
            };
            match hold::take(inner, &dir, &request, lock_path, locked, id)? {
                TakeOutcome::Held(held) => match thread.answer(number, Ok(held)) {
                    Ok(()) => return Ok(()),
                    Err(held) => {
                        held.release(false);
                        break;
                    }
                },
                TakeOutcome::Again => {
                    inner.again(&mut tries, lock_path)?;
                    break;
                }
                TakeOutcome::Reserved(still, left) => {
                    locked = still;
                    thread.pause(number, left);
                }
                TakeOutcome::NoPermit { .. } => {
                    // The shared lock is not ours while we pause, or waiting for a permit would
                    // keep out those who want the name alone.
                    let pause = pace::next(
                        permit_tries,
                        rand::random(),
                        Some(PERMIT_POLL_INTERVAL),
                        None,
                    );
                    thread.pause(number, pause.unwrap_or(PERMIT_POLL_INTERVAL));
                    permit_tries += 1;
                    break;
                }
            }
        }
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
