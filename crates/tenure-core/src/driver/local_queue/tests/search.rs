//! The local queue in all orders in which seven tasks can arrive, poll, cancel and finish.
//!
//! The search drives the real queue: the tasks are futures that it polls by hand. Futures cannot be copied, so each path
//! is repeated from the start for each step that is possible at its end. Each state is visited once.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::driver::local_queue::{LocalQueue, Passed};
use crate::name::LockName;
use crate::rt::sync::lock;

const TASKS: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// A task that cancels keeps a turn that it was given and has not seen.
    LosesUnseenTurn,
    /// A turn that ends does not pass on.
    KeepsTurn,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrives(usize),
    /// Arrives, and leaves at once if it cannot have the turn.
    Tries(usize),
    Polls(usize),
    Cancels(usize),
    Finishes(usize),
}

enum Task {
    NotArrived,
    Waiting(Pin<Box<dyn Future<Output = Passed>>>),
    HasTurn(Passed),
    Gone,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct ModelState {
    queue: Arc<LocalQueue>,
    name: LockName,
    tasks: Vec<Task>,
    woken: Vec<Arc<Woken>>,
    /// The waiting tasks, in the order in which they arrived.
    order: Vec<usize>,
    mutant: Option<Mutant>,
}

impl ModelState {
    fn after(way: &[Step], mutant: Option<Mutant>) -> Self {
        let mut state = Self {
            queue: Arc::default(),
            name: LockName::new("n").unwrap(),
            tasks: (0..TASKS).map(|_| Task::NotArrived).collect(),
            woken: (0..TASKS).map(|_| Arc::default()).collect(),
            order: vec![],
            mutant,
        };
        way.iter().for_each(|step| state.take(*step));
        state
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrives(who) => {
                let (queue, name) = (self.queue.clone(), self.name.clone());
                self.tasks[who] =
                    Task::Waiting(Box::pin(async move { queue.take(&name, None, None).await }));
                self.order.push(who);
                self.poll(who);
            }
            Step::Tries(who) => {
                self.tasks[who] = match self.queue.try_take(&self.name, None) {
                    Some(turn) => Task::HasTurn(Passed::Turn(turn)),
                    None => Task::Gone,
                };
            }
            Step::Polls(who) => self.poll(who),
            Step::Cancels(who) => {
                if self.mutant == Some(Mutant::LosesUnseenTurn) {
                    self.poll(who);
                }
                self.order.retain(|waiting| *waiting != who);
                if let Task::HasTurn(turn) = std::mem::replace(&mut self.tasks[who], Task::Gone) {
                    std::mem::forget(turn);
                }
            }
            Step::Finishes(who) => {
                let task = std::mem::replace(&mut self.tasks[who], Task::Gone);
                if self.mutant == Some(Mutant::KeepsTurn) {
                    std::mem::forget(task);
                }
            }
        }
    }

    fn poll(&mut self, who: usize) {
        let waker = Waker::from(self.woken[who].clone());
        if let Task::Waiting(future) = &mut self.tasks[who]
            && let Poll::Ready(turn) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            self.tasks[who] = Task::HasTurn(turn);
            self.order.retain(|waiting| *waiting != who);
        }
    }

    fn is_woken(&self, who: usize) -> bool {
        matches!(self.tasks[who], Task::Waiting(_)) && self.woken[who].0.load(Ordering::SeqCst)
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![];
        let mut is_first = true;
        for who in 0..TASKS {
            match &self.tasks[who] {
                // Tasks that have not arrived are alike: they arrive in this order.
                Task::NotArrived if is_first => {
                    is_first = false;
                    steps.extend([Step::Arrives(who), Step::Tries(who)]);
                }
                Task::Waiting(_) => {
                    if self.is_woken(who) {
                        steps.push(Step::Polls(who));
                    }
                    steps.push(Step::Cancels(who));
                }
                Task::HasTurn(_) => steps.push(Step::Finishes(who)),
                Task::NotArrived | Task::Gone => {}
            }
        }
        steps
    }

    /// States with the same image are the same state.
    fn image(&self) -> (Vec<(u8, bool)>, Vec<usize>) {
        let phase = |who: usize| match self.tasks[who] {
            Task::NotArrived => 0,
            Task::Waiting(_) => 1,
            Task::HasTurn(_) => 2,
            Task::Gone => 3,
        };
        let tasks = (0..TASKS).map(|who| (phase(who), self.is_woken(who)));
        (tasks.collect(), self.order.clone())
    }

    fn violation(&self) -> Option<&'static str> {
        let inside = |task: &&Task| matches!(task, Task::HasTurn(_));
        let inside = self.tasks.iter().filter(inside).count();
        let woken: Vec<_> = (0..TASKS).filter(|who| self.is_woken(*who)).collect();
        if inside + woken.len() > 1 {
            return Some("two tasks have the turn");
        }
        match self.order.first() {
            Some(_) if inside == 0 && woken.is_empty() => Some("no task has the turn"),
            Some(first) if inside == 0 && woken != [*first] => {
                Some("a task that is not the first has the turn")
            }
            None if inside == 0 && !lock(&self.queue.contended).is_empty() => {
                Some("an entry is left behind")
            }
            _ => None,
        }
    }
}

/// How many states there are, or a path to a state with a violation.
fn search(mutant: Option<Mutant>) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut ways = vec![vec![]];
    while let Some(way) = ways.pop() {
        let state = ModelState::after(&way, mutant);
        if let Some(violation) = state.violation() {
            return Err(format!("{violation} after {way:?}"));
        }
        if seen.insert(state.image()) {
            let longer = |step| [way.as_slice(), &[step]].concat();
            ways.extend(state.steps().into_iter().map(longer));
        }
    }
    Ok(seen.len())
}

#[test]
fn turns_pass_on_whichever_task_cancels() {
    println!("{TASKS} tasks: {} states", search(None).unwrap());
}

#[test]
fn mutant_a_cancelled_task_keeps_a_turn_that_it_has_not_seen() {
    let violation = search(Some(Mutant::LosesUnseenTurn)).unwrap_err();
    println!("{violation}");
    assert!(
        violation.starts_with("no task has the turn")
            || violation.starts_with("an entry is left behind"),
        "{violation}"
    );
}

#[test]
fn mutant_a_turn_that_is_not_passed_on() {
    let violation = search(Some(Mutant::KeepsTurn)).unwrap_err();
    println!("{violation}");
    assert!(
        violation.starts_with("no task has the turn")
            || violation.starts_with("an entry is left behind"),
        "{violation}"
    );
}
