//! A flag that tasks can wait for.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::Ordering;

use super::sync::{AtomicBool, Notify};

/// A flag that is raised once and can be awaited by any number of tasks.
#[derive(Default)]
pub struct Flag {
    raised: AtomicBool,
    notify: Notify,
}

impl Flag {
    /// A flag that is down.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag and wakes all tasks that wait for it.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Raises the flag as [`raise`](Flag::raise) does. Returns whether the flag was down before.
    pub fn raise_once(&self) -> bool {
        let is_first = !self.raised.swap(true, Ordering::SeqCst);
        self.notify.notify_waiters();
        is_first
    }

    /// Whether the flag is up.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Resolves when the flag is up. Cancel safe.
    pub async fn raised(&self) {
        let mut woken = pin!(self.notify.notified());
        loop {
            // Registers before it reads the flag, so that a raise in between is not missed.
            woken.as_mut().enable();
            if self.is_raised() {
                return;
            }
            woken.as_mut().await;
            woken.set(self.notify.notified());
        }
    }
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flag").field(&self.is_raised()).finish()
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use std::sync::Arc;

    use super::*;
    use crate::rt::sync::{block_on, check, spawn};

    #[test]
    fn a_raise_is_seen_by_those_that_wait_and_was_first_once() {
        check(|| {
            let flag = Arc::new(Flag::new());
            let raisers = [(); 2].map(|()| {
                let flag = flag.clone();
                spawn(async move { flag.raise_once() })
            });
            block_on(flag.raised());
            let firsts = raisers.map(|raiser| raiser.join().unwrap());
            assert_eq!(firsts.iter().filter(|is_first| **is_first).count(), 1);
        });
    }
}
