//! Leases: granted, kept alive, given up; and the task that sees to it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::stream;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::lost::LostReason;
use tenure_core::rt::{Flag, NextWakeup, lock};
use tenure_core::time::Time;

use super::errors::{self, Recovery, RequestError};
use super::store::{AcquisitionState, HeldEntry, KeySelector, Store};
use super::wire::{self, path};

/// For how many ttls of its session a key is deleted again and again that may be put late. A request that is
/// later than that lies in a machine that was stopped; with the session its lease ends, and then it is refused.
const LATE_PUT_TTLS: u32 = 10;

/// Operations in one request: the server's limit, unless it was changed (`--max-txn-ops`).
pub(super) const MAX_TXN_OPS: usize = 128;

/// A lease in the store.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// As granted.
    pub(super) ttl: Duration,
    /// Shared by the locks of a client that have this ttl; else it belongs to one of them.
    pub(super) is_session: bool,
    /// When the last request was sent that the store has answered with yes.
    sent: Mutex<Time>,
    /// The store says that it is over.
    pub(super) gone: Flag,
}

impl Lease {
    /// It has the whole ttl from then on.
    pub(super) fn sent(&self) -> Time {
        *lock(&self.sent)
    }

    pub(super) fn end(&self) -> Time {
        self.sent().after(self.ttl)
    }

    fn renewed(&self, at: Time) {
        let mut sent = lock(&self.sent);
        *sent = at.max(*sent);
    }

    /// When it is to be renewed.
    fn due(&self) -> Time {
        self.sent().after(self.ttl / 3)
    }
}

/// A key that may be put after it was deleted, by a request whose fate is unknown.
#[derive(Debug)]
pub(super) struct LatePut {
    pub(super) lease: Arc<Lease>,
    key: Vec<u8>,
    value: Arc<[u8]>,
    until: Time,
}

/// In whole seconds, as leases are, and never less than was asked for.
pub(super) fn whole_seconds(ttl: Duration) -> i64 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)
}

impl Store {
    /// The lease for a request: that of a session with its ttl, or one of its own.
    pub(super) async fn lease_for(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Arc<Lease>, Error> {
        let seconds = whole_seconds(request.ttl);
        // A hold that wants all of its lease, because nobody will renew it, ends with a lease of its own.
        let wants_all = request.min_lease >= request.ttl;
        if self.settings.is_lease_per_lock || wants_all {
            return self.grant(seconds, false).await;
        }
        self.session(seconds, request.min_lease).await
    }

    async fn session(
        self: &Arc<Self>,
        seconds: i64,
        min_lease: Duration,
    ) -> Result<Arc<Lease>, Error> {
        loop {
            let now = self.clock.now();
            let known = lock(&self.sessions).get(&seconds).cloned();
            let known = known.filter(|it| !it.gone.is_raised() && it.end() > now);
            if let Some(lease) = known {
                let left = lease.end().since(now);
                if left >= min_lease.max(lease.ttl / 2) {
                    return Ok(lease);
                }
                if self.refresh(&lease, Duration::ZERO).await? {
                    return Ok(lease);
                }
                // It was over; so a new one.
                continue;
            }
            let _making = self.making.lock().await;
            let made = lock(&self.sessions).get(&seconds).cloned();
            let now = self.clock.now();
            if made.is_some_and(|it| !it.gone.is_raised() && it.end() > now) {
                continue;
            }
            let lease = self.grant(seconds, true).await?;
            lock(&self.sessions).insert(seconds, lease.clone());
            return Ok(lease);
        }
    }

    /// A new lease. Its id is ours, so that one whose grant nobody confirmed can be given up.
    pub(super) async fn grant(
        self: &Arc<Self>,
        seconds: i64,
        is_session: bool,
    ) -> Result<Arc<Lease>, Error> {
        let id = (rand::random::<i64>() & i64::MAX).max(1);
        let asked = wire::LeaseGrant { ttl: seconds, id };
        let lease = |ttl: i64, sent| {
            Arc::new(Lease {
                id,
                ttl: Duration::from_secs(u64::try_from(ttl).unwrap_or(0)),
                is_session,
                sent: Mutex::new(sent),
                gone: Flag::new(),
            })
        };
        let mut asking = UnclaimedLease {
            store: self.clone(),
            id,
            may_be_there: true,
        };
        let granted = match self.link.call(path::LEASE_GRANT, asked).await {
            Ok(reply) => {
                let answer: wire::LeaseGrantResponse = reply.value;
                (answer.ttl > 0).then(|| lease(answer.ttl, reply.sent))
            }
            // An earlier try of the same request was applied; how long it is, the next answer tells.
            Err(trouble) if trouble.cure == Recovery::UseLease => {
                let kept = self.keep_alive(&[id]).await.map_err(errors::harmless);
                let (sent, answers) = kept?;
                let ttl = answers.first().copied().filter(|ttl| *ttl > 0);
                ttl.map(|ttl| lease(ttl, sent))
            }
            Err(trouble) => {
                asking.may_be_there = trouble.is_indeterminate();
                return Err(errors::harmless(trouble.error));
            }
        };
        asking.may_be_there = granted.is_none();
        granted.ok_or_else(|| errors::harmless(errors::nonsense()))
    }

    /// Ends a lease, and with it its keys. `false`: there is none.
    pub(super) async fn revoke(&self, id: i64) -> Result<bool, Error> {
        let reply = self.link.call(path::LEASE_REVOKE, wire::LeaseId { id });
        match reply.await {
            Ok(reply) => {
                let wire::Empty {} = reply.value;
                Ok(true)
            }
            Err(trouble) if trouble.cure == Recovery::NewLease => Ok(false),
            Err(trouble) => Err(trouble.error),
        }
    }

    /// Ends a lease that nothing hangs on, in the background; [`close`](Store::close) waits for it.
    pub(super) fn drop_lease(self: &Arc<Self>, lease: &Arc<Lease>) {
        lease.gone.raise();
        let (store, id) = (self.clone(), lease.id);
        self.background.spawn(&self.spawner, async move {
            // If it cannot be done, it runs out.
            let _ = store.revoke(id).await;
        });
    }

    /// One request to keep all of these alive: when it was sent, and the ttl of each, 0 or less when it is over.
    /// No stream is kept open for it: that would hang on one member.
    async fn keep_alive(&self, ids: &[i64]) -> Result<(Time, Vec<i64>), Error> {
        let mut last = None;
        for _ in self.link.hosts() {
            match self.keep_alive_once(ids).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => {
                    let goes_on = matches!(trouble.cure, Recovery::AnotherMember | Recovery::LogIn);
                    last = Some(trouble.error);
                    if !goes_on {
                        break;
                    }
                }
            }
        }
        Err(last.expect("BUG: a URL has a host"))
    }

    async fn keep_alive_once(&self, ids: &[i64]) -> Result<(Time, Vec<i64>), RequestError> {
        let messages: Vec<_> = ids.iter().map(|id| wire::LeaseId { id: *id }).collect();
        let sent = self.clock.now();
        let messages = stream::iter(messages);
        let (line, mut answers) = self.link.stream(path::LEASE_KEEP_ALIVE, messages).await?;
        let until = self.clock.now().after(self.settings.timeout);
        let mut ttls = Vec::with_capacity(ids.len());
        for id in ids {
            let answer: wire::LeaseResponse = self.link.next(&line, &mut answers, until).await?;
            if answer.id != *id {
                return Err(RequestError {
                    error: errors::nonsense(),
                    cure: Recovery::None,
                });
            }
            ttls.push(answer.ttl);
        }
        Ok((sent, ttls))
    }

    /// Sees to it that these leases were confirmed not longer than `age` ago, or are known to be gone.
    pub(super) async fn refresh_all(
        &self,
        leases: &[Arc<Lease>],
        age: Duration,
    ) -> Result<(), Error> {
        let due = || {
            let now = self.clock.now();
            let is_due = |it: &&Arc<Lease>| !it.gone.is_raised() && it.sent().after(age) <= now;
            let due: Vec<_> = leases.iter().filter(is_due).cloned().collect();
            due
        };
        if due().is_empty() {
            return Ok(());
        }
        let asked_at = self.clock.now();
        let _refreshing = self.refreshing.lock().await;
        // Somebody else may just have done it.
        let due: Vec<_> = due()
            .into_iter()
            .filter(|it| it.sent() < asked_at)
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = due.iter().map(|lease| lease.id).collect();
        let (sent, ttls) = self.keep_alive(&ids).await?;
        for (lease, ttl) in due.iter().zip(ttls) {
            if ttl > 0 {
                lease.renewed(sent);
            } else {
                self.lease_is_gone(lease);
            }
        }
        Ok(())
    }

    /// The same for one: `false` when it is gone.
    pub(super) async fn refresh(&self, lease: &Arc<Lease>, age: Duration) -> Result<bool, Error> {
        let all = std::slice::from_ref(lease);
        self.refresh_all(all, age).await.map_err(errors::harmless)?;
        Ok(!lease.gone.is_raised())
    }

    /// The store says so: whatever was held under it is lost.
    pub(super) fn lease_is_gone(&self, lease: &Arc<Lease>) {
        lease.gone.raise();
        lock(&self.sessions).retain(|_, it| !Arc::ptr_eq(it, lease));
        lock(&self.doubts).retain(|doubt| !Arc::ptr_eq(&doubt.lease, lease));
        let lost: Vec<OwnerId> = {
            let kept = lock(&self.kept);
            let of_it = |kept: &HeldEntry| Arc::ptr_eq(&kept.lease, lease);
            let held = |kept: &HeldEntry| {
                of_it(kept) && matches!(kept.stage, AcquisitionState::Held { .. })
            };
            let lost = kept.iter().filter(|(_, kept)| held(kept));
            lost.map(|(owner, _)| *owner).collect()
        };
        if let Some(alarm) = self.alarm.get() {
            for owner in lost {
                alarm.lost(owner, LostReason::SessionGone);
            }
        }
    }

    /// That key may yet be put.
    pub(super) fn doubt(&self, lease: &Arc<Lease>, key: &[u8], value: &Arc<[u8]>) {
        let until = self.clock.now().after(lease.ttl * LATE_PUT_TTLS);
        lock(&self.doubts).push(LatePut {
            lease: lease.clone(),
            key: key.to_vec(),
            value: value.clone(),
            until,
        });
    }

    /// Wakes the keeper, if what it has to do now comes before what it waits for.
    pub(super) fn due_at(self: &Arc<Self>, at: Time) {
        if self.maintenance.claim_start() {
            let (store, wakeup) = (Arc::downgrade(self), self.maintenance.clone());
            self.spawner.spawn(keep(store, wakeup));
        }
        self.maintenance.due_at(at);
    }

    /// Remembers an acquisition, and sees to it that its lease is kept alive.
    pub(super) fn keep(self: &Arc<Self>, owner: OwnerId, kept: HeldEntry) {
        let due = kept.lease.due();
        lock(&self.kept).insert(owner, kept);
        self.due_at(due);
    }

    /// What the keeper does when it wakes up; says when to wake it again.
    async fn tend(self: &Arc<Self>) -> Time {
        let now = self.clock.now();
        let mut leases: Vec<Arc<Lease>> = Vec::new();
        let (mut over, mut given_up) = (Vec::new(), Vec::new());
        lock(&self.kept).retain(|owner, kept| {
            match kept.stage {
                AcquisitionState::Waiting => {}
                // The driver renews it, or lets it run out.
                AcquisitionState::Held { .. } if !kept.lease.is_session => return true,
                AcquisitionState::Held { renewed } => {
                    if renewed.after(kept.lease.ttl) <= now {
                        over.push(*owner);
                        // It is no reason to keep the lease alive.
                        return true;
                    }
                }
                AcquisitionState::Expired { again } => {
                    if again <= now {
                        over.push(*owner);
                    }
                    return true;
                }
                // Somebody repeats the release, or has given up.
                AcquisitionState::Releasing { until } => {
                    if until <= now {
                        given_up.push(*owner);
                    }
                    return true;
                }
            }
            if !leases.iter().any(|it| Arc::ptr_eq(it, &kept.lease)) {
                leases.push(kept.lease.clone());
            }
            true
        });
        leases.retain(|lease| !lease.gone.is_raised());
        lock(&self.taken).retain(|_, until| *until > now);
        for owner in given_up {
            if let Some(kept) = lock(&self.kept).get_mut(&owner) {
                kept.is_doubtful = true;
            }
            self.forget(owner);
        }
        for owner in over {
            self.end_unrenewed(owner).await;
        }
        let due: Vec<_> = leases
            .iter()
            .filter(|it| it.due() <= now)
            .cloned()
            .collect();
        let mut is_unsure = false;
        if !due.is_empty() {
            if let Err(err) = self.refresh_all(&due, Duration::ZERO).await {
                is_unsure = true;
                tracing::debug!(backend = "etcd", %err, "keep-alive unanswered");
            }
            self.settle_doubts(&due).await;
        }
        let mut next = Time::MAX;
        let now = self.clock.now();
        for lease in leases.iter().filter(|it| !it.gone.is_raised()) {
            // After a failure again and again: every time may be the one before the lease is over.
            let pause = lease.ttl / 12;
            let due = if is_unsure {
                now.after(pause)
            } else {
                lease.due()
            };
            next = next.min(due.max(now.after(pause.min(Duration::from_millis(10)))));
        }
        for kept in lock(&self.kept).values() {
            next = match kept.stage {
                AcquisitionState::Held { renewed } if kept.lease.is_session => {
                    next.min(renewed.after(kept.lease.ttl))
                }
                AcquisitionState::Releasing { until: at }
                | AcquisitionState::Expired { again: at } => next.min(at),
                _ => next,
            };
        }
        next.max(now.after(Duration::from_millis(1)))
    }

    /// The driver does not renew that hold any more, so it does not believe in it; its session lives on, so the
    /// store would keep it.
    async fn end_unrenewed(&self, owner: OwnerId) {
        let known = {
            let kept = lock(&self.kept);
            let known = |kept: &HeldEntry| (kept.key.clone(), kept.token, kept.lease.ttl);
            kept.get(&owner).map(known)
        };
        let Some((key, token, ttl)) = known else {
            return;
        };
        let deleted = self.delete(&key, &KeySelector::Created(token)).await;
        let now = self.clock.now();
        if let Some(kept) = lock(&self.kept).get_mut(&owner)
            && !matches!(kept.stage, AcquisitionState::Releasing { .. })
        {
            kept.stage = match deleted {
                Ok(_) => AcquisitionState::Releasing {
                    until: now.after(ttl),
                },
                Err(_) => AcquisitionState::Expired {
                    again: now.after(ttl / 12),
                },
            };
        }
    }

    /// Deletes what may have been put late.
    async fn settle_doubts(&self, leases: &[Arc<Lease>]) {
        let now = self.clock.now();
        let doubtful: Vec<_> = {
            let mut doubts = lock(&self.doubts);
            doubts.retain(|doubt| doubt.until > now && !doubt.lease.gone.is_raised());
            let of_them =
                |doubt: &&LatePut| leases.iter().any(|lease| Arc::ptr_eq(lease, &doubt.lease));
            let what = |doubt: &LatePut| (doubt.key.clone(), doubt.value.clone());
            doubts.iter().filter(of_them).map(what).collect()
        };
        for (key, value) in doubtful {
            // Again at the next keep-alive, whatever came of it.
            if self
                .delete(&key, &KeySelector::WithValue(&value))
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

/// A lease was asked for, and nobody has it yet. Dropped by then, it is given up.
struct UnclaimedLease {
    store: Arc<Store>,
    id: i64,
    may_be_there: bool,
}

impl Drop for UnclaimedLease {
    fn drop(&mut self) {
        if self.may_be_there {
            let (store, id) = (self.store.clone(), self.id);
            let spawner = &self.store.spawner;
            self.store.background.spawn(spawner, async move {
                // It may come to be later than it is given up. If it cannot be done, it runs out.
                for pause in [0, 1, 4] {
                    let at = store.clock.now().after(store.settings.timeout * pause);
                    tokio::select! {
                        () = store.clock.sleep_until(at) => {}
                        () = store.closing.raised() => {}
                    }
                    if let Ok(true) = store.revoke(id).await {
                        return;
                    }
                }
            });
        }
    }
}

/// Dropped by the runtime when that shuts down: then nothing that sleeps or reads a socket may be polled any more.
struct ShutdownGuard(Weak<Store>);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade()
            && !store.closing.is_raised()
        {
            store.is_stranded.store(true, Ordering::SeqCst);
        }
    }
}

/// Keeps leases alive on which somebody waits, or holds. Keeps nothing else alive.
async fn keep(store: Weak<Store>, wakeup: Arc<NextWakeup>) {
    let _runtime = ShutdownGuard(store.clone());
    loop {
        let (clock, next) = {
            let Some(store) = store.upgrade().filter(|it| !it.closing.is_raised()) else {
                return;
            };
            let planned = wakeup.begin();
            let next = tokio::select! {
                next = store.tend() => next,
                () = store.closing.raised() => return,
            };
            let next = wakeup.plan(pace::look(planned, next, store.clock.now()));
            (store.clock.clone(), next)
        };
        wakeup.sleep(&clock, next).await;
    }
}

/// The lease ran out while nobody could say so.
pub(super) fn silence(err: Error) -> Error {
    let kind = match err.kind() {
        ErrorKind::Indeterminate => ErrorKind::Unreachable,
        kind => kind,
    };
    Error::new(
        kind,
        "the store did not answer for a whole ttl; the place in the queue is given up",
    )
    .with_source(err)
}
