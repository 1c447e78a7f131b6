//! The time in which a worker believed that it holds.

use crate::mode::HoldMode;
use crate::settings::task_of;

/// One acquisition, for the time in which its owner believed that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The worker of the acquisition.
    pub worker: usize,
    /// The name of the lock.
    pub name: String,
    /// How the worker holds.
    pub mode: HoldMode,
    /// The acquisition whose hold has this mode now, or whose detached hold the worker is attached to; none: a new hold.
    pub changes: Option<u64>,
    /// The number of the hold in the store: tasks that pass a hold on among themselves have the same one.
    pub turn: Option<u64>,
    /// Fencing token.
    pub token: u64,
    /// When the worker had asked.
    pub asked: u64,
    /// When `acquire` had returned.
    pub start: u64,
    /// The earliest of: release called, loss noticed, own deadline, killed, end of the run.
    pub end: u64,
}

impl Claim {
    /// The task that holds, among those of its worker.
    pub fn task(&self) -> usize {
        task_of(self.acquisition)
    }

    /// Whether the token is that of the claim before, of the same worker: a downgrade keeps it.
    pub fn keeps_token(&self) -> bool {
        self.changes.is_some() && !self.mode.is_exclusive()
    }
}
