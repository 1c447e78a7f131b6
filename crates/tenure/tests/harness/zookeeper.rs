//! The store on ZooKeeper, on real servers that each test program starts once. Looks are by the published
//! layout (docs/stores/zookeeper.md) and ask the servers out of band.

use std::sync::LazyLock;
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::store::BoxFuture;

use super::callers::{Connect, zookeeper_by_connector};
use super::server::{
    Opened, Store, at_once, by_url, disturb, methods_of_stores, open_at, open_by, requests_of,
};
use tenure_testkit::jute::Session;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Certificates;
use tenure_testkit::zookeeper::{Ensemble, PASSWORD, USER, Zookeeper};

/// The path of all locks of the suite.
const ROOT: &str = "/tests/locks";

/// One server, each harness with its own proxy in front, and a user to whom the nodes belong.
pub(crate) fn open() -> Opened {
    open_one(by_url)
}

/// The same with a connector of the caller.
pub(crate) fn open_connector() -> Opened {
    open_one(zookeeper_by_connector)
}

fn open_one(connect: Connect) -> Opened {
    static SERVER: LazyLock<Zookeeper> =
        LazyLock::new(|| Zookeeper::start_with(COLLECT_CONTAINERS_SOON, &[]));
    let proxy = Proxy::zookeeper(SERVER.port());
    let hosts = format!("127.0.0.1:{}", proxy.port());
    open_by(connect, url(&hosts), |store| ServerHarness {
        store,
        servers: vec![&SERVER],
        proxies: vec![proxy],
        sees_requests: true,
    })
}

/// Empty containers are removed soon, to test what happens in general after up to a minute.
const COLLECT_CONTAINERS_SOON: &[&str] = &["-Dznode.container.checkIntervalMs=500"];

/// Some behaviours stop all servers at the same time, for longer than the two seconds after which servers give each
/// other up. The election that would follow is tested in `tests/common/trio.rs`; once it took longer than any
/// behaviour waits.
const LONG_SYNC_LIMIT: &str = "syncLimit=50";

/// Three servers, each with a proxy in front that is left alone.
pub(crate) fn open_ensemble() -> Opened {
    static ENSEMBLE: LazyLock<Ensemble> =
        LazyLock::new(|| Ensemble::start_with(&[], &[LONG_SYNC_LIMIT]));
    let servers: Vec<_> = ENSEMBLE.nodes.iter().collect();
    let proxies: Vec<_> = servers
        .iter()
        .map(|it| Proxy::zookeeper(it.port()))
        .collect();
    let host = |proxy: &Proxy| format!("127.0.0.1:{}", proxy.port());
    let hosts: Vec<_> = proxies.iter().map(host).collect();
    open_at(url(&hosts.join(",")), |store| ServerHarness {
        store,
        servers,
        proxies,
        sees_requests: true,
    })
}

/// TLS, which the proxy cannot read.
pub(crate) fn open_tls() -> Opened {
    static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(Certificates::make);
    static SERVER: LazyLock<Zookeeper> =
        LazyLock::new(|| Zookeeper::start_tls(&CERTIFICATES, "server"));
    let ca = CERTIFICATES.file("ca.crt").display().to_string();
    let proxy = Proxy::zookeeper(SERVER.tls_port());
    let hosts = format!("127.0.0.1:{}", proxy.port());
    let url = url(&hosts) + "&tls=on&ca=" + &ca;
    open_at(url, |store| ServerHarness {
        store,
        servers: vec![&SERVER],
        proxies: vec![proxy],
        sees_requests: false,
    })
}

fn url(hosts: &str) -> String {
    format!("zookeeper://{USER}:{PASSWORD}@{hosts}{ROOT}?ttl=4s&timeout=3s")
}

struct ServerHarness {
    store: Store,
    servers: Vec<&'static Zookeeper>,
    proxies: Vec<Proxy>,
    sees_requests: bool,
}

impl ServerHarness {
    /// Calls `act` on all servers.
    fn all(&self, act: impl Fn(&Zookeeper) + Send + 'static) -> Option<BoxFuture<Verdict>> {
        let servers = self.servers.clone();
        at_once(move || servers.into_iter().for_each(act))
    }
}

impl Harness for ServerHarness {
    methods_of_stores!();

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let counts = look(self.servers[0], name);
        Box::pin(std::future::ready(Ok(counts)))
    }

    /// The servers answer within a millisecond, and measure sessions to a fifth of this.
    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn secret(&self) -> Option<String> {
        Some(PASSWORD.into())
    }

    fn recovers(&self) -> bool {
        true
    }

    fn requests(&self) -> Option<u64> {
        let all = self.proxies.iter().map(Proxy::requests);
        self.sees_requests.then(|| all.sum())
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let (server, name) = (self.servers[0], name.to_owned());
        at_once(move || {
            let mut wire = server.session();
            let queue = Queue::read(&mut wire, &name);
            for (_, child) in &queue.all[..queue.holders()] {
                wire.delete(&format!("{}/{child}", queue.dir));
            }
        })
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let [proxy] = &self.proxies[..] else {
            return None;
        };
        if !self.sees_requests {
            return None;
        }
        let requests = match step {
            // The first request of an inspection.
            Step::Inspect => "sync",
            Step::Upgrade => "change",
            step => requests_of(step),
        };
        disturb(proxy.planner(), requests, request_fault, "throttled")
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        let planners: Vec<_> = self.proxies.iter().map(Proxy::planner).collect();
        at_once(move || planners.iter().for_each(|planner| planner.cut()))
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        self.all(Zookeeper::stop)
    }

    /// Also sends SIGCONT to a server that was not stopped, which does no harm.
    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let planners: Vec<_> = self.proxies.iter().map(Proxy::planner).collect();
        let servers = self.servers.clone();
        at_once(move || {
            planners.iter().for_each(|planner| planner.resume());
            servers.iter().for_each(|server| server.resume());
            for server in servers {
                server.until_serving();
            }
        })
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        let server = self.servers[0];
        at_once(move || server.session().delete_all("/tests"))
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let servers = self.servers.clone();
        at_once(move || {
            servers.iter().for_each(|server| server.kill());
            servers.iter().for_each(|server| server.begin());
            servers.iter().for_each(|server| server.until_serving());
        })
    }
}

/// Who holds and who waits.
pub(crate) fn look(server: &Zookeeper, name: &str) -> ContenderCounts {
    let queue = Queue::read(&mut server.session(), name);
    let holders = queue.holders();
    ContenderCounts {
        holders,
        waiters: Some(queue.all.len() - holders),
    }
}

/// The queue of a name, by the published layout and not by the library's code.
struct Queue {
    dir: String,
    /// Number and node, first come first.
    all: Vec<(u32, String)>,
    /// The data of each node.
    data: Vec<String>,
}

impl Queue {
    fn read(wire: &mut Session, name: &str) -> Self {
        let dir = format!("{ROOT}/{}", encoded(name));
        wire.sync("/");
        let numbered = |child: String| {
            let number = child.get(child.len().checked_sub(10)?..)?.parse().ok()?;
            Some((number, child))
        };
        let children = wire.children(&dir).into_iter();
        let mut all: Vec<(u32, String)> = children.filter_map(numbered).collect();
        all.sort();
        let mut data = |(_, child): &(u32, String)| {
            let node = wire.get(&format!("{dir}/{child}"));
            let data = node.map(|node| node.data).unwrap_or_default();
            String::from_utf8_lossy(&data).into_owned()
        };
        let data = all.iter().map(&mut data).collect();
        Self { dir, all, data }
    }

    fn holders(&self) -> usize {
        let (mut permits, mut upgradable) = (0, 0);
        // The last one that may hold, while another one waits to become exclusive.
        let mut last = u32::MAX;
        for (at, (number, child)) in self.all.iter().enumerate() {
            let kind = &child["_c_".len() + 36..];
            let changed = |mode: &str| self.data[at].contains(&format!(r#""mode":"{mode}""#));
            let is_exclusive = (kind.starts_with("-lock-") || kind.starts_with("-upgradable-"))
                && !changed("shared")
                && (kind.starts_with("-lock-") || changed("exclusive"));
            let holds = if let Some(limit) = kind.strip_prefix("-permits-") {
                permits += 1;
                let limit: usize = limit.split('-').next().unwrap().parse().unwrap();
                permits <= limit
            } else if kind.starts_with("-upgradable-") && !changed("shared") && !is_exclusive {
                upgradable += 1;
                if let Some((_, rest)) = self.data[at].split_once(r#""last":"#) {
                    let digits = rest.split(|char: char| !char.is_ascii_digit()).next();
                    last = number + digits.unwrap().parse::<u32>().unwrap();
                }
                upgradable <= 1
            } else {
                !is_exclusive || at == 0
            };
            if !holds || *number > last {
                return at;
            }
            if is_exclusive {
                return at + 1;
            }
        }
        self.all.len()
    }
}

/// Writes the characters that a path cannot contain as `%` and two digits.
fn encoded(name: &str) -> String {
    let mut text = String::new();
    for char in name.chars() {
        let refused =
            matches!(u32::from(char), 0..=0x1f | 0x7f..=0x9f | 0xe000..=0xf8ff | 0xfff0..);
        if refused || matches!(char, '/' | '%') || matches!(name, "." | "..") {
            let bytes = char.to_string().into_bytes();
            text.extend(bytes.iter().map(|byte| format!("%{byte:02X}")));
        } else {
            text.push(char);
        }
    }
    text
}
