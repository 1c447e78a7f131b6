//! The tasks of one client that want the same name wait in this queue, first come, first served: only the first of them
//! sends a request to the store, or has the hold from the task before. Tasks that want the same mode may have the turn
//! together if others may hold the name in that mode as well, in a store that answers many such requests as quickly as one.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::name::LockName;
use crate::options::{Mode, Options};
use crate::rt::sync::{AtomicBool, Mutex, lock, oneshot};

/// The names that tasks of this client acquire at the moment, each with the tasks that come next.
#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    contended: Mutex<HashMap<LockName, WaitingTasks>>,
}

/// What a waiting task gets.
#[derive(Debug)]
pub(super) enum Passed {
    /// The right to request the name from the store.
    Turn(Turn),
    /// The hold of the task before, with the right if the hold may pass on again. Dropping it releases the hold.
    Hold(HeldByNext),
}

/// A hold that was made for the next task: the queue does not know what it is.
pub(super) type HeldByNext = Box<dyn Any + Send>;

/// A task that waits for its turn.
#[derive(Debug)]
pub(super) struct WaitingTask {
    sender: oneshot::Sender<Passed>,
    /// See [`LocalQueue::try_take`].
    joint: Option<Mode>,
    /// How the task wants the name, if it may have the hold of the task before.
    options: Option<Box<Options>>,
}

impl WaitingTask {
    /// Gives the task what it waits for. Without the task, what is given is dropped.
    pub(super) fn pass(self, passed: Passed) {
        // If the receiver is dropped at this very moment, this comes back as the error (or is dropped with the channel), and
        // its drop passes it on.
        drop(self.sender.send(passed));
    }
}

/// The tasks that wait for their turn.
#[derive(Debug, Default)]
struct WaitingTasks {
    tasks: VecDeque<WaitingTask>,
    /// How many tasks have the turn.
    turns: usize,
    /// The mode that these tasks want, if others may have the turn together with them.
    joint: Option<Mode>,
    /// At this length those that wait no more are removed.
    sweep_at: usize,
    /// See [`Turn::said_taken`].
    said_taken: Arc<AtomicBool>,
    /// For how many turns only one task asks for a permit at a time, because all permits were taken.
    alone: u32,
}

/// The fewest waiting tasks for which it is worth to look who still waits.
const MIN_SWEEP: usize = 32;

/// How many tasks have the turn together at most. Each of them may come to wait in the store.
const MAX_TOGETHER: usize = 64;

/// Of n permits n/4 tasks ask together. With more, so many tasks of a few clients would ask that some wait in the store, and
/// a place in its queue costs several times as much as a free permit.
const PART_OF_PERMITS: u32 = 4;

/// After all permits were taken, so many tasks ask one after the other.
const TURNS_ALONE: u32 = 64;

impl WaitingTasks {
    /// How many tasks that want the mode may have the turn together.
    fn max_together(&self, joint: Option<Mode>) -> usize {
        match joint {
            None => 1,
            Some(Mode::Permits { .. }) if self.alone > 0 => 1,
            Some(Mode::Permits { limit }) => {
                let part = limit.get() / PART_OF_PERMITS;
                (part as usize).clamp(1, MAX_TOGETHER)
            }
            Some(_) => MAX_TOGETHER,
        }
    }

    /// Adds a task. Without the removal of those that wait no more, the queue would grow for as long as one task has the
    /// turn and others try again and again. A removal doubles the length at which the next one comes, so it costs each
    /// task little.
    fn push(&mut self, task: WaitingTask) {
        self.tasks.push_back(task);
        if self.tasks.len() >= self.sweep_at.max(MIN_SWEEP) {
            self.tasks.retain(|task| !task.sender.is_closed());
            self.sweep_at = self.tasks.len() * 2;
        }
    }

    /// Whether another task may have the turn together with those that have it: none waits, and the store has not said that
    /// the name is taken.
    fn may_join(&mut self, joint: Option<Mode>) -> bool {
        self.joint == joint
            && self.turns < self.max_together(joint)
            && !self.said_taken.load(Ordering::Relaxed)
            && self.first().is_none()
    }

    /// Takes out the tasks that have the turn next, all of them together.
    fn take_next(&mut self) -> Vec<WaitingTask> {
        self.turns = 0;
        self.alone = match self.said_taken.load(Ordering::Relaxed) {
            true => TURNS_ALONE,
            false => self.alone.saturating_sub(1),
        };
        self.said_taken = Arc::default();
        let mut next = Vec::new();
        while let Some(joint) = self.first().map(|first| first.joint)
            && (next.is_empty() || joint == self.joint && self.turns < self.max_together(joint))
            && let Some(task) = self.tasks.pop_front()
        {
            self.joint = joint;
            self.turns += 1;
            next.push(task);
        }
        next
    }

    /// The first task that still waits.
    fn first(&mut self) -> Option<&WaitingTask> {
        while self.tasks.front()?.sender.is_closed() {
            self.tasks.pop_front();
        }
        self.tasks.front()
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
    /// The turn, if no task has it or waits for it. With `joint`, a shared mode, also if tasks that want this mode have it and
    /// none waits.
    pub(super) fn try_take(self: &Arc<Self>, name: &LockName, joint: Option<Mode>) -> Option<Turn> {
        let mut contended = lock(&self.contended);
        if let Some(tasks) = contended.get_mut(name)
            && !tasks.may_join(joint)
        {
            return None;
        }
        let tasks = contended.entry(name.clone()).or_default();
        tasks.turns += 1;
        tasks.joint = joint;
        Some(Turn {
            queue: self.clone(),
            name: name.clone(),
            said_taken: tasks.said_taken.clone(),
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

    /// Waits for the turn, or for the hold of the task before if `options` are given and that hold is like them. Cancel safe:
    /// a dropped waiter is skipped.
    pub(super) async fn take(
        self: &Arc<Self>,
        name: &LockName,
        joint: Option<Mode>,
        mut options: Option<Box<Options>>,
    ) -> Passed {
        let receiver = loop {
            if let Some(turn) = self.try_take(name, joint) {
                return Passed::Turn(turn);
            }
            // The last turn may have ended since.
            if let Some(queue) = lock(&self.contended).get_mut(name) {
                let (sender, receiver) = oneshot::channel();
                let options = options.take();
                queue.push(WaitingTask {
                    sender,
                    joint,
                    options,
                });
                break receiver;
            }
        };
        // The sender stays in the queue until it is used or its receiver is dropped.
        receiver
            .await
            .expect("a queue of waiting tasks is emptied by passing the turn on")
    }
}

impl Turn {
    /// The name is taken, whatever the store said: another task of this client holds it.
    pub(super) fn set_taken(&self) {
        self.said_taken.store(true, Ordering::Relaxed);
    }

    /// Whether the task that comes next may have the hold of this one: `is_like` decides by how the next task wants the name.
    /// `false` if no task waits.
    pub(super) fn is_next(&self, is_like: impl FnOnce(&Options) -> bool) -> bool {
        let mut contended = lock(&self.queue.contended);
        let next = contended.get_mut(&self.name).and_then(WaitingTasks::first);
        next.and_then(|next| next.options.as_deref())
            .is_some_and(is_like)
    }

    /// Takes the task that comes next out of the queue, with its options, if [`is_next`](Self::is_next).
    pub(super) fn take_next(
        &self,
        is_like: impl FnOnce(&Options) -> bool,
    ) -> Option<(WaitingTask, Box<Options>)> {
        let mut contended = lock(&self.queue.contended);
        let waiting = contended.get_mut(&self.name)?;
        if !waiting.first()?.options.as_deref().is_some_and(is_like) {
            return None;
        }
        let mut next = waiting.tasks.pop_front()?;
        let options = next.options.take()?;
        Some((next, options))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut contended = lock(&self.queue.contended);
        let Some(waiting) = contended.get_mut(&self.name) else {
            return;
        };
        if waiting.turns > 1 {
            waiting.turns -= 1;
            return;
        }
        let next = waiting.take_next();
        if next.is_empty() {
            contended.remove(&self.name);
            return;
        }
        let said_taken = waiting.said_taken.clone();
        drop(contended);
        for task in next {
            task.pass(Passed::Turn(Turn {
                queue: self.queue.clone(),
                name: self.name.clone(),
                said_taken: said_taken.clone(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    mod search;

    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::rt::poll_now;

    fn pending<F: Future>(polled: Result<Passed, F>) -> F {
        polled.expect_err("not its turn yet")
    }

    #[test]
    fn turns_pass_in_order_and_skip_dropped_waiters() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let first = queue.try_take(&name, None).unwrap();
        assert!(queue.try_take(&name, None).is_none());
        let a = pending(poll_now(Box::pin(queue.take(&name, None, None))));
        let b = pending(poll_now(Box::pin(queue.take(&name, None, None))));
        let c = pending(poll_now(Box::pin(queue.take(&name, None, None))));
        drop(a);
        drop(first);
        assert!(queue.try_take(&name, None).is_none());
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
        let first = queue.try_take(&name, None).unwrap();
        let patient = pending(poll_now(Box::pin(queue.take(&name, None, None))));
        for _ in 0..100_000 {
            drop(pending(poll_now(Box::pin(queue.take(&name, None, None)))));
            assert!(lock(&queue.contended)[&name].tasks.len() <= MIN_SWEEP);
        }
        drop(first);
        drop(poll_now(patient).ok().unwrap());
        assert!(lock(&queue.contended).is_empty());
    }

    /// Tasks that want the same shared mode have the turn together; others wait for all of them.
    #[test]
    fn tasks_of_one_shared_mode_have_the_turn_together() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let shared = Some(Mode::Shared);
        let take = |joint| poll_now(Box::pin(queue.take(&name, joint, None)));
        let first = queue.try_take(&name, shared).unwrap();
        let second = take(shared).ok().unwrap();
        assert!(queue.try_take(&name, None).is_none());
        let writer = pending(take(None));
        // From now on no reader overtakes the writer.
        let readers = [(); 3].map(|()| pending(take(shared)));
        drop(first);
        let writer = pending(poll_now(writer));
        drop(second);
        let writer = poll_now(writer).ok().unwrap();
        let readers = readers.map(|reader| pending(poll_now(reader)));
        drop(writer);
        let mut readers = readers.map(|reader| poll_now(reader).ok().unwrap());
        // The store says that the name is taken: a reader that comes now waits.
        let Passed::Turn(turn) = &readers[0] else {
            panic!("a turn passes on");
        };
        turn.set_taken();
        assert!(queue.is_said_to_be_taken(&name));
        let late = pending(take(shared));
        readers.reverse();
        drop(readers);
        assert!(!queue.is_said_to_be_taken(&name));
        drop(poll_now(late).ok().unwrap());
        assert!(lock(&queue.contended).is_empty());
    }

    /// How many of 100 tasks that want permits have the turn at a time, one number after the other. They wait for a task that
    /// wants the name for itself, and if `is_taken` that task hears that the name is taken.
    fn turns_for_permits(count: u32, is_taken: bool) -> Vec<usize> {
        let (queue, name) = (Arc::new(LocalQueue::default()), LockName::new("n").unwrap());
        let limit = NonZeroU32::new(count).unwrap();
        let permits = Some(Mode::Permits { limit });
        let take = || poll_now(Box::pin(queue.take(&name, permits, None)));
        let first = queue.try_take(&name, None).unwrap();
        if is_taken {
            first.set_taken();
        }
        let mut waiting: VecDeque<_> = (0..100).map(|_| pending(take())).collect();
        drop(first);
        let mut turns = vec![];
        while !waiting.is_empty() {
            let mut together = vec![];
            while let Some(task) = waiting.pop_front() {
                match poll_now(task) {
                    Ok(turn) => together.push(turn),
                    Err(task) => {
                        waiting.push_front(task);
                        break;
                    }
                }
            }
            turns.push(together.len());
        }
        turns
    }

    #[test]
    fn a_quarter_of_the_permits_is_asked_for_together() {
        for (count, together) in [(1, 1), (7, 1), (8, 2), (20, 5), (u32::MAX, MAX_TOGETHER)] {
            assert_eq!(turns_for_permits(count, false)[0], together);
        }
    }

    #[test]
    fn after_permits_were_taken_one_task_asks_after_the_other_for_a_while() {
        let turns = turns_for_permits(64, true);
        let alone = TURNS_ALONE as usize;
        assert!(turns[..alone].iter().all(|together| *together == 1));
        assert_eq!(turns[alone], 16);
    }

    #[test]
    fn so_many_tasks_have_the_turn_together() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let shared = Some(Mode::Shared);
        let turns: Vec<_> = (0..MAX_TOGETHER)
            .map(|_| queue.try_take(&name, shared).unwrap())
            .collect();
        let late: Vec<_> = (0..2 * MAX_TOGETHER)
            .map(|_| pending(poll_now(Box::pin(queue.take(&name, shared, None)))))
            .collect();
        drop(turns);
        let mut has_turn = 0;
        for task in late {
            has_turn += match poll_now(task) {
                Ok(turn) => {
                    std::mem::forget(turn);
                    1
                }
                Err(_) => 0,
            };
        }
        assert_eq!(has_turn, MAX_TOGETHER);
    }

    /// Only the task that comes next is taken out, and only if it wants what is there.
    #[test]
    fn the_next_task_is_taken_out_of_the_queue_if_it_fits() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let options = |ttl| Some(Box::new(Options::new().ttl(Duration::from_secs(ttl))));
        let wants = |ttl| move |options: &Options| options.ttl == Duration::from_secs(ttl);
        let turn = queue.try_take(&name, None).unwrap();
        assert!(!turn.is_next(|_| true));
        let gone = pending(poll_now(Box::pin(queue.take(&name, None, options(1)))));
        let a = pending(poll_now(Box::pin(queue.take(&name, None, options(2)))));
        let b = pending(poll_now(Box::pin(queue.take(&name, None, None))));
        drop(gone);
        assert!(turn.is_next(wants(2)) && !turn.is_next(wants(1)));
        assert!(turn.take_next(wants(1)).is_none());
        let (next, _) = turn.take_next(wants(2)).unwrap();
        next.pass(Passed::Hold(Box::new(7)));
        let Ok(Passed::Hold(hold)) = poll_now(a) else {
            panic!("the task has what it was given");
        };
        assert_eq!(hold.downcast_ref(), Some(&7));
        // A task without options takes no hold.
        assert!(!turn.is_next(|_| true) && turn.take_next(|_| true).is_none());
        drop(turn);
        assert!(matches!(poll_now(b), Ok(Passed::Turn(_))));
    }

    #[test]
    fn a_turn_that_was_not_picked_up_passes_on() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("n").unwrap();
        let first = queue.try_take(&name, None).unwrap();
        let a = pending(poll_now(Box::pin(queue.take(&name, None, None))));
        let b = pending(poll_now(Box::pin(queue.take(&name, None, None))));
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
            let turn = self.queue.take(&self.name, None, None).await;
            self.have(turn);
        }

        /// Keeps the turn for a moment in which no other task may have one.
        fn have(&self, turn: Passed) {
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
            if let Some(turn) = model.queue.try_take(&model.name, None) {
                model.have(Passed::Turn(turn));
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
            let turn = model.queue.try_take(&model.name, None).unwrap();
            let patient = spawn(model.clone().take());
            let hasty = loom::thread::spawn({
                let model = model.clone();
                move || match poll_now(Box::pin(model.queue.take(&model.name, None, None))) {
                    Ok(turn) => model.have(turn),
                    Err(waiting) => drop(waiting),
                }
            });
            model.have(Passed::Turn(turn));
            patient.join().unwrap();
            hasty.join().unwrap();
            assert!(lock(&model.queue.contended).is_empty());
        });
    }
}
