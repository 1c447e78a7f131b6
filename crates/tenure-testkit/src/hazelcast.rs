//! Members of Hazelcast: all of a cluster in one Java process (`interop/hazelcast/Members.java`), or each in a process of its
//! own, with a port for what a test asks of them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::process::{Port, Process, end, new_directory};
use super::skip;
use super::wait::until;

/// The program that starts Java with the jars; `interop/build hazelcast` makes it.
pub fn java() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("target/interop/hazelcast/java")
}

/// Returns `true`, which ends the test, where the jars are not there; prints that.
pub fn skip_unless_installed() -> bool {
    skip::skip_unless_installed(&["java"]) || skip::skip_unless_built(&java(), "hazelcast")
}

/// How long the members keep a session without a heartbeat, in seconds.
pub const SESSION_TTL: u64 = 5;

/// Several members that start at the same time need long on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(150);

/// Where the ttl of sessions stands in the command.
const SESSION_TTL_ARGUMENT: usize = 4;

/// Within this time a member that serves answers each order.
const ANSWER_LIMIT: Duration = Duration::from_secs(40);

/// What the members have of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub holders: usize,
    pub waiters: usize,
    /// The session of the holder.
    pub session: Option<i64>,
}

/// The members of a cluster that share a process: all members, or one.
pub struct Hazelcast {
    control: Port,
    ports: Vec<Port>,
    dir: PathBuf,
    command: Vec<String>,
    process: Mutex<Option<Process>>,
}

impl Hazelcast {
    /// Three members with a CP subsystem.
    pub fn start() -> Self {
        Self::start_with(3, 3, SESSION_TTL)
    }

    /// So many members, of which so many make up the CP subsystem (none: there is none), and the ttl of a session in seconds.
    pub fn start_with(count: usize, cp: usize, session_ttl: u64) -> Self {
        let ports: Vec<_> = (0..count).map(|_| Port::reserve()).collect();
        let numbers: Vec<_> = ports.iter().map(Port::number).collect();
        let members = Self::prepare("all", ports, &numbers, cp, session_ttl);
        members.launch();
        members
    }

    /// So many members, all in the CP subsystem, and each in a process of its own.
    pub fn start_apart(count: usize, session_ttl: u64) -> Vec<Self> {
        let ports: Vec<_> = (0..count).map(|_| Port::reserve()).collect();
        let numbers: Vec<_> = ports.iter().map(Port::number).collect();
        let member = |(own, port): (usize, Port)| {
            Self::prepare(&own.to_string(), vec![port], &numbers, count, session_ttl)
        };
        let members: Vec<_> = ports.into_iter().enumerate().map(member).collect();
        members.iter().for_each(Self::spawn);
        members.iter().for_each(Self::wait_until_ready);
        members
    }

    /// `own`: the number of the only member in the process, or `all`. `ports`: those of its members. `numbers`: the ports of
    /// all members.
    fn prepare(own: &str, ports: Vec<Port>, numbers: &[u16], cp: usize, session_ttl: u64) -> Self {
        let control = Port::reserve();
        let mut command = vec![java().display().to_string(), "Members".into()];
        command.push(control.number().to_string());
        command.push(cp.to_string());
        command.push(session_ttl.to_string());
        // The interval of heartbeats, which has to be shorter than a session.
        command.push("1".into());
        command.push(own.into());
        command.extend(numbers.iter().map(u16::to_string));
        Self {
            control,
            ports,
            dir: new_directory("hazelcast"),
            command,
            process: Mutex::new(None),
        }
    }

    /// Starts the process; returns when all members serve clients.
    ///
    /// # Panics
    /// When it runs already, or ends.
    pub fn launch(&self) {
        self.spawn();
        self.wait_until_ready();
    }

    /// As [`launch`](Self::launch), with another ttl of sessions, in seconds.
    pub fn launch_with(&self, session_ttl: u64) {
        let mut command = self.command.clone();
        command[SESSION_TTL_ARGUMENT] = session_ttl.to_string();
        self.spawn_as(&command);
        self.wait_until_ready();
    }

    /// Starts the process, and does not wait.
    ///
    /// # Panics
    /// When it runs already.
    pub fn spawn(&self) {
        self.spawn_as(&self.command);
    }

    fn spawn_as(&self, command: &[String]) {
        let mut slot = self.process.lock().unwrap();
        assert!(slot.is_none(), "it runs");
        *slot = Some(Process::start(&self.dir, command));
    }

    /// Returns when the members of the process serve clients.
    ///
    /// # Panics
    /// When the process ends.
    pub fn wait_until_ready(&self) {
        let begin = Instant::now();
        let is_ready = || {
            let slot = self.process.lock().unwrap();
            if slot.as_ref().is_some_and(Process::has_ended) {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap();
                panic!("the members ended:\n{log}");
            }
            drop(slot);
            self.answer("ready", ANSWER_LIMIT).as_deref() == Some("yes")
        };
        while !is_ready() {
            assert!(begin.elapsed() < START_LIMIT, "the members do not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL of all members.
    pub fn kill(&self) {
        let process = self.process.lock().unwrap().take();
        process.expect("it runs").kill();
    }

    /// SIGSTOP of all members.
    pub fn stop(&self) {
        let slot = self.process.lock().unwrap();
        slot.as_ref().expect("it runs").stop();
    }

    /// SIGCONT; returns when a member answers.
    pub fn resume(&self) {
        let slot = self.process.lock().unwrap();
        slot.as_ref().expect("it runs").resume();
        drop(slot);
        until("the members answer", || {
            self.answer("ready", ANSWER_LIMIT).is_some()
        });
    }

    pub fn port(&self, member: usize) -> u16 {
        self.ports[member].number()
    }

    /// The URL of all members, without options.
    pub fn url(&self) -> String {
        let ports: Vec<_> = self.ports.iter().map(Port::number).collect();
        url_of(&ports)
    }

    /// Ends a member as a crash does. It takes part no more, and the others notice it at once.
    pub fn kill_member(&self, member: usize) {
        self.order(&format!("kill\t{member}"));
    }

    /// Which of these members, each in a process of its own, leads the group. A member that is stopped does not count.
    pub fn leader_of(members: &[Self], group: &str) -> usize {
        let order = format!("leader\t{group}");
        let mut found = None;
        until("a member leads", || {
            let says = |it: &Self| it.answer(&order, Duration::from_secs(1));
            found = members.iter().find_map(|it| says(it)?.parse().ok());
            found.is_some()
        });
        found.unwrap()
    }

    /// The member that leads the group.
    pub fn leader(&self, group: &str) -> usize {
        let mut found = None;
        until("a member leads", || {
            found = self.order(&format!("leader\t{group}")).parse().ok();
            found.is_some()
        });
        found.unwrap()
    }

    /// Makes that member the leader of the group.
    pub fn transfer(&self, group: &str, member: usize) {
        self.leader(group);
        self.order(&format!("transfer\t{group}\t{member}"));
    }

    /// The sessions of the group.
    pub fn sessions(&self, group: &str) -> Vec<i64> {
        let answer = self.order(&format!("sessions\t{group}"));
        answer
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect()
    }

    /// Ends a session of the default group, as an operator does.
    pub fn close_session(&self, session: i64) {
        self.order(&format!("close\tdefault\t{session}"));
    }

    /// What the leader of the default group has of the lock of this name.
    pub fn look(&self, name: &str) -> Look {
        let answer = self.order(&format!("lock\t{}", hexadecimal(name)));
        let words: Vec<_> = answer.split(' ').collect();
        Look {
            holders: words[0].parse().unwrap(),
            waiters: words[1].parse().unwrap(),
            session: words[2].parse().ok(),
        }
    }

    /// Unlocks in the place of the holder, who is not told.
    pub fn unlock(&self, name: &str) {
        self.order(&format!("unlock\t{}", hexadecimal(name)));
    }

    /// Ends all CP groups and makes new ones.
    pub fn reset(&self) {
        self.order("reset");
    }

    /// The answer to an order.
    ///
    /// # Panics
    /// When there is none, or an error.
    pub fn order(&self, order: &str) -> String {
        let mut last = None;
        until("the members obey", || {
            last = self.answer(order, ANSWER_LIMIT);
            // No member leads for a moment after a change.
            last.as_ref().is_some_and(|it| !it.contains("no leader"))
        });
        let answer = last.unwrap();
        assert!(!answer.starts_with("error\t"), "{order}: {answer}");
        answer
    }

    fn answer(&self, order: &str, limit: Duration) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.control.number())).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.write_all(format!("{order}\n").as_bytes()).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        line.strip_suffix('\n').map(ToOwned::to_owned)
    }
}

/// A name may have line feeds and tabs in it.
fn hexadecimal(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The URL of members at these ports.
pub fn url_of(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    format!("hazelcast://{}", hosts.join(","))
}

impl Drop for Hazelcast {
    fn drop(&mut self) {
        end(&mut self.process, &self.dir);
    }
}
