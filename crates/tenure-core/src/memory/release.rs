//! Releasing and renewing holds.

use super::store::{Shared, StoreState};
use crate::lost::LostReason;
use crate::store::{Hold, Release, Renewal};
use crate::time::Time;

/// Releases the hold; a waiter leaves the queue.
pub(super) fn release(store: &Shared, hold: &Hold) -> Release {
    store.with_state(|state, now| release_in(state, hold, now))
}

/// The same, if no request is disturbed.
pub(super) fn release_now(store: &Shared, hold: &Hold) -> Option<Release> {
    store.with_state(|state, now| {
        state.is_undisturbed().then(|| {
            state.requests += 1;
            release_in(state, hold, now)
        })
    })
}

fn release_in(state: &mut StoreState, hold: &Hold, now: Time) -> Release {
    state.holders.remove(&hold.owner);
    if !state.waiting.is_empty() {
        state.waiting.remove(&hold.owner);
    }
    let Hold { name, owner, .. } = hold;
    Release::of(match hold.unused {
        true => state.table.give_back(name, *owner, now),
        false => state.table.release(name, *owner, hold.unclean, now),
    })
}

/// Renews the holds with a request that was sent at `sent`.
pub(super) fn renew(store: &Shared, holds: &[Hold], sent: Time) -> Vec<Renewal> {
    store.with_state(|state, now| {
        let renew = |hold: &Hold| {
            // A hold that was detached has a lease also on the real clock.
            let is_leased = state.table.is_leased(&hold.name, hold.owner);
            let ttl = is_leased.then_some(hold.ttl);
            match state.table.renew(&hold.name, hold.owner, ttl, now) {
                true => Renewal::Renewed { sent, ttl },
                false => Renewal::Lost(LostReason::StoreSaysNo),
            }
        };
        holds.iter().map(renew).collect()
    })
}
