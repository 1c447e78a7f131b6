//! Holders learn that another process asks them to let go: the kernel has no notification for that without a library of its
//! own, so one thread of each client looks for the files of such requests, as long as a guard waits to be asked.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::rt::lock;
use tenure_core::store::Hold;

use super::store::Shared;

/// How late a holder learns of a request at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The holds of a client whose guards wait to be asked to let go.
#[derive(Debug, Default)]
pub(super) struct RequestListener {
    state: Mutex<ListenerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ListenerState {
    owners: Vec<OwnerId>,
    has_thread: bool,
    is_closed: bool,
}

impl RequestListener {
    /// Ends the thread.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    /// The holds to look at. `None`: there are none, and the thread ends.
    fn owners(&self) -> Option<Vec<OwnerId>> {
        let mut state = lock(&self.state);
        if state.is_closed || state.owners.is_empty() {
            state.has_thread = false;
            return None;
        }
        Some(state.owners.clone())
    }

    fn remove(&self, owner: OwnerId) {
        lock(&self.state).owners.retain(|it| *it != owner);
    }

    fn pause(&self) {
        let state = lock(&self.state);
        if !state.is_closed {
            let waited = self.changed.wait_timeout(state, LOOK_INTERVAL);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// From now on the driver hears of requests to let go of this hold, also of those that were made before.
pub(super) fn listen(shared: &Arc<Shared>, hold: &Hold) {
    let known = shared
        .holds
        .update(hold.owner, |held| held.has_token_files = true);
    if known.is_none() {
        return;
    }
    let listener = &shared.requests;
    let mut state = lock(&listener.state);
    if state.is_closed {
        return;
    }
    state.owners.push(hold.owner);
    listener.changed.notify_all();
    if state.has_thread {
        return;
    }
    let thread = std::thread::Builder::new().name("tenure-file-ask".into());
    let shared = shared.clone();
    match thread.spawn(move || look_for_requests(&shared)) {
        Ok(_) => state.has_thread = true,
        Err(err) => {
            state.owners.clear();
            tracing::warn!(%err, "could not start a thread, so requests to let go are not heard");
        }
    }
}

fn look_for_requests(shared: &Arc<Shared>) {
    let listener = &shared.requests;
    while let Some(owners) = listener.owners() {
        for owner in owners {
            let is_asked = shared
                .holds
                .read(owner, |held| held.token_files().has_request());
            match is_asked {
                Some(false) => {}
                Some(true) => {
                    listener.remove(owner);
                    shared.report_request(owner);
                }
                None => listener.remove(owner),
            }
        }
        listener.pause();
    }
}
