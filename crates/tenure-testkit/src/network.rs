//! A network of a test, on which hosts are cut off from each other, or vanish.
//!
//! A proxy cannot do that: its kernel still answers, and it stands between clients and servers, not between servers. A
//! test needs the right to make networks, which not every machine gives.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::skip;

/// A host on which a server runs.
#[derive(Clone, Debug)]
pub struct Host {
    address: String,
    /// The network namespace; none for this machine itself.
    namespace: Option<String>,
}

impl Host {
    /// This machine, by its loopback address.
    pub fn here() -> Self {
        Self {
            address: "127.0.0.1".into(),
            namespace: None,
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The words before a command that run it on this host.
    pub fn command(&self) -> Vec<String> {
        let words =
            |namespace: &String| ["ip", "netns", "exec", namespace].map(Into::into).to_vec();
        self.namespace.as_ref().map_or(Vec::new(), words)
    }

    fn ip(&self, line: &str) {
        let namespace = self.namespace.as_ref().expect("a host of a network");
        ip(&format!("-n {namespace} {line}")).unwrap();
    }
}

/// A switch, this machine at one of its ports, and a host at each of the others.
pub struct Network {
    pub hosts: Vec<Host>,
    /// The address of this machine on the network.
    pub here: String,
    cleanup: Child,
}

/// Removes the network when its input ends: when the network is dropped, or when this program is killed. A namespace
/// exists until the last connection in it has ended, so the links are deleted by name.
const CLEANUP: &str = r#"
read -r word
for link in $1; do ip link delete "$link"; done
for namespace in $2; do ip netns delete "$namespace"; done
"#;

impl Network {
    /// `None` where this process may not make a network; prints that.
    pub fn new(hosts: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        // The addresses are from the block that is reserved for benchmarks of networks (RFC 2544).
        let address = |at: usize| {
            let (second, third) = (18 + pid / 256 % 2, pid % 256);
            format!("198.{second}.{third}.{}", count as usize % 32 * 8 + at + 1)
        };
        let switch = format!("ts{pid}-{count}");
        let namespace = |at: usize| format!("tenure-{pid}-{count}-{at}");
        let port = |at: usize| format!("tn{pid}-{count}-{at}");
        let mut lines = vec![
            format!("link add {switch} type bridge"),
            format!("addr add {}/29 dev {switch}", address(0)),
            format!("link set {switch} up"),
        ];
        for at in 0..hosts {
            let (namespace, port) = (namespace(at), port(at));
            lines.extend([
                format!("netns add {namespace}"),
                format!("link add {port} type veth peer name {INTERFACE} netns {namespace}"),
                format!("link set {port} master {switch}"),
                format!("link set {port} up"),
                format!(
                    "-n {namespace} addr add {}/29 dev {INTERFACE}",
                    address(at + 1)
                ),
                format!("-n {namespace} link set {INTERFACE} up"),
                format!("-n {namespace} link set lo up"),
            ]);
        }
        let links: Vec<_> = (0..hosts).map(port).chain([switch]).collect();
        let namespaces: Vec<_> = (0..hosts).map(namespace).collect();
        let mut cleanup = Command::new("sh");
        cleanup.args(["-c", CLEANUP, "sh", &links.join(" "), &namespaces.join(" ")]);
        cleanup.process_group(0).stdin(Stdio::piped());
        cleanup.stdout(Stdio::null()).stderr(Stdio::null());
        let network = Self {
            hosts: (0..hosts)
                .map(|at| Host {
                    address: address(at + 1),
                    namespace: Some(namespace(at)),
                })
                .collect(),
            here: address(0),
            cleanup: cleanup.spawn().unwrap(),
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
        self.hosts[host].ip(&format!("addr flush dev {INTERFACE}"));
    }
}

/// The interface of a host.
const INTERFACE: &str = "eth0";

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        // The shell ends when its input ends; a destructor cannot return an error.
        let _ = self.cleanup.wait();
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
