//! `tenure`'s end of the link to its guardian.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
use rustix::process::{Pid, Signal, getpgrp};
use tokio::net::UnixDatagram;

use super::protocol::{ARGUMENT, Instruction, Limits, MAX_DESCRIPTORS, MAX_PACKET, Report};
use crate::{platform, process_tree};

/// A guardian that was started and has the command, but starts it on instruction only.
/// When this is dropped, the guardian ends whatever it has started.
pub(crate) struct GuardianHandle {
    /// On Linux a sequenced-packet socket, which is read and polled as a datagram socket is.
    socket: UnixDatagram,
    guardian: Child,
}

impl GuardianHandle {
    /// Starts a guardian for `command`: this very program again, the socket as its standard input.
    /// `in_our_group`: the command joins our process group instead of getting its own.
    pub(crate) fn spawn(command: &[OsString], in_our_group: bool) -> io::Result<Self> {
        // Should the guardian be killed, its orphans come to us, and we end them.
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
            // Keys that end or stop our group, and signals to it, are not for the guardian.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            socket: UnixDatagram::from_std(ours)?,
            guardian,
        })
    }

    /// Gives the guardian duplicates of descriptors that keep the lock in the kernel, so that nobody else
    /// gets it before the command's tree is gone, whatever happens to us.
    pub(crate) fn hold_descriptors(&self, descriptors: &[OwnedFd]) -> io::Result<()> {
        for part in descriptors.chunks(MAX_DESCRIPTORS) {
            let part: Vec<_> = part.iter().map(AsFd::as_fd).collect();
            self.send(&Instruction::HoldDescriptors, &part)?;
        }
        Ok(())
    }

    /// Has the command started, with our standard input.
    pub(crate) fn start_command(&self, limits: Limits, environment: [String; 3]) -> io::Result<()> {
        self.send(
            &Instruction::Start {
                limits,
                environment,
            },
            &[io::stdin().as_fd()],
        )
    }

    /// Replaces the limits. A guardian that does not listen any more is noticed by [`GuardianHandle::next_report`].
    pub(crate) fn set_limits(&self, limits: Limits) {
        let _ = self.send(&Instruction::Limits(limits), &[]);
    }

    /// Passes a signal on to the command.
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

    /// Waits for the guardian's own end, once it has said that all is done (or was told nothing).
    pub(crate) fn shut_down(self) {
        // A guardian that is gone needs no instruction.
        let _ = self.send(&Instruction::Close, &[]);
        let Self {
            socket,
            mut guardian,
        } = self;
        drop(socket);
        let _ = guardian.wait();
    }

    /// Ends the guardian and everything below it, `command` above all. For when the guardian does not do its work.
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
        // Never blocks: a guardian that is stopped must not stop us.
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
