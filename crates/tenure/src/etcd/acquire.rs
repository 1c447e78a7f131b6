//! One acquisition, from the first request to the answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::options::Mode;
use tenure_core::queue::{self, Acquisition, Created, Position, Replaced, is_temporary};
use tenure_core::rt::wall_now;
use tenure_core::store::{AcquireAll, AllAnswer, Answer, BoxFuture, Grant, Request};
use tenure_core::support::{RetryBudget, not_left};

use super::candidate::{self, Candidate};
use super::errors::{Recovery, RequestError, unexpected_reply};
use super::key_state::KeyState;
use super::leases::{Lease, whole_seconds};
use super::names::reservation_key;
use super::queue::{EarlyToken, Goal, QueueEntry, QueueSnapshot, SecondKey};
use super::record::KeyRecord;
use super::release;
use super::renew;
use super::requests::{self, AcquireAllOutcome, AcquireOutcome, MAX_ALL};
use super::store::{AcquisitionState, ContenderKey, Reservation, Store};
use super::subscribe::Subscription;
use super::wait::{self, Ahead, OpenWatch, Operation, Queued};
use super::wire;

impl AcquireAll for Store {
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>> {
        Box::pin(async move { acquire_all(&self, &requests).await })
    }
}

pub(super) async fn acquire(store: &Arc<Store>, request: &Arc<Request>) -> Result<Answer, Error> {
    if let Some(value) = &request.holder.value {
        candidate::check_value(&value.text)?;
    }
    queue::acquire(&Operation::new(store, request, 0)).await
}

impl Acquisition for Operation<'_> {
    async fn create(&self) -> Result<Created<Queued, Ahead>, Error> {
        let Self { store, request, .. } = self;
        let (leases, wanted) = (store.leases.clone(), (*request).clone());
        let lease = async move { leases.for_request(&wanted).await };
        let Some(lease) = lease_unless_stopped(store, request, lease).await? else {
            return Ok(Created::Busy);
        };
        let is_token_early = self.is_token_early.load(Ordering::Relaxed);
        let entry = remember(store, request, &lease, is_token_early);
        // A waiter subscribes before it enqueues, see `subscribe`.
        let subscription = match request.wait {
            true => store
                .subscriptions
                .subscribe(&entry.directory, entry.reports()),
            false => None,
        };
        let err = match self.enqueue(lease.clone(), entry, subscription).await {
            Ok(Created::Entry(queued, Some(position)))
                if queued.early_token == EarlyToken::Taken && self.gets_token(&position) =>
            {
                // Our token has to be early and may be that of another hold, so the next key gets another one.
                self.leave_for_next_key().await?;
                self.is_token_early.store(true, Ordering::Relaxed);
                return Ok(Created::Again);
            }
            Ok(created) => return Ok(created),
            Err(err) => err,
        };
        if err.recovery == Recovery::NewLease {
            store.leases.end(&lease);
            release::remove(store, request.owner);
            return Ok(Created::Again);
        }
        if store.holds.read(request.owner, |held| held.created) > Some(0) {
            // The key was made, and then the queue could not be read.
            self.leave().await.map_err(not_left)?;
        } else if !err.is_ambiguous() {
            release::remove(store, request.owner);
        }
        Err(err.error)
    }

    async fn grant(&self, queued: &Queued, _: u64) -> Result<Option<Answer>, Error> {
        match queued.grant(self.store, self.request).await {
            Ok(grant) => Ok(grant.map(Answer::Granted)),
            // What became of the hold cannot be told, so the key is deleted, and the next one waits.
            Err(err) if self.request.wait && is_temporary(&err) => {
                tracing::debug!(name = %self.request.name, err = format_args!("{err:#}"), "a request for the hold of a waiter failed");
                Ok(None)
            }
            Err(err) => Err(err),
        }
    }

    async fn leave(&self) -> Result<(), Error> {
        release::leave_queue(self.store, self.request.owner).await
    }
}

impl Operation<'_> {
    /// Makes our key.
    async fn enqueue(
        &self,
        lease: Arc<Lease>,
        entry: QueueEntry,
        subscription: Option<Subscription>,
    ) -> Result<Created<Queued, Ahead>, RequestError> {
        let Self { store, request, .. } = self;
        let reply = self.send(&entry).await?;
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
                let mut snapshot = self.read_queue(&entry, created).await?;
                if snapshot.early_token == EarlyToken::Free {
                    // Keys that were there when our key was made may be gone.
                    snapshot.early_token = EarlyToken::Taken;
                }
                snapshot
            }
            AcquireOutcome::Busy => {
                release::remove(store, request.owner);
                return Ok(Created::Busy);
            }
            AcquireOutcome::KeyInUse => {
                release::remove(store, request.owner);
                store.keys.reserve(&entry.key, lease.end());
                return Ok(Created::Again);
            }
        };
        let queued = Queued {
            entry,
            lease,
            created,
            early_token: snapshot.early_token,
            round_trip: reply.round_trip,
        };
        let watch = subscription.map(OpenWatch::Directory);
        let position = wait::position(snapshot, watch);
        Ok(Created::Entry(queued, Some(position)))
    }

    /// Sends the request for our key. A request that waits and gets no reply is sent again: the next reply says whether the
    /// key is there.
    async fn send(
        &self,
        entry: &QueueEntry,
    ) -> Result<requests::AcquireReply<AcquireOutcome>, RequestError> {
        let Self { store, request, .. } = self;
        let (connections, clock) = (&store.connections, &store.context.clock);
        let mut unanswered = match requests::acquire(connections, entry, request.wait).await {
            Err(err) if err.is_ambiguous() && request.wait => err,
            answer => return answer,
        };
        // A request that arrives after the release makes the key again.
        let mark = |held: &mut ContenderKey| held.is_ambiguous = true;
        store.holds.update(request.owner, mark);
        let mut retries = RetryBudget::until(queue::retry_limit(request, clock));
        while !retries.is_spent(clock)
            && request.unless_stopped(retries.pause(clock)).await.is_some()
        {
            match requests::acquire(connections, entry, request.wait).await {
                Ok(reply) => return Ok(reply),
                // The key of the first request ended with the lease.
                Err(err) if err.recovery == Recovery::NewLease => return Err(err),
                Err(err) if err.is_ambiguous() => unanswered = err,
                Err(err) if is_temporary(&err.error) => {}
                Err(_) => break,
            }
        }
        Err(unanswered)
    }

    /// Reads the queue after our key was made. A request that waits and gets no reply is sent again.
    async fn read_queue(
        &self,
        entry: &QueueEntry,
        created: i64,
    ) -> Result<QueueSnapshot, RequestError> {
        let Self { store, request, .. } = self;
        let (connections, clock) = (&store.connections, &store.context.clock);
        let mut retries = RetryBudget::until(queue::retry_limit(request, clock));
        loop {
            let err = match requests::read_queue(connections, entry, created, 0).await {
                Err(err) if request.wait && is_temporary(&err.error) => err,
                answer => return answer,
            };
            let is_over = err.recovery == Recovery::NewLease || retries.is_spent(clock);
            if is_over || request.unless_stopped(retries.pause(clock)).await.is_none() {
                return Err(err);
            }
        }
    }

    /// Deletes our key, before the next one is made. A request that waits and gets no reply is sent again.
    async fn leave_for_next_key(&self) -> Result<(), Error> {
        let Self { store, request, .. } = self;
        let clock = &store.context.clock;
        let mut retries = RetryBudget::until(queue::retry_limit(request, clock));
        loop {
            let err = match self.leave().await {
                Err(err) if request.wait && is_temporary(&err) => err,
                left => return left.map_err(not_left),
            };
            if retries.is_spent(clock)
                || request.unless_stopped(retries.pause(clock)).await.is_none()
            {
                return Err(not_left(err));
            }
        }
    }

    /// Whether a hold may come of a key in this position.
    fn gets_token(&self, position: &Position<Ahead>) -> bool {
        match position {
            Position::Held { .. } => true,
            Position::Behind(_) => self.request.wait,
            Position::Gone => false,
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
    let is_lock = |it: &Request| it.holder.value.is_none();
    let is_simple = |it: &Arc<Request>| has_one_key(it) && shares_its_lease(it) && is_lock(it);
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
            let mark = |held: &mut ContenderKey| held.is_ambiguous = true;
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
    let held = entries
        .into_iter()
        .zip(created)
        .map(|(entry, created)| Queued {
            entry,
            lease: lease.clone(),
            created,
            early_token: EarlyToken::NotNeeded,
            round_trip: reply.round_trip,
        });
    grant_all(store, all, held.collect()).await
}

/// The grants of all these locks, whose keys were made by one transaction.
async fn grant_all(
    store: &Arc<Store>,
    all: &[Arc<Request>],
    held: Vec<Queued>,
) -> Result<AllAnswer, Error> {
    let mut grants = Vec::with_capacity(all.len());
    for (request, queued) in all.iter().zip(held) {
        match queued.grant(store, request).await {
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
    let candidate = Candidate::of(request, &directory, &key, &record);
    let second_key = (!request.min_hold.is_zero()).then(|| second_key(request, &key));
    let held = ContenderKey {
        lease: lease.clone(),
        key: key.clone(),
        value: value.clone(),
        created: 0,
        state: AcquisitionState::Waiting,
        reservation: second_key.clone().map(Reservation::of),
        is_ambiguous: false,
        may_be_released: false,
        candidate: candidate.clone(),
        attachment: None,
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
        candidate,
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

impl Queued {
    fn is_token_early(&self) -> bool {
        self.early_token == EarlyToken::Free
    }

    /// Our key holds. Makes the lease as long as the request wants it; `None`: our key is gone.
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
        let early = i64::from(self.is_token_early());
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
        let (lease, now) = (&self.lease, store.context.now());
        // A lease that began with this request cannot be made longer.
        let is_new = now.since(lease.sent()) <= self.round_trip * 2;
        let is_enough = lease.end().since(now) >= request.min_lease.max(lease.ttl / 3);
        if !is_new && !is_enough && !store.leases.refresh(lease).await? {
            return Ok(None);
        }
        let is_there = !self.is_token_early() || self.write(store, request, lease).await?;
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
        let set_lease = |entry: &mut ContenderKey| entry.lease = delayed.clone();
        store.holds.update(request.owner, set_lease);
        let is_there = self.write(store, request, &delayed).await;
        let is_ambiguous = |entry: &ContenderKey| entry.is_ambiguous;
        if !self.lease.is_shared {
            store.leases.revoke_in_background(&self.lease);
        } else if store.holds.read(request.owner, is_ambiguous) == Some(true) {
            let QueueEntry {
                key,
                value,
                second_key,
                candidate,
                ..
            } = &self.entry;
            let record_key = candidate.as_ref().map(|it| &it.record_key[..]);
            release::add_late_puts(
                store,
                &self.lease,
                (key, value, record_key),
                second_key.as_ref(),
            );
        }
        Ok(is_there?.then_some(delayed))
    }

    /// Writes into our key what was not known when the key was made. `false`: the key or the lease is gone.
    async fn write(&self, store: &Store, request: &Request, lease: &Lease) -> Result<bool, Error> {
        let (key, old) = (&self.entry.key, KeyRecord::read(&self.entry.value));
        let mut record = old.clone();
        if self.is_token_early() && !record.is_token_early() {
            record = record.with_early_token();
        }
        record = record.with_lock_delay(lease.delay);
        if record == old {
            return Ok(true);
        }
        let put = |key: &[u8], value| wire::Put {
            key: key.to_vec(),
            value,
            lease: lease.id,
        };
        let mut also = Vec::new();
        let own = match &self.entry.candidate {
            None => put(key, record.to_bytes()),
            Some(candidate) => {
                also.push(put(&candidate.record_key, record.to_bytes()).into());
                put(key, candidate.first_value.as_bytes().to_vec())
            }
        };
        let unchanged = vec![wire::Compare::modified(key, self.created)];
        match requests::replace(&store.connections, own, also, unchanged).await {
            Ok(Replaced::Done(modified)) => {
                store.holds.update(request.owner, |entry| {
                    if let Some(candidate) = &mut entry.candidate {
                        (candidate.record, candidate.modified) = (record, modified);
                    }
                });
                Ok(true)
            }
            Ok(Replaced::Refused | Replaced::Gone) => Ok(false),
            Err(err) if err.recovery == Recovery::NewLease => Ok(false),
            Err(err) => Err(err.error),
        }
    }
}
