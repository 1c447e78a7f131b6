//! A process, and the search for descendants in a list of processes.

use rustix::process::Pid;

/// A process, as the system showed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) is_zombie: bool,
    /// The start time in some form. Together with the id it identifies one process.
    pub(super) start_time: u64,
}

/// The descendants of `roots` among `all`.
pub(super) fn descendants_among(roots: &[Pid], mut all: Vec<Process>) -> Vec<Process> {
    let mut found = Vec::new();
    let mut parents: Vec<_> = roots.iter().map(|root| root.as_raw_pid()).collect();
    while let Some(parent) = parents.pop() {
        all.retain(|process| {
            let child = process.parent == parent;
            if child {
                parents.push(process.pid.as_raw_pid());
                found.push(*process);
            }
            !child
        });
    }
    found
}
