//! Releasing and renewing holds.

use super::store::{Shared, StoreState};
use crate::lost::LostReason;
use crate::rt::lock;
use crate::store::{Hold, Release, Renewal};
use crate::time::Time;

/// Releases the hold; a waiter leaves the queue.
pub(super) fn release(store: &Shared, hold: &Hold) -> Release {
    store.with_state(|state, now| release_in(state, hold, now))
}

/// The same, if no request is disturbed.
pub(super) fn release_now(store: &Shared, hold: &Hold) -> Option<Release> {
    if release_without_time(&mut lock(&store.state), hold) {
        return Some(Release::Released);
    }
    store.with_state(|state, now| {
        state.is_undisturbed().then(|| {
            state.requests += 1;
            release_in(state, hold, now)
        })
    })
}

/// The release of a hold that no owner waits for, without a look at the clock, which takes a good part of the time of a release.
/// `false`: nothing was done.
fn release_without_time(state: &mut StoreState, hold: &Hold) -> bool {
    let is_quiet = state.is_undisturbed() && state.waiting.is_empty() && state.watchers.is_empty();
    let is_released =
        is_quiet && !hold.unclean && state.table.release_at_any_time(&hold.name, hold.owner);
    if is_released {
        state.requests += 1;
        state.holders.remove(&hold.owner);
    }
    is_released
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
