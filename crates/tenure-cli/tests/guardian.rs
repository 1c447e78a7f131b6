//! The guardian with real commands. These tests send it instructions over its socket, as `tenure` does.
//!
//! Every process of a command's tree holds the write end of one pipe, its standard output. End of file on that pipe means
//! that all of them are gone.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../src/clock.rs"]
mod clock;
#[allow(dead_code)]
#[path = "../src/guardian/protocol.rs"]
mod protocol;
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};

use clock::NEVER;
use protocol::{Instruction, Limits, Report};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use support::{STUBBORN, wait_until_stopped};

const MILLI: u64 = 1_000_000;

/// A guardian, and this test in the place of `tenure`.
struct Guarded {
    socket: Option<OwnedFd>,
    guardian: Child,
    output: BufReader<ChildStdout>,
}

impl Guarded {
    /// A guardian that may start `sh -c script`.
    fn new(script: &str) -> Self {
        Self::of(&["/bin/sh", "-c", script])
    }

    fn of(command: &[&str]) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut guardian = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["__guardian", "0"])
            .args(command)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(guardian.stdout.take().unwrap());
        Self {
            socket: Some(ours),
            guardian,
            output,
        }
    }

    fn send(&self, instruction: &Instruction, descriptors: &[&OwnedFd]) {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        }
        let packet = instruction.encode();
        let socket = self.socket.as_ref().unwrap();
        sendmsg(
            socket,
            &[IoSlice::new(&packet)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }

    /// Instructs the guardian to start the command with `stdin`.
    fn start_with(&self, limits: Limits, stdin: OwnedFd) {
        let environment = ["n1\nn2".into(), "7\n8".into(), "me".into()];
        self.send(
            &Instruction::Start {
                limits,
                environment,
            },
            &[&stdin],
        );
    }

    fn start(&self, limits: Limits) {
        self.start_with(limits, File::open("/dev/null").unwrap().into());
    }

    /// Starts the command, without limits.
    fn run(&self) -> Pid {
        self.start(Limits::NONE);
        self.started()
    }

    fn report(&self) -> Option<Report> {
        let mut packet = [0; 16];
        let (len, _) = recv(
            self.socket.as_ref().unwrap(),
            &mut packet[..],
            RecvFlags::empty(),
        )
        .unwrap();
        (len > 0).then(|| Report::decode(&packet[..len]).unwrap())
    }

    /// The guardian reports that the command ended like this, and that no process of its tree is left.
    #[track_caller]
    fn ends(&self, status: u8, by_guardian: bool) {
        let ended = Report::Ended {
            status,
            by_guardian,
            survivors: 0,
        };
        assert_eq!(self.report(), Some(ended));
    }

    fn started(&self) -> Pid {
        match self.report() {
            Some(Report::Started(pid)) => Pid::from_raw(pid as i32).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    /// The rest of the tree's output. Returns when no process of the tree is left.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest
    }

    fn tenure_dies(&mut self) {
        self.socket = None;
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.socket = None;
        let _ = self.guardian.wait();
    }
}

/// The tree gets SIGTERM at once, and no SIGKILL.
const TERM_NOW: Limits = Limits {
    term_at: 0,
    kill_at: NEVER,
};

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn three_up(guarded: &mut Guarded) {
    for _ in 0..3 {
        assert_eq!(guarded.line(), "up");
    }
}

#[test]
fn the_command_starts_on_order_and_its_status_comes_back() {
    let mut guarded =
        Guarded::new(r#"cat; printf '%s|' "$TENURE_NAME" "$TENURE_TOKEN" "$TENURE_OWNER"; exit 7"#);
    let (stdin, mut writer) = std::io::pipe().unwrap();
    guarded.start_with(Limits::NONE, stdin.into());
    guarded.started();
    writer.write_all(b"from stdin ").unwrap();
    drop(writer);
    guarded.ends(7, false);
    assert_eq!(guarded.report(), None);
    assert_eq!(guarded.rest(), "from stdin n1\nn2|7\n8|me|");
    assert!(guarded.guardian.wait().unwrap().success());
}

#[test]
fn a_signal_that_ends_the_command_is_a_status_of_128_and_more() {
    let guarded = Guarded::new("kill -USR1 $$");
    guarded.run();
    guarded.ends(128 + 10, false);
}

#[test]
fn tenure_dies_before_the_start_and_the_command_never_runs() {
    let mut guarded = Guarded::new("echo ran");
    guarded.tenure_dies();
    assert_eq!(guarded.rest(), "");
    assert!(guarded.guardian.wait().unwrap().success());
}

#[test]
fn an_order_to_start_that_comes_too_late_starts_nothing() {
    for limits in [
        Limits {
            term_at: now() - 1,
            kill_at: NEVER,
        },
        Limits {
            term_at: NEVER,
            kill_at: now() - 1,
        },
    ] {
        let mut guarded = Guarded::new("echo ran");
        guarded.start(limits);
        assert_eq!(guarded.report(), Some(Report::TooLate));
        guarded.tenure_dies();
        assert_eq!(guarded.rest(), "");
    }
}

#[test]
fn a_command_that_cannot_be_started_is_reported_with_its_errno() {
    for (command, errno) in [
        ("/nonexistent/x", 2),
        ("no-such-command-anywhere", 2),
        ("/etc/passwd", 13),
        ("/", 13),
    ] {
        let guarded = Guarded::of(&[command]);
        guarded.start(Limits::NONE);
        assert_eq!(
            guarded.report(),
            Some(Report::NotStarted(errno)),
            "{command}"
        );
    }
}

#[test]
fn a_script_without_a_first_line_is_run_by_the_shell() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("job");
    std::fs::write(&script, "echo \"I am $0 $1\"; cat; exit 3\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut guarded = Guarded::of(&[script.to_str().unwrap(), "one"]);
    guarded.run();
    guarded.ends(3, false);
    assert_eq!(guarded.rest(), format!("I am {} one\n", script.display()));
}

#[test]
fn tenure_dies_and_the_whole_tree_with_it() {
    let mut guarded = Guarded::new(STUBBORN);
    guarded.run();
    three_up(&mut guarded);
    guarded.tenure_dies();
    assert_eq!(guarded.rest(), "");
}

#[test]
fn a_stopped_tree_dies_too() {
    let mut guarded = Guarded::new("setsid sh -c 'echo $$; kill -STOP $$; echo on' & wait");
    guarded.run();
    let stopped = guarded.line().parse().unwrap();
    wait_until_stopped(Pid::from_raw(stopped).unwrap());
    guarded.tenure_dies();
    assert_eq!(guarded.rest(), "");
}

#[test]
fn limits_pass_without_an_extension_first_term_then_kill() {
    // The test acts like a `tenure` that is stopped: it sends nothing after the start.
    let mut guarded = Guarded::new(&format!(
        "trap 'echo asked' TERM\n(trap '' TERM; echo deaf; while :; do sleep 1000; done)&\n{}",
        "echo up; while :; do wait; done"
    ));
    let limits = Limits {
        term_at: now() + 4_000 * MILLI,
        kill_at: now() + 8_000 * MILLI,
    };
    guarded.start(limits);
    guarded.started();
    let mut first = [guarded.line(), guarded.line()];
    first.sort();
    assert_eq!(first, ["deaf", "up"]);
    assert_eq!(guarded.line(), "asked");
    assert!(now() >= limits.term_at);
    assert_eq!(guarded.rest(), "");
    // A machine that is slow costs the command some of its grace time, but never more than half.
    let half = (limits.kill_at - limits.term_at) / 2;
    assert!(
        now() >= limits.term_at + half,
        "the command has at least half of its grace time"
    );
    guarded.ends(137, true);
}

#[test]
fn a_tree_that_obeys_term_is_not_waited_for_until_the_end_of_the_grace_time() {
    // The child prints `up`: before its `exec`, the trap of its parent would take the signal.
    let script = "trap 'echo bye; exit 5' TERM; (echo up; exec sleep 1000) & wait";
    let mut guarded = Guarded::new(script);
    guarded.run();
    assert_eq!(guarded.line(), "up");
    guarded.send(&Instruction::Limits(TERM_NOW), &[]);
    guarded.ends(5, true);
    assert_eq!(guarded.rest(), "bye\n");
}

#[test]
fn term_reaches_a_process_that_is_stopped() {
    let mut guarded = Guarded::new("trap 'echo bye; exit 5' TERM; echo up; kill -STOP $$; wait");
    let command = guarded.run();
    assert_eq!(guarded.line(), "up");
    wait_until_stopped(command);
    guarded.send(&Instruction::Limits(TERM_NOW), &[]);
    guarded.ends(5, true);
}

#[test]
fn an_extension_in_time_lets_the_command_go_on() {
    let mut guarded = Guarded::new("trap 'echo asked' TERM; read line; echo \"$line\"");
    let (stdin, mut writer) = std::io::pipe().unwrap();
    let old = Limits {
        term_at: now() + 5_000 * MILLI,
        kill_at: now() + 5_000 * MILLI,
    };
    guarded.start_with(old, stdin.into());
    guarded.started();
    guarded.send(&Instruction::Limits(Limits::NONE), &[]);
    while now() <= old.kill_at {
        std::thread::sleep(std::time::Duration::from_nanos(old.kill_at - now() + 1));
    }
    writer.write_all(b"alive\n").unwrap();
    guarded.ends(0, false);
    assert_eq!(guarded.rest(), "alive\n");
}

#[test]
fn signals_for_the_command_reach_its_group() {
    let mut guarded = Guarded::new(
        "trap 'echo parent; wait; exit 9' USR1; (trap 'echo child; exit' USR1; echo up; while :; do sleep 0.01; done)& echo up; wait; exit 1",
    );
    guarded.run();
    assert_eq!((guarded.line(), guarded.line()), ("up".into(), "up".into()));
    guarded.send(&Instruction::Signal(10), &[]);
    guarded.ends(9, false);
    let rest = guarded.rest();
    let mut lines: Vec<_> = rest.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["child", "parent"]);
}

#[test]
fn what_was_kept_is_closed_when_the_tree_is_gone_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("lock")).unwrap();
    file.lock().unwrap();
    let other = File::open(dir.path().join("lock")).unwrap();
    let mut guarded = Guarded::new(STUBBORN);
    guarded.send(&Instruction::HoldDescriptors, &[&OwnedFd::from(file)]);
    guarded.run();
    three_up(&mut guarded);
    assert!(matches!(
        other.try_lock(),
        Err(std::fs::TryLockError::WouldBlock)
    ));
    guarded.tenure_dies();
    other.lock().unwrap();
    // The pipe is at its end: when the next holder gets the lock, no process of the tree is left.
    rustix::fs::fcntl_setfl(guarded.output.get_ref(), rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut byte = [0];
    let end = guarded.output.get_mut().read(&mut byte);
    let guardian_still_exits =
        matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(
        matches!(end, Ok(0)) || guardian_still_exits && only_guardian_left(&guarded),
        "{end:?}"
    );
}

/// The guardian holds the pipe too, until its exit a moment later.
fn only_guardian_left(guarded: &Guarded) -> bool {
    let id = guarded.guardian.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    children.map_or(true, |children| children.is_empty())
}

#[test]
fn what_runs_on_in_the_background_is_left_alone_and_keeps_nothing() {
    let mut guarded = Guarded::new("setsid sleep 1000 & echo $!; exit 0");
    guarded.run();
    let background = Pid::from_raw(guarded.line().parse().unwrap()).unwrap();
    guarded.ends(0, false);
    assert_eq!(guarded.report(), None, "the socket is closed");
    kill_process(background, Signal::KILL).expect("the background process runs on");
    assert_eq!(guarded.rest(), "");
}

#[test]
fn no_signal_but_kill_ends_the_guardian() {
    let mut guarded = Guarded::new("read line; echo \"$line\"");
    let (stdin, mut writer) = std::io::pipe().unwrap();
    guarded.start_with(Limits::NONE, stdin.into());
    guarded.started();
    let guardian = Pid::from_raw(guarded.guardian.id() as i32).unwrap();
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::PIPE,
    ] {
        kill_process(guardian, signal).unwrap();
    }
    writer.write_all(b"alive\n").unwrap();
    guarded.ends(0, false);
    assert_eq!(guarded.rest(), "alive\n");
}
