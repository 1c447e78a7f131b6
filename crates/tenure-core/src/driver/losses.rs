//! Calls the callbacks of a client for each loss, on a thread of their own, so that renewals do not wait for them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use crate::lost::Loss;
use crate::rt::{BackgroundTasks, Spawner, lock};

use super::labels::LOG_TARGET;

/// What a user registered.
type Callback = Arc<dyn Fn(&Loss) + Send + Sync>;

/// The callbacks of one client, and the losses for which they have not been called yet.
#[derive(Default)]
pub(super) struct Losses {
    state: Mutex<Registered>,
}

#[derive(Default)]
struct Registered {
    next_id: u64,
    callbacks: Vec<(u64, Callback)>,
    queue: VecDeque<Loss>,
    /// A thread takes losses from the queue.
    is_reporting: bool,
}

impl Losses {
    /// Adds a callback, under the number that is returned.
    pub(super) fn register(&self, callback: Callback) -> u64 {
        let mut state = lock(&self.state);
        state.next_id += 1;
        let id = state.next_id;
        state.callbacks.push((id, callback));
        id
    }

    /// Removes a callback.
    pub(super) fn unregister(&self, id: u64) {
        // Dropped outside the lock: a callback may own anything.
        let _removed = {
            let mut state = lock(&self.state);
            let at = state.callbacks.iter().position(|(each, _)| *each == id);
            at.map(|at| state.callbacks.remove(at))
        };
    }

    /// Removes all callbacks: one that owns a clone of its client would keep the client alive.
    pub(super) fn clear(&self) {
        let _removed = std::mem::take(&mut lock(&self.state).callbacks);
    }

    /// Has all callbacks called, one loss after the other, on a thread where they may block.
    pub(super) fn report(
        self: &Arc<Self>,
        loss: Loss,
        spawner: &Spawner,
        tasks: &Arc<BackgroundTasks>,
    ) {
        {
            let mut state = lock(&self.state);
            if state.callbacks.is_empty() {
                return;
            }
            state.queue.push_back(loss);
            if std::mem::replace(&mut state.is_reporting, true) {
                return;
            }
        }
        let losses = self.clone();
        tasks.spawn_blocking(spawner, move || losses.report_all());
    }

    fn report_all(&self) {
        loop {
            let (loss, callbacks) = {
                let mut state = lock(&self.state);
                let Some(loss) = state.queue.pop_front() else {
                    state.is_reporting = false;
                    return;
                };
                (loss, state.callbacks.clone())
            };
            for (_, callback) in callbacks {
                // The next callback and the next loss get their call all the same.
                if catch_unwind(AssertUnwindSafe(|| callback(&loss))).is_err() {
                    tracing::error!(target: LOG_TARGET, name = %loss.name, "a callback of `on_lost` panicked");
                }
            }
        }
    }
}
