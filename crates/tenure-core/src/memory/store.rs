//! The store: the reference lock table, its clock, and what waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::disturbance::Disturbance;
use super::guarantees::guarantees;
use crate::backend::{Grant, LossNotifier};
use crate::error::Step;
use crate::fence::{OwnerId, RandomAlready};
use crate::guarantees::Guarantees;
use crate::holder::Holder;
use crate::logic::table::Table;
use crate::rt::{Clock, Flag, VirtualClock, lock};
use crate::time::Time;

/// A store in this process. Clones share it; give one to each client that shall compete.
#[derive(Clone, Debug)]
pub struct Backend(pub(super) Arc<Store>);

#[derive(Debug)]
pub(super) struct Store {
    pub(super) guarantees: Guarantees,
    pub(super) clock: Clock,
    /// Present in a store for tests. Without it no lease runs, because a holder cannot vanish.
    pub(super) virtual_clock: Option<Arc<VirtualClock>>,
    pub(super) state: Mutex<State>,
    /// Something is due earlier than before: tasks that wait for the table compute their wake-up again.
    pub(super) earlier: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) table: Table,
    pub(super) holders: HashMap<OwnerId, Arc<Holder>, RandomAlready>,
    /// Each waiter gets its token and the time of the grant.
    pub(super) waiting: HashMap<OwnerId, oneshot::Sender<(u64, Time)>>,
    /// The buffer for grants on their way from the table to `waiting`.
    granted: Vec<(OwnerId, u64)>,
    pub(super) loss_notifiers: Vec<LossNotifier>,
    pub(super) script: VecDeque<(Step, Disturbance)>,
    /// While the store is paused, requests wait for this flag.
    pub(super) resumed: Option<Arc<Flag>>,
    /// The store was restarted, and grants nothing until then.
    pub(super) guarded_until: Option<Time>,
    pub(super) requests: u64,
}

impl Default for Backend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend {
    /// An empty store on the real clock. Its holds have no lease: they last until they are released.
    pub fn new() -> Self {
        Self::with(Clock::system(), None)
    }

    /// An empty store for tests, with leases, on a clock that stands still until
    /// [`advance`](Backend::advance) moves it.
    pub fn with_virtual_clock() -> Self {
        let (clock, virtual_clock) = Clock::virtual_clock();
        Self::with(clock, Some(virtual_clock))
    }

    /// Another empty store on the clock of this one: for backends that are made of several.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::with(self.0.clock.clone(), self.0.virtual_clock.clone())
    }

    fn with(clock: Clock, virtual_clock: Option<Arc<VirtualClock>>) -> Self {
        let guarantees = guarantees();
        let (state, earlier) = (Mutex::default(), Notify::new());
        Self(Arc::new(Store {
            guarantees,
            clock,
            virtual_clock,
            state,
            earlier,
        }))
    }
}

impl Store {
    /// Brings the table up to date, works on it, and tells waiters that were granted.
    pub(super) fn with_state<T>(&self, work: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        if state.table.next() <= now {
            state.table.tick(now);
        }
        let before = state.table.next();
        let result = work(&mut state, now);
        state.wake(now);
        if state.table.next() < before {
            self.earlier.notify_waiters();
        }
        result
    }

    /// The lease for a ttl that was asked for.
    pub(super) fn lease(&self, ttl: Duration) -> Option<Duration> {
        self.virtual_clock.is_some().then_some(ttl)
    }

    pub(super) fn grant(
        &self,
        token: u64,
        sent: Time,
        round_trip: Duration,
        ttl: Duration,
    ) -> Grant {
        match self.lease(ttl) {
            // Only `break_lock` can end such a hold, and it notifies the client.
            None => Grant::new(token, sent, Duration::ZERO, None).watched(),
            lease => Grant::new(token, sent, round_trip, lease),
        }
    }
}

impl State {
    /// How long a store that was restarted still grants nothing.
    pub(super) fn guarded(&self, now: Time) -> Option<Duration> {
        let left = self.guarded_until?.since(now);
        Some(left).filter(|left| !left.is_zero())
    }

    /// Whether requests reach the store, and at once.
    pub(super) fn is_undisturbed(&self) -> bool {
        self.script.is_empty() && self.resumed.is_none()
    }

    /// Tells waiters that the table has granted.
    pub(super) fn wake(&mut self, now: Time) {
        self.table.granted(&mut self.granted);
        for (owner, token) in self.granted.drain(..) {
            if let Some(waiting) = self.waiting.remove(&owner) {
                // If the waiter is gone, the driver releases its hold.
                let _ = waiting.send((token, now));
            }
        }
    }
}
