//! The waiter's side of the queue: a place that is kept until the waiter's turn comes.

use tenure_core::backend::{Grant, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::connection::Connection;
use super::events::WakeUp;
use super::names::Keys;
use super::requests::{QueuePosition, WAITER_TTL, waiter_ttl};
use super::settings::Format;
use super::store::Store;
use super::subscribe::Subscription;

/// What a waiter does next.
pub(super) enum Next {
    /// Ask for the lock, which also keeps the place in the queue.
    Ask,
    /// Hold the lock: the release of the last holder granted it.
    HandedOver(Grant),
    /// Nothing: a release of the same client has removed the place from the queue.
    Removed,
    /// Leave the queue.
    Leave,
}

/// One waiter, between two requests for the lock.
pub(super) struct Waiter<'a> {
    store: &'a Store,
    request: &'a Request,
    keys: &'a Keys,
    subscription: Subscription,
    /// As the last reply described it.
    position: QueuePosition,
    /// How often the first waiter has found a foreign holder, one reply after the other.
    polls: u32,
    /// Until when requests that fail are sent again.
    budget: RetryBudget,
    /// When a failed request is sent again.
    retry_at: Option<Time>,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(
        store: &'a Store,
        request: &'a Request,
        keys: &'a Keys,
        position: QueuePosition,
    ) -> Self {
        let (owner, sent) = (request.owner, position.sent);
        let (context, connections) = (&store.context, &store.connections);
        Self {
            subscription: Subscription::new(context, connections, keys, owner, sent),
            budget: RetryBudget::until(sent.after(request.ttl)),
            store,
            request,
            keys,
            position,
            polls: 0,
            retry_at: None,
        }
    }

    /// Sleeps until there is a reason to ask again, or the wait is over.
    pub(super) async fn until_next_request(&mut self) -> Next {
        // After a failure the next request opens a connection, not before its time.
        let connection = match self.retry_at {
            Some(_) => None,
            None => {
                let connections = &self.store.connections;
                connections.connection(self.keys.lock()).await.ok()
            }
        };
        let is_new = match &connection {
            Some(connection) => self.subscription.follow(connection).await,
            None => false,
        };
        let at = match self.retry_at.take() {
            Some(at) => at,
            // A message that was published before the subscription is lost; the next reply makes up for that.
            None if is_new => self.store.context.now(),
            None => self.next_request_at(),
        };
        let broken = async {
            match &connection {
                Some(connection) => connection.ended.raised().await,
                None => std::future::pending().await,
            }
        };
        let wake_up = tokio::select! {
            biased;
            wake_up = self.subscription.next() => wake_up,
            () = self.request.stop.raised() => return Next::Leave,
            () = broken => return Next::Ask,
            () = self.store.context.clock.sleep_until(at) => return Next::Ask,
        };
        match wake_up {
            WakeUp::AskAgain => Next::Ask,
            WakeUp::HandedOver { token } => match self.handed_over(connection.as_deref(), token) {
                Some(grant) => Next::HandedOver(grant),
                // One more request makes a whole lease of what is left, or tells that the lock was lost.
                None => Next::Ask,
            },
            WakeUp::Released { sent } => {
                let QueuePosition {
                    sent: asked,
                    round_trip,
                    ..
                } = self.position;
                // A request that was sent after the release, or that has no reply, may have entered the queue again.
                let is_removed = !self.has_failed() && asked.after(round_trip) <= sent;
                match is_removed {
                    true => Next::Removed,
                    false => Next::Leave,
                }
            }
        }
    }

    /// A new reply.
    pub(super) fn update(&mut self, position: QueuePosition) {
        // A foreign holder that stays is asked for less and less often.
        let has_polled = position.is_foreign && position.ahead == 0;
        self.polls = if has_polled { self.polls + 1 } else { 0 };
        self.budget.restart(position.sent.after(self.request.ttl));
        self.position = position;
    }

    /// Whether the request is sent again after this error; if it is, `until_next_request` pauses before.
    pub(super) fn may_ask_again(&mut self, err: &Error) -> bool {
        let clock = &self.store.context.clock;
        let may_pass = matches!(
            err.kind(),
            ErrorKind::Unreachable | ErrorKind::Indeterminate
        );
        let may_ask = may_pass && !self.budget.is_spent(clock);
        if may_ask {
            self.retry_at = Some(self.budget.next_attempt(clock));
        }
        may_ask
    }

    /// Whether the last request failed.
    fn has_failed(&self) -> bool {
        self.budget.failures() > 0
    }

    /// When to ask again, if nothing happens before.
    fn next_request_at(&self) -> Time {
        let (position, clock) = (&self.position, &self.store.context.clock);
        let keep_alive = match self.store.context.settings.format {
            Format::Token => position.sent.after(waiter_ttl(self.request.ttl) / 3),
            // There is no place to be kept. A message may be lost.
            Format::Redisson => position.sent.after(WAITER_TTL),
        };
        if position.ahead > 0 {
            return keep_alive;
        }
        // Only the first waiter has to notice that a lease has ended.
        let now = clock.now();
        let elapsed = now.since(position.sent);
        let left = position.expires_in.map(|left| left.saturating_sub(elapsed));
        let random = clock.random();
        let pause = if position.is_foreign {
            pace::next(self.polls, random, left, None)
        } else {
            left.map(|left| left + pace::FIRST + pace::FIRST * (random % 4))
        };
        pause.map_or(keep_alive, |pause| now.after(pause).min(keep_alive))
    }

    /// The hold that was handed over under `token`. `None`: too little is left of its lease, or the message is not
    /// about a grant that still stands.
    fn handed_over(&self, connection: Option<&Connection>, token: u64) -> Option<Grant> {
        let (position, ttl) = (&self.position, self.request.ttl);
        let now = self.store.context.now();
        let is_trusted = !self.has_failed()
            && connection
                .is_some_and(|it| !it.ended.is_raised() && it.untrusted_until(now, ttl).is_none());
        // The place was good from before the last request on, and so is the lock.
        let lease = waiter_ttl(ttl);
        let is_enough = now.since(position.sent) <= lease / 2
            && lease >= self.request.min_lease
            && self.store.context.settings.wait_replicas == 0;
        // The message may have been here for so long that the lock has expired and was granted to another owner, as the
        // reply to a later request says. A foreign hold has no token, so then the message proves nothing.
        let is_news = token > position.last_token && !position.is_foreign;
        (is_trusted && is_enough && is_news)
            .then(|| Grant::new(token, position.sent, position.round_trip, Some(lease)))
    }
}
