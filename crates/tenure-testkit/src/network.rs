//! A network of our own, on which hosts are cut off from each other, or vanish.
//!
//! No proxy can do that: its kernel goes on answering, and it stands between a client and a server, not between the
//! servers. It takes the right to make networks, which not every machine gives.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::skip;

/// Where a server runs.
#[derive(Clone, Debug)]
pub struct Host {
    address: String,
    /// Its name space; none for this machine itself.
    space: Option<String>,
}

impl Host {
    /// This machine, where nobody else hears it.
    pub fn here() -> Self {
        Self {
            address: "127.0.0.1".into(),
            space: None,
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The words before a program that make it run there.
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
    /// This machine's address on it.
    pub here: String,
    janitor: Child,
}

/// Takes the network down at the end of its input, which comes when we drop it, and also when this program is killed.
/// A name space lives on for as long as the last connection in it tries to end, so the wires are cut by name.
const JANITOR: &str = r#"
read -r word
for wire in $1; do ip link delete "$wire"; done
for space in $2; do ip netns delete "$space"; done
"#;

impl Network {
    /// `None`: we may not make one, which is said.
    pub fn new(hosts: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        // Of a block that is for machines to talk to themselves when they are measured (RFC 2544).
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

    /// Nothing passes between these two any more, in silence; whoever else talks to them still does.
    pub fn cut(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let to = &self.hosts[to].address;
            self.hosts[from].ip(&format!("route add blackhole {to}/32"));
        }
    }

    /// The end of [`cut`](Network::cut).
    pub fn join(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let to = &self.hosts[to].address;
            self.hosts[from].ip(&format!("route delete blackhole {to}/32"));
        }
    }

    /// The host is gone from one moment to the next: no FIN, no RST, nobody who acknowledges anything.
    pub fn vanish(&self, host: usize) {
        self.hosts[host].ip(&format!("addr flush dev {FAR}"));
    }
}

/// A host's end of its wire.
const FAR: &str = "eth0";

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        // It ends by itself now; an error has nobody to go to.
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
