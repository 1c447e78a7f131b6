//! The background task of a client that renews, checks and expires what the client has in its store.

use std::sync::Arc;
use std::time::Duration;

use crate::logic::pace;
use crate::rt::{Clock, Flag, NextWakeup, Spawner};
use crate::time::Time;

/// The time until the next round if the work says that more is due already.
const OVERDUE_INTERVAL: Duration = Duration::from_millis(1);

/// A task that is started with the first work and sleeps while no work is due.
///
/// The task keeps the store alive only while it works. The work must not wait for long: whatever else is due waits
/// as well, so a request that may hang belongs into a task of its own.
pub struct Maintenance {
    wakeup: NextWakeup,
    stop: Flag,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            wakeup: NextWakeup::new(),
            stop: Flag::new(),
        }
    }
}

impl Maintenance {
    /// Starts the task for `store`, unless it runs. `work` does what is due and returns when the next work is due
    /// ([`Time::MAX`]: only when [`due_at`](Self::due_at) or [`wake`](Self::wake) says so).
    pub fn start<S, F>(
        self: &Arc<Self>,
        spawner: &Spawner,
        clock: &Clock,
        store: &Arc<S>,
        work: impl Fn(Arc<S>) -> F + Send + 'static,
    ) where
        S: Send + Sync + 'static,
        F: Future<Output = Time> + Send + 'static,
    {
        if !self.wakeup.claim_start() {
            return;
        }
        let (maintenance, clock, store) = (self.clone(), clock.clone(), Arc::downgrade(store));
        spawner.spawn(async move {
            loop {
                let planned = maintenance.wakeup.begin();
                // Dropped at the end of the statement, so the store lives no longer than its clients.
                let Some(store) = store.upgrade() else { return };
                let next = tokio::select! {
                    biased;
                    () = maintenance.stop.raised() => return,
                    next = work(store) => next,
                };
                let now = clock.now();
                let next = if next > now {
                    next
                } else {
                    now.after(OVERDUE_INTERVAL)
                };
                let next = pace::look(planned, next, now);
                let next = maintenance.wakeup.plan(next);
                tokio::select! {
                    biased;
                    () = maintenance.stop.raised() => return,
                    () = maintenance.wakeup.sleep(&clock, next) => {}
                }
            }
        });
    }

    /// There is work by `at`. Call this after the work can be found.
    pub fn due_at(&self, at: Time) {
        self.wakeup.due_at(at);
    }

    /// There is work now. Call this after the work can be found.
    pub fn wake(&self) {
        self.wakeup.wake();
    }

    /// Ends the task for good; work that is under way is dropped at its current await.
    pub fn stop(&self) {
        self.stop.raise();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::rt::lock;

    /// A store whose work is a list of instants.
    struct Store {
        clock: Clock,
        due: Mutex<Vec<Time>>,
        done: Mutex<Vec<Time>>,
        /// Added while a round of work is under way, after the list was read.
        late: Mutex<Option<Time>>,
    }

    impl Store {
        async fn work(self: Arc<Self>, maintenance: Arc<Maintenance>) -> Time {
            let now = self.clock.now();
            let mut next = Time::MAX;
            lock(&self.due).retain(|at| {
                let is_due = *at <= now;
                match is_due {
                    true => lock(&self.done).push(*at),
                    false => next = next.min(*at),
                }
                !is_due
            });
            if let Some(late) = lock(&self.late).take() {
                lock(&self.due).push(late);
                maintenance.due_at(late);
            }
            next
        }
    }

    struct Case {
        store: Arc<Store>,
        maintenance: Arc<Maintenance>,
        time: Arc<crate::rt::VirtualClock>,
        start: Time,
    }

    impl Case {
        fn new() -> Self {
            let (clock, time) = Clock::virtual_clock();
            let start = clock.now();
            let store = Arc::new(Store {
                clock,
                due: Mutex::default(),
                done: Mutex::default(),
                late: Mutex::default(),
            });
            Self {
                store,
                maintenance: Arc::default(),
                time,
                start,
            }
        }

        fn start(&self) {
            let spawner = Spawner::current().expect("the test runs in a runtime");
            let maintenance = self.maintenance.clone();
            let work = move |store: Arc<Store>| store.work(maintenance.clone());
            let clock = self.store.clock.clone();
            self.maintenance.start(&spawner, &clock, &self.store, work);
        }

        fn at(&self, secs: u64) -> Time {
            self.start.after(Duration::from_secs(secs))
        }

        fn add(&self, secs: u64) {
            lock(&self.store.due).push(self.at(secs));
            self.maintenance.due_at(self.at(secs));
        }

        /// Lets the task run until it sleeps.
        async fn settle(&self) {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }

        async fn advance(&self, secs: u64) {
            self.time.advance(Duration::from_secs(secs));
            self.settle().await;
        }

        fn done(&self) -> Vec<u64> {
            let done = lock(&self.store.done);
            done.iter()
                .map(|at| at.since(self.start).as_secs())
                .collect()
        }
    }

    #[tokio::test]
    async fn work_is_done_when_it_is_due_and_earlier_work_comes_first() {
        let case = Case::new();
        case.add(10);
        case.start();
        case.settle().await;
        case.add(3);
        case.settle().await;
        case.advance(2).await;
        assert!(case.done().is_empty());
        case.advance(1).await;
        assert_eq!(case.done(), [3]);
        case.advance(7).await;
        assert_eq!(case.done(), [3, 10]);
    }

    #[tokio::test]
    async fn work_that_is_added_during_a_round_is_not_missed() {
        let case = Case::new();
        *lock(&case.store.late) = Some(case.at(2));
        case.add(9);
        case.start();
        case.settle().await;
        case.advance(2).await;
        assert_eq!(case.done(), [2]);
    }

    #[tokio::test]
    async fn work_that_is_due_soon_after_a_round_is_not_late() {
        let case = Case::new();
        let soon = OVERDUE_INTERVAL / 10;
        lock(&case.store.due).push(case.start.after(soon));
        case.start();
        case.settle().await;
        case.time.advance(soon);
        case.settle().await;
        assert_eq!(lock(&case.store.done).len(), 1);
    }

    #[tokio::test]
    async fn work_that_is_due_at_once_again_comes_after_a_pause() {
        let case = Case::new();
        let spawner = Spawner::current().expect("the test runs in a runtime");
        let work = |store: Arc<Store>| {
            let now = store.clock.now();
            lock(&store.done).push(now);
            std::future::ready(now)
        };
        let clock = case.store.clock.clone();
        case.maintenance.start(&spawner, &clock, &case.store, work);
        case.settle().await;
        assert_eq!(lock(&case.store.done).len(), 1);
        case.time.advance(OVERDUE_INTERVAL);
        case.settle().await;
        assert_eq!(lock(&case.store.done).len(), 2);
    }

    #[tokio::test]
    async fn it_is_started_once_and_ends_with_stop_or_with_its_store() {
        let case = Case::new();
        case.start();
        case.start();
        case.settle().await;
        case.maintenance.stop();
        case.settle().await;
        // The tasks are over: only this test has the block and the store.
        assert_eq!(Arc::strong_count(&case.maintenance), 1);
        assert_eq!(Arc::strong_count(&case.store), 1);
        let Case {
            store, maintenance, ..
        } = Case::new();
        let spawner = Spawner::current().expect("the test runs in a runtime");
        let work = |_: Arc<Store>| std::future::ready(Time::MAX);
        maintenance.start(&spawner, &store.clock.clone(), &store, work);
        tokio::task::yield_now().await;
        drop(store);
        maintenance.wake();
        case.settle().await;
        assert_eq!(Arc::strong_count(&maintenance), 1);
    }

    #[tokio::test]
    async fn stop_ends_work_that_hangs() {
        let case = Case::new();
        let spawner = Spawner::current().expect("the test runs in a runtime");
        let work = |_: Arc<Store>| std::future::pending();
        let clock = case.store.clock.clone();
        case.maintenance.start(&spawner, &clock, &case.store, work);
        case.settle().await;
        case.maintenance.stop();
        case.settle().await;
        assert_eq!(Arc::strong_count(&case.store), 1);
    }
}
