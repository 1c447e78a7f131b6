//! Waiting for a lock: a place in the queue, kept alive until it is this waiter's turn.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answer, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::release::leave_queue;
use super::requests::{EnqueueReply, QueuePosition, waiter_ttl};
use super::store::Store;
use super::subscribe::{Subscription, WakeUp};

/// What a waiter does next.
#[derive(Clone, Copy)]
enum Next {
    /// The caller gave up, or closed the client.
    Stop,
    /// Ask for the name, which also keeps the place in the queue.
    Enqueue,
    /// Read the queue, where no notification tells of a change.
    ReadQueue,
}

/// What a waiter does after a request that failed.
enum AfterFailure {
    Retry,
    Stop,
    GiveUp(Error),
}

/// One waiter, between two requests for the name.
struct Waiter<'a> {
    store: &'a Store,
    request: &'a Request,
    subscription: Option<Subscription>,
    budget: RetryBudget,
    /// How many waiters were ahead, and the last token, when the queue was read last.
    last: (u64, u64),
    /// How often the queue was read since it changed last.
    unchanged: u32,
}

/// Waits in the queue of the name.
pub(super) async fn in_queue(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let mut waiter = Waiter::new(store, request);
    loop {
        let position = match store.requests.enqueue(request).await {
            Ok(EnqueueReply::Granted(granted)) => return Ok(store.remember(request, granted)),
            Ok(EnqueueReply::Queued(position)) => position,
            Err(err) => match waiter.after_failure(err).await {
                AfterFailure::Retry => continue,
                AfterFailure::Stop => return leave_queue(store, request).await,
                AfterFailure::GiveUp(err) => return give_up(store, request, err).await,
            },
        };
        waiter.budget.restart(position.sent.after(request.ttl));
        if let Next::Stop = waiter.until_next_request(position).await {
            return leave_queue(store, request).await;
        }
    }
}

/// Waits for a lock in ShedLock's table, which has no queue: the first client that asks after a release gets the lock.
pub(super) async fn by_polling(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let mut waiter = Waiter::new(store, request);
    let mut polls = 0;
    loop {
        let expires_in = match store.requests.read_queue(request).await {
            Ok(Some(position)) => {
                waiter.budget.restart(position.sent.after(request.ttl));
                position.expires_in
            }
            Ok(None) => Duration::ZERO,
            Err(err) => match waiter.after_failure(err).await {
                AfterFailure::Retry => continue,
                AfterFailure::Stop => return leave_queue(store, request).await,
                AfterFailure::GiveUp(err) => return give_up(store, request, err).await,
            },
        };
        if expires_in.is_zero() {
            match store.requests.acquire(request).await {
                Ok(Some(granted)) => return Ok(store.remember(request, granted)),
                Ok(None) => {}
                Err(err) => return give_up(store, request, err).await,
            }
        }
        let end = Some(expires_in).filter(|end| !end.is_zero());
        let pause = pace::next(polls, store.clock.random(), end, None).unwrap_or(pace::CAP);
        polls += 1;
        let pause = store.clock.sleep_until(store.clock.now().after(pause));
        if request.unless_stopped(pause).await.is_none() {
            return leave_queue(store, request).await;
        }
    }
}

/// Says why the wait ended, unless something may be left behind.
async fn give_up(store: &Store, request: &Request, err: Error) -> Result<Answer, Error> {
    leave_queue(store, request).await.and(Err(err))
}

impl<'a> Waiter<'a> {
    fn new(store: &'a Store, request: &'a Request) -> Self {
        Self {
            store,
            request,
            subscription: store.subscribe(request),
            budget: RetryBudget::until(store.clock.now().after(request.ttl)),
            last: (u64::MAX, 0),
            unchanged: 0,
        }
    }

    /// Sleeps, reads the queue, and is notified, until the name should be asked for again.
    async fn until_next_request(&mut self, mut position: QueuePosition) -> Next {
        self.compare(&position);
        let keep_alive = position.sent.after(waiter_ttl(self.request.ttl) / 3);
        loop {
            let (at, planned) = self.plan(&position, keep_alive);
            let next = tokio::select! {
                biased;
                () = self.request.stop.raised() => return Next::Stop,
                wake_up = Subscription::next(self.subscription.as_mut()) => match wake_up {
                    WakeUp::First => {
                        position.ahead = 0;
                        continue;
                    }
                    WakeUp::Freed if position.ahead == 0 => Next::Enqueue,
                    // What was notified before that did not arrive.
                    WakeUp::PushStarted => Next::Enqueue,
                    WakeUp::Freed | WakeUp::PushStopped => continue,
                },
                () = self.store.clock.sleep_until(at) => planned,
            };
            if let Next::Stop | Next::Enqueue = next {
                return next;
            }
            self.unchanged += 1;
            match self.store.requests.read_queue(self.request).await {
                Ok(Some(now)) if !now.is_free() => {
                    self.compare(&now);
                    position = now;
                }
                // After an error too: the request that keeps the place alive meets the error again.
                _ => return Next::Enqueue,
            }
        }
    }

    /// Nothing changes while the holder works. After a change more changes may follow soon.
    fn compare(&mut self, position: &QueuePosition) {
        let now = (position.ahead, position.token);
        if self.last != now {
            self.last = now;
            self.unchanged = 0;
        }
    }

    /// What to do next if no notification comes, and when.
    fn plan(&self, position: &QueuePosition, keep_alive: Time) -> (Time, Next) {
        let clock = &self.store.clock;
        let now = clock.now();
        let mut next = (keep_alive, Next::Enqueue);
        // Only the first waiter has to notice that a lease has ended.
        let expires_in = position.expires_in.saturating_sub(now.since(position.sent));
        let jitter = pace::FIRST * (clock.random() % 4);
        let end = now.after(expires_in + pace::FIRST + jitter);
        if position.ahead == 0 && end < next.0 {
            next = (end, Next::Enqueue);
        }
        let has_push = self
            .subscription
            .as_ref()
            .is_some_and(Subscription::has_push);
        if !has_push {
            let pause = pace::next(self.unchanged, clock.random(), None, None);
            // The more waiters are ahead, the less often a waiter reads.
            let ahead = u32::try_from(position.ahead).unwrap_or(u32::MAX);
            let pause = pause.unwrap_or(pace::CAP);
            let read = now.after(pause.saturating_mul(ahead.saturating_add(1)));
            if read < next.0 {
                next = (read, Next::ReadQueue);
            }
        }
        next
    }

    /// Waits a little after an error that may pass.
    async fn after_failure(&mut self, err: Error) -> AfterFailure {
        let may_pass = matches!(
            err.kind(),
            ErrorKind::Unreachable | ErrorKind::Indeterminate
        );
        if !may_pass || self.budget.is_spent(&self.store.clock) {
            return AfterFailure::GiveUp(err);
        }
        let pause = self.budget.pause(&self.store.clock);
        match self.request.unless_stopped(pause).await {
            Some(()) => AfterFailure::Retry,
            None => AfterFailure::Stop,
        }
    }
}
