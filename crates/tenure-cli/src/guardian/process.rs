//! The guardian's own process.

use std::ffi::OsString;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, ReturnFlags, recvmsg, send};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::command::{as_a_shell_says, spawn};
use super::protocol::{ARGUMENT, Instruction, Limits, MAX_DESCRIPTORS, MAX_PACKET, Report};
use crate::clock::NEVER;
use crate::platform::Timer;
use crate::{clock, platform, process_tree, signals};

/// How long to wait before looking again whether killed processes are gone. They are ours to reap,
/// so the signal of their end usually comes first.
const LOOK_AGAIN: u64 = 1_000_000;

/// Runs as guardian: `tenure __guardian GROUP COMMAND [ARG]...`, the socket to `tenure` on standard input.
/// GROUP is the process group that the command joins, 0 for one of its own.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let Some((group, command)) = parse(arguments) else {
        eprintln!("tenure: `{ARGUMENT}` is used by tenure itself only");
        return ExitCode::from(2);
    };
    match Guardian::new(group, command).and_then(Guardian::run) {
        Ok(()) => ExitCode::SUCCESS,
        // `tenure` sees the socket close without a report, and says so.
        Err(_) => ExitCode::from(70),
    }
}

fn parse(arguments: &[OsString]) -> Option<(i32, &[OsString])> {
    let (group, command) = arguments.split_first()?;
    let group = group.to_str()?.parse().ok()?;
    (!command.is_empty()).then_some((group, command))
}

struct Guardian<'a> {
    socket: OwnedFd,
    signals: UnixStream,
    timer: Timer,
    /// Group that the command joins; 0: one of its own.
    group: i32,
    argv: &'a [OsString],
    limits: Limits,
    /// Closed when the command's tree is gone: the kernel's lock hangs on them.
    kept: Vec<OwnedFd>,
    stage: Stage,
    /// The command, until it is reaped. Up to then its id is its own.
    command: Option<Pid>,
    /// How the command ended, as a shell gives it.
    status: Option<u8>,
    /// `tenure` is gone.
    orphaned: bool,
    packet: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// For the instruction to start.
    Waiting,
    Running,
    /// The tree was asked to end.
    Terminating,
    /// The tree is being killed.
    Killing,
}

impl<'a> Guardian<'a> {
    fn new(group: i32, argv: &'a [OsString]) -> rustix::io::Result<Self> {
        platform::set_thread_name(c"tenure-guardian");
        platform::adopt_orphans()?;
        let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3)?;
        // Nothing but `tenure` may end us early: a TERM to everything called tenure must not
        // take away the one who ends the command.
        let signals = signals::self_pipe().map_err(|_| Errno::MFILE)?;
        Ok(Self {
            socket,
            signals,
            timer: Timer::new()?,
            group,
            argv,
            limits: Limits::NONE,
            kept: Vec::new(),
            stage: Stage::Waiting,
            command: None,
            status: None,
            orphaned: false,
            packet: vec![0; MAX_PACKET],
        })
    }

    fn run(mut self) -> rustix::io::Result<()> {
        loop {
            let mut bytes = [0; 64];
            while matches!((&self.signals).read(&mut bytes), Ok(read) if read > 0) {}
            self.orphaned |= platform::tenure_has_exited();
            // Instructions come before the look at the clock: when we were stopped ourselves,
            // an extension may be waiting.
            while !self.orphaned
                && let Some((instruction, descriptors)) = self.receive()?
            {
                self.execute(instruction, descriptors);
            }
            if let Some(report) = self.advance() {
                self.kept.clear();
                self.tell(report);
                return Ok(());
            }
            self.sleep()?;
        }
    }

    fn execute(&mut self, instruction: Instruction, mut descriptors: Vec<OwnedFd>) {
        match instruction {
            Instruction::HoldDescriptors => self.kept.append(&mut descriptors),
            Instruction::Start {
                limits,
                environment,
            } => {
                self.limits = limits;
                self.start(environment, descriptors.pop());
            }
            Instruction::Limits(limits) => self.limits = limits,
            Instruction::Signal(number) => self.forward(number),
            Instruction::Close => self.orphaned = true,
        }
    }

    /// Does what is due. The last report, when all is done.
    fn advance(&mut self) -> Option<Report> {
        let childless = self.reap();
        let now = clock::now();
        let kill = self.orphaned || now >= self.limits.kill_at;
        match (self.stage, self.status) {
            (Stage::Waiting, None) => self.orphaned.then_some(Report::TooLate),
            // It ended by itself. What it left in the background is not ours to end.
            (Stage::Waiting | Stage::Running, Some(status)) => Some(Report::Ended {
                status,
                by_us: false,
                survivors: 0,
            }),
            (Stage::Terminating | Stage::Killing, status) if childless => {
                let status = status.unwrap_or(UNKNOWN);
                Some(Report::Ended {
                    status,
                    by_us: true,
                    survivors: 0,
                })
            }
            _ if kill || self.stage == Stage::Killing => {
                self.stage = Stage::Killing;
                process_tree::record_descendants();
                self.signal_group(Signal::KILL);
                let sent = process_tree::signal_descendants(Signal::KILL, None);
                (sent.delivered == 0 && sent.refused > 0).then(|| Report::Ended {
                    status: self.status.unwrap_or(UNKNOWN),
                    by_us: true,
                    survivors: sent.refused,
                })
            }
            (Stage::Running, None) if now >= self.limits.term_at => {
                self.stage = Stage::Terminating;
                // Whoever is stopped must go on to see its TERM.
                for signal in [Signal::TERM, Signal::CONT] {
                    process_tree::signal_descendants(signal, None);
                }
                self.limits = self.limits.after_a_late_term(clock::now());
                None
            }
            _ => None,
        }
    }

    /// Reaps the dead; `true` when the whole tree is gone: no child is left, and where orphans do not become
    /// our children, nothing in the command's group either.
    fn reap(&mut self) -> bool {
        loop {
            match process_tree::reap() {
                Ok(Some((pid, status))) => {
                    if self.command == Some(pid) && self.status.is_none() {
                        self.status = Some(status);
                        if platform::ADOPTS_ORPHANS {
                            self.command = None;
                        }
                    }
                }
                Ok(None) => return false,
                Err(_) => return !self.has_orphans(),
            }
        }
    }

    /// Whether processes of the command are left that are not our children.
    fn has_orphans(&self) -> bool {
        let is_ending = matches!(self.stage, Stage::Terminating | Stage::Killing);
        if platform::ADOPTS_ORPHANS || !is_ending {
            return false;
        }
        let group = self.command.filter(|_| self.group == 0);
        group.is_some_and(|leader| test_kill_process_group(leader).is_ok())
            || process_tree::count_orphans() > 0
    }

    fn start(&mut self, environment: [String; 3], stdin: Option<OwnedFd>) {
        let now = clock::now();
        if now >= self.limits.term_at || now >= self.limits.kill_at {
            return self.tell(Report::TooLate);
        }
        let Some(stdin) = stdin else {
            return self.tell(Report::NotStarted(Errno::BADF.raw_os_error()));
        };
        match spawn(self.argv, self.group, environment, stdin) {
            Ok(pid) => {
                self.command = Some(pid);
                self.stage = Stage::Running;
                self.tell(Report::Started(pid.as_raw_pid().unsigned_abs()));
            }
            Err(errno) => self.tell(Report::NotStarted(as_a_shell_says(&self.argv[0], errno))),
        }
    }

    /// A signal that somebody sent to `tenure`, for the command's process group.
    fn forward(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        if self.group == 0 {
            self.signal_group(signal);
        } else {
            // Others live in the caller's group too: `tenure` itself, the rest of its pipeline.
            process_tree::signal_descendants(signal, Pid::from_raw(self.group));
        }
    }

    /// Reaches all members at once, also while they fork.
    fn signal_group(&self, signal: Signal) {
        if self.group == 0
            && let Some(command) = self.command
        {
            let _ = kill_process_group(command, signal);
        }
    }

    /// The next instruction, if one is here.
    fn receive(&mut self) -> rustix::io::Result<Option<(Instruction, Vec<OwnedFd>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let iov = &mut [IoSliceMut::new(&mut self.packet)];
        let received = match recvmsg(&self.socket, iov, &mut control, platform::RECEIVE_FLAGS) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => {
                self.orphaned = true;
                return Ok(None);
            }
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
            self.orphaned = true;
            return Ok(None);
        }
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(Errno::MSGSIZE);
        }
        let instruction =
            Instruction::decode(&self.packet[..received.bytes]).ok_or(Errno::BADMSG)?;
        Ok(Some((instruction, descriptors)))
    }

    fn tell(&self, report: Report) {
        // `tenure` may be gone; then nobody needs to know.
        let _ = send(&self.socket, &report.encode(), platform::SEND_FLAGS);
    }

    /// Until an instruction or a signal comes, or a limit is reached.
    fn sleep(&self) -> rustix::io::Result<()> {
        let wake_at = match self.stage {
            Stage::Waiting => NEVER,
            Stage::Running => self.limits.term_at.min(self.limits.kill_at),
            Stage::Terminating => self.limits.kill_at,
            Stage::Killing => clock::now() + LOOK_AGAIN,
        };
        let mut sources = vec![PollFd::new(&self.signals, PollFlags::IN)];
        // The socket of a dead `tenure` is ready for ever.
        if !self.orphaned {
            sources.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        self.timer.wait(sources, wake_at)
    }
}

/// Status of a command whose end nobody saw: that of a killed one.
const UNKNOWN: u8 = 128 + 9;
