//! What tests can do to a store in memory: move its clock, disturb requests, end holds.

use std::time::Duration;

use super::disturbance::Disturbance;
use super::inspect;
use super::store::Backend;
use crate::error::{Error, Step};
use crate::holder::Status;
use crate::logic::table::Table;
use crate::name::LockName;
use crate::rt::{VirtualClock, lock};
use crate::time::Time;

impl Backend {
    /// Moves the clock forward in one step; what was due on the way is due now.
    ///
    /// The consequences happen in tasks: await something before you read the state, and make steps that are shorter than a
    /// third of the ttl where renewals shall be in time.
    ///
    /// # Panics
    /// On a store that runs on the real clock.
    pub fn advance(&self, by: Duration) {
        self.virtual_clock().advance(by);
        self.0.with_state(|_, _| ());
    }

    /// The instant of the earliest timer on this clock, if anything sleeps: how far a test can
    /// [`advance`](Backend::advance) in one step without missing anything.
    ///
    /// # Panics
    /// On a store that runs on the real clock.
    pub fn next_wake(&self) -> Option<Time> {
        self.virtual_clock().next_wake()
    }

    /// From now on, what clients of this store leave to chance (owner ids, jitter) follows from `seed`,
    /// so that a test on one thread takes the same course each time.
    ///
    /// # Panics
    /// On a store that runs on the real clock.
    pub fn seed(&self, seed: u64) {
        self.virtual_clock().seed(seed);
    }

    fn virtual_clock(&self) -> &VirtualClock {
        self.0
            .virtual_clock
            .as_ref()
            .expect("only a store made by `with_virtual_clock` has a clock that can be moved")
    }

    /// Disturbs the next request of that step. Calls queue up.
    pub fn disturb(&self, step: Step, disturbance: Disturbance) {
        lock(&self.0.state).script.push_back((step, disturbance));
    }

    /// From now on requests hang.
    pub fn pause(&self) {
        lock(&self.0.state).resumed.get_or_insert_default();
    }

    /// Requests that hang go on, and so does the store.
    pub fn resume(&self) {
        let mut state = lock(&self.0.state);
        if let Some(resumed) = state.resumed.take() {
            resumed.raise();
        }
    }

    /// Kills the store and starts it again, empty: holds, waiters and tokens are forgotten, and no
    /// holder is told. For `guard` after that it refuses every acquisition (`Unreachable`).
    pub fn restart(&self, guard: Duration) {
        self.0.with_state(|state, now| {
            state.table = Table::new();
            state.holders.clear();
            state.waiting.clear();
            state.guarded_until = Some(now.after(guard));
        });
    }

    /// Ends every hold of `name` as if its lease had run out, unnoticed by the holders.
    pub fn expire(&self, name: &str) -> Result<usize, Error> {
        let name = LockName::new(name)?;
        Ok(self
            .0
            .with_state(|state, now| state.table.expire(&name, now)))
    }

    /// Requests that reached the store so far.
    pub fn requests(&self) -> u64 {
        lock(&self.0.state).requests
    }

    /// Who holds the name and who waits. This is no request, so no scripted fault happens to it.
    pub fn status(&self, name: &LockName) -> Status {
        inspect::status(&self.0, name)
    }

    /// Whether no name has a holder or a waiter.
    pub fn is_idle(&self) -> bool {
        let mut state = lock(&self.0.state);
        state.table.tick(self.0.clock.now());
        state.table.names("").is_empty() && state.waiting.is_empty() && state.holders.is_empty()
    }
}
