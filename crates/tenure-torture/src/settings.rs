//! What a worker is told by the runner.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::mode::{HoldMode, Modes};

/// The environment variable with a worker's [`Settings`]. Arguments are visible to all users, and the URL may hold a
/// password.
pub const VARIABLE: &str = "TENURE_TORTURE_WORKER";

/// How workers use the store.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// The number of worker processes.
    pub workers: usize,
    /// The number of tasks in each of them, which share a client; at most [`MAX_TASKS`].
    pub tasks: usize,
    /// The number of names that the workers share.
    pub names: usize,
    /// The lease of each lock.
    pub ttl: Duration,
    /// The longest hold of a worker.
    pub hold: Duration,
    /// Workers try again and again, and do not wait. Then a lock that is free by mistake is taken at once.
    pub only_tries: bool,
    /// The modes in which workers hold, in turn.
    pub modes: Modes,
}

/// The settings of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The store.
    pub url: String,
    /// The number of the worker.
    pub worker: usize,
    /// How many processes had this number before.
    pub life: u64,
    /// Names to lock.
    pub names: Vec<String>,
    /// Names of elections.
    pub elections: Vec<String>,
    /// How the store is used.
    pub workload: Workload,
    /// The address of the register.
    pub register: SocketAddr,
    /// The log of events.
    pub events: PathBuf,
    /// The seed for the choices of the worker.
    pub seed: u64,
    /// The pid of the runner. A worker ends with it.
    pub runner: i32,
}

impl Settings {
    /// The first number of a task of this process, for acquisitions and observers; those of other tasks are far away.
    pub(crate) fn first_number(&self, task: usize) -> u64 {
        (self.worker as u64) << WORKER_SHIFT | (task as u64) << TASK_SHIFT | self.life << 24
    }

    /// The elections that the worker observes: those of the run for one half of the workers.
    pub(crate) fn observed(&self) -> &[String] {
        match self.worker % 2 {
            1 => &self.elections,
            _ => &[],
        }
    }

    /// The elections in which the worker is a candidate: those of the run for the other half of the workers. Without locks
    /// all workers are candidates, because faults hit workers that hold.
    pub(crate) fn campaigns(&self) -> &[String] {
        let has_locks = self.lock_modes().iter().next().is_some();
        match self.worker % 2 {
            1 if has_locks => &[],
            _ => &self.elections,
        }
    }

    /// The modes of locks.
    pub(crate) fn lock_modes(&self) -> Modes {
        self.workload.modes.without(HoldMode::Election)
    }
}

/// Where the number of the task is in the number of an acquisition.
const TASK_SHIFT: u32 = 40;
/// Where the number of the worker is.
const WORKER_SHIFT: u32 = 44;

/// The largest number of tasks in a worker process: the number of an acquisition has no room for more.
pub const MAX_TASKS: usize = 1 << (WORKER_SHIFT - TASK_SHIFT);

/// The worker of an acquisition, or of an observer.
pub fn worker_of(number: u64) -> usize {
    (number >> WORKER_SHIFT) as usize
}

/// The task of an acquisition, among those of its worker.
pub fn task_of(number: u64) -> usize {
    (number >> TASK_SHIFT) as usize % MAX_TASKS
}
