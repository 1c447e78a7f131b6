//! Holds that go on without their client.

use super::store::Shared;
use crate::lost::LostReason;
use crate::store::{Hold, Renewal};
use crate::time::Time;

/// Lets the hold last its ttl from now on at least, by a request that was sent at `sent`. From then on the hold has a lease, also
/// on the real clock.
pub(super) fn lease(store: &Shared, hold: &Hold, sent: Time) -> Renewal {
    let Hold {
        name, owner, ttl, ..
    } = hold;
    store.with_state(
        |state, now| match state.table.lease(name, *owner, *ttl, now) {
            true => {
                state.holders.set_detached(*owner, name);
                Renewal::Renewed {
                    sent,
                    ttl: Some(*ttl),
                }
            }
            false => Renewal::Lost(LostReason::StoreSaysNo),
        },
    )
}
