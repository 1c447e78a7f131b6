//! One acquisition or upgrade in a lease store: the first request, and then the loop of a waiter: sleep until there is a
//! reason to ask for the lock again, ask, and read the reply.

use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::Clock;
use tenure_core::store::{Answer, Grant, Release, Request};
use tenure_core::support::not_left;
use tenure_core::time::Time;

use super::places::Places;
use super::waiter::{Next, QueuePosition, Waiter, WakeUp};

/// What a store supplies for one acquisition or upgrade.
pub(crate) trait LeaseStore: Sync {
    /// Asks for the lock, and takes or keeps the owner's place in the queue for the time `place` if the lock is taken. May
    /// be repeated at any time. A first request may leave out the place, as its position says.
    fn ask(
        &self,
        is_first: bool,
        place: Duration,
    ) -> impl Future<Output = Result<AcquireReply, Error>> + Send;

    /// The waiters of the client.
    fn places(&self) -> &Places;

    /// Subscribes to what wakes the owner. The first request was sent at `sent`.
    fn subscribe(&self, sent: Time) -> impl WakeUps;

    /// Reads the queue and writes nothing. `None`: the lock has to be asked for instead, as always in a store where
    /// reading costs as much as asking.
    fn read_queue(&self) -> impl Future<Output = Option<QueuePosition>> + Send {
        std::future::ready(None)
    }

    /// Releases what the owner has: its place in the queue, or the lock.
    fn leave_queue(&self) -> impl Future<Output = Result<Release, Error>> + Send;
}

/// What wakes one waiter, until it is dropped.
pub(crate) trait WakeUps: Send {
    /// Gets ready for the next sleep. `has_failed`: the last request failed.
    fn prepare(&mut self, has_failed: bool) -> impl Future<Output = ()> + Send {
        let _ = has_failed;
        std::future::ready(())
    }

    /// The next wake-up. Cancel safe.
    fn next(&mut self) -> impl Future<Output = WakeUp> + Send;

    /// Whether wake-ups arrive now.
    fn has_push(&self) -> bool;
}

/// The reply to a request for the lock.
pub(crate) enum AcquireReply {
    Granted(Grant),
    /// Another owner has the lock.
    Taken(QueuePosition),
}

/// Asks for the lock, and waits for a lock that is taken if the request waits.
pub(crate) async fn acquire(
    store: &impl LeaseStore,
    clock: &Clock,
    request: &Request,
) -> Result<Answer, Error> {
    let (is_first, sent) = (true, clock.now());
    let place = store.places().place_ttl(request.ttl);
    let waiter = match store.ask(is_first, place).await {
        Ok(AcquireReply::Granted(grant)) => return Ok(Answer::Granted(grant)),
        Ok(AcquireReply::Taken(_)) if !request.wait => return Ok(Answer::Busy),
        Ok(AcquireReply::Taken(position)) if request.stop.is_raised() && !position.has_place() => {
            return Ok(Answer::Busy);
        }
        Ok(AcquireReply::Taken(position)) => {
            request.report_taken();
            Waiter::new(request, clock, position, place)
        }
        // The request may have a place in the queue, or the lock: the next one finds out.
        Err(err) if request.wait && err.kind() == ErrorKind::Indeterminate => {
            match Waiter::unanswered(request, clock, sent, &err) {
                Some(waiter) => waiter,
                None => return Err(err),
            }
        }
        Err(err) => return Err(err),
    };
    let subscription = store.subscribe(waiter.sent());
    // In a box, because this future is large, and most locks are free.
    Box::pin(wait(store, subscription, clock, request, waiter)).await
}

/// Waits until the lock is granted or the request is stopped. `waiter`: what is known after the first request.
pub(super) async fn wait(
    store: &impl LeaseStore,
    mut subscription: impl WakeUps,
    clock: &Clock,
    request: &Request,
    mut waiter: Waiter<'_>,
) -> Result<Answer, Error> {
    let _counted = store.places().enter();
    loop {
        subscription.prepare(waiter.has_failed()).await;
        let (at, planned) = waiter.plan(subscription.has_push());
        let next = tokio::select! {
            biased;
            wake_up = subscription.next() => waiter.after_wake_up(wake_up),
            () = request.stop.raised() => Next::Leave,
            () = clock.wait_until(at) => planned,
        };
        match next {
            Next::Ask => {}
            Next::ReadQueue => match store.read_queue().await {
                Some(position) if !position.is_free() => {
                    waiter.saw(position);
                    continue;
                }
                _ => {}
            },
            Next::Sleep => continue,
            Next::Hold(grant) => return Ok(Answer::Granted(grant)),
            Next::Stop => return Ok(Answer::Busy),
            Next::Leave => return leave_queue(store).await,
        }
        if request.stop.is_raised() {
            return leave_queue(store).await;
        }
        let (is_first, place) = (false, store.places().place_ttl(request.ttl));
        match store.ask(is_first, place).await {
            Ok(AcquireReply::Granted(grant)) => return Ok(Answer::Granted(grant)),
            Ok(AcquireReply::Taken(position)) => {
                request.report_taken();
                waiter.asked(position, place);
            }
            Err(err) if waiter.may_ask_again(&err) => {}
            // The error says why the wait ended, unless something may be left in the store.
            Err(err) => return leave_queue(store).await.and(Err(err)),
        }
    }
}

/// Leaves the queue. A lock that was granted meanwhile is released.
async fn leave_queue(store: &impl LeaseStore) -> Result<Answer, Error> {
    match store.leave_queue().await {
        Ok(_) => Ok(Answer::Busy),
        Err(err) => Err(not_left(err)),
    }
}
