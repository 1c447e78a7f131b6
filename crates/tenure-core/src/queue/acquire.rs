//! One acquisition, from the first request to the answer.

use super::interface::{Acquisition, Created, is_temporary, retry_limit};
use super::wait::{Waited, wait};
use crate::error::{Error, ErrorKind, ErrorParts as _};
use crate::store::Answer;
use crate::support::{RetryBudget, not_left};
use crate::time::Time;

/// How an attempt ended. Nothing of it is left but what was granted.
enum Attempt {
    Answered(Answer),
    /// The next attempt may succeed, and is made at once the first time.
    Again,
    /// Our entry was deleted, or went with its session.
    EntryLost,
}

/// Acquires the name; see [`Store::acquire`](crate::store::Store::acquire).
///
/// # Errors
/// What the store says.
pub async fn acquire<Q: Acquisition>(queue: &Q) -> Result<Answer, Error> {
    let (request, clock) = queue.context();
    let mut retries = RetryBudget::without_limit();
    let mut limit = clock.now().after(request.ttl);
    loop {
        let pauses = match attempt(queue, &mut limit).await {
            Ok(Attempt::Answered(answer)) => return Ok(answer),
            Ok(Attempt::Again) => retries.failures() > 0,
            Ok(Attempt::EntryLost) => {
                tracing::warn!(name = %request.name, "our entry in the queue is gone: its session ended, or it was deleted; queueing again at the end");
                true
            }
            Err(err) => {
                let is_stopped = request.stop.is_raised();
                if is_stopped && err.kind() != ErrorKind::Indeterminate {
                    return Ok(Answer::Busy);
                }
                let is_over = is_stopped || !request.wait || clock.now() >= limit;
                if !Q::BEGINS_ANEW || is_over || !is_temporary(&err) {
                    return Err(err);
                }
                leave_with_retry(queue, limit).await?;
                tracing::warn!(name = %request.name, err = format_args!("{err:#}"), "queueing again at the end");
                true
            }
        };
        let next = retries.next_attempt(clock);
        if pauses {
            let _ = request.unless_stopped(clock.sleep_until(next)).await;
        }
        if request.stop.is_raised() {
            return Ok(Answer::Busy);
        }
    }
}

async fn attempt<Q: Acquisition>(queue: &Q, limit: &mut Time) -> Result<Attempt, Error> {
    let (entry, position) = match queue.create().await? {
        Created::Entry(entry, position) => (entry, position),
        Created::Busy => return Ok(Attempt::Answered(Answer::Busy)),
        Created::Again => return Ok(Attempt::Again),
    };
    let (request, clock) = queue.context();
    *limit = retry_limit(request, clock);
    let answer = match wait(queue, &entry, position, limit).await {
        Ok(Waited::Held { last_token }) => queue.grant(&entry, last_token).await,
        Ok(Waited::EntryLost) => Ok(None),
        Ok(Waited::Stopped) => {
            return leave(queue).await.map(|()| Attempt::Answered(Answer::Busy));
        }
        Err(err) => Err(err),
    };
    match answer {
        Ok(Some(answer)) => Ok(Attempt::Answered(answer)),
        Ok(None) => {
            leave_with_retry(queue, *limit).await?;
            Ok(Attempt::EntryLost)
        }
        Err(err) => Err(give_up(queue, err).await),
    }
}

async fn leave<Q: Acquisition>(queue: &Q) -> Result<(), Error> {
    queue.leave().await.map_err(not_left)
}

/// Leaves the queue, again and again until there is an answer or the caller gives up: one entry at a time.
async fn leave_with_retry<Q: Acquisition>(queue: &Q, limit: Time) -> Result<(), Error> {
    let (request, clock) = queue.context();
    let mut retries = RetryBudget::until(limit);
    loop {
        let left = leave(queue).await;
        if left.is_ok() || request.stop.is_raised() || retries.is_spent(clock) {
            return left;
        }
        retries.pause(clock).await;
    }
}

/// Leaves the queue after `err`, and returns the error for the user.
async fn give_up<Q: Acquisition>(queue: &Q, err: Error) -> Error {
    if let Err(err) = leave(queue).await {
        return err;
    }
    match err.kind() {
        // Our entry is gone, so the outcome is known.
        ErrorKind::Indeterminate => {
            let what = "no answer for too long; the place in the queue is given up";
            Error::new(ErrorKind::Unreachable, what).with_source(err)
        }
        _ => err,
    }
}
