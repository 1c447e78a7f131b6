//! Elections: the value of a leader, what observers hear, and requests to let go.

use std::sync::Arc;

use futures_util::stream;
use tokio::sync::mpsc;

use super::store::{Shared, StoreState};
use super::watcher::Watcher;
use crate::fence::OwnerId;
use crate::holder::Holder;
use crate::leader::Sighting;
use crate::name::LockName;
use crate::rt::lock;
use crate::store::{Hold, Sightings};
use crate::time::Time;

/// Changes that an observer has not read yet. The observer that is further behind begins again with what is there now.
const WATCH_BUFFER: usize = 64;

/// Replaces the holder of this hold, unless a newer value is there. `false`: there is no such hold.
pub(super) fn publish(store: &Shared, hold: &Hold, holder: Arc<Holder>) -> bool {
    store.with_state(|state, now| {
        if !state.table.renew(&hold.name, hold.owner, None, now) {
            return false;
        }
        let number = |holder: &Holder| holder.value.as_ref().map(|value| value.number);
        let stored = state.holders.get(&hold.owner);
        if stored.is_none_or(|stored| number(stored) <= number(&holder)) {
            state.holders.insert(hold.owner, holder);
        }
        true
    })
}

/// Who leads.
pub(super) fn leader(store: &Shared, name: &LockName) -> Sighting {
    store.with_state(|state, now| state.sighting(name, now))
}

/// What is there now, and each change after that.
pub(super) fn watch(store: &Shared, name: LockName) -> Sightings {
    let (sender, mut receiver) = mpsc::channel(WATCH_BUFFER);
    let watcher = Watcher::new(name, sender);
    // The first sighting is sent before any change: `with_state` tells all watchers.
    store.with_state(|state, _| state.watchers.push(watcher));
    Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)))
}

/// Tells the client that has the hold with this token that another client wants the name.
pub(super) fn ask_to_release(store: &Shared, name: &LockName, token: u64) -> bool {
    let owner: Option<OwnerId> = store.with_state(|state, _| {
        let mut holds = state.table.view(name)?.holds.into_iter();
        let asked = holds.find(|hold| hold.token == token);
        asked.map(|hold| hold.owner)
    });
    let Some(owner) = owner else {
        return false;
    };
    let notifiers = lock(&store.state).loss_notifiers.clone();
    let notifiers = notifiers.iter();
    notifiers.for_each(|notifier| notifier.asked_to_release(owner));
    true
}

impl StoreState {
    fn sighting(&self, name: &LockName, now: Time) -> Sighting {
        let last_token = self.table.last_token(name);
        Sighting::of_status(self.status(name, now), last_token)
    }

    /// Tells each observer what has changed for it. One that is gone, or too far behind, is removed.
    pub(super) fn tell_watchers(&mut self, now: Time) {
        if self.watchers.is_empty() {
            return;
        }
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.retain_mut(|watcher| {
            let sighting = self.sighting(watcher.name(), now);
            watcher.tell(sighting)
        });
        self.watchers = watchers;
    }
}
