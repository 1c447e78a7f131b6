//! One acquisition, from the first request to the answer.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answer, Grant, Request};
use tenure_core::error::Error;
use tenure_core::rt::wall_now;
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::errors::{Recovery, RequestError, unexpected_reply};
use super::leases::Lease;
use super::queue::{KeyRecord, QueueEntry, QueuePosition, QueueSnapshot};
use super::release;
use super::renew;
use super::requests::{self, AcquireOutcome};
use super::store::{AcquisitionState, HeldEntry, Store};
use super::subscribe::Subscription;
use super::wait::{WaitOutcome, Waiter};

/// How an attempt ended.
enum Attempt {
    Answered(Answer),
    /// Our key is gone: its lease is over, or another program deleted the key.
    EntryLost,
    /// The key of a former acquisition is in the store, so the next attempt takes another key.
    KeyInUse,
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
    loop {
        match attempt(store, request).await? {
            Attempt::Answered(answer) => return Ok(answer),
            Attempt::KeyInUse => {
                if request.stop.is_raised() {
                    return Ok(Answer::Busy);
                }
            }
            Attempt::EntryLost => {
                if request.stop.is_raised() || store.context.closing.is_raised() {
                    return Ok(Answer::Busy);
                }
                tracing::warn!(name = %request.name, backend = "etcd", "our key in the queue is gone: its lease ended, or the key was deleted; queueing again at the end");
                let pause = retries.pause(&store.context.clock);
                if request.unless_stopped(pause).await.is_none() {
                    return Ok(Answer::Busy);
                }
            }
        }
    }
}

async fn attempt(store: &Arc<Store>, request: &Arc<Request>) -> Result<Attempt, Error> {
    let Some(lease) = lease_unless_stopped(store, request).await? else {
        return Ok(Attempt::Answered(Answer::Busy));
    };
    let entry = remember(store, request, &lease);
    // A waiter subscribes before it enqueues, see `subscribe`.
    let subscription = match request.wait {
        true => store.subscriptions.subscribe(&entry.directory),
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
            if !err.is_ambiguous() {
                release::remove(store, request.owner);
            }
            Err(err.error)
        }
    }
}

/// The lease for a request; `None`: the caller gave up.
async fn lease_unless_stopped(
    store: &Arc<Store>,
    request: &Arc<Request>,
) -> Result<Option<Arc<Lease>>, Error> {
    let (leases, wanted) = (store.leases.clone(), request.clone());
    let mut lease = Box::pin(async move { leases.for_request(&wanted).await });
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
fn remember(store: &Arc<Store>, request: &Request, lease: &Arc<Lease>) -> QueueEntry {
    let directory = store.directory(&request.name);
    let record = KeyRecord::new(&request.holder, request.mode, request.owner, wall_now());
    let value: Arc<[u8]> = record.to_bytes().into();
    let key = store.keys.claim(&directory, lease.id, store.context.now());
    let held = HeldEntry {
        lease: lease.clone(),
        key: key.clone(),
        value: value.clone(),
        created: 0,
        state: AcquisitionState::Waiting,
        reserved_until: Time::ZERO,
        min_hold: request.min_hold,
        is_ambiguous: false,
        may_be_released: false,
    };
    store.holds.insert(request.owner, held);
    renew::schedule(store, lease.due());
    QueueEntry {
        directory,
        key,
        value,
        lease: lease.id,
        mode: request.mode,
    }
}

/// Makes our key.
async fn enqueue(
    store: &Store,
    request: &Request,
    entry: &QueueEntry,
) -> Result<Enqueued, RequestError> {
    let reply = requests::acquire(&store.connections, entry, request.wait).await?;
    if reply.is_repeated {
        store
            .holds
            .update(request.owner, |held| held.is_ambiguous = true);
    }
    let (created, snapshot) = match reply.outcome {
        AcquireOutcome::Created(snapshot) => (snapshot.revision, snapshot),
        AcquireOutcome::CreatedBefore(created) => {
            let snapshot = requests::read_queue(&store.connections, entry, created, 0).await?;
            (created, snapshot)
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
    let Queued {
        created,
        snapshot,
        round_trip,
    } = queued;
    let outcome = match snapshot.position {
        QueuePosition::Held => Ok(WaitOutcome::Held),
        QueuePosition::Gone => Ok(WaitOutcome::EntryLost),
        QueuePosition::Behind(_) if !request.wait => Ok(WaitOutcome::Stopped),
        QueuePosition::Behind(ahead) => {
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
        Ok(WaitOutcome::Held) => grant(store, request, lease, created, round_trip).await,
        Ok(WaitOutcome::EntryLost) => Ok(None),
        Ok(WaitOutcome::Stopped) => {
            let left = release::leave_queue(store, request, &entry.key, created).await;
            return left.map(|()| Attempt::Answered(Answer::Busy));
        }
        Err(err) => Err(err),
    };
    match granted {
        Ok(Some(grant)) => Ok(Attempt::Answered(Answer::Granted(grant))),
        Ok(None) => {
            release::remove(store, request.owner);
            Ok(Attempt::EntryLost)
        }
        // The error says why the acquisition ended, unless something may be left in the store.
        Err(err) => {
            let left = release::leave_queue(store, request, &entry.key, created).await;
            left.and(Err(err))
        }
    }
}

/// Our key holds. Makes its lease as long as the request wants it; `None`: the lease is over.
async fn grant(
    store: &Arc<Store>,
    request: &Request,
    lease: &Arc<Lease>,
    created: i64,
    round_trip: Duration,
) -> Result<Option<Grant>, Error> {
    let now = store.context.now();
    // A lease that began with this request cannot be made longer.
    let is_new = now.since(lease.sent()) <= round_trip * 2;
    let is_enough = lease.end().since(now) >= request.min_lease.max(lease.ttl / 3);
    if !is_new && !is_enough && !store.leases.refresh(lease, Duration::ZERO).await? {
        return Ok(None);
    }
    let token = u64::try_from(created).map_err(|_| unexpected_reply())?;
    let sent = lease.sent();
    renew::record_grant(store, request, created, sent);
    Ok(Some(Grant::new(token, sent, round_trip, Some(lease.ttl))))
}
