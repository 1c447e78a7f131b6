//! The guardian as `tenure` sees it: it is started, instructed and ended here.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
use rustix::process::{Pid, Signal, getpgrp};
use tokio::net::UnixDatagram;

use super::protocol::{ARGUMENT, Instruction, Limits, MAX_DESCRIPTORS, MAX_PACKET, Report};
use crate::{platform, process_tree};

/// How long a guardian without work may take to end.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Pauses between two checks whether the guardian has ended: most guardians end within a fraction of a millisecond.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// A guardian that was started. It starts its command only when it is instructed to.
/// When this is dropped, the guardian ends all processes that it has started.
pub(crate) struct GuardianHandle {
    /// On Linux a sequenced-packet socket, which is read and polled like a datagram socket.
    socket: UnixDatagram,
    guardian: Child,
}

impl GuardianHandle {
    /// Starts a guardian for `command`: this program again, with the socket as its standard input.
    /// With `in_our_group` the command joins the process group of `tenure`; otherwise it gets a new group.
    pub(crate) fn spawn(command: &[OsString], in_our_group: bool) -> io::Result<Self> {
        // If the guardian is killed, its orphans become children of this process, which ends them.
        platform::adopt_orphans()?;
        let (ours, theirs) = platform::socket_pair(MAX_PACKET)?;
        let ours = std::os::unix::net::UnixDatagram::from(ours);
        ours.set_nonblocking(true)?;
        let group = if in_our_group {
            getpgrp().as_raw_pid()
        } else {
            0
        };
        let guardian = Command::new(platform::current_program()?)
            .arg0("tenure")
            .arg(ARGUMENT)
            .arg(group.to_string())
            .args(command)
            .stdin(Stdio::from(theirs))
            // Signals to the process group of `tenure`, such as those of Ctrl-C, must not reach the guardian.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            socket: UnixDatagram::from_std(ours)?,
            guardian,
        })
    }

    /// Whether the guardian still waits for its instruction.
    pub(crate) fn is_there(&mut self) -> bool {
        matches!(self.guardian.try_wait(), Ok(None))
    }

    /// Gives the guardian duplicates of descriptors that keep the lock in the kernel. So the kernel keeps the lock until
    /// the command's tree is gone, also when `tenure` is killed.
    pub(crate) fn hold_descriptors(&self, descriptors: &[OwnedFd]) -> io::Result<()> {
        for part in descriptors.chunks(MAX_DESCRIPTORS) {
            let part: Vec<_> = part.iter().map(AsFd::as_fd).collect();
            self.send(&Instruction::HoldDescriptors, &part)?;
        }
        Ok(())
    }

    /// Instructs the guardian to remove a file with these contents as soon as the command has to end, also when `tenure` is
    /// killed or stopped by then.
    pub(crate) fn remove_at_the_end(&self, path: &Path, text: &str) {
        let instruction = Instruction::ReadyFile {
            path: path.as_os_str().as_encoded_bytes().to_vec(),
            text: text.into(),
        };
        let _ = self.send(&instruction, &[]);
    }

    /// Instructs the guardian to start the command with the standard input of `tenure`.
    pub(crate) fn start_command(&self, limits: Limits, environment: [String; 3]) -> io::Result<()> {
        self.send(
            &Instruction::Start {
                limits,
                environment,
            },
            &[io::stdin().as_fd()],
        )
    }

    /// Replaces the limits. [`GuardianHandle::next_report`] shows when the guardian is gone.
    pub(crate) fn set_limits(&self, limits: Limits) {
        let _ = self.send(&Instruction::Limits(limits), &[]);
    }

    /// Instructs the guardian to send a signal to the command.
    pub(crate) fn forward_signal(&self, signal: Signal) {
        let _ = self.send(&Instruction::Signal(signal.as_raw()), &[]);
    }

    /// The guardian's next report; `None` when it is gone. Cancel safe.
    pub(crate) async fn next_report(&mut self) -> io::Result<Option<Report>> {
        let mut packet = [0; 16];
        let received = loop {
            match platform::receive_packet(&self.socket, &mut self.guardian, &mut packet).await {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break 0,
                received => break received?,
            }
        };
        match Report::decode(&packet[..received]) {
            None if received == 0 => Ok(None),
            None => Err(io::ErrorKind::InvalidData.into()),
            report => Ok(report),
        }
    }

    /// Waits for the end of a guardian that has sent its last report or got no instruction. Such a guardian has no work, so
    /// it is killed if it is stopped or does not end.
    pub(crate) fn shut_down(self) {
        // A guardian that is gone needs no instruction.
        let _ = self.send(&Instruction::Close, &[]);
        let Self {
            socket,
            mut guardian,
        } = self;
        drop(socket);
        let (limit, mut pause) = (Instant::now() + SHUT_DOWN_TIMEOUT, FIRST_PAUSE);
        while let Ok(None) = guardian.try_wait() {
            if Instant::now() >= limit {
                let _ = guardian.kill();
                let _ = guardian.wait();
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Ends the guardian and all its descendants, `command` included. For a guardian that does not work.
    pub(crate) fn kill_tree(self, command: Option<u32>) {
        if !platform::ADOPTS_ORPHANS
            && let Some(command) = command.and_then(|id| Pid::from_raw(id.cast_signed()))
        {
            process_tree::kill_command(command);
        }
        loop {
            let sent = process_tree::signal_descendants(Signal::KILL, None);
            match process_tree::reap() {
                Err(_) => return,
                Ok(None) if sent.delivered == 0 && sent.refused > 0 => return,
                Ok(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }

    fn send(&self, instruction: &Instruction, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let packet = instruction.encode();
        // This never blocks: a guardian that is stopped must not stop `tenure`.
        let iov = [IoSlice::new(&packet)];
        loop {
            match sendmsg(&self.socket, &iov, &mut control, platform::SEND_FLAGS) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
