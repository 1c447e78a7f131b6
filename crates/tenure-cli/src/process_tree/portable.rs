//! Processes as `ps` shows them.
//!
//! A process whose parent ends becomes a child of process 1. So the descendants that were seen are remembered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};
use tenure_core::rt::lock;

use super::process::{Process, descendants_among};

/// The descendants of this process that the last search found.
static KNOWN_DESCENDANTS: Mutex<Vec<Process>> = Mutex::new(Vec::new());

/// Records the descendants of this process, to recognize them when their parents have ended.
pub(crate) fn record_descendants() {
    descendants(getpid());
}

/// How many processes are left that descended from this one when they were recorded, or descend from it now.
pub(crate) fn count_orphans() -> usize {
    descendants(getpid()).len()
}

pub(super) fn send_signal(process: Process, signal: Signal) -> Result<(), Errno> {
    kill_process(process.pid, signal)
}

/// All descendants of `root` that can be seen now, and those that were seen before and still run, with their
/// descendants. A process that forks meanwhile may hide a child, so callers repeat the search until no descendant is
/// left.
pub(super) fn descendants(root: Pid) -> Vec<Process> {
    let all = all_processes();
    let mut known = lock(&KNOWN_DESCENDANTS);
    let is_same = |one: &Process, other: &Process| {
        one.pid == other.pid && one.start_time == other.start_time && !one.is_zombie
    };
    let (mut found, others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|process| known.iter().any(|one| is_same(process, one)));
    let roots: Vec<_> = [root]
        .into_iter()
        .chain(found.iter().map(|process| process.pid))
        .collect();
    found.extend(descendants_among(&roots, others));
    known.clone_from(&found);
    found
}

/// All processes but the `ps` that lists them.
fn all_processes() -> Vec<Process> {
    let listing = Command::new("/bin/ps")
        // An option for each column: a comma may count as part of the heading before it.
        .args("-A -o pid= -o ppid= -o pgid= -o stat= -o lstart=".split(' '))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(listing) = listing else {
        return Vec::new();
    };
    let itself = Pid::from_child(&listing);
    let output = listing.wait_with_output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output)
        .lines()
        .filter_map(parse_line)
        .filter(|process| process.pid != itself)
        .collect()
}

fn parse_line(line: &str) -> Option<Process> {
    let mut fields = line.split_ascii_whitespace();
    let mut number = || fields.next()?.parse().ok();
    let (pid, parent, group) = (number()?, number()?, number()?);
    let is_zombie = fields.next()?.starts_with('Z');
    let mut start_time = DefaultHasher::new();
    fields.for_each(|field| field.hash(&mut start_time));
    Some(Process {
        pid: Pid::from_raw(pid)?,
        parent,
        group,
        is_zombie,
        start_time: start_time.finish(),
    })
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpgrp, getppid};

    use super::*;

    #[test]
    fn a_line_of_macos_is_read() {
        let process = parse_line("  501     1   501 Ss+  Tue Nov 24 21:28:23 2026    ").unwrap();
        assert_eq!(
            (process.pid.as_raw_pid(), process.parent, process.group),
            (501, 1, 501)
        );
        assert!(!process.is_zombie);
        assert!(
            parse_line("  502   501   501 Z    Tue Nov 24 21:28:23 2026    ")
                .unwrap()
                .is_zombie
        );
        assert!(parse_line("garbage").is_none());
    }

    #[test]
    fn a_recorded_process_is_found_when_its_parent_has_ended() {
        // The shell ends when its input ends; its child goes on.
        let mut parent = Command::new("/bin/sh")
            .args(["-c", "sleep 1000 >/dev/null & echo $!; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = parent.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let orphan = line.trim().parse().ok().and_then(Pid::from_raw).unwrap();
        let find = || {
            let all = descendants(getpid());
            all.into_iter().find(|process| process.pid == orphan)
        };
        assert!(find().is_some());
        drop(parent.stdin.take());
        parent.wait().unwrap();
        let found = find().unwrap();
        assert_ne!(found.parent, Pid::from_child(&parent).as_raw_pid());
        send_signal(found, Signal::KILL).unwrap();
        while find().is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn this_process_is_found_below_its_parent() {
        let all = descendants(getppid().unwrap());
        let this = all.iter().find(|process| process.pid == getpid()).unwrap();
        assert_eq!(this.group, getpgrp().as_raw_pid());
    }
}
