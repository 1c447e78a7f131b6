//! Calls what a user registered for an event of a client, on a thread of its own, so that renewals and waits do not wait
//! for it.

use std::collections::VecDeque;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::rt::{BackgroundTasks, Spawner, lock};

use super::labels::LOG_TARGET;

/// What a user registered.
type Callback<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// The callbacks of one client for one kind of event, and the events for which they have not been called yet.
pub(super) struct Callbacks<E> {
    /// The method that registers them.
    method: &'static str,
    state: Mutex<Registered<E>>,
}

struct Registered<E> {
    callbacks: Vec<(u64, Callback<E>)>,
    queue: VecDeque<E>,
    /// A thread takes events from the queue.
    is_reporting: bool,
}

impl<E: Display + Send + 'static> Callbacks<E> {
    /// No callbacks. `method` is the method that registers them.
    pub(super) fn new(method: &'static str) -> Arc<Self> {
        Arc::new(Self {
            method,
            state: Mutex::new(Registered {
                callbacks: Vec::new(),
                queue: VecDeque::new(),
                is_reporting: false,
            }),
        })
    }

    /// Adds a callback, under the number that is returned. No two callbacks of this process have the same number.
    pub(super) fn register(&self, callback: Callback<E>) -> u64 {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        lock(&self.state).callbacks.push((id, callback));
        id
    }

    /// Removes a callback, if it is one of these.
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

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.state).callbacks.is_empty()
    }

    /// Has all callbacks called, one event after the other, on a thread where they may block.
    pub(super) fn report(
        self: &Arc<Self>,
        event: E,
        spawner: &Spawner,
        tasks: &Arc<BackgroundTasks>,
    ) {
        {
            let mut state = lock(&self.state);
            if state.callbacks.is_empty() {
                return;
            }
            state.queue.push_back(event);
            if std::mem::replace(&mut state.is_reporting, true) {
                return;
            }
        }
        let this = self.clone();
        tasks.spawn_blocking(spawner, move || this.report_all());
    }

    fn report_all(&self) {
        loop {
            let (event, callbacks) = {
                let mut state = lock(&self.state);
                let Some(event) = state.queue.pop_front() else {
                    state.is_reporting = false;
                    return;
                };
                (event, state.callbacks.clone())
            };
            for (_, callback) in callbacks {
                // The next callback and the next event get their call all the same.
                if catch_unwind(AssertUnwindSafe(|| callback(&event))).is_err() {
                    tracing::error!(target: LOG_TARGET, %event, "a callback of `{}` panicked", self.method);
                }
            }
        }
    }
}
