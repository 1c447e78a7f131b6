//! Renewal of many nodes in few requests, and the end of leases that are not renewed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::SessionState;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::store::{Answer, Grant, Hold, Renewal, Request};
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::contact::LeasePeriod;
use super::errors::{ClientError, RequestError};
use super::release;
use super::requests::{self, Node};
use super::session::{Session, SessionListener};
use super::store::{ContenderNode, Store};

/// Bytes of paths in one request; a server accepts 1 MiB (`jute.maxbuffer`).
const MAX_BATCH_BYTES: usize = 256 * 1024;

/// How often a batch is checked again when nodes go away between its requests. The driver renews again then.
const MAX_CHECKS: u32 = 3;

/// A hold's index in the list of holds to renew, and the path of its node.
type NumberedPath = (usize, Arc<str>);

/// What is known about one node after a renewal.
type Checked = (usize, Result<LeasePeriod, Renewal>);

/// The grant of what a node holds.
pub(super) fn granted(
    store: &Arc<Store>,
    request: &Request,
    node: &Node,
    lease: LeasePeriod,
) -> Answer {
    let ttl = Some(record_grant(store, request, lease));
    Answer::Granted(Grant::new(node.token, lease.sent, node.round_trip, ttl))
}

/// The node holds from now on: the end of its lease and of its session are noticed. Returns the length of the lease.
fn record_grant(store: &Arc<Store>, request: &Request, lease: LeasePeriod) -> Duration {
    let ttl = lease.length().min(request.ttl);
    let until = lease.sent.after(ttl);
    store
        .holds
        .update(request.owner, |held| held.until = Some(until));
    store
        .sessions
        .listen(|| Box::new(LossReporter(Arc::downgrade(store))));
    let Store {
        maintenance,
        spawner,
        clock,
        ..
    } = &**store;
    maintenance.start(spawner, clock, store, expire);
    maintenance.due_at(until);
    ttl
}

/// Asks the servers, and a majority of them, whether these nodes are there; many in one request.
pub(super) async fn renew(store: &Store, holds: &[Hold]) -> Vec<Renewal> {
    let mut answers = Vec::new();
    let mut groups: Vec<(Arc<Session>, Vec<NumberedPath>)> = Vec::new();
    for (at, hold) in holds.iter().enumerate() {
        let node = store.holds.get(hold.owner).and_then(ContenderNode::node);
        let Some((session, path)) = node else {
            answers.push((at, Renewal::Lost(LostReason::StoreSaysNo)));
            continue;
        };
        if session.ended.is_raised() {
            answers.push((at, Renewal::Lost(LostReason::SessionGone)));
            continue;
        }
        let group = groups
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, &session));
        match group {
            Some((_, paths)) => paths.push((at, path)),
            None => groups.push((session, vec![(at, path)])),
        }
    }
    // All sessions at once: one whose server is silent does not delay the answers of the others.
    let batches = groups
        .iter()
        .flat_map(|(session, paths)| batches(paths).map(move |batch| check_batch(session, batch)));
    for (at, checked) in join_all(batches).await.into_iter().flatten() {
        let record = |lease| record_renewal(store, &holds[at], lease);
        answers.push((at, checked.map_or_else(|renewal| renewal, record)));
    }
    Renewal::in_order(holds.len(), answers)
}

/// These paths in the order of the list, as many at a time as fit into one request.
fn batches(mut paths: &[NumberedPath]) -> impl Iterator<Item = &[NumberedPath]> {
    std::iter::from_fn(move || {
        let (batch, later) = paths.split_at(batch_length(paths));
        paths = later;
        (!batch.is_empty()).then_some(batch)
    })
}

/// How many of these paths fit into one request, at least one.
fn batch_length(paths: &[NumberedPath]) -> usize {
    let mut bytes = 0;
    let fits = paths.iter().take_while(|(_, path)| {
        bytes += path.len() + 32;
        bytes <= MAX_BATCH_BYTES
    });
    fits.count().max(1).min(paths.len())
}

fn record_renewal(store: &Store, hold: &Hold, lease: LeasePeriod) -> Renewal {
    let (sent, ttl) = (lease.sent, Some(extend(store, hold.owner, hold.ttl, lease)));
    Renewal::Renewed { sent, ttl }
}

/// The hold goes on with this lease, unless it has a later one. Returns the length of the lease.
pub(super) fn extend(store: &Store, owner: OwnerId, ttl: Duration, lease: LeasePeriod) -> Duration {
    let ttl = lease.length().min(ttl);
    store.holds.update(owner, |held| {
        held.until = held.until.max(Some(lease.sent.after(ttl)));
    });
    ttl
}

async fn check_batch(session: &Session, batch: &[NumberedPath]) -> Vec<Checked> {
    let mut unchecked: Vec<_> = batch.iter().collect();
    let mut checked = Vec::with_capacity(batch.len());
    for _ in 0..MAX_CHECKS {
        let paths: Vec<_> = unchecked.iter().map(|(_, path)| &**path).collect();
        let outcome = requests::check_nodes(session, &paths).await;
        if !matches!(&outcome, Err(err) if err.is(&ClientError::NoNode)) {
            let all = unchecked.iter();
            checked.extend(all.map(|(at, _)| (*at, renewal_of(session, &outcome))));
            return checked;
        }
        // One of the nodes is gone, and the answer names only that one. All are asked for.
        let are_gone = requests::which_are_gone(session, &paths).await;
        let mut there = Vec::with_capacity(unchecked.len());
        for (one, is_gone) in unchecked.into_iter().zip(are_gone) {
            match is_gone {
                true => checked.push((one.0, Err(Renewal::Lost(LostReason::StoreSaysNo)))),
                false => there.push(one),
            }
        }
        unchecked = there;
        if unchecked.is_empty() {
            return checked;
        }
    }
    let err = || {
        let what = "holds went away while they were renewed";
        Error::new(ErrorKind::Indeterminate, what)
    };
    let unknown = |at| (at, Err(Renewal::Unknown(err())));
    checked.extend(unchecked.iter().map(|(at, _)| unknown(*at)));
    checked
}

/// What the outcome of a check of many nodes says about each of them.
fn renewal_of(
    session: &Session,
    outcome: &Result<LeasePeriod, RequestError>,
) -> Result<LeasePeriod, Renewal> {
    match outcome {
        Ok(lease) => Ok(*lease),
        Err(err) if err.is_session_over() => Err(Renewal::Lost(LostReason::SessionGone)),
        Err(err) => Err(Renewal::Unknown(session.explain(err.clone()))),
    }
}

/// Deletes the nodes of leases that ran out because they are not renewed any more: their session goes on. Returns when
/// the next lease is over.
async fn expire(store: Arc<Store>) -> Time {
    let (expired, next) = take_expired(&store, store.clock.now());
    for (owner, held) in expired {
        let deleter = store.clone();
        store.spawn_until_closed(async move {
            delete_expired(&deleter, owner, held).await;
        });
    }
    next
}

/// The holds whose lease is over, which hold nothing from now on, and when the next lease is over.
fn take_expired(store: &Store, now: Time) -> (Vec<(OwnerId, ContenderNode)>, Time) {
    let (mut expired, mut next) = (Vec::new(), Time::MAX);
    store.holds.for_each(|owner, held| match held.until {
        Some(until) if until <= now => {
            held.until = None;
            expired.push((owner, held.clone()));
        }
        Some(until) => next = next.min(until),
        None => {}
    });
    (expired, next)
}

/// Deletes a node until it is gone, or its session is.
async fn delete_expired(store: &Store, owner: OwnerId, held: ContenderNode) {
    let mut retries = RetryBudget::without_limit();
    while !held.session.ended.is_raised() && release::delete(&held.session, &held).await.is_err() {
        // The owner has released the hold meanwhile.
        if !store.holds.contains(owner) {
            return;
        }
        retries.pause(&store.clock).await;
    }
    store
        .holds
        .update(owner, |held| held.may_be_released = false);
}

/// Reports the holds that end with a session, or while it had no connection.
struct LossReporter(Weak<Store>);

impl SessionListener for LossReporter {
    fn reconnected(&self, session: &Arc<Session>) {
        // The servers may have been emptied meanwhile, and the next renewal may be far away.
        if let Some(store) = self.0.upgrade() {
            let (checked, session) = (store.clone(), session.clone());
            store.spawn_until_closed(async move { verify(&checked, &session).await });
        }
    }

    fn ended(&self, session: &Arc<Session>, state: SessionState) -> usize {
        let Some(store) = self.0.upgrade() else {
            return 0;
        };
        let ended = holds_of(&store, session);
        for (owner, _) in &ended {
            let message = format!("the session with ZooKeeper has ended: {state}");
            let cause = Error::new(ErrorKind::Lost, message);
            let losses = &store.losses;
            losses.report_by(*owner, LostReason::SessionGone, cause);
        }
        ended.len()
    }
}

/// The holds of a session, and the paths of their nodes.
fn holds_of(store: &Store, session: &Arc<Session>) -> Vec<(OwnerId, Arc<str>)> {
    store.holds.select(|owner, held| {
        let is_ours = held.until.is_some() && Arc::ptr_eq(&held.session, session);
        is_ours.then_some(())?;
        Some((owner, held.node.as_ref()?.path.clone()))
    })
}

/// Asks whether all holds of a session are there, in as few requests as a renewal.
async fn verify(store: &Store, session: &Arc<Session>) {
    let (owners, paths): (Vec<_>, Vec<_>) = holds_of(store, session).into_iter().unzip();
    let paths: Vec<NumberedPath> = paths.into_iter().enumerate().collect();
    let checks = batches(&paths).map(|batch| check_batch(session, batch));
    for (at, checked) in join_all(checks).await.into_iter().flatten() {
        if let Err(Renewal::Lost(reason)) = checked {
            store.losses.report(owners[at], reason);
        }
    }
}
