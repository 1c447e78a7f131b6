//! The guardian's own process.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::channel::{Channel, Received};
use super::command::{Command, KILLED_STATUS};
use super::protocol::{ARGUMENT, Instruction, Limits, Report};
use crate::clock::NEVER;
use crate::platform::Timer;
use crate::{clock, platform, process_tree, ready_file, signals};

/// Nanoseconds before the guardian checks again whether killed processes are gone. They are its children, so the
/// signal of their end usually comes first.
const RECHECK_NANOS: u64 = 1_000_000;

/// Runs as guardian: `tenure __guardian GROUP COMMAND [ARG]...`, the socket to `tenure` on standard input.
/// GROUP is the process group that the command joins; 0 makes a new one for it.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let Some((group, argv)) = parse(arguments) else {
        eprintln!("tenure: `{ARGUMENT}` is used by tenure itself only");
        return ExitCode::from(2);
    };
    match Guardian::new(Command::new(argv, group)).and_then(Guardian::run) {
        Ok(()) => ExitCode::SUCCESS,
        // `tenure` sees the socket close without a report, and prints that the guardian ended.
        Err(_) => ExitCode::from(70),
    }
}

fn parse(arguments: &[OsString]) -> Option<(i32, &[OsString])> {
    let (group, argv) = arguments.split_first()?;
    let group = group.to_str()?.parse().ok()?;
    (!argv.is_empty()).then_some((group, argv))
}

struct Guardian<'a> {
    channel: Channel,
    signals: UnixStream,
    timer: Timer,
    command: Command<'a>,
    limits: Limits,
    /// Closed when the command's tree is gone: until then these descriptors keep the lock in the kernel.
    descriptors: Vec<OwnedFd>,
    /// The file that says that the command may run, and its contents.
    ready_file: Option<(PathBuf, Vec<u8>)>,
    stage: Stage,
    tenure_is_gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The instruction to start has not come yet.
    NotStarted,
    Running,
    /// SIGTERM was sent to the tree.
    Terminating,
    /// SIGKILL was sent to the tree.
    Killing,
}

impl<'a> Guardian<'a> {
    fn new(command: Command<'a>) -> rustix::io::Result<Self> {
        platform::set_thread_name(c"tenure-guardian");
        platform::adopt_orphans()?;
        let channel = Channel::from_standard_input()?;
        // Only `tenure` may end the guardian early. A SIGTERM to every process called tenure must not end the process
        // that has to end the command, so the pipe takes that signal and others.
        let signals = signals::self_pipe().map_err(|_| Errno::MFILE)?;
        Ok(Self {
            channel,
            signals,
            timer: Timer::new()?,
            command,
            limits: Limits::NONE,
            descriptors: Vec::new(),
            ready_file: None,
            stage: Stage::NotStarted,
            tenure_is_gone: false,
        })
    }

    fn run(mut self) -> rustix::io::Result<()> {
        loop {
            self.empty_signal_pipe();
            self.tenure_is_gone |= platform::tenure_has_exited();
            // Instructions come before the clock is read: if the guardian was stopped itself, new limits may be
            // waiting in the socket.
            while !self.tenure_is_gone {
                match self.channel.receive()? {
                    Received::Instruction(instruction, descriptors) => {
                        self.execute(instruction, descriptors);
                    }
                    Received::Nothing => break,
                    Received::Closed => self.tenure_is_gone = true,
                }
            }
            if let Some(report) = self.advance() {
                self.remove_ready_file();
                self.descriptors.clear();
                self.channel.send(report);
                return Ok(());
            }
            self.wait_for_event()?;
        }
    }

    fn empty_signal_pipe(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.signals).read(&mut bytes), Ok(read) if read > 0) {}
    }

    fn execute(&mut self, instruction: Instruction, mut descriptors: Vec<OwnedFd>) {
        match instruction {
            Instruction::HoldDescriptors => self.descriptors.append(&mut descriptors),
            Instruction::Start {
                limits,
                environment,
            } => {
                self.limits = limits;
                self.start(environment, descriptors.pop());
            }
            Instruction::Limits(limits) => self.limits = limits,
            Instruction::Signal(number) => self.command.forward_signal(number),
            Instruction::ReadyFile { path, text } => {
                self.ready_file = Some((OsString::from_vec(path).into(), text));
            }
            Instruction::Close => self.tenure_is_gone = true,
        }
    }

    fn start(&mut self, environment: [String; 3], stdin: Option<OwnedFd>) {
        let now = clock::now();
        if now >= self.limits.term_at || now >= self.limits.kill_at {
            return self.channel.send(Report::TooLate);
        }
        let Some(stdin) = stdin else {
            let errno = Errno::BADF.raw_os_error();
            return self.channel.send(Report::NotStarted(errno));
        };
        self.channel
            .send(match self.command.start(environment, stdin) {
                Ok(pid) => {
                    self.stage = Stage::Running;
                    Report::Started(pid.as_raw_pid().unsigned_abs())
                }
                Err(errno) => Report::NotStarted(errno),
            });
    }

    /// Reaps children and sends the signals that are due. Returns the last report when nothing is left to do.
    fn advance(&mut self) -> Option<Report> {
        let is_ending = matches!(self.stage, Stage::Terminating | Stage::Killing);
        let tree_is_gone = self.command.reap_tree(is_ending);
        let now = clock::now();
        let kill = self.tenure_is_gone || now >= self.limits.kill_at;
        match (self.stage, self.command.status()) {
            (Stage::NotStarted, None) => self.tenure_is_gone.then_some(Report::TooLate),
            // The command ended by itself. Processes that it left in the background go on.
            (Stage::NotStarted | Stage::Running, Some(status)) => Some(Report::Ended {
                status,
                by_guardian: false,
                survivors: 0,
            }),
            (Stage::Terminating | Stage::Killing, status) if tree_is_gone => Some(Report::Ended {
                status: status.unwrap_or(KILLED_STATUS),
                by_guardian: true,
                survivors: 0,
            }),
            _ if kill || self.stage == Stage::Killing => self.kill_tree(),
            (Stage::Running, None) if now >= self.limits.term_at => {
                self.terminate_tree();
                None
            }
            _ => None,
        }
    }

    fn remove_ready_file(&mut self) {
        if let Some((path, text)) = self.ready_file.take() {
            ready_file::remove_mark(&path, &text);
        }
    }

    fn terminate_tree(&mut self) {
        self.stage = Stage::Terminating;
        self.remove_ready_file();
        // A stopped process handles its SIGTERM only after a SIGCONT.
        for signal in [Signal::TERM, Signal::CONT] {
            process_tree::signal_descendants(signal, None);
        }
        self.limits = self.limits.after_a_late_term(clock::now());
    }

    /// Sends SIGKILL to all of the tree. Returns the last report when only processes are left that belong to another
    /// user.
    fn kill_tree(&mut self) -> Option<Report> {
        self.stage = Stage::Killing;
        self.remove_ready_file();
        process_tree::record_descendants();
        self.command.signal_group(Signal::KILL);
        let sent = process_tree::signal_descendants(Signal::KILL, None);
        (sent.delivered == 0 && sent.refused > 0).then(|| Report::Ended {
            status: self.command.status().unwrap_or(KILLED_STATUS),
            by_guardian: true,
            survivors: sent.refused,
        })
    }

    /// Waits until an instruction or a signal comes, or a limit is reached.
    fn wait_for_event(&self) -> rustix::io::Result<()> {
        let wake_at = match self.stage {
            Stage::NotStarted => NEVER,
            Stage::Running => self.limits.term_at.min(self.limits.kill_at),
            Stage::Terminating => self.limits.kill_at,
            Stage::Killing => clock::now() + RECHECK_NANOS,
        };
        let mut sources = vec![PollFd::new(&self.signals, PollFlags::IN)];
        // The socket of a `tenure` that is gone is always ready, so polling it would never wait.
        if !self.tenure_is_gone {
            sources.push(PollFd::new(&self.channel, PollFlags::IN));
        }
        self.timer.wait(sources, wake_at)
    }
}
