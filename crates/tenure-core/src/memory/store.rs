//! The store: the reference lock table, its clock, and what waits for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::disturbance::Disturbance;
use super::guarantees::guarantees;
use super::holders::Holders;
use super::name_table::NameTable;
use super::watcher::Watcher;
use crate::error::Step;
use crate::fence::OwnerId;
use crate::guarantees::Guarantees;
use crate::rt::{Clock, Flag, VirtualClock, lock};
use crate::store::{Grant, LossNotifier};
use crate::time::Time;

/// A store in this process. Clones share it; give one to each client that shall compete.
#[derive(Clone, Debug)]
pub struct Store(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) guarantees: Guarantees,
    pub(super) clock: Clock,
    /// Present in a store whose clock a test moves.
    pub(super) virtual_clock: Option<Arc<VirtualClock>>,
    pub(super) state: Mutex<StoreState>,
    /// Something is due earlier than before: tasks that wait for the table compute their wake-up again.
    pub(super) earlier: Notify,
}

#[derive(Debug, Default)]
pub(super) struct StoreState {
    pub(super) table: NameTable,
    pub(super) holders: Holders,
    /// Each waiter gets its token and the time of the grant.
    pub(super) waiting: HashMap<OwnerId, oneshot::Sender<(u64, Time)>>,
    /// The buffer for grants on their way from the table to `waiting`.
    granted: Vec<(OwnerId, u64)>,
    pub(super) loss_notifiers: Vec<LossNotifier>,
    pub(super) watchers: Vec<Watcher>,
    pub(super) script: VecDeque<(Step, Disturbance)>,
    /// While the store is paused, requests wait for this flag.
    pub(super) resumed: Option<Arc<Flag>>,
    /// The store was restarted, and grants nothing until then.
    pub(super) guarded_until: Option<Time>,
    pub(super) requests: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// An empty store on the real clock. Its holds have no lease: they last until they are released.
    pub fn new() -> Self {
        Self::with(Clock::system(), None)
    }

    /// An empty store for tests, with leases, on a clock that stands still until
    /// [`advance`](Store::advance) moves it.
    pub fn with_virtual_clock() -> Self {
        let (clock, virtual_clock) = Clock::virtual_clock();
        Self::with(clock, Some(virtual_clock))
    }

    /// An empty store for tests, with leases, on the clock of tokio's timers. In a test that pauses this clock
    /// (`#[tokio::test(start_paused = true)]`, feature `test-util` of tokio), the code under test and its locks share one
    /// clock, which goes to the next timer whenever all tasks wait.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// use std::time::Duration;
    ///
    /// let store = tenure::memory::Store::with_tokio_clock();
    /// let client = tenure::Client::from_store(store)?;
    /// let lock = client.lock("orders/42").max_hold(Duration::from_millis(20));
    /// let outcome = lock.run(async |_| tokio::time::sleep(Duration::from_secs(3600)).await).await;
    /// assert_eq!(outcome.unwrap_err().kind(), tenure::ErrorKind::Lost);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn with_tokio_clock() -> Self {
        Self::with(Clock::tokio(), None)
    }

    /// The store of that name in this process: if no clone of it is left, a new empty one. What the URL
    /// `memory:NAME` means, so that two clients that connect by URL share it.
    pub fn named(name: &str) -> Self {
        static NAMED: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());
        let mut named = lock(&NAMED);
        named.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = named.get(name).and_then(Weak::upgrade) {
            return Self(store);
        }
        let store = Self::new();
        named.insert(name.to_owned(), Arc::downgrade(&store.0));
        store
    }

    /// Another empty store on the clock of this one: for stores that are made of several.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::with(self.0.clock.clone(), self.0.virtual_clock.clone())
    }

    fn with(clock: Clock, virtual_clock: Option<Arc<VirtualClock>>) -> Self {
        let guarantees = guarantees();
        let (state, earlier) = (Mutex::default(), Notify::new());
        Self(Arc::new(Shared {
            guarantees,
            clock,
            virtual_clock,
            state,
            earlier,
        }))
    }
}

impl Shared {
    /// Brings the table up to date, works on it, and tells waiters that were granted.
    pub(super) fn with_state<T>(&self, work: impl FnOnce(&mut StoreState, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        if state.table.next() <= now {
            state.tick(now);
        }
        let before = state.table.next();
        let result = work(&mut state, now);
        state.wake(now);
        state.tell_watchers(now);
        if state.table.next() < before {
            self.earlier.notify_waiters();
        }
        result
    }

    /// The lease for a ttl that was asked for. On the real clock no lease runs, because a holder cannot vanish.
    pub(super) fn lease(&self, ttl: Duration) -> Option<Duration> {
        (!self.clock.is_real()).then_some(ttl)
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

impl StoreState {
    /// Ends what ends by time.
    pub(super) fn tick(&mut self, now: Time) {
        self.table.tick(now);
        self.holders.remove_ended(&self.table);
    }

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Store;
    use crate::{Client, ErrorKind, LostReason};

    const HOUR: Duration = Duration::from_secs(3600);

    fn client() -> Client {
        Client::from_store(Store::with_tokio_clock()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_sleeps_longer_than_max_hold_is_ended_on_the_clock_of_tokio() {
        let lock = client().lock("a").max_hold(HOUR);
        let start = tokio::time::Instant::now();
        let outcome = lock.run(async |_| tokio::time::sleep(2 * HOUR).await).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(start.elapsed().as_secs(), HOUR.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_renewed_while_the_clock_of_tokio_goes_on() {
        let client = client();
        let guard = client.lock("a").acquire().await.unwrap();
        tokio::time::sleep(HOUR).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        assert!(!client.inspect("a").await.unwrap().is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_on_the_clock_of_tokio() {
        let store = Store::with_tokio_clock();
        let client = Client::from_store(store.clone()).unwrap();
        let ttl = Duration::from_secs(10);
        let guard = client.lock("a").ttl(ttl).acquire().await.unwrap();
        let start = tokio::time::Instant::now();
        store.pause();
        assert_eq!(guard.lost().await, Some(LostReason::Expired));
        assert!(start.elapsed() <= ttl, "{:?}", start.elapsed());
    }
}
