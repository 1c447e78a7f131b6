//! A process's descendants, and signals to all of them.
//!
//! On Linux, signals are sent through process descriptors, after a check of the start time that was read with the
//! process id: so a signal never reaches another process that got the same id meanwhile.
//! On other systems, signals are sent to the id that was read a moment before.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(not(target_os = "linux"), test))]
#[cfg_attr(target_os = "linux", allow(dead_code))]
mod portable;
mod process;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid};

#[cfg(target_os = "linux")]
pub(crate) use linux::{count_orphans, record_descendants};
#[cfg(target_os = "linux")]
use linux::{descendants, send_signal};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{count_orphans, record_descendants};
#[cfg(not(target_os = "linux"))]
use portable::{descendants, send_signal};

/// How many processes a signal to a whole tree reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalCounts {
    /// Processes that got the signal.
    pub(crate) delivered: u32,
    /// Processes of another user, to which this process may not send a signal.
    pub(crate) refused: u32,
}

/// Sends `signal` to every live descendant of this process; with a `group`, only to its members.
pub(crate) fn signal_descendants(signal: Signal, group: Option<Pid>) -> SignalCounts {
    let mut sent = SignalCounts::default();
    for process in descendants(getpid()) {
        let other_group = group.is_some_and(|group| process.group != group.as_raw_pid());
        if process.is_zombie || other_group {
            continue;
        }
        match send_signal(process, signal) {
            Ok(()) => sent.delivered += 1,
            Err(Errno::PERM) => sent.refused += 1,
            // The process ended meanwhile.
            Err(_) => {}
        }
    }
    sent
}

/// Sends SIGKILL to `command`, to the group that it leads, and to its descendants. For systems where the command is no
/// descendant of this process any more when the guardian is gone.
pub(crate) fn kill_command(command: Pid) {
    let is_leader = rustix::process::getpgid(Some(command)) == Ok(command);
    for process in descendants(command) {
        let _ = send_signal(process, Signal::KILL);
    }
    let _ = rustix::process::kill_process(command, Signal::KILL);
    if is_leader {
        let _ = rustix::process::kill_process_group(command, Signal::KILL);
    }
}

/// Reaps one dead child, if there is one, and returns its id and its status as a shell gives it.
///
/// # Errors
/// `ECHILD` when no child is left, dead or alive.
pub(crate) fn reap() -> Result<Option<(Pid, u8)>, Errno> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(None) => return Ok(None),
            Ok(Some((pid, status))) => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                if let Some(code) = status.exit_status().or(signal) {
                    return Ok(Some((pid, code as u8)));
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
