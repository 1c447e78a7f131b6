//! Acquiring, from the first request to the answer; and waiting for those ahead.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answer, Grant, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::time::Time;

use super::errors::{Recovery, RequestError};
use super::queue::{DeletionEffect, Predecessors, QueuePosition};
use super::session::silence;
use super::store::{AcquireReply, KeySelector, QueueEntry, Store};
use super::subscribe::{Subscription, WatchEvent};

/// How long a waiter trusts what it was told, at most: servers have lost events (etcd-io/etcd#18089, #19179).
const SAFETY_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How an attempt ended.
enum Attempt {
    Answer(Answer),
    /// The place in the queue is gone: with its session, or by somebody's hand.
    EntryLost,
    /// Nothing was lost by it: ask again.
    Again,
}

/// What ended a watch.
enum Ended {
    Held,
    Gone,
    /// Something else has to be watched.
    Moved,
}

/// A place in the queue.
struct Waiter<'a> {
    request: &'a Request,
    place: &'a QueueEntry,
    /// Since when our key is there.
    created: i64,
    waits: Predecessors,
    /// The revision up to which we know what happened.
    known: i64,
    /// What we listened to before we asked.
    listening: Option<Subscription>,
    round_trip: Duration,
}

impl Store {
    pub(super) async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        for lost in 0_u32.. {
            match self.attempt(&request).await? {
                Attempt::Answer(answer) => return Ok(answer),
                Attempt::Again if !request.stop.is_raised() => {}
                Attempt::Again => return Ok(Answer::Busy),
                Attempt::EntryLost => {
                    if request.stop.is_raised() || self.closing.is_raised() {
                        return Ok(Answer::Busy);
                    }
                    tracing::warn!(name = %request.name, backend = "etcd", "the place in the queue was lost, with its session or by somebody's hand; queueing again at the end");
                    let pause = pace::next(lost, rand::random(), None, None);
                    self.clock
                        .sleep_until(self.clock.now().after(pause.unwrap_or(pace::CAP)))
                        .await;
                }
            }
        }
        Ok(Answer::Busy)
    }

    async fn attempt(self: &Arc<Self>, request: &Arc<Request>) -> Result<Attempt, Error> {
        let (store, of) = (self.clone(), request.clone());
        let mut leasing = Box::pin(async move { store.lease_for(&of).await });
        let lease = tokio::select! {
            biased;
            () = request.stop.raised() => {
                // Until there is a lease nothing of the name can be left behind. The one that is on its way
                // is seen to its end: given up before it is there, it would stay.
                let store = self.clone();
                self.background.spawn(&self.spawner, async move {
                    if let Ok(lease) = leasing.await && !lease.is_session {
                        store.drop_lease(&lease);
                    }
                });
                return Ok(Attempt::Answer(Answer::Busy));
            }
            lease = &mut leasing => lease?,
        };
        let place = self.place(request, lease);
        let listening = match request.wait {
            true => self.listen(&place.directory),
            false => None,
        };
        let asked = match self.ask(request, &place).await {
            Ok(asked) => asked,
            Err(trouble) if trouble.cure == Recovery::NewLease => {
                self.lease_is_gone(&place.lease);
                self.forget(request.owner);
                return Ok(Attempt::EntryLost);
            }
            Err(trouble) => {
                if !trouble.is_indeterminate() {
                    self.forget(request.owner);
                }
                return Err(trouble.error);
            }
        };
        let (created, standing, revision, round_trip) = match asked {
            AcquireReply::Queued {
                created,
                standing,
                revision,
                round_trip,
            } => (created, standing, revision, round_trip),
            AcquireReply::Busy => {
                self.forget(request.owner);
                return Ok(Attempt::Answer(Answer::Busy));
            }
            AcquireReply::KeyInUse => {
                self.forget(request.owner);
                self.leave_alone(&place.key, place.lease.end());
                return Ok(Attempt::Again);
            }
        };
        match standing {
            QueuePosition::Held => self.finish(request, &place, created, round_trip).await,
            QueuePosition::Gone => {
                self.forget(request.owner);
                Ok(Attempt::EntryLost)
            }
            QueuePosition::Behind(_) if !request.wait => self.leave(request, &place, created).await,
            QueuePosition::Behind(waits) => {
                let waiter = Waiter {
                    request,
                    place: &place,
                    created,
                    waits,
                    known: revision,
                    listening,
                    round_trip,
                };
                self.wait(waiter).await
            }
        }
    }

    /// It is ours. The lease is as long as it should be, or is made so.
    async fn finish(
        self: &Arc<Self>,
        request: &Request,
        place: &QueueEntry,
        created: i64,
        round_trip: Duration,
    ) -> Result<Attempt, Error> {
        let lease = &place.lease;
        let left = lease.end().since(self.clock.now());
        // What was granted a moment ago is as fresh as can be.
        let is_fresh = self.clock.now().since(lease.sent()) <= round_trip * 2;
        let wanted = request.min_lease.max(lease.ttl / 3);
        if left < wanted && !is_fresh {
            match self.refresh(lease, Duration::ZERO).await {
                Ok(true) => {}
                Ok(false) => {
                    self.forget(request.owner);
                    return Ok(Attempt::EntryLost);
                }
                Err(err) => return self.give_up(request, place, created, err).await,
            }
        }
        let Ok(token) = u64::try_from(created) else {
            let nonsense = super::errors::nonsense();
            return self.give_up(request, place, created, nonsense).await;
        };
        let sent = lease.sent();
        self.granted(request, created, sent);
        let grant = Grant::new(token, sent, round_trip, Some(lease.ttl));
        Ok(Attempt::Answer(Answer::Granted(grant)))
    }

    async fn wait(self: &Arc<Self>, mut waiter: Waiter<'_>) -> Result<Attempt, Error> {
        let (request, place, created) = (waiter.request, waiter.place, waiter.created);
        let mut failures = 0;
        loop {
            let ended = tokio::select! {
                biased;
                () = request.stop.raised() => return self.leave(request, place, created).await,
                () = place.lease.gone.raised() => Ok(Ended::Gone),
                // Where no watch can be had, our turn comes all the same.
                ended = async {
                    if failures > 0 && let Some(ended) = self.look_again(&mut waiter, 0).await? {
                        return Ok(ended);
                    }
                    self.follow(&mut waiter, &mut failures).await
                } => ended,
            };
            match ended {
                Ok(Ended::Held) => {
                    let round_trip = waiter.round_trip;
                    return self.finish(request, place, created, round_trip).await;
                }
                Ok(Ended::Gone) => {
                    self.forget(request.owner);
                    return Ok(Attempt::EntryLost);
                }
                Ok(Ended::Moved) => {}
                Err(trouble) => {
                    let is_passing = matches!(
                        trouble.error.kind(),
                        ErrorKind::Unreachable | ErrorKind::Indeterminate
                    ) || trouble.cure == Recovery::LogIn && failures == 0;
                    let now = self.clock.now();
                    if !is_passing {
                        return self.give_up(request, place, created, trouble.error).await;
                    }
                    if now >= place.lease.end() {
                        let err = silence(trouble.error);
                        return self.give_up(request, place, created, err).await;
                    }
                    tracing::debug!(name = %request.name, backend = "etcd", err = %trouble.error, "while waiting");
                    let pause = pace::next(failures, rand::random(), None, None);
                    failures += 1;
                    tokio::select! {
                        biased;
                        () = request.stop.raised() => {}
                        () = self.clock.sleep_until(now.after(pause.unwrap_or(pace::CAP))) => {}
                    }
                }
            }
        }
    }

    /// Follows what happens to those ahead. May be dropped at any time.
    async fn follow(
        self: &Arc<Self>,
        waiter: &mut Waiter<'_>,
        failures: &mut u32,
    ) -> Result<Ended, RequestError> {
        match waiter.waits.only.clone() {
            None => self.follow_all(waiter, failures).await,
            Some(key) => self.follow_one(waiter, &key, failures).await,
        }
    }

    /// All of them, by the client's watch on the directory.
    async fn follow_all(
        self: &Arc<Self>,
        waiter: &mut Waiter<'_>,
        failures: &mut u32,
    ) -> Result<Ended, RequestError> {
        let directory = &waiter.place.directory;
        let listening = waiter.listening.take().filter(|it| !it.is_over());
        let mut listening = match listening {
            Some(listening) => listening,
            None => {
                let (listening, after) = match self.listen(directory) {
                    // It began to tell some time ago, and we to listen now.
                    Some(listening) => (listening, None),
                    None => {
                        let (listening, after) = self.listen_anew(directory).await?;
                        (listening, Some(after))
                    }
                };
                // What happened before that nobody tells.
                if after.is_none_or(|after| after > waiter.known)
                    && let Some(ended) = self.look_again(waiter, after.unwrap_or(0)).await?
                {
                    return Ok(ended);
                }
                listening
            }
        };
        *failures = 0;
        let mut trusted_until = self.trusted_until(waiter);
        loop {
            let heard = tokio::select! {
                biased;
                heard = listening.next() => heard,
                () = self.clock.sleep_until(trusted_until) => WatchEvent::Lagged,
            };
            let ended = match heard {
                WatchEvent::KeyDeleted(key, revision) => {
                    self.deleted(waiter, &key, revision).await?
                }
                WatchEvent::Lagged => {
                    let ended = self.look_again(waiter, 0).await?;
                    trusted_until = self.trusted_until(waiter);
                    ended
                }
                WatchEvent::Closed => {
                    return Err(RequestError::new(
                        ErrorKind::Unreachable,
                        Recovery::AnotherMember,
                        "the watch ended",
                    ));
                }
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// The one just ahead, by a watch of its own.
    async fn follow_one(
        &self,
        waiter: &mut Waiter<'_>,
        key: &[u8],
        failures: &mut u32,
    ) -> Result<Ended, RequestError> {
        let mut watch = self.watch(&waiter.place.directory, Some(key)).await?;
        *failures = 0;
        // What happened before the watch was there nobody tells.
        if watch.after > waiter.known {
            let at_least = watch.after;
            if let Some(ended) = self.look_again(waiter, at_least).await? {
                return Ok(ended);
            }
        }
        let mut trusted_until = self.trusted_until(waiter);
        let line = watch.line.clone();
        loop {
            let told = tokio::select! {
                biased;
                told = self.told(&mut watch) => told?,
                () = line.ended.raised() => {
                    return Err(RequestError::new(
                        ErrorKind::Unreachable,
                        Recovery::AnotherMember,
                        format!("{} did not answer, so we left it", line.host),
                    ));
                }
                () = self.clock.sleep_until(trusted_until) => {
                    if let Some(ended) = self.look_again(waiter, 0).await? {
                        return Ok(ended);
                    }
                    trusted_until = self.trusted_until(waiter);
                    continue;
                }
            };
            for (key, revision) in told.deleted {
                if let Some(ended) = self.deleted(waiter, &key, revision).await? {
                    return Ok(ended);
                }
            }
        }
    }

    /// That key was deleted. `None`: go on as before.
    async fn deleted(
        &self,
        waiter: &mut Waiter<'_>,
        key: &[u8],
        revision: i64,
    ) -> Result<Option<Ended>, RequestError> {
        // Old news: the key may have been made again since then, and be ahead of us.
        if revision <= waiter.known {
            return Ok(None);
        }
        match waiter.waits.deleted(key, &waiter.place.key) {
            DeletionEffect::None => Ok(None),
            DeletionEffect::Held => Ok(Some(Ended::Held)),
            DeletionEffect::Gone => Ok(Some(Ended::Gone)),
            DeletionEffect::ReadQueue => self.look_again(waiter, revision).await,
        }
    }

    /// Reads the directory as it is at that revision or later. `None`: the same watch will do.
    async fn look_again(
        &self,
        waiter: &mut Waiter<'_>,
        at_least: i64,
    ) -> Result<Option<Ended>, RequestError> {
        let (request, place) = (waiter.request, waiter.place);
        let seen = self.look(request, place, waiter.created, at_least).await?;
        waiter.known = seen.revision;
        Ok(match seen.standing {
            QueuePosition::Held => Some(Ended::Held),
            QueuePosition::Gone => Some(Ended::Gone),
            QueuePosition::Behind(waits) => {
                let is_same = waits.only == waiter.waits.only;
                waiter.waits = waits;
                (!is_same).then_some(Ended::Moved)
            }
        })
    }

    /// When to look without having been told.
    fn trusted_until(&self, waiter: &Waiter<'_>) -> Time {
        let trust = SAFETY_POLL_INTERVAL.min(waiter.place.lease.ttl / 3);
        let random: u32 = rand::random();
        // Between three quarters and all of it: a crowd must not look at the same moment.
        self.clock
            .now()
            .after(trust * 3 / 4 + pace::fraction(trust / 4, random))
    }

    /// Leaves the queue, or what was granted meanwhile.
    async fn leave(
        self: &Arc<Self>,
        request: &Request,
        place: &QueueEntry,
        created: i64,
    ) -> Result<Attempt, Error> {
        match self
            .delete(&place.key, &KeySelector::Created(created))
            .await
        {
            Ok(_) => {
                self.forget(request.owner);
                Ok(Attempt::Answer(Answer::Busy))
            }
            Err(err) => Err(Error::new(
                ErrorKind::Indeterminate,
                "no answer to the request to leave the queue",
            )
            .with_source(err)),
        }
    }

    /// Says why the wait ended, unless something may be left behind.
    async fn give_up(
        self: &Arc<Self>,
        request: &Request,
        place: &QueueEntry,
        created: i64,
        err: Error,
    ) -> Result<Attempt, Error> {
        self.leave(request, place, created).await.and(Err(err))
    }
}
