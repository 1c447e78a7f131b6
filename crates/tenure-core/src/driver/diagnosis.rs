//! What a wait that ended without a grant is to be told: who holds the name, or that the store did not answer.

use std::future::pending;
use std::time::Duration;

use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::holder::{LockStatus, Rounded};
use crate::name::LockName;
use crate::rt::Clock;

use super::shared::Driver;
use super::until::Until;

/// How long before the end of a wait the store is asked who holds the name: a quarter of the wait, within these limits, and
/// at most half of the wait. The longest is enough for a login to a database.
const INSPECT_LIMITS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(300));

/// How long [`ping`](Driver::ping) takes at most: the default `timeoutSeconds` of a probe in Kubernetes.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// The name that a ping reads. Whether the name is held makes no difference.
const PING_NAME: &str = "ping";

/// Added before the part below a millisecond is left out.
const HALF_A_MILLISECOND: Duration = Duration::from_micros(500);

/// Which task sends the request of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    ThisTask,
    /// A task of the same client or owner, which came first.
    AnotherTask,
}

/// Whether nothing keeps the store from granting the name.
fn is_free(status: &LockStatus) -> bool {
    let has_waiters = status.queue.as_ref().is_some_and(|queue| !queue.is_empty());
    !status.is_held() && status.reserved.is_none() && !has_waiters
}

/// How long before its end a wait of this length begins to ask for the holder.
fn time_to_inspect(wait: Duration) -> Duration {
    let (least, most) = INSPECT_LIMITS;
    (wait / 4).clamp(least, most).min(wait / 2)
}

/// What the store said about a name near the end of a wait; `None`: nothing.
pub(crate) type Inspected = Option<Result<LockStatus, Error>>;

/// What is known about a name that was not acquired.
#[derive(Debug)]
pub(super) enum LastStatus {
    /// The store was not asked.
    NotAsked,
    /// The store did not say who holds the name.
    Unknown,
    Said(Box<LockStatus>),
}

impl LastStatus {
    pub(super) fn of(inspected: Inspected) -> Self {
        match inspected {
            Some(Ok(status)) => Self::Said(Box::new(status)),
            Some(Err(_)) | None => Self::Unknown,
        }
    }
}

/// A name that others held until the end of the wait.
#[derive(Debug)]
pub(crate) struct BusyName {
    name: LockName,
    last: LastStatus,
}

impl BusyName {
    pub(super) fn new(name: &LockName, last: LastStatus) -> Self {
        let name = name.clone();
        Self { name, last }
    }
}

impl Driver {
    /// Resolves at the end of the wait, with what the store says about the name by then. The store is asked before the end,
    /// so that a wait is not longer than its limit. A wait for ever does not end, and neither does one try.
    pub(crate) async fn over(&self, name: &LockName, until: Until) -> Inspected {
        let (Until::At(end) | Until::OnceBy(end)) = until else {
            return pending().await;
        };
        let clock = &self.clock;
        let asked_for = time_to_inspect(end.since(clock.now()));
        clock.wait_until(end.before(asked_for)).await;
        // A store is not silent because the wait is shorter than a round trip, or because the question is late.
        let limit = end.since(clock.now()).max(INSPECT_LIMITS.0);
        // In a box: most waits end before.
        let inspected = Box::pin(self.inspect_within(name, limit)).await;
        clock.sleep_until(end).await;
        inspected
    }

    /// What is known after a wait of this length for `name`, in which the store did not say to the request that the name is taken.
    ///
    /// # Errors
    /// `Unreachable`: the store is silent, so nothing is known about the name.
    pub(crate) fn refuse_silence(
        &self,
        name: &LockName,
        inspected: Inspected,
        wait: Duration,
        asker: Asker,
    ) -> Result<BusyName, Error> {
        let (known, cause) = match inspected {
            // Another task may have got answers, and the lock may have become free in the last moment.
            Some(Ok(status)) if asker == Asker::AnotherTask || !is_free(&status) => {
                let last = LastStatus::Said(Box::new(status));
                return Ok(BusyName::new(name, last));
            }
            Some(Ok(_)) => ("the lock is free now, so retry or raise `wait`", None),
            Some(Err(err)) => ("it is unknown who holds the lock", Some(err)),
            None => ("it is unknown who holds the lock", None),
        };
        let waited = Rounded(wait + HALF_A_MILLISECOND);
        let message = format!("the store did not answer within {waited}; {known}");
        let err = Error::new(ErrorKind::Unreachable, message).with_timeout();
        Err(match cause {
            Some(cause) => err.with_source(cause),
            None => err,
        })
    }

    /// The end of one try behind another task, which asks the store for the name. If the store has not answered that task,
    /// it is asked whether the name is taken: a silent store must not look like a busy one.
    ///
    /// # Errors
    /// The errors of an inspection; `Unreachable`: the store is silent until `until`.
    pub(crate) async fn busy_behind_task(
        &self,
        name: &LockName,
        until: Until,
    ) -> Result<BusyName, Error> {
        if self.queue.is_said_to_be_taken(name) {
            return Ok(BusyName::new(name, LastStatus::NotAsked));
        }
        let wait = until.length(&self.clock);
        let inspecting = self.send(|store| store.inspect(name.clone()));
        match self.until_over(self.end(until), inspecting).await? {
            Ok(answer) => {
                let last = LastStatus::Said(Box::new(answer.map_err(Error::of_read)?));
                Ok(BusyName::new(name, last))
            }
            Err(()) => self.refuse_silence(name, None, wait, Asker::AnotherTask),
        }
    }

    /// Whether the store answers, by a request that only reads.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let answer = async {
            self.refuse_closed()?;
            let name = LockName::new(PING_NAME)?;
            let answer = self.inspect_within(&name, PING_LIMIT).await;
            answer.unwrap_or_else(|| {
                let message = format!("the store did not answer within {PING_LIMIT:?}");
                Err(Error::new(ErrorKind::Unreachable, message).with_timeout())
            })
        };
        answer
            .await
            .map(drop)
            .map_err(|err| self.explain_inspection(err.of_read()))
    }

    /// What the store says about the name; `None`: nothing within `limit`.
    pub(super) async fn inspect_within(&self, name: &LockName, limit: Duration) -> Inspected {
        let clock = &self.clock;
        // Also on the real clock, because a virtual one may stand still: the limit bounds how long a caller waits.
        let real_clock = Clock::system();
        let real_limit = limit.max(INSPECT_LIMITS.1);
        tokio::select! {
            biased;
            status = self.send(|store| store.inspect(name.clone())) => Some(status),
            () = clock.sleep_until(clock.now().after(limit)) => None,
            () = real_clock.sleep_until(real_clock.now().after(real_limit)) => None,
        }
    }

    /// The error of a wait that is over, in a store that answers. It names the holder if the store has said who that is.
    pub(crate) async fn wait_elapsed(
        &self,
        BusyName { name, last }: BusyName,
        waited: Duration,
        ttl: Duration,
    ) -> Error {
        let status = match last {
            LastStatus::Said(status) => Some(*status),
            LastStatus::Unknown => None,
            LastStatus::NotAsked => {
                let inspected = self.inspect_within(&name, INSPECT_LIMITS.0).await;
                inspected.and_then(Result::ok)
            }
        };
        let reserved = status.as_ref().and_then(|status| status.reserved);
        let guard = status.as_ref().and_then(|it| it.restart_guard.clone());
        let guard = guard.filter(|guard| !guard.left(ttl).is_zero());
        let answers = status.is_some();
        let holder = status.and_then(|status| Some(status.holds.into_iter().next()?.holder));
        let still = if waited.is_zero() { "" } else { "still " };
        let taken = match (&holder, reserved) {
            (Some(holder), _) => format!("it {still}is held by {holder}"),
            (None, Some(left)) => format!("it {still}stays reserved for another {left:.0?}"),
            (None, None) if answers => "it was not granted, though it is free by now".into(),
            (None, None) => "it was held when the store answered last".into(),
        };
        let message = if let Some(guard) = &guard {
            format!("waited {waited:?}; {}", guard.describe(ttl))
        } else if waited.is_zero() {
            format!("{taken}, and `wait` is zero; raise it or use `try_acquire`")
        } else {
            format!("waited {waited:?} and {taken}; raise `wait` or use `try_acquire`")
        };
        let err = Error::new(ErrorKind::WaitElapsed, message);
        let err = err.with_holder(holder).with_restart_guard(guard);
        self.explain(err, &name, Step::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Holder;
    use crate::rt::host_name;

    #[test]
    fn a_name_is_free_without_holders_waiters_and_reservation() {
        let free = LockStatus::free(LockName::new("n").unwrap());
        let with_queue = |queue| LockStatus {
            queue: Some(queue),
            ..free.clone()
        };
        let waiter = Holder::new(host_name(), 1);
        let reserved = LockStatus {
            reserved: Some(Duration::from_secs(1)),
            ..free.clone()
        };
        assert!(is_free(&free) && is_free(&with_queue(Vec::new())));
        assert!(!is_free(&with_queue(vec![waiter])) && !is_free(&reserved));
    }

    #[test]
    fn the_last_quarter_of_a_wait_has_room_for_a_look() {
        let ms = Duration::from_millis;
        for (wait, before_end) in [(0, 0), (100, 50), (400, 100), (1_000, 250), (60_000, 300)] {
            assert_eq!(time_to_inspect(ms(wait)), ms(before_end), "{wait} ms");
        }
    }
}
