//! The queue of tasks, in all orders in which seven of them can come, look, lose interest and end.
//!
//! The real queue is driven: tasks are futures that are polled by hand. A way to a world is gone again from the
//! start for each step that is possible there, because futures cannot be copied; each world is visited once.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::driver::turns::{Turn, Turns};
use crate::name::LockName;
use crate::rt::lock;

const TASKS: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    /// A task that loses interest takes the turn along that it was given and has not seen.
    Swallows,
    /// A turn that ends passes on to nobody.
    Keeps,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Comes(usize),
    /// Comes, and goes if it is not its turn.
    Tries(usize),
    Looks(usize),
    LosesInterest(usize),
    Ends(usize),
}

enum Task {
    Away,
    Waiting(Pin<Box<dyn Future<Output = Turn>>>),
    Inside(Turn),
    Gone,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct World {
    turns: Arc<Turns>,
    name: LockName,
    tasks: Vec<Task>,
    woken: Vec<Arc<Woken>>,
    /// Who waits, in the order in which they came.
    order: Vec<usize>,
    wrong: Option<Wrong>,
}

impl World {
    fn after(way: &[Step], wrong: Option<Wrong>) -> Self {
        let mut world = Self {
            turns: Arc::default(),
            name: LockName::new("n").unwrap(),
            tasks: (0..TASKS).map(|_| Task::Away).collect(),
            woken: (0..TASKS).map(|_| Arc::default()).collect(),
            order: vec![],
            wrong,
        };
        way.iter().for_each(|step| world.take(*step));
        world
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Comes(who) => {
                let (turns, name) = (self.turns.clone(), self.name.clone());
                self.tasks[who] = Task::Waiting(Box::pin(async move { turns.take(&name).await }));
                self.order.push(who);
                self.poll(who);
            }
            Step::Tries(who) => {
                self.tasks[who] = match self.turns.try_take(&self.name) {
                    Some(turn) => Task::Inside(turn),
                    None => Task::Gone,
                };
            }
            Step::Looks(who) => self.poll(who),
            Step::LosesInterest(who) => {
                if self.wrong == Some(Wrong::Swallows) {
                    self.poll(who);
                }
                self.order.retain(|waiting| *waiting != who);
                if let Task::Inside(turn) = std::mem::replace(&mut self.tasks[who], Task::Gone) {
                    std::mem::forget(turn);
                }
            }
            Step::Ends(who) => {
                let task = std::mem::replace(&mut self.tasks[who], Task::Gone);
                if self.wrong == Some(Wrong::Keeps) {
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
            self.tasks[who] = Task::Inside(turn);
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
                // All who are away are alike: they come in this order.
                Task::Away if is_first => {
                    is_first = false;
                    steps.extend([Step::Comes(who), Step::Tries(who)]);
                }
                Task::Waiting(_) => {
                    if self.is_woken(who) {
                        steps.push(Step::Looks(who));
                    }
                    steps.push(Step::LosesInterest(who));
                }
                Task::Inside(_) => steps.push(Step::Ends(who)),
                Task::Away | Task::Gone => {}
            }
        }
        steps
    }

    /// Worlds with the same image are one.
    fn image(&self) -> (Vec<(u8, bool)>, Vec<usize>) {
        let phase = |who: usize| match self.tasks[who] {
            Task::Away => 0,
            Task::Waiting(_) => 1,
            Task::Inside(_) => 2,
            Task::Gone => 3,
        };
        let tasks = (0..TASKS).map(|who| (phase(who), self.is_woken(who)));
        (tasks.collect(), self.order.clone())
    }

    fn complaint(&self) -> Option<&'static str> {
        let inside = |task: &&Task| matches!(task, Task::Inside(_));
        let inside = self.tasks.iter().filter(inside).count();
        let woken: Vec<_> = (0..TASKS).filter(|who| self.is_woken(*who)).collect();
        if inside + woken.len() > 1 {
            return Some("two have the turn");
        }
        match self.order.first() {
            Some(_) if inside == 0 && woken.is_empty() => Some("nobody has the turn"),
            Some(first) if inside == 0 && woken != [*first] => Some("not the first has the turn"),
            None if inside == 0 && !lock(&self.turns.contended).is_empty() => {
                Some("something is left behind")
            }
            _ => None,
        }
    }
}

/// How many worlds there are, or the way to one where something is wrong.
fn search(wrong: Option<Wrong>) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut ways = vec![vec![]];
    while let Some(way) = ways.pop() {
        let world = World::after(&way, wrong);
        if let Some(complaint) = world.complaint() {
            return Err(format!("{complaint} after {way:?}"));
        }
        if seen.insert(world.image()) {
            let longer = |step| [way.as_slice(), &[step]].concat();
            ways.extend(world.steps().into_iter().map(longer));
        }
    }
    Ok(seen.len())
}

#[test]
fn turns_pass_on_whoever_loses_interest() {
    println!("{TASKS} tasks: {} worlds", search(None).unwrap());
}

#[test]
fn planted_mistake_a_task_that_loses_interest_swallows_its_turn() {
    let complaint = search(Some(Wrong::Swallows)).unwrap_err();
    println!("{complaint}");
    assert!(
        complaint.starts_with("nobody has the turn")
            || complaint.starts_with("something is left behind"),
        "{complaint}"
    );
}

#[test]
fn planted_mistake_a_turn_that_is_not_passed_on() {
    let complaint = search(Some(Wrong::Keeps)).unwrap_err();
    println!("{complaint}");
    assert!(
        complaint.starts_with("nobody has the turn")
            || complaint.starts_with("something is left behind"),
        "{complaint}"
    );
}
