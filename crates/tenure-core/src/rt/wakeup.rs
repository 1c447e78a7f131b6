//! When a background task scans its work again: at the moment that the task has planned, or earlier if another task has
//! added work that is due before.

use std::sync::atomic::Ordering;

use super::clock::Clock;
use super::sync::{AtomicBool, AtomicU64, Notify};
use crate::time::Time;

/// The next wake-up of one task.
///
/// The task loops over [`begin`](Self::begin), a scan of its work, [`plan`](Self::plan) and [`sleep`](Self::sleep). While
/// it scans, nothing is planned, so everything that is added meanwhile wakes it: the scan may have passed by the
/// place where the new work is.
pub struct NextWakeup {
    /// In ns. `u64::MAX`: nothing is planned.
    planned: AtomicU64,
    earlier: Notify,
    is_started: AtomicBool,
}

impl Default for NextWakeup {
    fn default() -> Self {
        Self {
            planned: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
            is_started: AtomicBool::new(false),
        }
    }
}

impl NextWakeup {
    /// No moment is planned yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `true` for the first caller, who starts the task.
    pub fn claim_start(&self) -> bool {
        !self.is_started.swap(true, Ordering::SeqCst)
    }

    /// The task has work by `at`. Call this after the work can be found by a scan.
    pub fn due_at(&self, at: Time) {
        if at.as_nanos() < self.planned.load(Ordering::SeqCst) {
            self.earlier.notify_one();
        }
    }

    /// The task looks at its work soon, whatever is planned.
    pub fn wake(&self) {
        self.earlier.notify_one();
    }

    /// Call this before a scan. What was planned, for `logic::pace::look`, which decides when to look next.
    pub fn begin(&self) -> Time {
        Time::from_nanos(self.planned.swap(u64::MAX, Ordering::SeqCst))
    }

    /// Call this after a scan that found nothing to do before `next`.
    pub fn plan(&self, next: Time) -> Time {
        self.planned.store(next.as_nanos(), Ordering::SeqCst);
        next
    }

    /// Resolves at `next`, or when there is earlier work. Cancel safe.
    pub async fn sleep(&self, clock: &Clock, next: Time) {
        tokio::select! {
            () = clock.sleep_until(next), if next != Time::MAX => {}
            () = self.earlier.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;
    use crate::rt::poll_now;

    fn at(secs: u64) -> Time {
        Time::default().after(Duration::from_secs(secs))
    }

    /// Whether the task would go on right now.
    fn is_woken(wakeup: &NextWakeup, clock: &Clock, next: Time) -> bool {
        poll_now(pin!(wakeup.sleep(clock, next))).is_ok()
    }

    #[test]
    fn it_wakes_up_at_the_planned_time_and_not_before() {
        let (clock, time) = Clock::virtual_clock();
        let wakeup = NextWakeup::new();
        let now = clock.now();
        let next = wakeup.plan(now.after(Duration::from_secs(5)));
        assert!(!is_woken(&wakeup, &clock, next));
        time.advance(Duration::from_secs(5));
        assert!(is_woken(&wakeup, &clock, next));
    }

    #[test]
    fn earlier_work_wakes_it_and_later_work_does_not() {
        let (clock, _) = Clock::virtual_clock();
        let wakeup = NextWakeup::new();
        let now = clock.now();
        let in_secs = |secs| now.after(Duration::from_secs(secs));
        let next = wakeup.plan(in_secs(5));
        wakeup.due_at(in_secs(6));
        assert!(!is_woken(&wakeup, &clock, next));
        wakeup.due_at(in_secs(4));
        assert!(is_woken(&wakeup, &clock, next));
    }

    /// The scan has passed by the place where the work is added; what it found is later.
    #[test]
    fn work_that_is_added_during_a_scan_is_not_missed() {
        let (clock, _) = Clock::virtual_clock();
        let wakeup = NextWakeup::new();
        let now = clock.now();
        let in_secs = |secs| now.after(Duration::from_secs(secs));
        // Something was planned for a moment that has passed, as when the task wakes up.
        wakeup.plan(now);
        assert_eq!(wakeup.begin(), now);
        wakeup.due_at(in_secs(3));
        let next = wakeup.plan(in_secs(5));
        assert!(is_woken(&wakeup, &clock, next));
    }

    #[test]
    fn without_work_it_sleeps_until_there_is_some() {
        let (clock, _) = Clock::virtual_clock();
        let wakeup = NextWakeup::new();
        let next = wakeup.plan(Time::MAX);
        assert!(!is_woken(&wakeup, &clock, next));
        wakeup.due_at(at(1_000));
        assert!(is_woken(&wakeup, &clock, next));
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::rt::sync::{Mutex, block_on, check, lock, spawn};

    /// The task scans until it finds work, which is due before everything that is planned. The clock stands still, so the
    /// task sleeps for ever if it misses the wake-up.
    fn work_is_found(planned: Option<u64>) {
        check(move || {
            let (clock, _) = Clock::virtual_clock();
            let at = |secs| clock.now().after(Duration::from_secs(secs));
            let (due, planned) = (at(1), planned.map_or(Time::MAX, at));
            let wakeup = Arc::new(NextWakeup::new());
            let has_work = Arc::new(Mutex::new(false));
            let adding = {
                let (wakeup, has_work) = (wakeup.clone(), has_work.clone());
                spawn(async move {
                    *lock(&has_work) = true;
                    wakeup.due_at(due);
                })
            };
            // The task has slept until now: what it had planned is over.
            wakeup.plan(clock.now());
            block_on(async {
                loop {
                    wakeup.begin();
                    if *lock(&has_work) {
                        return;
                    }
                    let next = wakeup.plan(planned);
                    wakeup.sleep(&clock, next).await;
                }
            });
            adding.join().unwrap();
        });
    }

    #[test]
    fn work_that_is_added_is_found_where_nothing_was_planned() {
        work_is_found(None);
    }

    #[test]
    fn work_that_is_added_is_found_before_what_was_planned() {
        work_is_found(Some(5));
    }
}
