//! The names of workers and their tasks, in texts.

use crate::checker::Overlap;
use crate::history::History;
use crate::settings::task_of;

/// Names the tasks of a run; where each process has one task, the worker says enough.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    has_tasks: bool,
}

impl Who {
    /// For the texts about this history.
    pub(crate) fn of(history: &History) -> Self {
        Self {
            has_tasks: history.tasks() > 1,
        }
    }

    /// A task of a worker.
    pub(crate) fn task(self, worker: usize, task: usize) -> String {
        match self.has_tasks {
            true => format!("task {task} of worker {worker}"),
            false => format!("worker {worker}"),
        }
    }

    /// The two that hold at once.
    pub(crate) fn both(self, overlap: &Overlap) -> String {
        let [one, other] = [overlap.first, overlap.second];
        match self.has_tasks {
            true => {
                let text = |(acquisition, worker)| self.task(worker, task_of(acquisition));
                format!("{} and {}", text(one), text(other))
            }
            false => format!("workers {} and {}", one.1, other.1),
        }
    }
}
