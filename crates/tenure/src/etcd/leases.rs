//! The leases of a client in etcd: granted, kept alive, revoked. They know no locks.
//!
//! The locks of a client that have the same ttl share a lease, unless the URL or the request wants a lease for each lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::rt::{Flag, lock};
use tenure_core::store::Request;
use tenure_core::support::SingleFlight;
use tenure_core::time::Time;

use super::connection::Connections;
use super::context::Context;
use super::errors::{self, Recovery};
use super::lease_requests;

/// A key that may be put late is deleted repeatedly, for this many ttls of its lease. A put that comes later than that
/// comes from a machine that was stopped; by then the lease has expired, and etcd refuses the put.
const LATE_PUT_TTLS: u32 = 10;

/// A lease in the store.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// As granted, without `delay`.
    pub(super) ttl: Duration,
    /// For how long the lease lasts after its ttl, so that its key reserves the name (`lock_delay`).
    pub(super) delay: Duration,
    /// Whether locks of this client share the lease; otherwise the lease belongs to one of them.
    pub(super) is_shared: bool,
    /// When the last request was sent that confirmed the lease.
    sent: Mutex<Time>,
    /// Raised when the store says that the lease is over, or when this client revokes the lease.
    pub(super) gone: Flag,
    late_puts: Mutex<LatePuts>,
}

/// The keys that may be put late under one lease.
#[derive(Debug, Default)]
struct LatePuts {
    puts: Vec<LatePut>,
    /// When the keys are to be deleted again.
    due: Time,
}

/// A key that may be put after it was deleted, by a request of unknown outcome.
#[derive(Clone, Debug)]
pub(super) struct LatePut {
    pub(super) key: Vec<u8>,
    /// No other acquisition has the same value. With `record_key` it is that of the second key.
    pub(super) value: Arc<[u8]>,
    /// The second key of a candidate, which is put together with `key`.
    pub(super) record_key: Option<Vec<u8>>,
    until: Time,
}

impl Lease {
    /// A lease that was confirmed by a request that was sent at `sent`.
    pub(super) fn new(
        id: i64,
        ttl: Duration,
        delay: Duration,
        is_shared: bool,
        sent: Time,
    ) -> Self {
        Self {
            id,
            ttl,
            delay,
            is_shared,
            sent: Mutex::new(sent),
            gone: Flag::new(),
            late_puts: Mutex::default(),
        }
    }

    /// The lease lasts its whole ttl from this instant on.
    pub(super) fn sent(&self) -> Time {
        *lock(&self.sent)
    }

    pub(super) fn end(&self) -> Time {
        self.sent().after(self.ttl)
    }

    /// When the store ends the lease, at the earliest.
    pub(super) fn end_in_store(&self) -> Time {
        self.end().after(self.delay)
    }

    /// When the next keep-alive is due.
    pub(super) fn due(&self) -> Time {
        self.sent().after(self.ttl / 3)
    }

    /// Whether the lease can be used at `now`, as far as this client knows.
    fn is_alive(&self, now: Time) -> bool {
        !self.gone.is_raised() && self.end() > now
    }

    fn confirm(&self, sent: Time) {
        let mut last = lock(&self.sent);
        *last = sent.max(*last);
    }

    /// From now on this key may be put late, and a candidate's second key with it. Returns when they are to be deleted.
    pub(super) fn add_late_put(
        &self,
        key: &[u8],
        value: &Arc<[u8]>,
        record_key: Option<Vec<u8>>,
        now: Time,
    ) -> Time {
        let mut late_puts = lock(&self.late_puts);
        if late_puts.puts.is_empty() {
            late_puts.due = now.after(self.ttl / 3);
        }
        late_puts.puts.push(LatePut {
            key: key.to_vec(),
            value: value.clone(),
            record_key,
            until: now.after(self.ttl * LATE_PUT_TTLS),
        });
        late_puts.due
    }

    /// The keys that may be put late and are to be deleted now. The next time is a third of the ttl later.
    pub(super) fn due_late_puts(&self, now: Time) -> Vec<LatePut> {
        let mut late_puts = lock(&self.late_puts);
        if late_puts.due > now || !self.is_alive(now) {
            return Vec::new();
        }
        late_puts.due = now.after(self.ttl / 3);
        late_puts.puts.retain(|put| put.until > now);
        late_puts.puts.clone()
    }

    /// When keys are to be deleted that may be put late. A lease that ends deletes them itself.
    pub(super) fn late_puts_due(&self, now: Time) -> Time {
        let late_puts = lock(&self.late_puts);
        match late_puts.puts.is_empty() || !self.is_alive(now) {
            true => Time::MAX,
            false => late_puts.due,
        }
    }
}

/// Learns which leases have ended: what was held under them is lost.
pub(super) trait LeaseListener: Send + Sync {
    fn ended(&self, lease: &Arc<Lease>);
}

/// The leases of one client.
pub(super) struct Leases {
    context: Arc<Context>,
    connections: Arc<Connections>,
    /// By their ttl in seconds.
    shared: Mutex<HashMap<i64, Arc<SharedLease>>>,
    /// Locked by the task that sends a keep-alive.
    keep_alive_lock: tokio::sync::Mutex<()>,
    listener: OnceLock<Box<dyn LeaseListener>>,
}

/// The lease of all locks with one ttl, and the next such lease when that one is over.
#[derive(Default)]
struct SharedLease {
    lease: Mutex<Option<Arc<Lease>>>,
    granting: SingleFlight<Error>,
}

impl Leases {
    pub(super) fn new(context: &Arc<Context>, connections: &Arc<Connections>) -> Self {
        Self {
            context: context.clone(),
            connections: connections.clone(),
            shared: Mutex::default(),
            keep_alive_lock: tokio::sync::Mutex::new(()),
            listener: OnceLock::new(),
        }
    }

    /// Sets the listener, unless there is one.
    pub(super) fn listen(&self, listener: impl FnOnce() -> Box<dyn LeaseListener>) {
        self.listener.get_or_init(listener);
    }

    /// The lease for a request: the shared one with its ttl, or one of its own.
    pub(super) async fn for_request(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Arc<Lease>, Error> {
        // A hold that wants all of its lease, because no task will renew the hold, ends with a lease of its own.
        let wants_all = request.min_lease >= request.ttl;
        if self.context.settings.is_lease_per_lock || wants_all {
            return self.grant(whole_seconds(request.ttl), false).await;
        }
        self.shared(request).await
    }

    /// The shared lease with the ttl of the request.
    pub(super) async fn shared(self: &Arc<Self>, request: &Request) -> Result<Arc<Lease>, Error> {
        let (seconds, min_lease) = (whole_seconds(request.ttl), request.min_lease);
        let clock = &self.context.clock;
        let shared = lock(&self.shared).entry(seconds).or_default().clone();
        let current = || {
            let lease = lock(&shared.lease).clone();
            lease.filter(|lease| lease.is_alive(clock.now()))
        };
        loop {
            let grant = async {
                let lease = self.grant(seconds, true).await?;
                *lock(&shared.lease) = Some(lease.clone());
                Ok((lease, true))
            };
            let find = || Some((current()?, false));
            let (lease, is_new) = shared.granting.run(clock, find, grant).await?;
            let left = lease.end().since(clock.now());
            if is_new || left >= min_lease.max(lease.ttl / 2) {
                return Ok(lease);
            }
            if self.refresh(&lease).await? {
                return Ok(lease);
            }
            // The lease was over, so the next round gets another one.
        }
    }

    /// Makes a lease for a ttl in seconds. This client chooses the id, so that a lease whose grant got no reply can be
    /// revoked.
    pub(super) async fn grant(
        self: &Arc<Self>,
        seconds: i64,
        is_shared: bool,
    ) -> Result<Arc<Lease>, Error> {
        self.grant_with_delay(seconds, Duration::ZERO, is_shared)
            .await
    }

    /// The same for a lease that goes on for `delay`, rounded up to whole seconds, after that ttl.
    pub(super) async fn grant_with_delay(
        self: &Arc<Self>,
        seconds: i64,
        delay: Duration,
        is_shared: bool,
    ) -> Result<Arc<Lease>, Error> {
        let delay_seconds = rounded_up(delay);
        let delay = Duration::from_secs(delay_seconds.unsigned_abs());
        let seconds = seconds.saturating_add(delay_seconds);
        let id = (rand::random::<i64>() & i64::MAX).max(1);
        let mut unclaimed = UnclaimedLease {
            leases: self.clone(),
            id,
            may_exist: true,
        };
        let (ttl, sent) = match lease_requests::grant_lease(&self.connections, id, seconds).await {
            Ok(granted) => granted,
            // An earlier attempt of the same request was applied. The reply to a keep-alive has the ttl of the lease.
            Err(err) if err.recovery == Recovery::UseLease => {
                let reply = lease_requests::keep_alive(&self.connections, &[id]).await;
                let reply = reply.map_err(errors::without_effect)?;
                (reply.ttls.first().copied().unwrap_or(0), reply.sent)
            }
            Err(err) => {
                unclaimed.may_exist = err.is_ambiguous();
                return Err(errors::without_effect(err.error));
            }
        };
        let Some(seconds) = u64::try_from(ttl).ok().filter(|seconds| *seconds > 0) else {
            return Err(errors::without_effect(errors::unexpected_reply()));
        };
        unclaimed.may_exist = false;
        let ttl = Duration::from_secs(seconds).saturating_sub(delay);
        Ok(Arc::new(Lease::new(id, ttl, delay, is_shared, sent)))
    }

    /// Makes sure that each of these leases was confirmed not longer than `age` ago, or is known to be gone.
    pub(super) async fn refresh_all(
        &self,
        leases: &[Arc<Lease>],
        age: Duration,
    ) -> Result<(), Error> {
        let due = || -> Vec<_> {
            let now = self.context.now();
            let is_due = |it: &&Arc<Lease>| !it.gone.is_raised() && it.sent().after(age) <= now;
            leases.iter().filter(is_due).cloned().collect()
        };
        if due().is_empty() {
            return Ok(());
        }
        let asked = self.context.now();
        let _keeping_alive = self.keep_alive_lock.lock().await;
        // Another task may have confirmed some of them meanwhile.
        let mut due = due();
        due.retain(|lease| lease.sent() < asked);
        if due.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = due.iter().map(|lease| lease.id).collect();
        let reply = lease_requests::keep_alive(&self.connections, &ids).await?;
        for (lease, ttl) in due.iter().zip(reply.ttls) {
            if ttl > 0 {
                lease.confirm(reply.sent);
            } else {
                self.end(lease);
            }
        }
        Ok(())
    }

    /// Confirms one lease now. `false`: the lease is gone.
    pub(super) async fn refresh(&self, lease: &Arc<Lease>) -> Result<bool, Error> {
        let leases = std::slice::from_ref(lease);
        let refreshed = self.refresh_all(leases, Duration::ZERO).await;
        refreshed.map_err(errors::without_effect)?;
        Ok(!lease.gone.is_raised())
    }

    /// The store says that this lease is over.
    pub(super) fn end(&self, lease: &Arc<Lease>) {
        lease.gone.raise();
        if let Some(listener) = self.listener.get() {
            listener.ended(lease);
        }
    }

    /// Revokes a lease that no key needs, in the background.
    pub(super) fn revoke_in_background(&self, lease: &Lease) {
        lease.gone.raise();
        self.revoke_id_in_background(lease.id);
    }

    /// The same for a lease of which only the id is known.
    pub(super) fn revoke_id_in_background(&self, id: i64) {
        let connections = self.connections.clone();
        let Context {
            background,
            spawner,
            ..
        } = &*self.context;
        background.spawn(spawner, async move {
            // A lease that cannot be revoked expires.
            let _ = lease_requests::revoke_lease(&connections, id).await;
        });
    }

    /// The shared leases, one for each ttl.
    pub(super) fn all_shared(&self) -> Vec<Arc<Lease>> {
        let shared = lock(&self.shared);
        let lease = |shared: &Arc<SharedLease>| lock(&shared.lease).clone();
        shared.values().filter_map(lease).collect()
    }
}

/// A ttl in whole seconds, as leases have it, and never less than was asked for.
pub(super) fn whole_seconds(ttl: Duration) -> i64 {
    rounded_up(ttl).max(1)
}

/// Whole seconds, and never less than `duration`.
fn rounded_up(duration: Duration) -> i64 {
    let is_more = duration.subsec_nanos() > 0;
    let seconds = duration.as_secs().saturating_add(u64::from(is_more));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// The lease of a grant that is under way. When this is dropped while the lease may exist, the lease is revoked.
struct UnclaimedLease {
    leases: Arc<Leases>,
    id: i64,
    may_exist: bool,
}

impl Drop for UnclaimedLease {
    fn drop(&mut self) {
        if !self.may_exist {
            return;
        }
        let (leases, id) = (self.leases.clone(), self.id);
        let Context {
            background,
            spawner,
            ..
        } = &*self.leases.context;
        background.spawn(spawner, async move {
            let Context {
                settings,
                clock,
                closing,
                ..
            } = &*leases.context;
            // The grant may be applied later than the first request to revoke the lease. A lease that cannot be
            // revoked expires.
            for pause in [0, 1, 4] {
                let at = clock.now().after(settings.timeout * pause);
                tokio::select! {
                    () = clock.sleep_until(at) => {}
                    () = closing.raised() => {}
                }
                if let Ok(true) = lease_requests::revoke_lease(&leases.connections, id).await {
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_may_be_put_late_are_deleted_again_while_their_lease_is_kept_alive() {
        let at = |seconds| Time::ZERO.after(Duration::from_secs(seconds));
        let lease = Lease::new(1, Duration::from_secs(9), Duration::ZERO, true, at(0));
        assert_eq!(lease.late_puts_due(at(1)), Time::MAX);
        let value: Arc<[u8]> = Arc::from(&b"value"[..]);
        assert_eq!(lease.add_late_put(b"one", &value, None, at(1)), at(4));
        assert_eq!(lease.add_late_put(b"two", &value, None, at(2)), at(4));
        let mut deleted = Vec::new();
        for second in 3..=100 {
            // The driver keeps the lease alive all the time, so no keep-alive is due.
            lease.confirm(at(second));
            let keys = lease.due_late_puts(at(second)).into_iter();
            let keys = keys.map(|put| String::from_utf8_lossy(&put.key).into_owned());
            deleted.extend(keys.map(|key| (second, key)));
        }
        let one = deleted.iter().filter(|(_, key)| key == "one");
        let seconds: Vec<_> = one.map(|(second, _)| *second).collect();
        assert_eq!(seconds, (4..91).step_by(3).collect::<Vec<_>>());
        let two = deleted.iter().filter(|(_, key)| key == "two").count();
        assert_eq!(two, seconds.len() + 1);
        // A lease that is over has deleted its keys, and refuses late requests.
        lease.add_late_put(b"three", &value, None, at(100));
        assert_eq!(lease.late_puts_due(at(101)), at(103));
        assert_eq!(lease.late_puts_due(at(109)), Time::MAX);
        lease.gone.raise();
        assert!(lease.due_late_puts(at(103)).is_empty());
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (duration, seconds) in [
            (Duration::ZERO, 1),
            (Duration::from_millis(1_001), 2),
            (Duration::from_secs(2), 2),
            (Duration::MAX, i64::MAX),
        ] {
            assert_eq!(whole_seconds(duration), seconds);
        }
    }
}
