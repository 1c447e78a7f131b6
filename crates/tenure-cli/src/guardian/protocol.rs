//! The messages between `tenure` and its guardian. Each packet of the socket pair is one message.
//!
//! Both ends are the same binary, so the format has no version. Numbers are little-endian. Times are nanoseconds of the
//! boot clock, or [`NEVER`].

use crate::clock::NEVER;

/// First argument of a guardian's process. Users do not type it.
pub(crate) const ARGUMENT: &str = "__guardian";

/// Maximum number of descriptors in one packet.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

/// Length of the longest packet: the largest environment variable that Linux passes on (128 KiB), three times.
pub(crate) const MAX_PACKET: usize = 3 * 128 * 1024 + 64;

/// How long the command may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// When SIGTERM is sent.
    pub(crate) term_at: u64,
    /// When SIGKILL is sent: before the moment at which another client may get the lock.
    pub(crate) kill_at: u64,
}

impl Limits {
    /// The command may run forever.
    pub(crate) const NONE: Self = Self {
        term_at: NEVER,
        kill_at: NEVER,
    };

    /// The earlier one of both limits, for each of the two signals.
    #[must_use]
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            term_at: self.term_at.min(other.term_at),
            kill_at: self.kill_at.min(other.kill_at),
        }
    }

    /// The limits after SIGTERM was sent, which was finished at the instant `done`. A late SIGTERM shows that this machine
    /// is slow, so SIGKILL would be late, too. Therefore SIGKILL is sent earlier by four times that delay. The command
    /// keeps at least half of the time that is left.
    #[must_use]
    pub(crate) fn after_a_late_term(self, done: u64) -> Self {
        if self.kill_at == NEVER {
            return self;
        }
        let late = done.saturating_sub(self.term_at);
        let half = self.kill_at.saturating_sub(done) / 2;
        Self {
            kill_at: self.kill_at - half.min(late.saturating_mul(4)),
            ..self
        }
    }
}

/// From `tenure` to the guardian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// The packet carries descriptors that keep the lock in the kernel. The guardian closes them when no process of the
    /// command is left.
    HoldDescriptors,
    /// Start the command. The packet carries the descriptor of its standard input.
    Start {
        /// Until when the command may run.
        limits: Limits,
        /// `TENURE_NAME`, `TENURE_TOKEN` and `TENURE_OWNER` of the command.
        environment: [String; 3],
    },
    /// Replace the limits.
    Limits(Limits),
    /// Send this signal to the command.
    Signal(i32),
    /// Remove the file at this path as soon as the command has to end, if it has these contents.
    ReadyFile { path: Vec<u8>, text: Vec<u8> },
    /// `tenure` closes its end of the socket, which not every system reports to the guardian.
    Close,
}

/// From the guardian to `tenure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command was started as this process.
    Started(u32),
    /// The command could not be started, for this reason (errno).
    NotStarted(i32),
    /// The limits were over before the command could be started.
    TooLate,
    /// The command ended. The guardian ends too and has closed what [`Instruction::HoldDescriptors`] gave it.
    Ended {
        /// The status as a shell gives it: the exit code, or 128 + signal.
        status: u8,
        /// The guardian ended the command. Then no process of its tree is left except the `survivors`.
        by_guardian: bool,
        /// Number of processes that could not be ended because they belong to another user.
        survivors: u32,
    },
}

impl Instruction {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut packet = Vec::with_capacity(64);
        match self {
            Self::HoldDescriptors => packet.push(b'K'),
            Self::Start {
                limits,
                environment,
            } => {
                packet.push(b'S');
                limits.put(&mut packet);
                for text in environment {
                    put_bytes(&mut packet, text.as_bytes());
                }
            }
            Self::Limits(limits) => {
                packet.push(b'L');
                limits.put(&mut packet);
            }
            Self::Signal(number) => {
                packet.push(b'G');
                packet.extend(number.to_le_bytes());
            }
            Self::ReadyFile { path, text } => {
                packet.push(b'R');
                put_bytes(&mut packet, path);
                put_bytes(&mut packet, text);
            }
            Self::Close => packet.push(b'C'),
        }
        packet
    }

    /// Reads the message in `packet`. Returns `None` for a packet that is no message.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let (kind, mut rest) = packet.split_first()?;
        let rest = &mut rest;
        Some(match kind {
            b'K' => Self::HoldDescriptors,
            b'S' => Self::Start {
                limits: Limits::take(rest)?,
                environment: [take_text(rest)?, take_text(rest)?, take_text(rest)?],
            },
            b'L' => Self::Limits(Limits::take(rest)?),
            b'G' => Self::Signal(i32::from_le_bytes(take(rest)?)),
            b'R' => Self::ReadyFile {
                path: take_bytes(rest)?,
                text: take_bytes(rest)?,
            },
            b'C' => Self::Close,
            _ => return None,
        })
    }
}

impl Report {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Started(pid) => [&b"s"[..], &pid.to_le_bytes()].concat(),
            Self::NotStarted(errno) => [&b"n"[..], &errno.to_le_bytes()].concat(),
            Self::TooLate => b"t".to_vec(),
            Self::Ended {
                status,
                by_guardian,
                survivors,
            } => [
                &[b'e', status, u8::from(by_guardian)][..],
                &survivors.to_le_bytes(),
            ]
            .concat(),
        }
    }

    /// Reads the message in `packet`. Returns `None` for a packet that is no message.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let (kind, mut rest) = packet.split_first()?;
        let rest = &mut rest;
        Some(match kind {
            b's' => Self::Started(u32::from_le_bytes(take(rest)?)),
            b'n' => Self::NotStarted(i32::from_le_bytes(take(rest)?)),
            b't' => Self::TooLate,
            b'e' => {
                let [status, by_guardian] = take(rest)?;
                let survivors = u32::from_le_bytes(take(rest)?);
                Self::Ended {
                    status,
                    by_guardian: by_guardian == 1,
                    survivors,
                }
            }
            _ => return None,
        })
    }
}

impl Limits {
    fn put(self, packet: &mut Vec<u8>) {
        packet.extend(self.term_at.to_le_bytes());
        packet.extend(self.kill_at.to_le_bytes());
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        Some(Self {
            term_at: u64::from_le_bytes(take(rest)?),
            kill_at: u64::from_le_bytes(take(rest)?),
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn put_bytes(packet: &mut Vec<u8>, bytes: &[u8]) {
    packet.extend((bytes.len() as u64).to_le_bytes());
    packet.extend(bytes);
}

fn take_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let len = usize::try_from(u64::from_le_bytes(take(rest)?)).ok()?;
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head.to_vec())
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    String::from_utf8(take_bytes(rest)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_late_term_kill_is_earlier() {
        let limits = |kill_at| Limits {
            term_at: 1_000,
            kill_at,
        };
        for (kill_at, done, earlier) in [
            (2_000, 1_000, 2_000),
            (2_000, 1_010, 1_960),
            // Half of what is left.
            (2_000, 1_500, 1_750),
            (2_000, 3_000, 2_000),
            (NEVER, 1_500, NEVER),
        ] {
            assert_eq!(limits(kill_at).after_a_late_term(done), limits(earlier));
        }
    }

    #[test]
    fn every_message_can_be_decoded() {
        let limits = Limits {
            term_at: 7,
            kill_at: NEVER,
        };
        for instruction in [
            Instruction::HoldDescriptors,
            Instruction::Start {
                limits,
                environment: ["ü\nb".into(), String::new(), "1".into()],
            },
            Instruction::Limits(limits),
            Instruction::Signal(15),
            Instruction::ReadyFile {
                path: b"/run/\xff".to_vec(),
                text: Vec::new(),
            },
        ] {
            assert_eq!(
                Instruction::decode(&instruction.encode()),
                Some(instruction)
            );
        }
        for report in [
            Report::Started(42),
            Report::NotStarted(2),
            Report::TooLate,
            Report::Ended {
                status: 143,
                by_guardian: true,
                survivors: 3,
            },
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }

    #[test]
    fn a_truncated_packet_is_no_message() {
        let start = Instruction::Start {
            limits: Limits::NONE,
            environment: Default::default(),
        }
        .encode();
        for len in 0..start.len() {
            assert_eq!(Instruction::decode(&start[..len]), None, "{len}");
        }
        assert_eq!(Report::decode(b"e\x01"), None);
        assert_eq!(Instruction::decode(b"?"), None);
    }
}
