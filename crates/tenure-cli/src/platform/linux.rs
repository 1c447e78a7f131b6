//! Linux: descriptors of processes and timers, /proc, and orphans that become children of an ancestor.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{
    ForeignRawFd, PidfdFlags, PidfdGetfdFlags, Signal, getpid, pidfd_getfd, pidfd_open,
    set_child_subreaper,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::UnixDatagram;

use crate::clock::NEVER;

/// Whether descendants of this process become its children when their parents end.
pub(crate) const ADOPTS_ORPHANS: bool = true;

/// A packet is sent at once or not at all. A peer that is gone causes an error and no signal.
pub(crate) const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// A packet is received at once or not at all.
pub(crate) const RECEIVE_FLAGS: RecvFlags = RecvFlags::DONTWAIT.union(RecvFlags::CMSG_CLOEXEC);

/// From now on, descendants of this process become its children when their parents end.
pub(crate) fn adopt_orphans() -> rustix::io::Result<()> {
    set_child_subreaper(Some(getpid()))
}

/// Names this thread, for `ps` and `top`.
pub(crate) fn set_thread_name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// This program, also when its file was replaced or removed.
pub(crate) fn current_program() -> io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Two ends of a socket for packets. An end reports when the other end is closed, and commands do not inherit it.
pub(crate) fn socket_pair(_longest_packet: usize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Does nothing: the flags of the receiving call already keep the descriptor from commands.
pub(crate) fn close_on_exec(_: &OwnedFd) -> rustix::io::Result<()> {
    Ok(())
}

/// The length of the next packet from `guardian`; 0 when the guardian is gone. Cancel safe.
pub(crate) async fn receive_packet(
    socket: &UnixDatagram,
    _guardian: &mut Child,
    packet: &mut [u8],
) -> io::Result<usize> {
    socket.recv(packet).await
}

/// Always `false`: the socket reports when `tenure` is gone.
pub(crate) fn tenure_has_exited() -> bool {
    false
}

/// A timer on the clock of [`crate::clock`].
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Boottime, flags).map(Self)
    }

    /// Waits until `at`, or until one of `sources` is ready.
    pub(crate) fn wait<'a>(
        &'a self,
        mut sources: Vec<PollFd<'a>>,
        at: u64,
    ) -> rustix::io::Result<()> {
        // All zero stops the timer; an instant in the past fires at once.
        let it_value = match at {
            NEVER => Timespec::default(),
            at => Timespec {
                tv_sec: i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (at % 1_000_000_000) as _,
            },
        };
        let setting = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &setting)?;
        sources.push(PollFd::new(&self.0, PollFlags::IN));
        match poll(&mut sources, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// The signals of the list `signals` that were ignored when this process started.
pub(crate) fn ignored_signals(signals: &[Signal]) -> Vec<Signal> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit N - 1 stands for signal N.
    let is_ignored = |signal: &Signal| mask.unwrap_or(0) >> (signal.as_raw() - 1) & 1 == 1;
    signals.iter().copied().filter(is_ignored).collect()
}

/// A duplicate of every descriptor that this process opened and that carries a `flock`.
///
/// The library does not export its files, and need not: the kernel reports which descriptors carry a lock (a `lock:` line
/// in `fdinfo`), and duplicates descriptors of this process. A duplicate shares the lock, which lasts until it is
/// released explicitly or the last duplicate is closed. A descriptor that the caller passed on has a lock of the caller,
/// who ends it: such a descriptor was open across an `exec`, so it lacks the flag `CLOEXEC`, which all others have.
///
/// # Errors
/// The errors of the kernel, or of a sandbox around this process.
pub(crate) fn duplicate_flocks() -> io::Result<Vec<OwnedFd>> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut duplicates = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(number) = name
            .to_str()
            .and_then(|name| name.parse::<ForeignRawFd>().ok())
        else {
            continue;
        };
        // The descriptor of the directory itself may be closed meanwhile, and so may others.
        let Ok(info) = fs::read_to_string(entry.path()) else {
            continue;
        };
        if carries_flock(&info) && is_closed_by_exec(&info) {
            duplicates.push(pidfd_getfd(&this, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(duplicates)
}

/// Whether the descriptor of this `fdinfo` carries a `flock`.
fn carries_flock(info: &str) -> bool {
    info.lines()
        .any(|line| line.starts_with("lock:") && line.contains("FLOCK"))
}

/// Whether the descriptor of this `fdinfo` has the flag `CLOEXEC`.
fn is_closed_by_exec(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags).contains(OFlags::CLOEXEC))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::File;
    use std::os::fd::AsFd;

    use rustix::fs::fstat;
    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    #[test]
    fn a_lock_of_the_caller_is_not_duplicated() {
        let directory = tempfile::tempdir().unwrap();
        let locked = |name: &str| {
            let file = File::create(directory.path().join(name)).unwrap();
            file.lock().unwrap();
            file
        };
        let (ours, inherited) = (locked("ours"), locked("inherited"));
        fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
        let file_of = |descriptor: &dyn AsFd| fstat(descriptor).unwrap().st_ino;
        let duplicates = duplicate_flocks().unwrap();
        let duplicates: HashSet<_> = duplicates.iter().map(|it| file_of(it)).collect();
        assert!(duplicates.contains(&file_of(&ours)));
        assert!(!duplicates.contains(&file_of(&inherited)));
    }
}
