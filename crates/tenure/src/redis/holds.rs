//! What is remembered of a hold.

use std::time::Duration;

use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::Request;
use tenure_core::support::{millis_down, millis_up};
use tenure_core::time::Time;

/// What has to be remembered of a hold to renew and to release it.
#[derive(Clone, Debug)]
pub(super) struct HeldKey {
    pub(super) name: LockName,
    /// By how much the key outlives the lease, in ms.
    pub(super) lock_delay: u64,
    /// Until when the key lives at least.
    pub(super) min_hold_end: Time,
    /// Whether the name may stay reserved after a release.
    pub(super) may_reserve: bool,
    /// Whether it may be a shared hold: it was acquired as one, or has become shared.
    pub(super) is_shared_hold: bool,
    /// Whether the token was proposed: several servers are to have the same token.
    pub(super) is_proposed: bool,
    /// A release failed. The driver sends the release again, until the lease has ended.
    pub(super) is_released: bool,
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
            min_hold_end: now.after(request.min_hold),
            may_reserve: may_reserve(request),
            is_shared_hold: request.mode != Mode::Exclusive,
            is_proposed: request.propose.is_some(),
            is_released: false,
            is_candidate: is_candidate(request),
            listens: false,
            is_asked: false,
        }
    }

    /// How long the key is to live from `now` on, in ms, if the hold has this lease: until the lease and `lock_delay` are
    /// over, and not less than the rest of `min_hold`.
    pub(super) fn live(&self, lease: Duration, now: Time) -> u64 {
        let live = millis_down(lease).saturating_add(self.lock_delay);
        live.max(millis_up(self.min_hold_end.since(now)))
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
