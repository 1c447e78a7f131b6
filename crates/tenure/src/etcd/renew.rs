//! Renewal of many holds in few requests, keep-alives for waiters, and the end of holds that are not renewed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future;
use futures_util::stream::{self, StreamExt};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::store::{Hold, Renewal, Request};
use tenure_core::time::Time;

use super::attached;
use super::errors::unexpected_reply;
use super::key_state::KeyState;
use super::leases::{Lease, LeaseListener};
use super::release::{self, PARALLEL_DELETIONS};
use super::requests::{self, KeySelector};
use super::store::{AcquisitionState, ContenderKey, Store};

/// The maintenance task has work by `at`.
pub(super) fn schedule(store: &Arc<Store>, at: Time) {
    let context = &store.context;
    store
        .maintenance
        .start(&context.spawner, &context.clock, store, maintain);
    store.maintenance.due_at(at);
}

/// Remembers a hold that is about to be passed to the driver.
pub(super) fn record_grant(store: &Arc<Store>, request: &Request, created: i64, renewed: Time) {
    store
        .leases
        .listen(|| Box::new(LossReporter(Arc::downgrade(store))));
    let now = store.context.now();
    let due = store.holds.update(request.owner, |entry| {
        entry.created = created;
        entry.state = AcquisitionState::Held { renewed };
        if let Some(reservation) = &mut entry.reservation {
            reservation.until = now.after(request.min_hold);
        }
        entry
            .lease
            .is_shared
            .then(|| renewed.after(entry.lease.ttl / 3))
    });
    schedule(store, due.flatten().unwrap_or(Time::MAX));
}

/// Asks whether the keys of all these holds exist, and keeps their leases alive.
pub(super) async fn renew(store: &Store, holds: &[Hold]) -> Vec<Renewal> {
    let numbered = holds.iter().cloned().enumerate();
    let (attached, own): (Vec<_>, Vec<_>) =
        numbered.partition(|(_, hold)| attached::is_attached(store, hold.owner));
    if attached.is_empty() {
        return renew_own(store, holds).await;
    }
    let (numbers, own): (Vec<_>, Vec<_>) = own.into_iter().unzip();
    let (attached, own) =
        future::join(attached::renew_all(store, attached), renew_own(store, &own)).await;
    Renewal::in_order(holds.len(), numbers.into_iter().zip(own).chain(attached))
}

/// The same for holds that this client has acquired.
async fn renew_own(store: &Store, holds: &[Hold]) -> Vec<Renewal> {
    let held: Vec<_> = holds.iter().map(|hold| held_key(store, hold)).collect();
    let leases = held.iter().flatten().map(|(lease, _)| lease.clone());
    let mut leases: Vec<_> = leases.collect();
    leases.sort_by_key(|lease| lease.id);
    leases.dedup_by_key(|lease| lease.id);
    let shortest = leases.iter().map(|lease| lease.ttl).min();
    // A lease that was confirmed so recently is not kept alive again. The time is short because the next renewal comes a
    // third of the ttl after this one, however old the confirmation is.
    let age = shortest.unwrap_or_default() / 32;
    let keys: Vec<_> = held.iter().flatten().map(|(_, key)| key).collect();
    let asked = store.context.now();
    let (refreshed, exist) = future::join(
        store.leases.refresh_all(&leases, age),
        requests::keys_exist(&store.connections, &keys),
    )
    .await;
    let mut exist = exist.into_iter();
    let renewal = |(hold, held): (&Hold, Option<(Arc<Lease>, KeyState)>)| {
        let Some((lease, _)) = held else {
            return Renewal::Lost(LostReason::StoreSaysNo);
        };
        let exists = exist.next().unwrap_or_else(|| Err(unexpected_reply()));
        let sent = lease.sent();
        // One of several leases may have been confirmed although another one was not.
        let is_confirmed = asked.since(sent) <= age;
        match (exists, &refreshed) {
            _ if lease.gone.is_raised() => Renewal::Lost(LostReason::SessionGone),
            (Ok(false), _) => Renewal::Lost(LostReason::StoreSaysNo),
            (Err(err), _) => Renewal::Unknown(err),
            (Ok(true), Err(err)) if !is_confirmed => Renewal::Unknown(err.clone()),
            (Ok(true), _) => record_renewal(store, hold, &lease, sent),
        }
    };
    holds.iter().zip(held).map(renewal).collect()
}

/// The lease and the key of a hold.
fn held_key(store: &Store, hold: &Hold) -> Option<(Arc<Lease>, KeyState)> {
    let key = |entry: &ContenderKey| {
        let is_held = matches!(entry.state, AcquisitionState::Held { .. });
        is_held.then(|| (entry.lease.clone(), entry.key_state()))
    };
    store.holds.read(hold.owner, key).flatten()
}

fn record_renewal(store: &Store, hold: &Hold, lease: &Lease, sent: Time) -> Renewal {
    store.holds.update(hold.owner, |entry| {
        if let AcquisitionState::Held { renewed } = &mut entry.state {
            *renewed = sent;
        }
    });
    let ttl = Some(lease.ttl);
    Renewal::Renewed { sent, ttl }
}

/// Reports the holds that end with a lease.
struct LossReporter(Weak<Store>);

impl LeaseListener for LossReporter {
    fn ended(&self, lease: &Arc<Lease>) {
        let Some(store) = self.0.upgrade() else {
            return;
        };
        let lost = store.holds.select(|owner, entry| {
            let is_held = matches!(entry.state, AcquisitionState::Held { .. });
            (is_held && Arc::ptr_eq(&entry.lease, lease)).then_some(owner)
        });
        for owner in lost {
            let message = "the lease in etcd that carried the lock has expired or was revoked";
            let cause = Error::new(ErrorKind::Lost, message);
            let losses = &store.losses;
            losses.report_by(owner, LostReason::SessionGone, cause);
        }
    }
}

/// What the maintenance task finds to do.
#[derive(Default)]
struct Work {
    /// Leases on which acquisitions wait or hold.
    leases: Vec<Arc<Lease>>,
    /// Holds that the driver does not renew.
    expired: Vec<OwnerId>,
    /// Releases that got no reply for a long time, and are not sent again.
    abandoned: Vec<OwnerId>,
    /// Holds that go on without this client.
    detached: Vec<OwnerId>,
}

/// Keeps leases alive on which acquisitions wait or hold, and ends what is over. Returns when the next work is due.
async fn maintain(store: Arc<Store>) -> Time {
    let now = store.context.now();
    let Work {
        leases,
        expired,
        abandoned,
        detached,
    } = find_work(&store, now);
    store.keys.remove_expired(now);
    for owner in detached {
        store.holds.remove(owner);
    }
    for owner in abandoned {
        store.holds.update(owner, |entry| entry.is_ambiguous = true);
        release::remove(&store, owner);
    }
    let mut with_late_puts = store.leases.all_shared();
    // A waiter may keep a lease alive that is shared no more.
    with_late_puts.extend(leases.iter().cloned());
    // In tasks of their own: keep-alives do not wait for deletions, of which each may hang.
    delete_all_expired(&store, expired);
    release::delete_late_puts(&store, &with_late_puts);
    let due: Vec<_> = leases
        .iter()
        .filter(|it| it.due() <= now)
        .cloned()
        .collect();
    let refreshed = store.leases.refresh_all(&due, Duration::ZERO).await;
    if let Err(err) = &refreshed {
        tracing::debug!(
            store = "etcd",
            err = format_args!("{err:#}"),
            "no reply to a keep-alive"
        );
    }
    let next = next_work(&store, &leases, refreshed.is_ok());
    let now = store.context.now();
    let late_puts = with_late_puts.iter().map(|it| it.late_puts_due(now)).min();
    next.min(late_puts.unwrap_or(Time::MAX))
}

fn find_work(store: &Store, now: Time) -> Work {
    let mut work = Work::default();
    store.holds.for_each(|owner, entry| {
        let is_due = entry.deadline() <= now;
        let needs_lease = match entry.state {
            AcquisitionState::Waiting | AcquisitionState::Detaching => true,
            AcquisitionState::Held { .. } => entry.lease.is_shared && !is_due,
            AcquisitionState::Detached { .. }
            | AcquisitionState::Expired { .. }
            | AcquisitionState::Releasing { .. } => false,
        };
        match entry.state {
            AcquisitionState::Releasing { .. } if is_due => work.abandoned.push(owner),
            AcquisitionState::Detached { .. } if is_due => work.detached.push(owner),
            _ if is_due => work.expired.push(owner),
            _ => {}
        }
        let is_known = |known: &Arc<Lease>| Arc::ptr_eq(known, &entry.lease);
        if needs_lease && !entry.lease.gone.is_raised() && !work.leases.iter().any(is_known) {
            work.leases.push(entry.lease.clone());
        }
    });
    work
}

/// When the next work is due. `is_confirmed`: the last keep-alive had a reply.
fn next_work(store: &Store, leases: &[Arc<Lease>], is_confirmed: bool) -> Time {
    let (mut next, now) = (Time::MAX, store.context.now());
    for lease in leases.iter().filter(|it| !it.gone.is_raised()) {
        // After a failure the keep-alive is sent often: each may be the last one before the lease is over.
        let pause = lease.ttl / 12;
        let due = match is_confirmed {
            true => lease.due(),
            false => now.after(pause),
        };
        next = next.min(due.max(now.after(pause.min(Duration::from_millis(10)))));
    }
    let deadlines = store.holds.select(|_, entry| Some(entry.deadline()));
    deadlines.into_iter().fold(next, Time::min)
}

/// Deletes the keys of holds that the driver does not renew any more, in the background.
fn delete_all_expired(store: &Arc<Store>, expired: Vec<OwnerId>) {
    if expired.is_empty() {
        return;
    }
    for owner in &expired {
        // The next round of the maintenance task does not find these holds while their keys are being deleted.
        let retry_at = Time::MAX;
        store.holds.update(*owner, |entry| {
            entry.state = AcquisitionState::Expired { retry_at };
        });
    }
    let deleter = store.clone();
    release::spawn_until_closed(store, async move {
        let store = &*deleter;
        stream::iter(expired)
            .for_each_concurrent(PARALLEL_DELETIONS, |owner| delete_expired(store, owner))
            .await;
    });
}

/// Deletes the key of a hold that the driver does not renew any more. The driver counts the hold as lost, but the lease
/// is shared and goes on, so the store would keep the key. A reservation has a key and a lease of its own.
async fn delete_expired(store: &Store, owner: OwnerId) {
    let Some(entry) = store.holds.get(owner) else {
        return;
    };
    let (selector, ttl) = (KeySelector::Created(entry.created), entry.lease.ttl);
    let deleted = release::delete_key(store, &entry.key, entry.record_key(), &selector).await;
    let now = store.context.now();
    let (state, due) = match deleted {
        Ok(_) => {
            let until = now.after(ttl);
            (AcquisitionState::Releasing { until }, until)
        }
        Err(_) => {
            let retry_at = now.after(ttl / 12);
            (AcquisitionState::Expired { retry_at }, retry_at)
        }
    };
    store.holds.update(owner, |entry| {
        if !matches!(entry.state, AcquisitionState::Releasing { .. }) {
            entry.state = state;
        }
    });
    store.maintenance.due_at(due);
}
