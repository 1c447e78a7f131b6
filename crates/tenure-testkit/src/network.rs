//! A network of a test, on which hosts are cut off from each other, or vanish.
//!
//! A proxy cannot do that: its kernel still answers, and it stands between clients and servers, not between servers. A
//! test needs the right to make networks, which not every machine gives.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::skip;

/// Where a server runs.
#[derive(Clone, Debug)]
pub struct Host {
    address: String,
    /// The network namespace; none for this machine itself.
    space: Option<String>,
}

impl Host {
    /// This machine, by its loopback address.
    pub fn here() -> Self {
        Self {
            address: "127.0.0.1".into(),
            space: None,
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The words before a command that run it on this host.
    pub fn command(&self) -> Vec<String> {
        let words = |space: &String| ["ip", "netns", "exec", space].map(Into::into).to_vec();
        self.space.as_ref().map_or(Vec::new(), words)
    }

    fn ip(&self, line: &str) {
        let space = self.space.as_ref().expect("a host of a network");
        ip(&format!("-n {space} {line}")).unwrap();
    }
}

/// A switch, this machine at one of its ports, and a host at each of the others.
pub struct Network {
    pub hosts: Vec<Host>,
    /// The address of this machine on the network.
    pub here: String,
    janitor: Child,
}

/// Removes the network when its input ends: when the network is dropped, or when this program is killed. A namespace
/// exists until the last connection in it has ended, so the links are deleted by name.
const JANITOR: &str = r#"
read -r word
for wire in $1; do ip link delete "$wire"; done
for space in $2; do ip netns delete "$space"; done
"#;

impl Network {
    /// `None` where this process may not make a network; prints that.
    pub fn new(hosts: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        // From the block that is reserved for benchmarks of networks (RFC 2544).
        let address = |at: usize| {
            let (second, third) = (18 + pid / 256 % 2, pid % 256);
            format!("198.{second}.{third}.{}", count as usize % 32 * 8 + at + 1)
        };
        let switch = format!("ts{pid}-{count}");
        let space = |at: usize| format!("tenure-{pid}-{count}-{at}");
        let near = |at: usize| format!("tn{pid}-{count}-{at}");
        let mut lines = vec![
            format!("link add {switch} type bridge"),
            format!("addr add {}/29 dev {switch}", address(0)),
            format!("link set {switch} up"),
        ];
        for at in 0..hosts {
            let (space, near) = (space(at), near(at));
            lines.extend([
                format!("netns add {space}"),
                format!("link add {near} type veth peer name {FAR} netns {space}"),
                format!("link set {near} master {switch}"),
                format!("link set {near} up"),
                format!("-n {space} addr add {}/29 dev {FAR}", address(at + 1)),
                format!("-n {space} link set {FAR} up"),
                format!("-n {space} link set lo up"),
            ]);
        }
        let wires: Vec<_> = (0..hosts).map(near).chain([switch]).collect();
        let spaces: Vec<_> = (0..hosts).map(space).collect();
        let mut janitor = Command::new("sh");
        janitor.args(["-c", JANITOR, "sh", &wires.join(" "), &spaces.join(" ")]);
        janitor.process_group(0).stdin(Stdio::piped());
        janitor.stdout(Stdio::null()).stderr(Stdio::null());
        let network = Self {
            hosts: (0..hosts)
                .map(|at| Host {
                    address: address(at + 1),
                    space: Some(space(at)),
                })
                .collect(),
            here: address(0),
            janitor: janitor.spawn().unwrap(),
        };
        for line in lines {
            if let Err(why) = ip(&line) {
                skip::print_skip(&format!("no network of our own (ip {line}: {why})"));
                return None;
            }
        }
        Some(network)
    }

    /// Packets between these two hosts are dropped. Both still reach all other hosts.
    pub fn cut(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let to = &self.hosts[to].address;
            self.hosts[from].ip(&format!("route add blackhole {to}/32"));
        }
    }

    /// Ends [`cut`](Network::cut).
    pub fn join(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let to = &self.hosts[to].address;
            self.hosts[from].ip(&format!("route delete blackhole {to}/32"));
        }
    }

    /// The host is gone at once: it sends no FIN and no RST, and acknowledges nothing.
    pub fn vanish(&self, host: usize) {
        self.hosts[host].ip(&format!("addr flush dev {FAR}"));
    }
}

/// The interface of a host.
const FAR: &str = "eth0";

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        // The shell ends when its input ends; a destructor cannot return an error.
        let _ = self.janitor.wait();
    }
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
