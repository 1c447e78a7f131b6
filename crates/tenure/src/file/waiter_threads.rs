//! The threads that wait in the kernel, each with a slot for the one request that it waits for.
//!
//! A blocked lock call cannot be cancelled. So a waiter that gives up leaves its thread where the thread is: a later
//! waiter for the same name takes the free slot, and a thread that wins the lock with an empty slot unlocks at once. A
//! thread that has delivered a lock stays for [`IDLE_THREAD_TIMEOUT`], ready to wait for the same name again.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::options::Mode;
use tenure_core::rt::{Clock, lock};
use tenure_core::store::Request;
use tenure_core::support::closed;

use super::directory::{FileId, LockPath};
use super::hold::{End, FileHold};

/// How long a thread without work is kept: longer than the gap between two waits for a busy name, and so short that a
/// quiet program has no idle threads.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// What a thread waits for, and so where it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WaitKind {
    Exclusive,
    Shared,
    Upgradable,
    Permit,
}

impl WaitKind {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Upgradable => Self::Upgradable,
            Mode::Permits { .. } => Self::Permit,
            // Shared. The driver refuses a mode that our guarantees do not name.
            _ => Self::Shared,
        }
    }
}

/// All threads of a client that wait or have waited.
#[derive(Debug, Default)]
pub(super) struct WaiterThreads(Mutex<HashMap<(String, WaitKind), Arc<WaiterThread>>>);

/// One thread: the slot of its waiter, and how the thread is woken while it is not blocked in the kernel.
#[derive(Debug, Default)]
pub(super) struct WaiterThread {
    state: Mutex<WaitState>,
    wake_up: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct WaitState {
    slot: Option<WaitSlot>,
    /// Number of the next waiter.
    next: u64,
    /// The file that the thread is blocked on, and the path that led to it.
    blocked_on: Option<(FileId, CString)>,
    /// Closed when the waiter leaves, which wakes a thread that watches pipes.
    leave: Option<PipeWriter>,
    /// The thread has ended or is about to, and takes no waiter.
    is_closed: bool,
}

#[derive(Debug)]
pub(super) struct WaitSlot {
    number: u64,
    pub(super) request: Arc<Request>,
    pub(super) outcome: Option<Result<Box<FileHold>, Error>>,
    pub(super) waker: Option<Waker>,
}

/// A request in the slot of a thread. When the waiter is dropped, the slot is free, and a lock that was delivered and
/// not taken is released.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) thread: Arc<WaiterThread>,
    number: u64,
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        let slot = {
            let mut state = lock(&self.thread.state);
            let slot = state.slot.take_if(|slot| slot.number == self.number);
            if slot.is_some() {
                state.leave = None;
            }
            slot
        };
        self.thread.wake_up.notify_one();
        if let Some(Ok(held)) = slot.and_then(|slot| slot.outcome) {
            held.release(End::Unused);
        }
    }
}

impl WaiterThreads {
    /// Puts `request` into the slot of the thread for that name, or of a new thread that `start` starts.
    pub(super) fn enter(
        &self,
        request: &Arc<Request>,
        lock_path: &LockPath,
        start: impl FnOnce(Arc<WaiterThread>, WaitKind) -> Result<(), Error>,
    ) -> Result<WaitingRequest, Error> {
        let kind = WaitKind::of(request.mode);
        let key = (lock_path.file.clone(), kind);
        let mut threads = lock(&self.0);
        if let Some(thread) = threads.get(&key)
            && let Some(waiter) = thread.take_slot(request)
        {
            thread.wake_up.notify_one();
            return Ok(waiter);
        }
        let thread = Arc::new(WaiterThread::default());
        let waiter = thread.take_slot(request);
        let waiter = waiter.expect("the slot of a new thread is free");
        start(thread.clone(), kind)?;
        threads.insert(key, thread);
        Ok(waiter)
    }

    /// Takes `thread` out of the list, so that no waiter enters its slot any more.
    pub(super) fn remove(&self, lock_path: &LockPath, kind: WaitKind, thread: &Arc<WaiterThread>) {
        let mut threads = lock(&self.0);
        let key = (lock_path.file.clone(), kind);
        if threads.get(&key).is_some_and(|it| Arc::ptr_eq(it, thread)) {
            threads.remove(&key);
        }
        lock(&thread.state).is_closed = true;
    }

    /// Fails all waiters, and ends all threads that are not blocked in the kernel.
    pub(super) fn close(&self) {
        let threads = std::mem::take(&mut *lock(&self.0));
        for thread in threads.into_values() {
            {
                let mut state = lock(&thread.state);
                state.is_closed = true;
                state.leave = None;
            }
            thread.fail_waiter();
            thread.wake_up.notify_one();
        }
    }
}

impl WaitingRequest {
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Box<FileHold>, Error>> {
        let mut state = lock(&self.thread.state);
        let Some(slot) = state.slot.as_mut().filter(|it| it.number == self.number) else {
            return Poll::Pending;
        };
        match slot.outcome.take() {
            Some(outcome) => {
                state.slot = None;
                Poll::Ready(outcome)
            }
            None => {
                // A clone of a waker counts references, so the waker that is there already is kept.
                let has_waker = slot.waker.as_ref();
                if !has_waker.is_some_and(|waker| waker.will_wake(cx.waker())) {
                    slot.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Whether the thread is blocked on a file that is not the one at the path.
    pub(super) fn waits_for_replaced_file(&self) -> bool {
        let blocked_on = lock(&self.thread.state).blocked_on.clone();
        blocked_on.is_some_and(|(id, path)| FileId::at(&path).map_or(true, |now| now != id))
    }
}

impl WaiterThread {
    pub(super) fn state(&self) -> MutexGuard<'_, WaitState> {
        lock(&self.state)
    }

    /// Runs `block`, a call that blocks on the file `id` at `path`.
    pub(super) fn blocked_on<T>(&self, id: FileId, path: &CString, block: impl FnOnce() -> T) -> T {
        self.state().blocked_on = Some((id, path.clone()));
        let output = block();
        self.state().blocked_on = None;
        output
    }

    /// A pipe that is closed when the waiter `number` leaves. `None`: the waiter has left.
    pub(super) fn pipe_of_waiter(&self, number: u64) -> io::Result<Option<PipeReader>> {
        let (reader, writer) = io::pipe()?;
        let mut state = self.state();
        if state.is_closed || state.waiting().is_none_or(|slot| slot.number != number) {
            return Ok(None);
        }
        state.leave = Some(writer);
        Ok(Some(reader))
    }

    /// `None`: the slot is taken, or the thread takes no waiter.
    fn take_slot(self: &Arc<Self>, request: &Arc<Request>) -> Option<WaitingRequest> {
        let mut state = self.state();
        if state.is_closed || state.slot.is_some() {
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
        let thread = self.clone();
        Some(WaitingRequest { thread, number })
    }

    /// The number and the request of the waiter.
    pub(super) fn waiting(&self) -> Option<(u64, Arc<Request>)> {
        let mut state = self.state();
        let slot = state.waiting()?;
        Some((slot.number, slot.request.clone()))
    }

    /// Sleeps until there is a waiter, and returns its number. `None`: no waiter came, or the thread has to end.
    pub(super) fn next_waiter(&self) -> Option<u64> {
        let clock = Clock::system();
        let until = clock.now().after(IDLE_THREAD_TIMEOUT);
        let mut state = self.state();
        loop {
            if let Some(slot) = state.waiting() {
                return Some(slot.number);
            }
            let left = until.since(clock.now());
            if left.is_zero() || state.is_closed {
                // Decided under the lock: no waiter can enter in between.
                state.is_closed = true;
                return None;
            }
            state = self.sleep(state, left);
        }
    }

    /// Sleeps for `pause`, or until the waiter `number` has left.
    pub(super) fn pause(&self, number: u64, pause: Duration) {
        let clock = Clock::system();
        let until = clock.now().after(pause);
        let mut state = self.state();
        while state.waiting().is_some_and(|slot| slot.number == number) {
            let left = until.since(clock.now());
            if left.is_zero() {
                return;
            }
            state = self.sleep(state, left);
        }
    }

    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, WaitState>,
        left: Duration,
    ) -> MutexGuard<'a, WaitState> {
        let woken = self.wake_up.wait_timeout(state, left);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Delivers `outcome` to the waiter `number`. Returns a lock that the waiter no longer wants.
    pub(super) fn deliver(
        &self,
        number: u64,
        outcome: Result<Box<FileHold>, Error>,
    ) -> Option<Box<FileHold>> {
        let mut state = self.state();
        match state.waiting().filter(|slot| slot.number == number) {
            Some(slot) => {
                slot.outcome = Some(outcome);
                let waker = slot.waker.take();
                // Woken without the lock: the waiter asks for the lock first of all.
                drop(state);
                waker.into_iter().for_each(Waker::wake);
                None
            }
            None => outcome.ok(),
        }
    }

    /// Tells the waiter, if there is one, that the client was closed.
    pub(super) fn fail_waiter(&self) {
        if let Some((number, _)) = self.waiting() {
            // An error holds no lock that could come back.
            drop(self.deliver(number, Err(closed())));
        }
    }
}

impl WaitState {
    /// The slot of a waiter that has no outcome yet.
    pub(super) fn waiting(&mut self) -> Option<&mut WaitSlot> {
        self.slot.as_mut().filter(|slot| slot.outcome.is_none())
    }
}
