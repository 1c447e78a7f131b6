//! One contender per name: tasks of one client queue here, first come, first served.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::name::LockName;
use crate::rt::lock;

/// The names that somebody of this client contends for, each with the tasks that are next.
#[derive(Debug, Default)]
pub(super) struct Turns {
    contended: Mutex<HashMap<LockName, VecDeque<oneshot::Sender<Turn>>>>,
}

/// The right to contend for a name; passes on to the next task when dropped, wherever that happens.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    name: LockName,
}

impl Turns {
    /// The turn, if nobody has it or waits for it.
    pub(super) fn try_take(self: &Arc<Self>, name: &LockName) -> Option<Turn> {
        let mut contended = lock(&self.contended);
        if contended.contains_key(name) {
            return None;
        }
        contended.insert(name.clone(), VecDeque::new());
        Some(Turn {
            turns: self.clone(),
            name: name.clone(),
        })
    }

    /// Whether somebody of this client contends for the name.
    pub(super) fn is_contended(&self, name: &LockName) -> bool {
        let contended = lock(&self.contended);
        !contended.is_empty() && contended.contains_key(name)
    }

    /// Waits for the turn. Cancel safe: a dropped waiter is passed over.
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
                    turns: self.clone(),
                    name: name.clone(),
                };
            }
        };
        // The sender lies in the queue until it is used: an entry goes away only when it is empty.
        receiver
            .await
            .expect("a queue of waiting tasks is emptied by passing the turn on")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut contended = lock(&self.turns.contended);
        while let Some(queue) = contended.get_mut(&self.name) {
            let Some(next) = queue.pop_front() else {
                contended.remove(&self.name);
                return;
            };
            if next.is_closed() {
                continue;
            }
            drop(contended);
            // When the receiver goes away at this very moment, the turn comes back as the error
            // (or is dropped with the channel) and passes on from there.
            drop(next.send(Turn {
                turns: self.turns.clone(),
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
    fn turns_go_round_in_order_and_skip_the_dropped() {
        let turns = Arc::new(Turns::default());
        let name = LockName::new("n").unwrap();
        let first = turns.try_take(&name).unwrap();
        assert!(turns.try_take(&name).is_none());
        let a = pending(poll_now(Box::pin(turns.take(&name))));
        let b = pending(poll_now(Box::pin(turns.take(&name))));
        let c = pending(poll_now(Box::pin(turns.take(&name))));
        drop(a);
        drop(first);
        assert!(turns.try_take(&name).is_none());
        let c = pending(poll_now(c));
        drop(poll_now(b).ok().unwrap());
        drop(poll_now(c).ok().unwrap());
        assert!(lock(&turns.contended).is_empty());
    }

    #[test]
    fn a_turn_that_nobody_picked_up_passes_on() {
        let turns = Arc::new(Turns::default());
        let name = LockName::new("n").unwrap();
        let first = turns.try_take(&name).unwrap();
        let a = pending(poll_now(Box::pin(turns.take(&name))));
        let b = pending(poll_now(Box::pin(turns.take(&name))));
        drop(first); // `a` has it now, unseen
        drop(a);
        drop(poll_now(b).ok().unwrap());
        assert!(lock(&turns.contended).is_empty());
    }
}
