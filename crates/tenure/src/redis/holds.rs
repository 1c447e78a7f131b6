//! What is remembered of a hold.

use std::time::Duration;

use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Request};
use tenure_core::support::{millis_down, millis_up};
use tenure_core::time::Time;

/// What a server knows of the times of a hold, beside its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredTimes {
    /// In ms.
    pub(super) lock_delay: u64,
    pub(super) has_min_hold: bool,
    pub(super) min_hold_left: Duration,
}

/// What has to be remembered of a hold to renew and to release it.
#[derive(Clone, Debug)]
pub(super) struct HeldKey {
    pub(super) name: LockName,
    /// By how much the key outlives the lease, in ms.
    pub(super) lock_delay: u64,
    /// Until when the key lives at least; `None`: the hold has no `min_hold`.
    pub(super) min_hold_end: Option<Time>,
    /// Whether it may be a shared hold: it was acquired as one, or has become shared.
    pub(super) is_shared_hold: bool,
    /// Whether the token was proposed: several servers are to have the same token.
    pub(super) is_proposed: bool,
    /// A release failed. The driver sends the release again, until the lease has ended.
    pub(super) is_released: bool,
    /// The client was attached to the hold, which other clients may count on.
    pub(super) is_attached: bool,
    /// Whether it is the hold of a candidate: its changes are told to observers.
    pub(super) is_candidate: bool,
    /// A guard of a lock waits to be asked to let go, so renewals look for such a request.
    pub(super) listens: bool,
    /// Another client has asked the holder to let go.
    pub(super) is_asked: bool,
}

impl HeldKey {
    /// What `request` has from `now` on, if it is granted.
    pub(super) fn new(request: &Request, now: Time) -> Self {
        Self {
            name: request.name.clone(),
            lock_delay: millis_up(request.lock_delay),
            // The server granted earlier, so `min_hold` is over there by then.
            min_hold_end: (!request.min_hold.is_zero()).then(|| now.after(request.min_hold)),
            is_shared_hold: request.mode != Mode::Exclusive,
            is_proposed: request.propose.is_some(),
            is_released: false,
            is_attached: false,
            is_candidate: is_candidate(request),
            listens: false,
            is_asked: false,
        }
    }

    /// What this client has from `now` on, when the server has said that the hold is there.
    pub(super) fn attached(hold: &Hold, times: StoredTimes, now: Time) -> Self {
        Self {
            name: hold.name.clone(),
            lock_delay: times.lock_delay,
            // The server answered earlier, so `min_hold` is over there by then.
            min_hold_end: times.has_min_hold.then(|| now.after(times.min_hold_left)),
            is_shared_hold: hold.mode != Mode::Exclusive,
            is_proposed: false,
            is_released: false,
            is_attached: true,
            is_candidate: false,
            listens: false,
            is_asked: false,
        }
    }

    /// How long the key is to live from `now` on, in ms, if the hold has this lease: until the lease and `lock_delay` are
    /// over, and not less than the rest of `min_hold`.
    pub(super) fn live(&self, lease: Duration, now: Time) -> u64 {
        let live = millis_down(lease).saturating_add(self.lock_delay);
        let rest = self.min_hold_end.map(|end| millis_up(end.since(now)));
        live.max(rest.unwrap_or(0))
    }

    /// Whether the name may stay reserved after a release.
    pub(super) fn may_reserve(&self) -> bool {
        self.lock_delay > 0 || self.min_hold_end.is_some()
    }

    /// Whether the hold ends when the client is closed: not one that other clients may count on, unless a guard has released it.
    pub(super) fn ends_with_client(&self) -> bool {
        !self.is_attached || self.is_released
    }

    /// Whether renewals look for a request to let go.
    pub(super) fn reads_requests(&self) -> bool {
        self.is_candidate || self.listens
    }
}

/// Whether the name of this request may stay reserved after a release.
pub(super) fn may_reserve(request: &Request) -> bool {
    !request.min_hold.is_zero() || !request.lock_delay.is_zero()
}

/// Whether the request is that of a candidate of an election, and not that of a lock.
pub(super) fn is_candidate(request: &Request) -> bool {
    request.holder.value.is_some()
}
