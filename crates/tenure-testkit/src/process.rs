//! The process of a server, which cannot outlive its test, with its port and its directory.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpSocket;

use super::skip::print_skip;
use super::wait::until;

/// A reserved loopback port. A socket is bound to it and never listens, so that no other process gets the port while
/// the server is down. The server can listen on it, because both sockets set SO_REUSEADDR.
///
/// The port is below the range from which the kernel picks. On Linux 6.18 a server could not listen on a port of that
/// range although a socket was bound to it: probably the kernel had also used the port for an outgoing connection.
pub struct Port {
    _socket: TcpSocket,
    number: u16,
}

/// Ports below belong to well-known services.
const PORTS_FROM: u16 = 10_000;

impl Port {
    pub fn reserve() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let picked_from = range
            .ok()
            .and_then(|range| range.split_whitespace().next()?.parse().ok())
            .unwrap_or(32_768_u16);
        let count = u32::from(picked_from.saturating_sub(PORTS_FROM));
        assert!(
            count > 1_000,
            "no ports below those that the kernel picks from"
        );
        // Test programs that run at the same time begin at different ports.
        let start = std::process::id().wrapping_mul(97);
        loop {
            let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
            let number = PORTS_FROM + u16::try_from(next).unwrap();
            if let Some(socket) = bind_alone(number) {
                return Self {
                    _socket: socket,
                    number,
                };
            }
        }
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// `None` if another process has the port, or another test program has reserved it.
fn bind_alone(port: u16) -> Option<TcpSocket> {
    let socket = TcpSocket::new_v4().unwrap();
    // Without SO_REUSEADDR the bind fails if any other socket is bound to the port.
    socket.set_reuseaddr(false).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    socket.set_reuseaddr(true).unwrap();
    Some(socket)
}

/// Whether the user is root. Some servers refuse to run as root, and others need an option for that.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a test ends because only root can start processes of several users. Prints that then.
pub fn skip_unless_root() -> bool {
    if !is_root() {
        print_skip("only root can start processes of other users");
    }
    !is_root()
}

/// A new directory. [`Process`] removes it.
///
/// It lies in memory where that is possible: a server that syncs each write would make all tests wait for the disk.
pub fn new_directory(what: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => new_directory_in(memory, what),
        false => new_directory_in(&std::env::temp_dir(), what),
    }
}

/// [`new_directory`] on a disk.
pub fn new_directory_on_disk(what: &str) -> PathBuf {
    // A test program is target/debug/deps/NAME.
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    new_directory_in(&target.join("tmp"), what)
}

fn new_directory_in(place: &Path, what: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = place.join(format!("tenure-test-{what}-{}-{count}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A new directory without a process. It is removed when this is dropped, and also when the test program ends: a static
/// is never dropped.
pub struct Directory {
    path: PathBuf,
    cleanup: Child,
}

impl Directory {
    pub fn new(what: &str) -> Self {
        let path = new_directory(what);
        let mut cleanup = Command::new("sh");
        cleanup
            .args(["-c", r#"read -r word; rm -rf "$1""#, "sh"])
            .arg(&path);
        cleanup.process_group(0).stdin(Stdio::piped());
        let cleanup = cleanup.spawn().unwrap();
        Self { path, cleanup }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        // The shell ends when its input ends; a destructor cannot return an error.
        let _ = self.cleanup.wait();
    }
}

/// `R`, `S`, `T` (stopped), `Z` (ended), as in proc(5); `None` if there is no such process (any more).
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether all threads of the process stand still. On a busy machine a thread may go on for some milliseconds after SIGSTOP
/// was sent.
pub fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let mut threads = threads.flatten().map(|thread| thread.path().join("stat"));
    threads.all(|stat| {
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        // `t`: stopped while a tracer watches.
        let state = stat.rsplit(") ").next();
        state.is_some_and(|state| state.starts_with(['T', 't']))
    })
}

/// A shell that is the parent of the server. It kills the server when its input ends: when the process is dropped, and
/// also when this test program is killed. A parent cannot hit another process: until it has waited for its child, the
/// pid is not used again.
const PARENT_SHELL: &str = r#"
dir=$1; shift
"$@" </dev/null >>"$dir/log" 2>&1 &
echo $!
read -r word
kill -9 $!; wait $!
[ "$word" = keep ] && exit
# PostgreSQL, when it is killed, leaves a segment of memory, which this line of this file names.
set -- $(sed -n 7p "$dir/data/postmaster.pid" 2>/dev/null)
[ $# = 2 ] && ipcrm -m "$2" 2>/dev/null
rm -rf "$dir"
"#;

/// A server process. Dropped, it is killed and its directory removed.
pub struct Process {
    parent: Child,
    pid: Pid,
}

impl Process {
    /// Starts `command` (a program and its arguments). Its output goes to `dir/log`.
    pub fn start(dir: &Path, command: &[String]) -> Self {
        let mut parent = Command::new("sh");
        parent
            .args(["-c", PARENT_SHELL, "sh"])
            .arg(dir)
            .args(command);
        // A Ctrl-C at the terminal must not reach the shell: the directory would stay.
        parent.process_group(0);
        parent
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut parent = parent.spawn().unwrap();
        let mut line = String::new();
        let stdout = parent.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        Self { parent, pid }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn state(&self) -> char {
        state(self.pid()).unwrap()
    }

    pub fn has_ended(&self) -> bool {
        self.state() == 'Z'
    }

    /// SIGSTOP; returns when the process is stopped.
    pub fn stop(&self) {
        kill_process(self.pid, Signal::STOP).unwrap();
        until("the server stands still", || is_stopped(self.pid()));
    }

    /// SIGCONT.
    pub fn resume(&self) {
        kill_process(self.pid, Signal::CONT).unwrap();
    }

    /// SIGKILL; returns when the process has ended. Its directory stays.
    pub fn kill(mut self) {
        let stdin = self.parent.stdin.as_mut();
        stdin.unwrap().write_all(b"keep\n").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.parent.stdin.take());
        // The shell ends when its input ends; a destructor cannot return an error.
        let _ = self.parent.wait();
    }
}

/// Ends a server, which may be down, and removes its directory.
pub fn end(process: &mut Mutex<Option<Process>>, dir: &Path) {
    let process = process
        .get_mut()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if process.take().is_none() {
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Copies a directory with its owners and permissions.
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "cp");
}
