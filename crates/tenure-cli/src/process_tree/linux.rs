//! Processes as /proc shows them.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::process::{Process, descendants_among};

/// Does nothing: descendants of this process stay descendants, because it adopts orphans.
pub(crate) fn record_descendants() {}

/// How many processes descended from this one and do so no more: always zero.
pub(crate) fn count_orphans() -> usize {
    0
}

pub(super) fn send_signal(process: Process, signal: Signal) -> Result<(), Errno> {
    match pidfd_open(process.pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            // While the descriptor is open, the process that has the id now keeps the id.
            let same = stat(process.pid).is_some_and(|now| now.start_time == process.start_time);
            if same {
                pidfd_send_signal(&pidfd, signal)
            } else {
                Err(Errno::SRCH)
            }
        }
        // Before Linux 5.3, or forbidden by a sandbox.
        Err(Errno::NOSYS | Errno::PERM) => rustix::process::kill_process(process.pid, signal),
        Err(errno) => Err(errno),
    }
}

/// All descendants of `root` that can be seen now. A process that forks meanwhile may hide a child, so callers repeat the
/// search until no descendant is left.
pub(super) fn descendants(root: Pid) -> Vec<Process> {
    let mut found = Vec::new();
    match children(root) {
        Ok(children) => {
            let mut open = children;
            while let Some(pid) = open.pop() {
                found.extend(stat(pid));
                open.extend(children_or_none(pid));
            }
        }
        // The kernel was built without lists of children.
        Err(_) => found = descendants_among(&[root], all_processes()),
    }
    found
}

fn children_or_none(pid: Pid) -> Vec<Pid> {
    children(pid).unwrap_or_default()
}

/// The children of all threads of `pid`.
fn children(pid: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()))? {
        let list = fs::read_to_string(thread?.path().join("children"))?;
        children.extend(list.split_ascii_whitespace().filter_map(parse_pid));
    }
    Ok(children)
}

fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| stat(parse_pid(entry.file_name().to_str()?)?))
        .collect()
}

fn stat(pid: Pid) -> Option<Process> {
    parse_stat(
        pid,
        &fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?,
    )
}

/// Reads a line of /proc/PID/stat. The program's name is in parentheses and may contain any
/// characters, also parentheses and line feeds.
fn parse_stat(pid: Pid, line: &[u8]) -> Option<Process> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&line[name_end + 1..]).ok()?;
    // state, parent, group, ...; the start time is field 22 of the line, 19 after the state.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_program_name_cannot_forge_its_line() {
        let line = b"77 (x) R 1 1 (\n) S 12 34 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 9 9\n";
        let process = parse_stat(Pid::from_raw(77).unwrap(), line).unwrap();
        assert_eq!(
            (process.parent, process.group, process.start_time),
            (12, 34, 4242)
        );
        assert!(!process.is_zombie);
    }

    #[test]
    fn both_ways_to_list_processes_find_this_process() {
        let me = getpid();
        let parent = rustix::process::getppid().unwrap();
        assert!(all_processes().iter().any(|process| process.pid == me));
        assert!(descendants(parent).iter().any(|process| process.pid == me));
    }
}
