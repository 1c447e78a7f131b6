//! How long the keys of a lock live.

use std::time::Duration;

use tenure_core::store::Request;
use tenure_core::support::{millis_down, millis_up};

/// A token outlives its hold by a day, so that tokens grow even when the server's clock is set back by hours.
const TOKEN_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// How long a token is kept whose hold lives for `live`, in ms.
pub(super) fn token_retention(live: u64) -> u64 {
    millis_up(TOKEN_RETENTION).max(live.saturating_mul(2))
}

/// How long the key of a hold lives that is granted now with this lease, in ms: until the lease and `lock_delay` are over,
/// and not less than `min_hold`, also when the holder dies.
pub(super) fn live(request: &Request, lease: Duration) -> u64 {
    let live = millis_down(lease).saturating_add(millis_up(request.lock_delay));
    live.max(millis_up(request.min_hold))
}

/// Whether the name of this request may stay reserved after a release.
pub(super) fn may_reserve(request: &Request) -> bool {
    !request.min_hold.is_zero() || !request.lock_delay.is_zero()
}
