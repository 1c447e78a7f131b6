//! Systems other than Linux: with sockets, `ps` and `/bin/sh`.
//!
//! Unit tests run this on Linux, too. docs/platforms.md describes what is weaker here.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, getppid};
use rustix::time::Timespec;
use tokio::net::UnixDatagram;

use crate::clock::NEVER;

/// Whether descendants of this process become its children when their parents end.
pub(crate) const ADOPTS_ORPHANS: bool = false;

/// A packet is sent at once or not at all. The runtime of Rust ignores SIGPIPE.
pub(crate) const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

/// A packet is received at once or not at all.
pub(crate) const RECEIVE_FLAGS: RecvFlags = RecvFlags::DONTWAIT;

/// How often a process checks whether the other one is gone, which datagram sockets do not report.
/// The guardian is late by at most this time after the machine was suspended, because a wait stands still meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Does nothing: orphans become children of process 1.
pub(crate) fn adopt_orphans() -> rustix::io::Result<()> {
    Ok(())
}

/// Does nothing: threads are not named through a safe interface.
pub(crate) fn set_thread_name(_: &CStr) {}

/// The file of this program.
pub(crate) fn current_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Two ends of a socket for packets, which commands do not inherit.
pub(crate) fn socket_pair(longest_packet: usize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    // macOS has no sequenced packets in this family.
    let flags = SocketFlags::empty();
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    for end in [&ours, &theirs] {
        close_on_exec(end)?;
        // The default of macOS is 2 KiB; an instruction to start can be longer.
        set_socket_send_buffer_size(end, longest_packet)?;
        set_socket_recv_buffer_size(end, 2 * longest_packet)?;
    }
    Ok((ours, theirs))
}

/// Keeps a received descriptor from commands.
pub(crate) fn close_on_exec(descriptor: &OwnedFd) -> rustix::io::Result<()> {
    fcntl_setfd(descriptor, FdFlags::CLOEXEC)
}

/// The length of the next packet from `guardian`; 0 when the guardian is gone. Cancel safe.
pub(crate) async fn receive_packet(
    socket: &UnixDatagram,
    guardian: &mut Child,
    packet: &mut [u8],
) -> io::Result<usize> {
    loop {
        // This check comes before the wait, so that the guardian's last packet is received.
        let is_gone = guardian.try_wait()?.is_some();
        match tokio::time::timeout(POLL_INTERVAL, socket.recv(packet)).await {
            Ok(received) => return received,
            Err(_) if is_gone => return Ok(0),
            Err(_) => {}
        }
    }
}

/// Whether `tenure` is gone: then process 1 is the parent of this process.
pub(crate) fn tenure_has_exited() -> bool {
    getppid().is_none_or(|parent| parent.is_init())
}

/// A timer on the clock of [`crate::clock`].
pub(crate) struct Timer;

impl Timer {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self)
    }

    /// Waits until `at`, or until one of `sources` is ready, or for [`POLL_INTERVAL`].
    pub(crate) fn wait<'a>(
        &'a self,
        mut sources: Vec<PollFd<'a>>,
        at: u64,
    ) -> rustix::io::Result<()> {
        let left = match at {
            NEVER => POLL_INTERVAL,
            at => crate::clock::until(at).min(POLL_INTERVAL),
        };
        let limit = Timespec {
            tv_sec: 0,
            // The time is at most the interval, which is less than a second.
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut sources, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// The signals of the list `signals` that were ignored when this process started.
///
/// No safe interface reports which signals are ignored. A program inherits the ignored signals, so a shell starts another
/// shell for each signal, which sends the signal to itself: it survives only if the signal is ignored.
pub(crate) fn ignored_signals(signals: &[Signal]) -> Vec<Signal> {
    let script =
        r#"ulimit -c 0; for number do /bin/sh -c 'kill -"$0" $$; echo "$0"' "$number"; done"#;
    let numbers = signals.iter().map(|signal| signal.as_raw().to_string());
    let output = Command::new("/bin/sh")
        .args(["-c", script, "sh"])
        .args(numbers)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    let survived: Vec<i32> = String::from_utf8_lossy(&output)
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    let is_ignored = |signal: &Signal| survived.contains(&signal.as_raw());
    signals.iter().copied().filter(is_ignored).collect()
}

/// Always an error: the system does not report which descriptors carry a lock.
pub(crate) fn duplicate_flocks() -> io::Result<Vec<OwnedFd>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use rustix::event::PollFlags;

    use super::*;

    const MAX_PACKET: usize = 3 * 128 * 1024 + 64;

    #[test]
    fn the_longest_packet_passes_through_the_socket() {
        let (ours, theirs) = socket_pair(MAX_PACKET).unwrap();
        let packet = vec![7; MAX_PACKET];
        assert_eq!(
            rustix::net::send(&ours, &packet, SEND_FLAGS),
            Ok(MAX_PACKET)
        );
        let mut received = vec![0; MAX_PACKET];
        let (_, length) =
            rustix::net::recv(&theirs, received.as_mut_slice(), RECEIVE_FLAGS).unwrap();
        assert_eq!((length, received), (MAX_PACKET, packet));
    }

    #[test]
    fn a_timer_ends_for_a_packet_and_without_one() {
        let (ours, theirs) = socket_pair(64).unwrap();
        let timer = Timer::new().unwrap();
        let source = || vec![PollFd::new(&theirs, PollFlags::IN)];
        timer.wait(source(), NEVER).unwrap();
        rustix::net::send(&ours, b"x", SEND_FLAGS).unwrap();
        timer.wait(source(), NEVER).unwrap();
    }
}
