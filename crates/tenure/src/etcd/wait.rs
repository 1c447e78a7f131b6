//! The waiter's side of the queue: watches, until its key holds.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::store::Request;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::errors::{self, Recovery, RequestError};
use super::leases::Lease;
use super::queue::{EventEffect, Predecessors, QueueEntry, QueuePosition};
use super::requests;
use super::store::Store;
use super::subscribe::{KeyEvent, Subscription, WatchEvent};

/// The longest time between two reads of the queue, if the watch reports nothing: servers have lost events
/// (etcd-io/etcd#18089, #19179).
const SAFETY_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Our key in the queue, behind others.
pub(super) struct Waiter<'a> {
    pub(super) store: &'a Store,
    pub(super) request: &'a Request,
    pub(super) entry: &'a QueueEntry,
    pub(super) lease: &'a Arc<Lease>,
    /// The create revision of our key.
    pub(super) created: i64,
    pub(super) ahead: Predecessors,
    /// What happened up to this revision is known.
    pub(super) revision: i64,
    /// The subscription from before our key was put.
    pub(super) subscription: Option<Subscription>,
}

/// How a wait ended.
pub(super) enum WaitOutcome {
    /// Our key holds.
    Held,
    /// Our key is gone.
    EntryLost,
    /// The caller gave up.
    Stopped,
}

/// Why a watch is not needed any more.
enum Change {
    Held,
    EntryLost,
    /// Another key has to be watched.
    OtherPredecessor,
}

impl Waiter<'_> {
    /// Waits until our key holds. After an error our key may be in the queue still.
    pub(super) async fn wait(mut self) -> Result<WaitOutcome, Error> {
        let (request, lease) = (self.request, self.lease);
        let clock = &self.store.context.clock;
        let mut retries = RetryBudget::without_limit();
        loop {
            let change = tokio::select! {
                biased;
                () = request.stop.raised() => return Ok(WaitOutcome::Stopped),
                () = lease.gone.raised() => return Ok(WaitOutcome::EntryLost),
                change = self.follow(&mut retries) => change,
            };
            let err = match change {
                Ok(Change::Held) => return Ok(WaitOutcome::Held),
                Ok(Change::EntryLost) => return Ok(WaitOutcome::EntryLost),
                Ok(Change::OtherPredecessor) => continue,
                Err(err) => err,
            };
            let is_temporary = matches!(
                err.error.kind(),
                ErrorKind::Unreachable | ErrorKind::Indeterminate
            ) || err.recovery == Recovery::LogIn && retries.failures() == 0;
            if !is_temporary {
                return Err(err.error);
            }
            if clock.now() >= lease.end() {
                return Err(errors::silent_for_a_ttl(err.error));
            }
            tracing::debug!(name = %request.name, store = "etcd", err = %err.error, "while waiting");
            // If the caller gives up meanwhile, the next round says so.
            let _ = request.unless_stopped(retries.pause(clock)).await;
        }
    }

    /// Follows what happens to the keys ahead. Cancel safe.
    async fn follow(&mut self, retries: &mut RetryBudget) -> Result<Change, RequestError> {
        // Where no watch can be opened, reading alone finds out that our key holds.
        if retries.failures() > 0
            && let Some(change) = self.read_queue(0).await?
        {
            return Ok(change);
        }
        match self.ahead.only.clone() {
            None => self.follow_directory(retries).await,
            Some(key) => self.follow_key(&key, retries).await,
        }
    }

    /// Follows all keys ahead, by the shared watch on the directory.
    async fn follow_directory(
        &mut self,
        retries: &mut RetryBudget,
    ) -> Result<Change, RequestError> {
        let early = self.subscription.take().filter(|it| !it.is_closed());
        let mut subscription = match early {
            Some(subscription) => subscription,
            None => {
                let (subscription, after) = self.subscribe().await?;
                // What happened before that, the watch does not report.
                if after.is_none_or(|after| after > self.revision)
                    && let Some(change) = self.read_queue(after.unwrap_or(0)).await?
                {
                    return Ok(change);
                }
                subscription
            }
        };
        retries.restart(Time::MAX);
        let clock = &self.store.context.clock;
        let mut read_at = self.next_safety_poll();
        loop {
            let event = tokio::select! {
                biased;
                event = subscription.next() => event,
                () = clock.wait_until(read_at) => WatchEvent::Lagged,
            };
            let change = match event {
                WatchEvent::Key(event) => self.happened(&event).await?,
                WatchEvent::Lagged => {
                    let change = self.read_queue(0).await?;
                    read_at = self.next_safety_poll();
                    change
                }
                WatchEvent::Closed => {
                    let pause = pace::fraction(subscription.spread(), clock.random());
                    clock.sleep_until(clock.now().after(pause)).await;
                    return Err(RequestError::new(
                        ErrorKind::Unreachable,
                        Recovery::AnotherMember,
                        "the watch ended",
                    ));
                }
            };
            if let Some(change) = change {
                return Ok(change);
            }
        }
    }

    /// A subscription to the watch on the directory, and the revision after which the watch reports; `None`: the watch
    /// was open already, and reports what happens from now on.
    async fn subscribe(&self) -> Result<(Subscription, Option<i64>), RequestError> {
        let (subscriptions, directory) = (&self.store.subscriptions, &self.entry.directory);
        let reports = self.entry.reports();
        if let Some(subscription) = subscriptions.subscribe(directory, reports) {
            return Ok((subscription, None));
        }
        let opened = subscriptions.open_and_subscribe(directory, reports);
        let (subscription, after) = opened.await?;
        Ok((subscription, Some(after)))
    }

    /// Follows the key just ahead, by a watch of its own.
    async fn follow_key(
        &mut self,
        key: &[u8],
        retries: &mut RetryBudget,
    ) -> Result<Change, RequestError> {
        let mut watch = self.store.subscriptions.watch_key(key).await?;
        retries.restart(Time::MAX);
        // What happened before the watch was open, the watch does not report.
        if watch.after > self.revision
            && let Some(change) = self.read_queue(watch.after).await?
        {
            return Ok(change);
        }
        let clock = &self.store.context.clock;
        let mut read_at = self.next_safety_poll();
        let connection = watch.connection.clone();
        loop {
            let events = tokio::select! {
                biased;
                events = watch.next() => events?,
                () = connection.left.raised() => {
                    return Err(RequestError::new(
                        ErrorKind::Unreachable,
                        Recovery::AnotherMember,
                        format!("{} did not answer, so this client left it", connection.host),
                    ));
                }
                () = clock.wait_until(read_at) => {
                    if let Some(change) = self.read_queue(0).await? {
                        return Ok(change);
                    }
                    read_at = self.next_safety_poll();
                    continue;
                }
            };
            for event in events {
                if let Some(change) = self.happened(&event).await? {
                    return Ok(change);
                }
            }
        }
    }

    /// A key was deleted or changed. `None`: the same watch is still the right one.
    async fn happened(&mut self, event: &KeyEvent) -> Result<Option<Change>, RequestError> {
        // Known already. The key may have been created again since then, and be ahead of ours.
        if event.revision <= self.revision {
            return Ok(None);
        }
        let effect = match event.is_deleted {
            true => self.ahead.deleted(&event.key, &self.entry.key),
            false => self.ahead.changed(&event.key),
        };
        match effect {
            EventEffect::None => Ok(None),
            EventEffect::Held => Ok(Some(Change::Held)),
            EventEffect::Gone => Ok(Some(Change::EntryLost)),
            EventEffect::ReadQueue => self.read_queue(event.revision).await,
        }
    }

    /// Reads the queue as it was at revision `at_least` or later; with 0 as it is now. `None`: the same watch is still the
    /// right one.
    async fn read_queue(&mut self, at_least: i64) -> Result<Option<Change>, RequestError> {
        let connections = &self.store.connections;
        let snapshot = requests::read_queue(connections, self.entry, self.created, at_least);
        let snapshot = snapshot.await?;
        self.revision = snapshot.revision;
        Ok(match snapshot.position {
            QueuePosition::Held => Some(Change::Held),
            QueuePosition::Gone => Some(Change::EntryLost),
            QueuePosition::Behind(ahead) => {
                let is_same = ahead.only == self.ahead.only;
                self.ahead = ahead;
                (!is_same).then_some(Change::OtherPredecessor)
            }
        })
    }

    /// When to read the queue although the watch has reported nothing.
    fn next_safety_poll(&self) -> Time {
        let clock = &self.store.context.clock;
        let interval = SAFETY_POLL_INTERVAL.min(self.lease.ttl / 3);
        // At least three quarters of the interval, and a random part of the rest: many waiters must not read at once.
        let interval = interval * 3 / 4 + pace::fraction(interval / 4, clock.random());
        clock.now().after(interval)
    }
}
