//! What a request to upgrade and the thread that waits for it share; part of the upgradable hold.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::lock;
use tenure_core::store::Request;

use super::kernel_lock::KernelLock;

/// The requests to upgrade one hold, one at a time.
#[derive(Debug, Default)]
pub(super) struct Upgrade(Mutex<UpgradeState>);

#[derive(Debug, Default)]
pub(super) struct UpgradeState {
    /// The request that is under way.
    pub(super) request: Option<Arc<Request>>,
    /// The number of that request.
    number: u64,
    /// Locked from the beginning of the request to its end: meanwhile nothing is granted.
    pub(super) turnstile: Option<KernelLock>,
    /// The record says that nothing may be granted while the turnstile is locked.
    pub(super) is_announced: bool,
    /// The new token.
    pub(super) outcome: Option<Result<u64, Error>>,
    pub(super) waker: Option<Waker>,
    /// A thread works on the request, or is still blocked for an earlier one.
    pub(super) has_thread: bool,
}

impl Upgrade {
    pub(super) fn state(&self) -> MutexGuard<'_, UpgradeState> {
        lock(&self.0)
    }

    /// Begins a request, and returns its number.
    pub(super) fn begin(&self, request: &Arc<Request>) -> u64 {
        let mut state = self.state();
        state.give_up();
        state.number += 1;
        state.request = Some(request.clone());
        (state.outcome, state.waker) = (None, None);
        state.number
    }

    /// The outcome, if there is one: the thread that an earlier request has left behind may be faster than its task.
    /// `or_give_up`: otherwise the request ends.
    pub(super) fn take_outcome(&self, or_give_up: bool) -> Option<Result<u64, Error>> {
        let mut state = self.state();
        let outcome = state.outcome.take();
        if outcome.is_none() && or_give_up {
            state.give_up();
        }
        outcome
    }

    /// Gives up the request: the hold stays upgradable, and others are granted again.
    pub(super) fn give_up(&self) {
        self.state().give_up();
    }

    /// Fails the request, because the hold ends.
    pub(super) fn end(&self) {
        let mut state = self.state();
        if let Some(number) = state.current() {
            state.finish(number, Err(lost()));
        }
    }
}

impl UpgradeState {
    /// The request with that number, unless it has ended.
    pub(super) fn request(&self, number: u64) -> Option<&Arc<Request>> {
        self.request.as_ref().filter(|_| self.number == number)
    }

    /// The number of the request that is under way.
    pub(super) fn current(&self) -> Option<u64> {
        self.request.is_some().then_some(self.number)
    }

    pub(super) fn give_up(&mut self) {
        // A record that still says so means nothing without the turnstile.
        (self.request, self.turnstile, self.is_announced) = (None, None, false);
    }

    /// Ends the request with that number, and wakes its task.
    pub(super) fn finish(&mut self, number: u64, outcome: Result<u64, Error>) {
        if self.request(number).is_none() {
            return;
        }
        self.give_up();
        self.outcome = Some(outcome);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// The hold is not there any more.
pub(super) fn lost() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the upgradable hold has ended, so it cannot become exclusive; acquire the lock again",
    )
}
