//! The tasks of one client that want the same name wait in this queue, first come, first served: only the first of them
//! sends a request to the store.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::name::LockName;
use crate::rt::sync::{AtomicBool, Mutex, lock, oneshot};

/// The names that tasks of this client acquire at the moment, each with the tasks that come next.
#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    contended: Mutex<HashMap<LockName, WaitingTasks>>,
}

/// The tasks that wait for their turn.
#[derive(Debug, Default)]
struct WaitingTasks {
    senders: VecDeque<oneshot::Sender<Turn>>,
    /// At this length those that wait no more are removed.
    sweep_at: usize,
    /// See [`Turn::said_taken`].
    said_taken: Arc<AtomicBool>,
}

/// The fewest waiting tasks for which it is worth to look who still waits.
const MIN_SWEEP: usize = 32;

impl WaitingTasks {
    /// Adds a task. Without the removal of those that wait no more, the queue would grow for as long as one task has the
    /// turn and others try again and again. A removal doubles the length at which the next one comes, so it costs each
    /// task little.
    fn push(&mut self, sender: oneshot::Sender<Turn>) {
        self.senders.push_back(sender);
        if self.senders.len() >= self.sweep_at.max(MIN_SWEEP) {
            self.senders.retain(|sender| !sender.is_closed());
            self.sweep_at = self.senders.len() * 2;
        }
    }
}

/// The right to request a name from the store. Dropping the turn passes it on to the next task.
#[derive(Debug)]
pub(super) struct Turn {
    queue: Arc<LocalQueue>,
    name: LockName,
    /// Whether the store has said to the task with the turn that the name is taken. The request of the task has it too.
    pub(super) said_taken: Arc<AtomicBool>,
}

impl LocalQueue {
    /// The turn, if no task has it or waits for it.
    pub(super) fn try_take(self: &Arc<Self>, name: &LockName) -> Option<Turn> {
        let mut contended = lock(&self.contended);
        if contended.contains_key(name) {
            return None;
        }
        let said_taken = contended
            .entry(name.clone())
            .or_default()
            .said_taken
            .clone();
        Some(Turn {
            queue: self.clone(),
            name: name.clone(),
            said_taken,
        })
    }

    /// Whether the store has said to the task with the turn that the name is taken.
    pub(super) fn is_said_to_be_taken(&self, name: &LockName) -> bool {
        let contended = lock(&self.contended);
        let waiting = contended.get(name);
        waiting.is_some_and(|waiting| waiting.said_taken.load(Ordering::Relaxed))
    }

    /// Whether a task of this client has the turn for the name or waits for it.
    pub(super) fn is_contended(&self, name: &LockName) -> bool {
        let contended = lock(&self.contended);
        !contended.is_empty() && contended.contains_key(name)
    }

    /// Waits for the turn. Cancel safe: a dropped waiter is skipped.
    pub(super) async fn take(self: &Arc<Self>, name: &LockName) -> Turn {
        let receiver = loop {
            if let Some(turn) = self.try_take(name) {
                return turn;
            }
            // The last turn may have ended since.
            if let Some(queue) = lock(&self.contended).get_mut(name) {
                let (sender, receiver) = oneshot::channel();
                queue.push(sender);
                break receiver;
            }
        };
        // The sender stays in the queue until it is used or its receiver is dropped.
        receiver
            .await
            .expect("a queue of waiting tasks is emptied by passing the turn on")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut contended = lock(&self.queue.contended);
        while let Some(queue) = contended.get_mut(&self.name) {
            let Some(next) = queue.senders.pop_front() else {
                contended.remove(&self.name);
                return;
            };
            if next.is_closed() {
                continue;
            }
            let said_taken = Arc::default();
            queue.said_taken = Arc::clone(&said_taken);
            drop(contended);
            // If the receiver is dropped at this very moment, the turn comes back as the error (or is dropped with the
            // channel), and its drop passes it on.
            drop(next.send(Turn {
                queue: self.queue.clone(),
                name: self.name.clone(),
                said_taken,
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

    /// Tasks that give up again and again behind one that has the turn for long.
    #[test]
    fn cancelled_waiters_do_not_stay_in_the_queue() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let first = queue.try_take(&name).unwrap();
        let patient = pending(poll_now(Box::pin(queue.take(&name))));
        for _ in 0..100_000 {
            drop(pending(poll_now(Box::pin(queue.take(&name)))));
            assert!(lock(&queue.contended)[&name].senders.len() <= MIN_SWEEP);
        }
        drop(first);
        drop(poll_now(patient).ok().unwrap());
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

#[cfg(all(test, tenure_loom))]
mod models {
    use super::*;
    use crate::rt::poll_now;
    use crate::rt::sync::{AtomicUsize, check, spawn};

    struct Model {
        queue: Arc<LocalQueue>,
        name: LockName,
        has_turn: AtomicUsize,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                queue: Arc::default(),
                name: LockName::new("n").unwrap(),
                has_turn: AtomicUsize::new(0),
            })
        }

        async fn take(self: Arc<Self>) {
            let turn = self.queue.take(&self.name).await;
            self.have(turn);
        }

        /// Keeps the turn for a moment in which no other task may have one.
        fn have(&self, turn: Turn) {
            assert_eq!(self.has_turn.fetch_add(1, Ordering::SeqCst), 0);
            self.has_turn.fetch_sub(1, Ordering::SeqCst);
            drop(turn);
        }
    }

    #[test]
    fn one_task_has_the_turn_and_each_gets_it() {
        check(|| {
            let model = Model::new();
            let tasks = [(); 2].map(|()| spawn(model.clone().take()));
            if let Some(turn) = model.queue.try_take(&model.name) {
                model.have(turn);
            }
            for task in tasks {
                task.join().unwrap();
            }
            assert!(lock(&model.queue.contended).is_empty());
        });
    }

    #[test]
    fn a_task_that_gives_up_does_not_keep_the_turn() {
        check(|| {
            let model = Model::new();
            let turn = model.queue.try_take(&model.name).unwrap();
            let patient = spawn(model.clone().take());
            let hasty = loom::thread::spawn({
                let model = model.clone();
                move || match poll_now(Box::pin(model.queue.take(&model.name))) {
                    Ok(turn) => model.have(turn),
                    Err(waiting) => drop(waiting),
                }
            });
            model.have(turn);
            patient.join().unwrap();
            hasty.join().unwrap();
            assert!(lock(&model.queue.contended).is_empty());
        });
    }
}
