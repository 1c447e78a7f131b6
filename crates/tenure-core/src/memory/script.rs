//! What tests can do to a store in memory: move its clock, disturb requests, end holds.

use std::time::Duration;

use super::disturbance::Disturbance;
use super::inspect;
use super::name_table::NameTable;
use super::store::Store;
use crate::error::{Error, Step};
use crate::holder::LockStatus;
use crate::name::LockName;
use crate::rt::{VirtualClock, lock, yield_now};
use crate::time::Time;

/// How often each task gets its turn before time goes on: more often than the longest chain of tasks that wake each other.
const TURNS: usize = 100;

impl Store {
    /// Moves the clock forward in one step; what was due on the way is due now.
    ///
    /// The consequences happen in tasks: await something before you read the state, and make steps that are shorter than a
    /// third of the ttl where renewals shall be in time.
    ///
    /// # Panics
    /// On a store that was not made by [`with_virtual_clock`](Store::with_virtual_clock).
    pub fn advance(&self, by: Duration) {
        self.virtual_clock().advance(by);
        self.0.with_state(|_, _| ());
    }

    /// Lets this much time pass as it passes on a real clock: moves the clock from one timer to the next, and lets the tasks
    /// of this runtime run in between. So renewals are in time, whatever `duration` is. The tasks must share a thread with
    /// the caller (a runtime of one thread, as in `#[tokio::test]`), or the clock runs ahead of them.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// use std::time::Duration;
    ///
    /// let store = tenure::memory::Store::with_virtual_clock();
    /// let client = tenure::Client::from_store(store.clone())?;
    /// let guard = client.lock("orders/42").ttl(Duration::from_secs(30)).acquire().await?;
    /// store.run_for(Duration::from_secs(3600)).await;
    /// assert!(guard.is_held());
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe: the time that has passed by then has passed.
    ///
    /// # Panics
    /// On a store that was not made by [`with_virtual_clock`](Store::with_virtual_clock).
    pub async fn run_for(&self, duration: Duration) {
        let end = self.0.clock.now().after(duration);
        loop {
            for _ in 0..TURNS {
                yield_now().await;
            }
            let now = self.0.clock.now();
            if now >= end {
                return;
            }
            let next = self.next_wake().filter(|at| *at > now);
            self.advance(next.map_or(end, |at| at.min(end)).since(now));
        }
    }

    /// The instant of the earliest timer on this clock, if anything sleeps: how far a test can
    /// [`advance`](Store::advance) in one step without missing anything.
    ///
    /// # Panics
    /// On a store that was not made by [`with_virtual_clock`](Store::with_virtual_clock).
    pub fn next_wake(&self) -> Option<Time> {
        self.virtual_clock().next_wake()
    }

    /// From now on, what clients of this store leave to chance (owner ids, jitter) follows from `seed`,
    /// so that a test on one thread takes the same course each time.
    ///
    /// # Panics
    /// On a store that was not made by [`with_virtual_clock`](Store::with_virtual_clock).
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
            state.table = NameTable::default();
            state.holders.clear();
            state.waiting.clear();
            state.guarded_until = Some(now.after(guard));
        });
    }

    /// Ends every hold of `name` as if its lease had run out, unnoticed by the holders.
    pub fn expire(&self, name: &str) -> Result<usize, Error> {
        let name = LockName::new(name)?;
        Ok(self.0.with_state(|state, now| {
            let expired = state.table.expire(&name, now);
            state.holders.remove_ended(&state.table);
            expired
        }))
    }

    /// Requests that reached the store so far.
    pub fn requests(&self) -> u64 {
        lock(&self.0.state).requests
    }

    /// Who holds the name and who waits. This is no request, so no scripted fault happens to it.
    pub fn status(&self, name: &LockName) -> LockStatus {
        inspect::status(&self.0, name)
    }

    /// Whether no name has a holder or a waiter.
    pub fn is_idle(&self) -> bool {
        let mut state = lock(&self.0.state);
        state.tick(self.0.clock.now());
        state.table.names("").is_empty() && state.waiting.is_empty() && state.holders.is_empty()
    }
}
