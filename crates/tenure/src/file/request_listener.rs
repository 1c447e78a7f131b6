//! The holds whose guards wait to be asked to let go. Such a request is a file, and the kernel does not report a new file
//! without a library for that, so one thread of each client looks for them as long as there are such holds.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::rt::lock;
use tenure_core::store::Hold;

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
    holds: Vec<Hold>,
    has_thread: bool,
    is_closed: bool,
}

impl RequestListener {
    /// Adds a hold, and wakes the thread. `start` starts the thread if there is none.
    pub(super) fn add(&self, hold: &Hold, start: impl FnOnce() -> std::io::Result<()>) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        state.holds.push(hold.clone());
        self.changed.notify_all();
        if state.has_thread {
            return;
        }
        match start() {
            Ok(()) => state.has_thread = true,
            Err(err) => {
                state.holds.clear();
                tracing::warn!(%err, "could not start a thread, so requests to let go are not heard");
            }
        }
    }

    /// The holds to look at. `None`: there are none, and the thread ends.
    pub(super) fn holds(&self) -> Option<Vec<Hold>> {
        let mut state = lock(&self.state);
        if state.is_closed || state.holds.is_empty() {
            state.has_thread = false;
            return None;
        }
        Some(state.holds.clone())
    }

    /// Removes a hold that is over, or was asked.
    pub(super) fn remove(&self, owner: OwnerId) {
        lock(&self.state).holds.retain(|it| it.owner != owner);
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
    use tenure_core::name::LockName;

    use super::*;

    #[test]
    fn there_is_one_thread_while_there_are_holds() {
        let listener = RequestListener::default();
        let mut started = 0;
        let name = LockName::new("a").unwrap();
        let [one, two] = [(); 2].map(|()| Hold::of(name.clone(), OwnerId::random()));
        let owners = || {
            let holds = listener.holds()?;
            Some(holds.iter().map(|hold| hold.owner).collect::<Vec<_>>())
        };
        for hold in [&one, &two] {
            listener.add(hold, || {
                started += 1;
                Ok(())
            });
        }
        assert_eq!(started, 1);
        assert_eq!(owners(), Some(vec![one.owner, two.owner]));
        listener.remove(one.owner);
        listener.remove(two.owner);
        assert_eq!(owners(), None, "the thread ends");
        // Without a thread no request is heard, and the next hold tries again.
        listener.add(&one, || Err(std::io::ErrorKind::OutOfMemory.into()));
        assert_eq!(owners(), None);
        listener.add(&two, || {
            started += 1;
            Ok(())
        });
        assert_eq!(started, 2);
        listener.close();
        listener.pause();
        assert_eq!(owners(), None);
    }
}
