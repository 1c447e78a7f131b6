//! The loop of a waiter: watch what is ahead, and read the queue again.

use std::time::Duration;

use super::interface::{Position, QueueRequest, is_temporary, retry_limit};
use crate::error::Error;
use crate::logic::pace;
use crate::rt::Clock;
use crate::store::Request;
use crate::support::RetryBudget;
use crate::time::Time;

/// The longest time after which a waiter reads the queue although the watch has reported nothing: servers and client
/// libraries have lost events (etcd-io/etcd#18089, #19179).
const SAFETY_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The entry holds.
    Held {
        /// See [`Position::Held`].
        last_token: u64,
    },
    /// The entry is gone.
    EntryLost,
    /// The caller gave up.
    Stopped,
}

/// Waits until our entry holds, if the request waits. `position`: where the entry stands; `None`: not known. `limit`: until
/// when requests that fail are sent again; each answer of the store extends it.
///
/// # Errors
/// What the store says. The entry may be in the queue still.
pub async fn wait<Q: QueueRequest>(
    queue: &Q,
    entry: &Q::Entry,
    mut position: Option<Position<Q::Ahead>>,
    limit: &mut Time,
) -> Result<Waited, Error> {
    let (request, clock) = queue.context();
    let mut retries = RetryBudget::without_limit();
    // What the entry has waited for, when the queue is read again.
    let mut known = None;
    let mut is_safety_poll = false;
    loop {
        let ahead = match position {
            Some(Position::Held { last_token }) => return Ok(Waited::Held { last_token }),
            Some(Position::Gone) => return Ok(Waited::EntryLost),
            Some(Position::Behind(_)) if !request.wait => return Ok(Waited::Stopped),
            Some(Position::Behind(ahead)) => Some(ahead),
            None => None,
        };
        let step = async {
            let Some(mut ahead) = ahead else {
                let poll = std::mem::take(&mut is_safety_poll);
                return queue.read(entry, known.take(), poll).await.map(Some);
            };
            request.report_taken();
            *limit = retry_limit(request, clock);
            let poll_at = next_safety_poll(request, clock);
            let position = tokio::select! {
                biased;
                position = queue.watch(entry, &mut ahead) => position?,
                () = clock.wait_until(poll_at) => {
                    is_safety_poll = true;
                    None
                }
            };
            retries.restart(Time::MAX);
            known = Some(ahead);
            Ok(position)
        };
        let outcome = tokio::select! {
            biased;
            () = request.stop.raised() => return Ok(Waited::Stopped),
            () = queue.session_end(entry) => return Ok(Waited::EntryLost),
            outcome = step => outcome,
        };
        match outcome {
            Ok(next) => position = next,
            Err(err) if !request.wait || !is_temporary(&err) || clock.now() >= *limit => {
                return Err(err);
            }
            Err(err) => {
                tracing::debug!(name = %request.name, err = format_args!("{err:#}"), "a request of a waiter failed");
                // If the caller gives up meanwhile, the next round says so.
                let _ = request.unless_stopped(retries.pause(clock)).await;
                position = None;
            }
        }
    }
}

fn next_safety_poll(request: &Request, clock: &Clock) -> Time {
    let interval = (request.ttl / 3).min(SAFETY_POLL_INTERVAL);
    // At least three quarters of the interval: many waiters must not read at once.
    let interval = interval - pace::fraction(interval / 4, clock.random());
    clock.now().after(interval)
}
