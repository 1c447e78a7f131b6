//! One task does something that many tasks need done, a connection for example; the others wait for that task.

use tokio::sync::Mutex;

use crate::rt::Clock;
use crate::time::Time;

/// Lets one attempt run at a time. Tasks that wait while an attempt fails get its failure, so that a store which is
/// away costs all of them together one timeout.
pub struct SingleFlight<E> {
    /// Locked by the task that makes an attempt. The last failure, and when that attempt ended.
    failure: Mutex<Option<(Time, E)>>,
}

impl<E> Default for SingleFlight<E> {
    fn default() -> Self {
        Self {
            failure: Mutex::new(None),
        }
    }
}

impl<E: Clone> SingleFlight<E> {
    /// What `find` finds, or the outcome of `attempt`, which is polled only if `find` finds nothing.
    ///
    /// `attempt` must make its result available to `find` before it ends.
    ///
    /// Cancel safe as far as `attempt` is: when the caller of the attempt is dropped, the next task in line makes
    /// its own attempt.
    pub async fn run<T>(
        &self,
        clock: &Clock,
        find: impl Fn() -> Option<T>,
        attempt: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if let Some(found) = find() {
            return Ok(found);
        }
        let asked = clock.now();
        let mut failure = self.failure.lock().await;
        if let Some(found) = find() {
            return Ok(found);
        }
        if let Some((ended, err)) = &*failure
            && *ended >= asked
        {
            return Err(err.clone());
        }
        let outcome = attempt.await;
        *failure = match &outcome {
            Ok(_) => None,
            Err(err) => Some((clock.now(), err.clone())),
        };
        outcome
    }

    /// Resolves when no attempt is under way: closing a client ends what an attempt has made. Cancel safe.
    pub async fn idle(&self) {
        drop(self.failure.lock().await);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::rt::poll_now;

    /// Nothing can be found: every task needs an attempt.
    fn nothing() -> Option<u32> {
        None
    }

    #[test]
    fn those_who_wait_find_what_the_first_has_made() {
        let (clock, _) = Clock::virtual_clock();
        let flight = SingleFlight::<&str>::default();
        let made = Cell::new(None);
        let (finish, finished) = oneshot::channel::<()>();
        let first = pin!(flight.run(&clock, || made.get(), async {
            finished.await.expect("the sender is used below");
            made.set(Some(1));
            Ok(1)
        }));
        let Err(first) = poll_now(first) else {
            panic!("the attempt waits for the channel");
        };
        let second = pin!(flight.run(&clock, || made.get(), async {
            panic!("the second task must not make an attempt")
        }));
        let Err(second) = poll_now(second) else {
            panic!("an attempt is under way");
        };
        finish.send(()).expect("the attempt waits");
        assert_eq!(poll_now(first).ok(), Some(Ok(1)));
        assert_eq!(poll_now(second).ok(), Some(Ok(1)));
    }

    #[test]
    fn a_failure_is_shared_by_those_who_waited_and_by_no_later_task() {
        let (clock, virtual_clock) = Clock::virtual_clock();
        let flight = SingleFlight::<&str>::default();
        let (finish, finished) = oneshot::channel::<()>();
        let first = pin!(flight.run(&clock, nothing, async {
            finished.await.expect("the sender is used below");
            Err("away")
        }));
        let Err(first) = poll_now(first) else {
            panic!("the attempt waits for the channel");
        };
        let second = pin!(flight.run(&clock, nothing, async {
            panic!("the second task must not make an attempt")
        }));
        let Err(second) = poll_now(second) else {
            panic!("an attempt is under way");
        };
        finish.send(()).expect("the attempt waits");
        assert_eq!(poll_now(first).ok(), Some(Err("away")));
        assert_eq!(poll_now(second).ok(), Some(Err("away")));
        virtual_clock.advance(Duration::from_nanos(1));
        let third = pin!(flight.run(&clock, nothing, async { Ok(3) }));
        assert_eq!(poll_now(third).ok(), Some(Ok(3)));
    }

    #[test]
    fn after_a_dropped_attempt_the_next_task_makes_its_own() {
        let (clock, _) = Clock::virtual_clock();
        let flight = SingleFlight::<&str>::default();
        let mut first = Box::pin(flight.run(&clock, nothing, std::future::pending()));
        assert!(poll_now(first.as_mut()).is_err());
        let mut second = Box::pin(flight.run(&clock, nothing, async { Ok(2) }));
        assert!(poll_now(second.as_mut()).is_err());
        let mut idle = Box::pin(flight.idle());
        assert!(poll_now(idle.as_mut()).is_err());
        drop(first);
        assert_eq!(poll_now(second.as_mut()).ok(), Some(Ok(2)));
        drop(second);
        assert!(poll_now(idle.as_mut()).is_ok());
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use super::*;
    use crate::rt::poll_now;
    use crate::rt::sync::{self, check, lock, spawn};
    use std::pin::pin;
    use std::sync::Arc;

    #[derive(Default)]
    struct Model {
        flight: SingleFlight<&'static str>,
        /// What the attempts have made.
        made: sync::Mutex<Vec<u32>>,
    }

    impl Model {
        /// Finds what was made, or makes it.
        async fn run(&self, clock: &Clock) -> Result<u32, &'static str> {
            let find = || lock(&self.made).first().copied();
            let attempt = async {
                lock(&self.made).push(1);
                Ok(1)
            };
            self.flight.run(clock, find, attempt).await
        }
    }

    #[test]
    fn one_of_several_tasks_makes_the_attempt() {
        check(|| {
            let (clock, _) = Clock::virtual_clock();
            let model = Arc::<Model>::default();
            let tasks = [(); 2].map(|()| {
                let (model, clock) = (model.clone(), clock.clone());
                spawn(async move { model.run(&clock).await })
            });
            assert_eq!(tasks.map(|task| task.join().unwrap()), [Ok(1), Ok(1)]);
            assert_eq!(lock(&model.made).len(), 1);
        });
    }

    #[test]
    fn a_task_goes_on_where_another_one_gave_up() {
        check(|| {
            let (clock, _) = Clock::virtual_clock();
            let model = Arc::<Model>::default();
            let task = {
                let (model, clock) = (model.clone(), clock.clone());
                spawn(async move { model.run(&clock).await })
            };
            let never_found = || None::<u32>;
            let never_made = std::future::pending();
            drop(poll_now(pin!(model.flight.run(
                &clock,
                never_found,
                never_made
            ))));
            assert_eq!(task.join().unwrap(), Ok(1));
        });
    }
}
