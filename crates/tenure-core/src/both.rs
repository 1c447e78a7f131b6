//! Two locks of two stores as one: both or none.
//!
//! Each of the two is acquired as if it were alone. The one of the store that comes first in the common order is
//! acquired first, and is held while the other one is waited for: so two programs that name the same two locks in
//! different orders do not wait for each other. What the order is made of must be the same in all programs: the
//! address of the store, which `Client::with_address` says, and the name.

use std::time::Duration;

use crate::driver::{Acquired, Until};
use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::guard::Guard;
use crate::owner::Owner;
use crate::rt::Clock;
use crate::store_lock::StoreLock;

/// What is left of the wait for the second lock at least.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// Acquires both locks; waits for up to `wait`, or for ever. Also returns the lock that was asked last.
///
/// Cancel safe at every await: when the future is dropped, the first lock is released as a dropped guard is.
pub(crate) async fn acquire<'a>(
    parts: &'a [StoreLock; 2],
    wait: Option<Duration>,
    fallback: Option<&Owner>,
) -> Result<(&'a StoreLock, Acquired<Guard>), Error> {
    let is_swapped = check(parts)?;
    let [first, second] = match is_swapped {
        false => [&parts[0], &parts[1]],
        true => [&parts[1], &parts[0]],
    };
    let clock = &first.driver.clock;
    let (start, until) = (clock.now(), Until::from_wait(wait, clock));
    let guard = match acquire_part(first, wait, fallback).await? {
        Acquired::Got(guard) => guard,
        busy @ Acquired::Busy(_) => return Ok((first, busy)),
    };
    let elapsed = clock.now().since(start);
    let left = wait.map(|wait| match wait.is_zero() {
        true => wait,
        // Zero would be one try without a limit.
        false => wait.saturating_sub(elapsed).max(LEAST_WAIT),
    });
    let second_acquired = tokio::select! {
        biased;
        // Without the first lock, the second one is of no use: the wait for it ends.
        Some(_) = guard.lost() => return Err(lost_meanwhile(guard, until, clock).await),
        acquired = acquire_part(second, left, fallback) => acquired,
    };
    // An error of the release is logged where it happens; the caller gets the cause.
    let other = match second_acquired {
        Ok(Acquired::Got(other)) => other,
        failed => {
            release(guard, until, clock).await;
            return failed.map(|busy| (second, busy));
        }
    };
    let both = match is_swapped {
        false => Guard::of_two(guard, other),
        true => Guard::of_two(other, guard),
    };
    if both.is_held() {
        return Ok((second, Acquired::Got(both)));
    }
    Err(lost_meanwhile(both, until, clock).await)
}

/// Releases the guard; in the background if the wait is over before.
async fn release(guard: Guard, until: Until, clock: &Clock) {
    tokio::select! {
        biased;
        _ = guard.release() => {}
        () = clock.sleep_until(until.end_of_giving_back(clock)) => {}
    }
}

/// Releases what is left. Returns the error of an acquisition during which a lock was lost.
async fn lost_meanwhile(guard: Guard, until: Until, clock: &Clock) -> Error {
    let message = "one of the two locks ended while the other one was waited for; retry";
    let err = Error::new(ErrorKind::Lost, message).with_step(Step::Acquire);
    let err = guard.explained(err);
    release(guard, until, clock).await;
    err
}

/// Polls the acquisition inside the runtime of its client: connections that it opens must not end with the runtime of
/// the other client.
async fn acquire_part(
    part: &StoreLock,
    wait: Option<Duration>,
    fallback: Option<&Owner>,
) -> Result<Acquired<Guard>, Error> {
    // In a box: the future is large, and is needed for two stores only.
    let acquiring = Box::pin(part.acquire(wait, fallback));
    part.driver.within(acquiring).await
}

/// Whether the second lock is acquired first. An error if the two cannot be acquired as one.
fn check([a, b]: &[StoreLock; 2]) -> Result<bool, Error> {
    let (of_a, of_b) = (a.checked()?.names(), b.checked()?.names());
    let (driver_a, driver_b) = (&a.driver, &b.driver);
    let is_same_client = driver_a.id() == driver_b.id();
    let has_same_address = driver_a.has_address() && driver_a.address() == driver_b.address();
    let invalid = |message: &str| {
        let err = Error::new(ErrorKind::Invalid, message);
        Err(driver_b.explain(err, &of_b[0], Step::Acquire))
    };
    if is_same_client || has_same_address {
        if of_a.len() > 1 || of_b.len() > 1 {
            return invalid(
                "the two locks of `both` are in one store, and one of them has several names; `lock_all` takes several names of one store",
            );
        }
        if of_a[0] == of_b[0] {
            return invalid(
                "the two locks of `both` are one lock, which would wait for itself; name two locks",
            );
        }
    }
    let key_a = (driver_a.address(), &of_a[0]);
    let key_b = (driver_b.address(), &of_b[0]);
    // No other program has a store of this process, so an order of this process is enough.
    if key_a == key_b && !driver_a.ends_with_process() {
        return invalid(
            "nothing says which of the two stores comes first, and another program may take the two locks in the other order; say the addresses of the stores with `Client::with_address`",
        );
    }
    Ok((key_b, driver_b.id()) < (key_a, driver_a.id()))
}
