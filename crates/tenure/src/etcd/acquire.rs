//! One acquisition, from the first request to the answer.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::rt::wall_now;
use tenure_core::store::{AcquireAll, AllAnswer, Answer, BoxFuture, Grant, Request};
use tenure_core::support::RetryBudget;

use super::errors::{Recovery, RequestError, unexpected_reply};
use super::key_state::KeyState;
use super::leases::{Lease, whole_seconds};
use super::names::reservation_key;
use super::queue::{EarlyToken, Goal, QueueEntry, QueuePosition, QueueSnapshot, SecondKey};
use super::record::KeyRecord;
use super::release;
use super::renew;
use super::requests::{self, AcquireAllOutcome, AcquireOutcome, MAX_ALL, Replaced};
use super::store::{AcquisitionState, HeldEntry, Reservation, Store};
use super::subscribe::Subscription;
use super::wait::{WaitOutcome, Waiter};
use super::wire;

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(async move { acquire_all(&self, &requests).await })
    }
}

/// How an attempt ended.
enum Attempt {
    Answered(Answer),
    /// Our key is gone: its lease is over, or another program deleted the key.
    EntryLost,
    /// The key of a former acquisition is in the store, so the next attempt takes another key.
    KeyInUse,
    /// Our token has to be early and may be that of another hold, so the next attempt gets another one.
    TokenTaken,
}

/// What the request for our key came to.
enum Enqueued {
    Queued(Queued),
    Busy,
    KeyInUse,
}

/// Our key is in the queue.
struct Queued {
    /// The create revision of our key.
    created: i64,
    snapshot: QueueSnapshot,
    round_trip: Duration,
}

pub(super) async fn acquire(store: &Arc<Store>, request: &Arc<Request>) -> Result<Answer, Error> {
    let mut retries = RetryBudget::without_limit();
    let mut is_token_early = false;
    loop {
        match attempt(store, request, is_token_early).await? {
            Attempt::Answered(answer) => return Ok(answer),
            outcome @ (Attempt::KeyInUse | Attempt::TokenTaken) => {
                if request.stop.is_raised() {
                    return Ok(Answer::Busy);
                }
                is_token_early |= matches!(outcome, Attempt::TokenTaken);
                // The next attempt asks for another key or token, so the first one is made at once. When other keys of
                // a foreign program are in the way, pauses keep this loop from sending one request after the other.
                let next = retries.next_attempt(&store.context.clock);
                if retries.failures() > 1 {
                    let pause = store.context.clock.sleep_until(next);
                    // A stopped request makes a last attempt.
                    let _ = request.unless_stopped(pause).await;
                }
            }
            Attempt::EntryLost => {
                if request.stop.is_raised() || store.context.closing.is_raised() {
                    return Ok(Answer::Busy);
                }
                tracing::warn!(name = %request.name, store = "etcd", "our key in the queue is gone: its lease ended, or the key was deleted; queueing again at the end");
                let pause = retries.pause(&store.context.clock);
                if request.unless_stopped(pause).await.is_none() {
                    return Ok(Answer::Busy);
                }
            }
        }
    }
}

/// `is_token_early`: see [`KeyRecord::is_token_early`].
async fn attempt(
    store: &Arc<Store>,
    request: &Arc<Request>,
    is_token_early: bool,
) -> Result<Attempt, Error> {
    let (leases, wanted) = (store.leases.clone(), request.clone());
    let lease = async move { leases.for_request(&wanted).await };
    let Some(lease) = lease_unless_stopped(store, request, lease).await? else {
        return Ok(Attempt::Answered(Answer::Busy));
    };
    let entry = remember(store, request, &lease, is_token_early);
    // A waiter subscribes before it enqueues, see `subscribe`.
    let subscription = match request.wait {
        true => store
            .subscriptions
            .subscribe(&entry.directory, entry.reports()),
        false => None,
    };
    match enqueue(store, request, &entry).await {
        Ok(Enqueued::Queued(queued)) => {
            in_queue(store, request, &lease, &entry, queued, subscription).await
        }
        Ok(Enqueued::Busy) => {
            release::remove(store, request.owner);
            Ok(Attempt::Answered(Answer::Busy))
        }
        Ok(Enqueued::KeyInUse) => {
            release::remove(store, request.owner);
            store.keys.reserve(&entry.key, lease.end());
            Ok(Attempt::KeyInUse)
        }
        Err(err) if err.recovery == Recovery::NewLease => {
            store.leases.end(&lease);
            release::remove(store, request.owner);
            Ok(Attempt::EntryLost)
        }
        Err(err) => {
            if store.holds.read(request.owner, |held| held.created) > Some(0) {
                // The key was made, and then the queue could not be read.
                return finish(store, request, Err(err.error)).await;
            }
            if !err.is_ambiguous() {
                release::remove(store, request.owner);
            }
            Err(err.error)
        }
    }
}

/// Whether one transaction can acquire all these locks.
fn fit_one_transaction(store: &Store, all: &[Arc<Request>]) -> bool {
    let settings = &store.context.settings;
    // A hold that no task renews ends with a lease of its own.
    let shares_its_lease = |it: &Request| it.is_renewed || it.min_lease < it.ttl;
    // A reservation is a second key, which moves to a lease of its own.
    let has_one_key = |it: &Request| it.mode == Mode::Exclusive && it.min_hold.is_zero();
    let is_simple = |it: &Arc<Request>| has_one_key(it) && shares_its_lease(it);
    // A lease of its own for each lock is a request of its own. With raw names one directory may be in another one.
    let is_possible = !settings.is_lease_per_lock && !settings.is_raw && all.len() <= MAX_ALL;
    is_possible && all.iter().all(is_simple)
}

/// Acquires several locks with one transaction, all or none.
pub(super) async fn acquire_all(
    store: &Arc<Store>,
    all: &[Arc<Request>],
) -> Result<AllAnswer, Error> {
    if !fit_one_transaction(store, all) {
        return Ok(AllAnswer::OneByOne);
    }
    let (leases, wanted) = (store.leases.clone(), all[0].clone());
    let lease = async move { leases.shared(&wanted).await };
    let Some(lease) = lease_unless_stopped(store, &all[0], lease).await? else {
        return Ok(AllAnswer::Busy(0));
    };
    let entries = all
        .iter()
        .map(|request| remember(store, request, &lease, false));
    let entries: Vec<_> = entries.collect();
    let remove_all = || {
        for request in all {
            release::remove(store, request.owner);
        }
    };
    let reply = match requests::acquire_all(&store.connections, &entries).await {
        Ok(reply) => reply,
        Err(err) if err.is_ambiguous() => return Err(err.error),
        // Nothing was done. Asked for alone, each lock finds out what is to be done about the error.
        Err(err) => {
            if err.recovery == Recovery::NewLease {
                store.leases.end(&lease);
            }
            remove_all();
            return Ok(AllAnswer::OneByOne);
        }
    };
    if reply.is_repeated {
        for request in all {
            let mark = |held: &mut HeldEntry| held.is_ambiguous = true;
            store.holds.update(request.owner, mark);
        }
    }
    let created = match reply.outcome {
        AcquireAllOutcome::Held(created) => created,
        AcquireAllOutcome::Busy(at) => {
            remove_all();
            return Ok(AllAnswer::Busy(at));
        }
        AcquireAllOutcome::Incomplete => return Err(incomplete()),
    };
    let held = entries.iter().zip(created).map(|(entry, created)| Granted {
        entry,
        lease: &lease,
        created,
        is_token_early: false,
        round_trip: reply.round_trip,
    });
    grant_all(store, all, held.collect()).await
}

/// The grants of all these locks, whose keys were made by one transaction.
async fn grant_all(
    store: &Arc<Store>,
    all: &[Arc<Request>],
    held: Vec<Granted<'_>>,
) -> Result<AllAnswer, Error> {
    let mut grants = Vec::with_capacity(all.len());
    for (request, granted) in all.iter().zip(held) {
        match granted.grant(store, request).await {
            Ok(Some(grant)) => grants.push(grant),
            Ok(None) => return Err(incomplete()),
            Err(err) => return Err(incomplete().with_source(err)),
        }
    }
    Ok(AllAnswer::Granted(grants))
}

/// Some of the locks may be held: the driver releases all of them.
fn incomplete() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "some of the locks ended before all were held; retry",
    )
}

/// The lease for a request; `None`: the caller gave up.
async fn lease_unless_stopped(
    store: &Arc<Store>,
    request: &Request,
    lease: impl Future<Output = Result<Arc<Lease>, Error>> + Send + 'static,
) -> Result<Option<Arc<Lease>>, Error> {
    let mut lease = Box::pin(lease);
    if let Some(lease) = request.unless_stopped(&mut lease).await {
        return lease.map(Some);
    }
    // Until there is a lease there is no key in the store. A grant that is under way is awaited: a request to revoke the
    // lease that comes before the grant has no effect, and then the lease would stay.
    let (leases, context) = (store.leases.clone(), &store.context);
    context.background.spawn(&context.spawner, async move {
        if let Ok(lease) = lease.await
            && !lease.is_shared
        {
            leases.revoke_in_background(&lease);
        }
    });
    Ok(None)
}

/// Decides which key the acquisition uses, and remembers the key before it is put, so that whatever comes of the
/// request can be deleted.
fn remember(
    store: &Arc<Store>,
    request: &Request,
    lease: &Arc<Lease>,
    is_token_early: bool,
) -> QueueEntry {
    let directory = store.directory(&request.name);
    let record = KeyRecord::new(&request.holder, request.mode, request.owner, wall_now());
    let record = match is_token_early {
        true => record.with_early_token(),
        false => record,
    };
    let value: Arc<[u8]> = record.to_bytes().into();
    let key = store.keys.claim(&directory, lease.id, store.context.now());
    let second_key = (!request.min_hold.is_zero()).then(|| second_key(request, &key));
    let held = HeldEntry {
        lease: lease.clone(),
        key: key.clone(),
        value: value.clone(),
        created: 0,
        state: AcquisitionState::Waiting,
        reservation: second_key.clone().map(Reservation::of),
        is_ambiguous: false,
        may_be_released: false,
    };
    store.holds.insert(request.owner, held);
    renew::schedule(store, lease.due());
    QueueEntry {
        directory,
        key,
        value,
        second_key,
        lease: lease.id,
        goal: Goal::Turn(request.mode),
    }
}

/// The second key for a request with `min_hold`.
fn second_key(request: &Request, key: &[u8]) -> SecondKey {
    let record = KeyRecord::reserved(request.mode).with_owner(request.owner);
    SecondKey {
        key: reservation_key(key),
        value: record.to_bytes().into(),
    }
}

/// Makes our key.
async fn enqueue(
    store: &Store,
    request: &Request,
    entry: &QueueEntry,
) -> Result<Enqueued, RequestError> {
    let reply = requests::acquire(&store.connections, entry, request.wait).await?;
    let created = match &reply.outcome {
        AcquireOutcome::Created(snapshot) => snapshot.revision,
        AcquireOutcome::CreatedBefore(created) => *created,
        AcquireOutcome::Busy | AcquireOutcome::KeyInUse => 0,
    };
    // From now on the release deletes the key by its revision, whatever its value is.
    store.holds.update(request.owner, |held| {
        held.is_ambiguous |= reply.is_repeated;
        held.created = created;
    });
    let snapshot = match reply.outcome {
        AcquireOutcome::Created(snapshot) => snapshot,
        AcquireOutcome::CreatedBefore(_) => {
            let read = requests::read_queue(&store.connections, entry, created, 0);
            let mut snapshot = read.await?;
            if snapshot.early_token == EarlyToken::Free {
                // Keys that were there when our key was made may be gone.
                snapshot.early_token = EarlyToken::Taken;
            }
            snapshot
        }
        AcquireOutcome::Busy => return Ok(Enqueued::Busy),
        AcquireOutcome::KeyInUse => return Ok(Enqueued::KeyInUse),
    };
    Ok(Enqueued::Queued(Queued {
        created,
        snapshot,
        round_trip: reply.round_trip,
    }))
}

/// Our key is in the queue. Waits until the key holds, if the request waits.
async fn in_queue(
    store: &Arc<Store>,
    request: &Request,
    lease: &Arc<Lease>,
    entry: &QueueEntry,
    queued: Queued,
    subscription: Option<Subscription>,
) -> Result<Attempt, Error> {
    let created = queued.created;
    let snapshot = queued.snapshot;
    let is_taken = snapshot.early_token == EarlyToken::Taken;
    let outcome = match snapshot.position {
        QueuePosition::Gone => Ok(WaitOutcome::EntryLost),
        QueuePosition::Behind(_) if !request.wait => Ok(WaitOutcome::Stopped),
        _ if is_taken => {
            let left = release::leave_queue(store, request.owner).await;
            return left.map(|()| Attempt::TokenTaken);
        }
        QueuePosition::Held => Ok(WaitOutcome::Held),
        QueuePosition::Behind(ahead) => {
            request.report_taken();
            let waiter = Waiter {
                store,
                request,
                entry,
                lease,
                created,
                ahead,
                revision: snapshot.revision,
                subscription,
            };
            waiter.wait().await
        }
    };
    let granted = match outcome {
        Ok(WaitOutcome::Held) => {
            let granted = Granted {
                entry,
                lease,
                created,
                is_token_early: snapshot.early_token == EarlyToken::Free,
                round_trip: queued.round_trip,
            };
            granted.grant(store, request).await
        }
        Ok(WaitOutcome::EntryLost) => Ok(None),
        Ok(WaitOutcome::Stopped) => {
            let left = release::leave_queue(store, request.owner).await;
            return left.map(|()| Attempt::Answered(Answer::Busy));
        }
        Err(err) => Err(err),
    };
    finish(store, request, granted).await
}

/// Our key holds, is gone, or has to be deleted because of an error.
async fn finish(
    store: &Store,
    request: &Request,
    granted: Result<Option<Grant>, Error>,
) -> Result<Attempt, Error> {
    match granted {
        Ok(Some(grant)) => Ok(Attempt::Answered(Answer::Granted(grant))),
        // The key of the reservation may be there still.
        Ok(None) if !request.min_hold.is_zero() => {
            let left = release::leave_queue(store, request.owner).await;
            left.map(|()| Attempt::EntryLost)
        }
        Ok(None) => {
            release::remove(store, request.owner);
            Ok(Attempt::EntryLost)
        }
        // The error says why the acquisition ended, unless something may be left in the store.
        Err(err) => {
            let left = release::leave_queue(store, request.owner).await;
            left.and(Err(err))
        }
    }
}

/// Our key holds.
struct Granted<'a> {
    entry: &'a QueueEntry,
    lease: &'a Arc<Lease>,
    created: i64,
    is_token_early: bool,
    round_trip: Duration,
}

impl Granted<'_> {
    /// Makes the lease as long as the request wants it; `None`: our key is gone.
    async fn grant(&self, store: &Arc<Store>, request: &Request) -> Result<Option<Grant>, Error> {
        let round_trip = self.round_trip;
        if !self.reserve(store, request).await? {
            return Ok(None);
        }
        let lease = match request.lock_delay.is_zero() {
            true => self.refresh_lease(store, request).await?,
            false => self.move_to_delayed_lease(store, request).await?,
        };
        let Some(lease) = lease else {
            return Ok(None);
        };
        let early = i64::from(self.is_token_early);
        let token = u64::try_from(self.created - early).map_err(|_| unexpected_reply())?;
        let sent = lease.sent();
        renew::record_grant(store, request, self.created, sent);
        Ok(Some(Grant::new(token, sent, round_trip, Some(lease.ttl))))
    }

    /// Moves the second key to a lease of `min_hold`, so that the name stays taken whatever becomes of the hold. A
    /// waiter has no such lease, because a waiter that vanishes reserves nothing. `false`: the second key is gone.
    async fn reserve(&self, store: &Arc<Store>, request: &Request) -> Result<bool, Error> {
        let Some(SecondKey { key, .. }) = &self.entry.second_key else {
            return Ok(true);
        };
        let seconds = whole_seconds(request.min_hold);
        let lease = store.leases.grant(seconds, false).await?;
        store.holds.update(request.owner, |held| {
            if let Some(reservation) = &mut held.reservation {
                reservation.lease = Some(lease.clone());
            }
        });
        let state = KeyState::created_at(key, self.created);
        requests::reserve_name(&store.connections, &state, request.mode, lease.id).await
    }

    /// The lease of our key; `None`: the lease is over.
    async fn refresh_lease(
        &self,
        store: &Store,
        request: &Request,
    ) -> Result<Option<Arc<Lease>>, Error> {
        let (lease, now) = (self.lease, store.context.now());
        // A lease that began with this request cannot be made longer.
        let is_new = now.since(lease.sent()) <= self.round_trip * 2;
        let is_enough = lease.end().since(now) >= request.min_lease.max(lease.ttl / 3);
        if !is_new && !is_enough && !store.leases.refresh(lease).await? {
            return Ok(None);
        }
        let is_there = !self.is_token_early || self.write(store, lease).await?;
        Ok(is_there.then(|| lease.clone()))
    }

    /// Moves our key to a lease of its own that goes on after the ttl, so that the name stays reserved if this client
    /// vanishes. A waiter has no such lease, because a waiter that vanishes reserves nothing.
    async fn move_to_delayed_lease(
        &self,
        store: &Store,
        request: &Request,
    ) -> Result<Option<Arc<Lease>>, Error> {
        let (seconds, delay) = (whole_seconds(request.ttl), request.lock_delay);
        let delayed = store.leases.grant_with_delay(seconds, delay, false).await?;
        let set_lease = |entry: &mut HeldEntry| entry.lease = delayed.clone();
        store.holds.update(request.owner, set_lease);
        let is_there = self.write(store, &delayed).await;
        let is_ambiguous = |entry: &HeldEntry| entry.is_ambiguous;
        if !self.lease.is_shared {
            store.leases.revoke_in_background(self.lease);
        } else if store.holds.read(request.owner, is_ambiguous) == Some(true) {
            let QueueEntry {
                key,
                value,
                second_key,
                ..
            } = self.entry;
            release::add_late_puts(store, self.lease, (key, value), second_key.as_ref());
        }
        Ok(is_there?.then_some(delayed))
    }

    /// Writes into our key what was not known when the key was made. `false`: the key or the lease is gone.
    async fn write(&self, store: &Store, lease: &Lease) -> Result<bool, Error> {
        let (key, old) = (&self.entry.key, KeyRecord::read(&self.entry.value));
        let mut record = old.clone();
        if self.is_token_early && !record.is_token_early() {
            record = record.with_early_token();
        }
        record = record.with_lock_delay(lease.delay);
        if record == old {
            return Ok(true);
        }
        let put = wire::Put {
            key: key.clone(),
            value: record.to_bytes(),
            lease: lease.id,
        };
        let unchanged = vec![wire::Compare::modified(key, self.created)];
        match requests::replace(&store.connections, put, unchanged).await {
            Ok(replaced) => Ok(matches!(replaced, Replaced::At(_))),
            Err(err) if err.recovery == Recovery::NewLease => Ok(false),
            Err(err) => Err(err.error),
        }
    }
}
