//! The tasks of one client that want the same name wait in this queue, first come, first served: only the first of them
//! sends a request to the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::name::LockName;
use crate::rt::lock;

/// The names that tasks of this client acquire at the moment, each with the tasks that come next.
#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    contended: Mutex<HashMap<LockName, VecDeque<oneshot::Sender<Turn>>>>,
}

/// The right to request a name from the store. Dropping the turn passes it on to the next task.
#[derive(Debug)]
pub(super) struct Turn {
    queue: Arc<LocalQueue>,
    name: LockName,
}

impl LocalQueue {
    /// The turn, if no task has it or waits for it.
    pub(super) fn try_take(self: &Arc<Self>, name: &LockName) -> Option<Turn> {
        let mut contended = lock(&self.contended);
        if contended.contains_key(name) {
            return None;
        }
        contended.insert(name.clone(), VecDeque::new());
        Some(Turn {
            queue: self.clone(),
            name: name.clone(),
        })
    }

    /// Whether a task of this client has the turn for the name or waits for it.
    pub(super) fn is_contended(&self, name: &LockName) -> bool {
        let contended = lock(&self.contended);
        !contended.is_empty() && contended.contains_key(name)
    }

    /// Waits for the turn. Cancel safe: a dropped waiter is skipped.
    pub(super) async fn take(self: &Arc<Self>, name: &LockName) -> Turn {
        let receiver = {
            let mut contended = lock(&self.contended);
            if let Some(queue) = contended.get_mut(name) {
                let (sender, receiver) = oneshot::channel();
                queue.push_back(sender);
                receiver
            } else {
                contended.insert(name.clone(), VecDeque::new());
                return Turn {
                    queue: self.clone(),
                    name: name.clone(),
                };
            }
        };
        // The sender stays in the queue until it is used: an entry is removed only when it is empty.
        receiver
            .await
            .expect("a queue of waiting tasks is emptied by passing the turn on")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut contended = lock(&self.queue.contended);
        while let Some(queue) = contended.get_mut(&self.name) {
            let Some(next) = queue.pop_front() else {
                contended.remove(&self.name);
                return;
            };
            if next.is_closed() {
                continue;
            }
            drop(contended);
            // If the receiver is dropped at this very moment, the turn comes back as the error (or is dropped with the
            // channel), and its drop passes it on.
            drop(next.send(Turn {
                queue: self.queue.clone(),
                name: self.name.clone(),
            }));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    mod search;

    use super::*;
    use crate::rt::poll_now;

    fn pending<F: Future>(polled: Result<Turn, F>) -> F {
        polled.expect_err("not its turn yet")
    }

    #[test]
    fn turns_pass_in_order_and_skip_dropped_waiters() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let first = queue.try_take(&name).unwrap();
        assert!(queue.try_take(&name).is_none());
        let a = pending(poll_now(Box::pin(queue.take(&name))));
        let b = pending(poll_now(Box::pin(queue.take(&name))));
        let c = pending(poll_now(Box::pin(queue.take(&name))));
        drop(a);
        drop(first);
        assert!(queue.try_take(&name).is_none());
        let c = pending(poll_now(c));
        drop(poll_now(b).ok().unwrap());
        drop(poll_now(c).ok().unwrap());
        assert!(lock(&queue.contended).is_empty());
    }

    #[test]
    fn a_turn_that_was_not_picked_up_passes_on() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let first = queue.try_take(&name).unwrap();
        let a = pending(poll_now(Box::pin(queue.take(&name))));
        let b = pending(poll_now(Box::pin(queue.take(&name))));
        drop(first); // `a` has the turn now and has not noticed
        drop(a);
        drop(poll_now(b).ok().unwrap());
        assert!(lock(&queue.contended).is_empty());
    }
}
