//! The guardian's end of the socket to `tenure`.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, ReturnFlags, recvmsg, send};

use super::protocol::{Instruction, MAX_DESCRIPTORS, MAX_PACKET, Report};
use crate::platform;

/// The socket, and space for the longest packet.
pub(super) struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// What is in the socket at this moment.
pub(super) enum Received {
    /// An instruction and its descriptors.
    Instruction(Instruction, Vec<OwnedFd>),
    /// Nothing.
    Nothing,
    /// `tenure` has closed its end.
    Closed,
}

impl Channel {
    /// Takes over the socket that `tenure` passed as standard input.
    pub(super) fn from_standard_input() -> rustix::io::Result<Self> {
        // The command gets a standard input of its own, so the socket moves above the three standard descriptors.
        let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3)?;
        let buffer = vec![0; MAX_PACKET];
        Ok(Self { socket, buffer })
    }

    /// Receives the next instruction without waiting for one.
    ///
    /// # Errors
    /// The errors of the socket; `MSGSIZE` and `BADMSG` for a packet that `tenure` does not send.
    pub(super) fn receive(&mut self) -> rustix::io::Result<Received> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let iov = &mut [IoSliceMut::new(&mut self.buffer)];
        let received = match recvmsg(&self.socket, iov, &mut control, platform::RECEIVE_FLAGS) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::Closed),
            Err(errno) => return Err(errno),
        };
        let descriptors: Vec<_> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        descriptors.iter().try_for_each(platform::close_on_exec)?;
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(Errno::MSGSIZE);
        }
        let packet = &self.buffer[..received.bytes];
        let instruction = Instruction::decode(packet).ok_or(Errno::BADMSG)?;
        Ok(Received::Instruction(instruction, descriptors))
    }

    /// Sends a report. An error is ignored: when `tenure` is gone, no process needs the report.
    pub(super) fn send(&self, report: Report) {
        let _ = send(&self.socket, &report.encode(), platform::SEND_FLAGS);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
