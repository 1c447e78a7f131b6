//! ZooKeeper servers: one alone, or an ensemble of three.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use super::clock::Clock;
use super::jute::Session;
use super::network::{Host, Network};
use super::process::{Port, Process, new_directory};
use super::redis::Certificates;
use super::skip;
use super::wait::until;

pub use super::login::{PASSWORD, USER};

/// The folder of the jars, which may be those of another version.
fn jars() -> PathBuf {
    std::env::var_os("TENURE_ZOOKEEPER_JARS").map_or("/usr/share/java".into(), PathBuf::from)
}

/// Returns `true`, which ends the test, where the server is not installed; prints that.
pub fn skip_unless_installed() -> bool {
    let jar = jars().join("zookeeper.jar");
    skip::skip_unless_installed(&["java"]) || skip::skip_unless(jar.is_file(), "zookeeper.jar")
}

pub fn skip_unless_installed_for_tls() -> bool {
    skip_unless_installed() || skip::skip_unless_installed(&["openssl"])
}

/// `tickTime` in ms: servers measure sessions in ticks, and the shortest session is two ticks.
pub const TICK: u64 = 200;

/// One server process.
pub struct Zookeeper {
    host: Host,
    port: Port,
    tls: Option<Port>,
    /// The ports for followers and for elections.
    peers: [Port; 2],
    dir: PathBuf,
    command: Vec<String>,
    process: Mutex<Option<Process>>,
}

impl Zookeeper {
    /// One server, with these lines added to its configuration.
    pub fn start(lines: &[&str]) -> Self {
        let server = Self::prepare(&Host::here(), &[]);
        server.configure(lines);
        server.begin();
        server.until_serving();
        server
    }

    /// One server, with these settings of the Java machine as well (`-Dname=value`).
    pub fn start_with(settings: &[&str], lines: &[&str]) -> Self {
        let server = Self::prepare(&Host::here(), settings);
        server.configure(lines);
        server.begin();
        server.until_serving();
        server
    }

    /// A server with a wall clock that the test sets.
    pub fn start_with_clock(clock: &Clock) -> Self {
        Self::start_after(&clock.command(), &[])
    }

    /// `before`: words before the program, which set its environment.
    pub fn start_after(before: &[String], settings: &[&str]) -> Self {
        let mut server = Self::prepare(&Host::here(), settings);
        server.command.splice(0..0, before.iter().cloned());
        server.configure(&[]);
        server.begin();
        server.until_serving();
        server
    }

    /// TLS on [`tls_port`](Zookeeper::tls_port), and no TLS on the other.
    pub fn start_tls(certificates: &Certificates, name: &str) -> Self {
        let mut server = Self::prepare(
            &Host::here(),
            &["-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"],
        );
        server.tls = Some(Port::reserve());
        let read = |name: String| std::fs::read_to_string(certificates.file(&name)).unwrap();
        let both = read(format!("{name}.key")) + &read(format!("{name}.crt"));
        std::fs::write(server.dir.join("server.pem"), both).unwrap();
        std::fs::write(server.dir.join("ca.pem"), read("ca.crt".into())).unwrap();
        let file = |name: &str| server.dir.join(name).display().to_string();
        server.configure(&[
            &format!("secureClientPort={}", server.tls_port()),
            "secureClientPortAddress=127.0.0.1",
            &format!("ssl.keyStore.location={}", file("server.pem")),
            &format!("ssl.trustStore.location={}", file("ca.pem")),
            "ssl.clientAuth=none",
        ]);
        server.begin();
        server.until_serving();
        server
    }

    fn shakes_hands(&self, port: u16) -> bool {
        let mut client = Command::new("openssl");
        // Only the handshake matters here; the certificate may be invalid.
        client.args(["s_client", "-connect", &format!("127.0.0.1:{port}")]);
        client.stdin(Stdio::null());
        let output = client.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("Server certificate")
    }

    fn prepare(host: &Host, settings: &[&str]) -> Self {
        let dir = new_directory("zookeeper");
        let jar = |name: &str| jars().join(name).display().to_string();
        // The manifest of the package lacks the last jars, and names the jute jar of its own version.
        let path = [
            "zookeeper-jute.jar",
            "zookeeper.jar",
            "slf4j-simple.jar",
            "netty-codec.jar",
            "netty-resolver.jar",
            "netty-transport-native-unix-common.jar",
        ];
        let path = path.map(jar).join(":");
        let mut command = host.command();
        let java = [
            "java",
            "-Xmx96m",
            "-Xss512k",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Dzookeeper.forceSync=no",
            "-Dzookeeper.preAllocSize=1024",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ];
        command.extend(java.map(Into::into));
        command.extend(settings.iter().map(ToString::to_string));
        command.extend(["-cp".into(), path]);
        command.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".into());
        command.push(dir.join("zoo.cfg").display().to_string());
        Self {
            host: host.clone(),
            port: Port::reserve(),
            tls: None,
            peers: [Port::reserve(), Port::reserve()],
            dir,
            command,
            process: Mutex::new(None),
        }
    }

    fn configure(&self, lines: &[&str]) {
        let (host, port, dir) = (self.host.address(), self.port(), self.dir.display());
        let mut all = format!(
            "tickTime={TICK}\ninitLimit=50\nsyncLimit=10\ndataDir={dir}\nclientPort={port}\n\
             clientPortAddress={host}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
             extendedTypesEnabled=true\nmaxClientCnxns=0\nminSessionTimeout=400\n\
             maxSessionTimeout=60000\n"
        );
        for line in lines {
            all = all + line + "\n";
        }
        std::fs::write(self.dir.join("zoo.cfg"), all).unwrap();
    }

    /// Starts the process.
    ///
    /// # Panics
    /// When the server runs already.
    pub fn begin(&self) {
        let mut slot = self.process.lock().unwrap();
        assert!(slot.is_none(), "it runs");
        *slot = Some(Process::start(&self.dir, &self.command));
    }

    pub fn until_serving(&self) {
        until("the server serves", || {
            let slot = self.process.lock().unwrap();
            if slot.as_ref().is_some_and(Process::has_ended) {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap();
                panic!("the server ended:\n{log}");
            }
            drop(slot);
            self.mode().is_some()
        });
        if let Some(port) = &self.tls {
            // The first handshake takes longer than a session timeout of a test.
            until("the server speaks TLS", || self.shakes_hands(port.number()));
        }
    }

    /// SIGKILL.
    pub fn kill(&self) {
        let process = self.process.lock().unwrap().take();
        process.expect("it runs").kill();
    }

    /// Kills the server and starts it again.
    pub fn restart(&self) {
        self.kill();
        self.begin();
        self.until_serving();
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.with_process(Process::stop);
    }

    /// SIGCONT; returns when the server has read what clients sent meanwhile.
    pub fn resume(&self) {
        self.with_process(Process::resume);
        until("the server reads", || {
            let ports = [Some(self.port()), self.tls.as_ref().map(Port::number)];
            ports.iter().flatten().all(|port| unread(*port) == 0)
        });
    }

    fn with_process(&self, act: impl FnOnce(&Process)) {
        let slot = self.process.lock().unwrap();
        act(slot.as_ref().expect("it runs"));
    }

    pub fn is_up(&self) -> bool {
        self.process.lock().unwrap().is_some()
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `host:port`, as in URLs.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host.address(), self.port())
    }

    pub fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("started with TLS").number()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The answer to a four-letter word; empty if there is none.
    pub fn word(&self, word: &str) -> String {
        let ask = || {
            let mut stream = TcpStream::connect((self.host.address(), self.port())).ok()?;
            let limit = Some(Duration::from_secs(1));
            stream.set_read_timeout(limit).ok()?;
            stream.write_all(word.as_bytes()).ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            Some(answer)
        };
        ask().unwrap_or_default()
    }

    /// `standalone`, `leader`, `follower`, `read-only`; `None` while the server serves no client.
    pub fn mode(&self) -> Option<String> {
        let answer = self.word("srvr");
        let mut lines = answer.lines();
        lines
            .find_map(|line| line.strip_prefix("Mode: "))
            .map(ToOwned::to_owned)
    }

    /// A session of the test, past the library.
    #[track_caller]
    pub fn session(&self) -> Session {
        self.session_as(Some(&format!("{USER}:{PASSWORD}")))
    }

    #[track_caller]
    pub fn session_as(&self, login: Option<&str>) -> Session {
        // During an election a server closes new connections.
        let mut session = None;
        until("it lets us in", || {
            session = Session::open(&self.address(), login).ok();
            session.is_some()
        });
        session.unwrap()
    }
}

impl Drop for Zookeeper {
    fn drop(&mut self) {
        super::process::end(&mut self.process, &self.dir);
    }
}

/// The number of bytes that the process behind that port has not read yet, from /proc/net/tcp.
fn unread(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let ours = words.get(1)?.ends_with(&format!(":{port:04X}"));
        let unread = words.get(4)?.rsplit(':').next()?;
        // A listening socket counts connections in this column.
        let connected = words.get(3) == Some(&"01") || words.get(3) == Some(&"08");
        (ours && connected).then(|| u64::from_str_radix(unread, 16).unwrap())
    };
    table.lines().filter_map(of_line).sum()
}

/// An ensemble of three servers.
pub struct Ensemble {
    pub nodes: Vec<Zookeeper>,
}

impl Ensemble {
    pub fn start() -> Self {
        Self::start_with(&[], &[])
    }

    /// Servers with a wall clock that the test sets.
    pub fn start_with_clock(clock: &Clock) -> Self {
        Self::begin(&[(); 3].map(|()| Host::here()), &clock.command(), &[], &[])
    }

    pub fn start_with(settings: &[&str], lines: &[&str]) -> Self {
        Self::begin(&[(); 3].map(|()| Host::here()), &[], settings, lines)
    }

    /// A server on each host of that network. This machine reaches them, too.
    pub fn start_on(network: &Network) -> Self {
        Self::begin(&network.hosts, &[], &[], &[])
    }

    /// `before`: words before the program, which set its environment.
    fn begin(hosts: &[Host], before: &[String], settings: &[&str], lines: &[&str]) -> Self {
        let node = |host: &Host| {
            let mut node = Zookeeper::prepare(host, settings);
            node.command.splice(0..0, before.iter().cloned());
            node
        };
        let nodes: Vec<_> = hosts.iter().map(node).collect();
        let line = |(at, node): (usize, &Zookeeper)| {
            let [follow, elect] = &node.peers;
            let (follow, elect) = (follow.number(), elect.number());
            format!("server.{}={}:{follow}:{elect}", at + 1, node.host.address())
        };
        let members: Vec<_> = nodes.iter().enumerate().map(line).collect();
        for (at, node) in nodes.iter().enumerate() {
            let mut all: Vec<_> = members.iter().map(String::as_str).collect();
            all.extend(lines);
            node.configure(&all);
            std::fs::write(node.dir.join("myid"), format!("{}\n", at + 1)).unwrap();
            node.begin();
        }
        let ensemble = Self { nodes };
        ensemble.until_whole();
        ensemble
    }

    /// Waits until all running servers serve, one of them as the leader. A leader that was stopped reports for a moment
    /// that it still leads, and then serves no client until it has found the new one.
    pub fn until_whole(&self) {
        let up = || self.nodes.iter().filter(|node| node.is_up());
        up().for_each(Zookeeper::until_serving);
        until("the others follow one leader", || {
            let mut modes: Vec<_> = up().map(Zookeeper::mode).collect();
            modes.sort();
            let [followers @ .., leader] = &modes[..] else {
                return false;
            };
            leader.as_deref() == Some("leader")
                && followers
                    .iter()
                    .all(|mode| mode.as_deref() == Some("follower"))
        });
    }

    /// The index of the leader.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        until("somebody leads", || {
            let leads = |node: &Zookeeper| node.is_up() && node.mode().as_deref() == Some("leader");
            leader = self.nodes.iter().position(leads);
            leader.is_some()
        });
        leader.unwrap()
    }

    pub fn hosts(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(Zookeeper::address).collect();
        hosts.join(",")
    }
}
