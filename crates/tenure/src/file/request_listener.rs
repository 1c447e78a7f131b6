//! The holds whose guards wait to be asked to let go. Such a request is a file, and the kernel does not report a new file
//! without a library for that, so one thread of each client looks for them as long as there are such holds.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::rt::lock;

/// How late a holder learns of a request at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the thread and the guards of a client share.
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
    /// Adds a hold, and wakes the thread. `start` starts the thread if there is none.
    pub(super) fn add(&self, owner: OwnerId, start: impl FnOnce() -> std::io::Result<()>) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        state.owners.push(owner);
        self.changed.notify_all();
        if state.has_thread {
            return;
        }
        match start() {
            Ok(()) => state.has_thread = true,
            Err(err) => {
                state.owners.clear();
                tracing::warn!(%err, "could not start a thread, so requests to let go are not heard");
            }
        }
    }

    /// The holds to look at. `None`: there are none, and the thread ends.
    pub(super) fn owners(&self) -> Option<Vec<OwnerId>> {
        let mut state = lock(&self.state);
        if state.is_closed || state.owners.is_empty() {
            state.has_thread = false;
            return None;
        }
        Some(state.owners.clone())
    }

    /// Removes a hold that is over, or was asked.
    pub(super) fn remove(&self, owner: OwnerId) {
        lock(&self.state).owners.retain(|it| *it != owner);
    }

    /// Blocks the thread until the next look.
    pub(super) fn pause(&self) {
        let state = lock(&self.state);
        if !state.is_closed {
            let waited = self.changed.wait_timeout(state, LOOK_INTERVAL);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ends the thread.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_thread_while_there_are_holds() {
        let listener = RequestListener::default();
        let mut started = 0;
        let (one, two) = (OwnerId::random(), OwnerId::random());
        for owner in [one, two] {
            listener.add(owner, || {
                started += 1;
                Ok(())
            });
        }
        assert_eq!(started, 1);
        assert_eq!(listener.owners(), Some(vec![one, two]));
        listener.remove(one);
        listener.remove(two);
        assert_eq!(listener.owners(), None, "the thread ends");
        // Without a thread no request is heard, and the next hold tries again.
        listener.add(one, || Err(std::io::ErrorKind::OutOfMemory.into()));
        assert_eq!(listener.owners(), None);
        listener.add(two, || {
            started += 1;
            Ok(())
        });
        assert_eq!(started, 2);
        listener.close();
        listener.pause();
        assert_eq!(listener.owners(), None);
    }
}
