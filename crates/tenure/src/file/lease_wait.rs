//! How a waiter that has the kernel lock learns that the detached hold of the name was released: by a pipe.
//!
//! The waiter opens the pipe for reading, reads the record once more, and blocks in `poll` until the lease ends. A process that
//! has ended the hold opens the pipe for writing and closes it. The others that wait for the name block on the kernel lock, so a
//! release wakes one of them, or all that share it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::OFlags;

use super::names;
use super::permit_pipes::{PERMIT_POLL_INTERVAL, PipeEvent, SAFETY_POLL_INTERVAL, wait_for_pipes};
use super::side::Sides;
use super::waiter_threads::WaiterThread;

/// The wait for the end of one detached hold.
#[derive(Default)]
pub(super) struct LeaseWait(Option<OwnedFd>);

impl LeaseWait {
    /// Returns when the record should be read again, or when the waiter `number` has left. `left` is what is left of the lease.
    pub(super) fn wait(
        &mut self,
        sides: &Sides<'_>,
        thread: &WaiterThread,
        number: u64,
        left: Duration,
    ) {
        let Some(pipe) = &self.0 else {
            let pipe = names::lease_pipe(sides.file);
            self.0 = sides.directory.open_pipe(&pipe, OFlags::RDONLY);
            // A hold that was released before the pipe was opened is found by the next look at the record.
            if self.0.is_none() {
                thread.pause(number, left.min(PERMIT_POLL_INTERVAL));
            }
            return;
        };
        match thread.pipe_of_waiter(number) {
            Ok(None) => {}
            Ok(Some(leave)) => {
                // A process may be killed between the end of the hold and that of the pipe.
                let timeout = left.min(SAFETY_POLL_INTERVAL);
                if wait_for_pipes(std::slice::from_ref(pipe), &leave, timeout) == PipeEvent::Closed
                {
                    // A pipe stays closed for its reader.
                    self.0 = None;
                }
            }
            // No descriptor is left.
            Err(_) => thread.pause(number, left.min(PERMIT_POLL_INTERVAL)),
        }
    }
}

#[cfg(all(test, not(target_vendor = "apple")))]
mod tests {
    use super::*;
    use crate::file::store::Shared;

    /// The end of a pipe wakes each reader that opened it before, also one that does not block yet.
    #[test]
    fn the_end_of_a_pipe_wakes_those_that_have_opened_it() {
        let path = std::env::temp_dir().join(format!("tenure-lease-{}", std::process::id()));
        let (shared, _) = Shared::open(&path).unwrap();
        let directory = shared.directory();
        let hour = Duration::from_secs(3600);
        // Without a reader there is no waiter.
        directory.end_pipe("a%l0");
        let open = || directory.open_pipe("a%l0", OFlags::RDONLY).unwrap();
        let pipes = [open(), open()];
        let (leave, leaver) = std::io::pipe().unwrap();
        let wait = |pipe, timeout| wait_for_pipes(std::slice::from_ref(pipe), &leave, timeout);
        assert_eq!(wait(&pipes[0], Duration::ZERO), PipeEvent::TimedOut);
        directory.end_pipe("a%l0");
        for pipe in &pipes {
            assert_eq!(wait(pipe, hour), PipeEvent::Closed);
        }
        let again = open();
        assert_eq!(wait(&again, Duration::ZERO), PipeEvent::TimedOut);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&again, hour));
            directory.end_pipe("a%l0");
            assert_eq!(waiter.join().unwrap(), PipeEvent::Closed);
        });
        let again = open();
        drop(leaver);
        assert_eq!(wait(&again, hour), PipeEvent::WaiterLeft);
        let _ = std::fs::remove_dir_all(&path);
    }
}
