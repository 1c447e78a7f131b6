//! What operators see and do: status, list, break.

use std::time::SystemTime;

use super::store::{Shared, StoreState};
use crate::fence::OwnerId;
use crate::holder::{HoldInfo, Holder, LockStatus};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::rt::lock;
use crate::store::Listed;
use crate::time::Time;

/// Who holds the name and who waits.
pub(super) fn status(store: &Shared, name: &LockName) -> LockStatus {
    let now = store.clock.now();
    let mut state = lock(&store.state);
    state.table.tick(now);
    state.wake(now);
    state.tell_watchers(now);
    state.status(name, now)
}

impl StoreState {
    /// Who holds the name and who waits, as of the last operation of the table.
    pub(super) fn status(&self, name: &LockName, now: Time) -> LockStatus {
        let wall = SystemTime::now();
        let mut status = LockStatus::free(name.clone());
        let Some(view) = self.table.view(name) else {
            return status;
        };
        let holder = |owner: &OwnerId, since: Option<Time>| {
            let since = since.and_then(|since| wall.checked_sub(now.since(since)));
            let holder = self.holders.get(owner).map(|holder| (**holder).clone());
            Holder {
                since,
                ..holder.unwrap_or_default()
            }
        };
        status.holds = view
            .holds
            .iter()
            .map(|hold| {
                let left = hold.expires.map(|expires| expires.since(now));
                HoldInfo::new(
                    holder(&hold.owner, Some(hold.since)),
                    hold.mode,
                    Some(hold.token),
                    left,
                )
            })
            .collect();
        status.queue = Some(
            view.waiters
                .iter()
                .map(|(owner, _)| holder(owner, None))
                .collect(),
        );
        status.reserved = view
            .reserved_until
            .map(|until| until.since(now))
            .filter(|left| !left.is_zero());
        status
    }
}

/// All held names with this prefix, sorted.
pub(super) fn list(store: &Shared, prefix: &str) -> Listed {
    let names = store.with_state(|state, _| state.table.names(prefix));
    Listed::Statuses(names.iter().map(|name| status(store, name)).collect())
}

/// Ends the hold with this token and notifies its client. `false`: there is no such hold.
pub(super) fn break_lock(store: &Shared, name: &LockName, token: u64) -> bool {
    let (broken, owner) = store.with_state(|state, now| {
        let view = state.table.view(name);
        let hold = view.and_then(|view| view.holds.into_iter().find(|hold| hold.token == token));
        let broken = state.table.break_hold(name, token, now);
        state.holders.remove_ended(&state.table);
        (broken, hold.map(|hold| hold.owner))
    });
    if let (true, Some(owner)) = (broken, owner) {
        let notifiers = lock(&store.state).loss_notifiers.clone();
        notifiers
            .iter()
            .for_each(|notifier| notifier.lost(owner, LostReason::TakenOver));
    }
    broken
}
