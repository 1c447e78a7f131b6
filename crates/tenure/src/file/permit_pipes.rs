//! How the first waiter for a permit learns that one is free: a pipe for each permit.
//!
//! The kernel has no call that waits for one of several locks. It has one that waits for several pipes, and closes a pipe
//! of a dead process: each holder of a permit has the pipe of that permit open for writing, so the reader is woken by a
//! release and by the death of any holder.

use std::io::PipeReader;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use super::names::{self, SideKind};
use super::side::Sides;

/// Pipes that are watched at most; each takes a descriptor of the first waiter.
const MAX_PIPES: u32 = 256;

/// How often the permits are tried although no pipe was closed: a holder may have died before it opened its pipe. For the same
/// reason a waiter looks that often whether a detached hold is over.
pub(super) const SAFETY_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How late a free permit is noticed at most by a waiter that cannot watch all permits.
pub(super) const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The pipes of the permits of one name, open for reading.
pub(super) struct PermitPipes(Vec<OwnedFd>);

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PipeEvent {
    /// A holder has closed its pipe, so a permit is free, or will be in a moment.
    Closed,
    /// Nothing happened for a while.
    TimedOut,
    /// The waiter has left.
    WaiterLeft,
}

impl PermitPipes {
    /// Opens the pipes of all permits up to `limit`. `None`: there are too many, or there are no pipes here.
    pub(super) fn open(sides: &Sides<'_>, limit: u32) -> Option<Self> {
        if limit > MAX_PIPES {
            return None;
        }
        let pipe = |index| {
            let file = names::side(sides.file, SideKind::PermitPipe, index);
            sides.directory.open_pipe(&file, OFlags::RDONLY)
        };
        (0..limit).map(pipe).collect::<Option<_>>().map(Self)
    }

    /// Blocks until something happens. `leave` is closed when the waiter leaves.
    pub(super) fn wait(&self, leave: &PipeReader) -> PipeEvent {
        wait_for_pipes(&self.0, leave, SAFETY_POLL_INTERVAL)
    }
}

/// Blocks until one of the pipes is closed, for `timeout` at most. `leave` is closed when the waiter leaves.
pub(super) fn wait_for_pipes(
    pipes: &[OwnedFd],
    leave: &PipeReader,
    timeout: Duration,
) -> PipeEvent {
    let all = [leave.as_fd()].into_iter();
    let all = all.chain(pipes.iter().map(|pipe| pipe.as_fd()));
    let mut polled: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(0) | Err(_) => PipeEvent::TimedOut,
        Ok(_) if !polled[0].revents().is_empty() => PipeEvent::WaiterLeft,
        Ok(_) => PipeEvent::Closed,
    }
}
