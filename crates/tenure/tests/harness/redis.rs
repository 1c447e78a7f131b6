//! The backends on Redis, on real servers that each test program starts once. Looks are by the published
//! format of keys (docs/stores/redis.md) and ask the servers out of band.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tenure::backend::BoxFuture;
use tenure::conformance::{Failure, Harness, Look, Trouble, Verdict};
use tenure::error::Step;
use tenure::guarantees::Guarantees;
use tenure::{Client, Error};

use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::redis::{
    Certificates, Cluster, PASSWORD, Redis, SentinelSetup, independent, redlock_url,
};
use tenure_testkit::resp::Value;
use tenure_testkit::until;

/// One server that has every write on disk before it answers, each harness with a proxy of its own in front.
pub(crate) fn open() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::One, "")
}

/// The same with locks as Redisson has them.
pub(crate) fn open_redisson() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::Redisson, "&dialect=redisson")
}

fn open_through_proxy(
    server: &'static Redis,
    kind: Kind,
    options: &str,
) -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    let proxy = Proxy::start(server.port());
    let url = format!("{}?timeout=2s{options}", server.url_by(proxy.port()));
    Site {
        kind,
        proxy: Some(proxy),
        has_secret: true,
        ..Site::new(url, vec![server])
    }
    .open()
}

/// TLS, a password, no proxy: it cannot look into TLS.
pub(crate) fn open_tls() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(Certificates::make);
    static SERVER: LazyLock<Redis> = LazyLock::new(|| Redis::start_tls(&CERTIFICATES));
    let ca = CERTIFICATES.file("ca.crt").display().to_string();
    let url = format!("{}?{FORGETS}&ca={ca}", SERVER.tls_url());
    Site {
        has_secret: true,
        ..Site::new(url, vec![&SERVER])
    }
    .open()
}

/// Failover is slow here, so that a primary that was stopped stays the primary: what a failover does
/// is tested in `tests/redis`.
pub(crate) fn open_sentinel() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static WATCHED: LazyLock<SentinelSetup> = LazyLock::new(|| SentinelSetup::start(120_000));
    let url = format!("{}?{FORGETS}", WATCHED.url());
    // A primary that comes back empty empties its replica.
    Site::new(url, vec![&WATCHED.servers[0]]).open()
}

pub(crate) fn open_cluster() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(false));
    let url = format!("{}?{FORGETS}", CLUSTER.url());
    Site {
        kind: Kind::Cluster,
        ..Site::new(url, CLUSTER.masters().iter().collect())
    }
    .open()
}

pub(crate) fn open_redlock() -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
    static SERVERS: LazyLock<Vec<Redis>> = LazyLock::new(|| independent(5));
    let url = format!("{}?{FORGETS}", redlock_url(&SERVERS));
    Site {
        kind: Kind::Majority,
        ..Site::new(url, SERVERS.iter().collect())
    }
    .open()
}

/// These servers keep nothing on disk. With the guard no lease longer than their uptime would be granted.
const FORGETS: &str = "timeout=2s&restart_guard=off";

/// Which servers have a key, and of what kind it is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    One,
    Redisson,
    Cluster,
    Majority,
}

struct Site {
    kind: Kind,
    url: String,
    servers: Vec<&'static Redis>,
    proxy: Option<Proxy>,
    has_secret: bool,
    guarantees: Option<Guarantees>,
}

impl Site {
    fn new(url: String, servers: Vec<&'static Redis>) -> Self {
        Self {
            kind: Kind::One,
            url,
            servers,
            proxy: None,
            has_secret: false,
            guarantees: None,
        }
    }

    /// Asks a client for what is promised here.
    fn open(mut self) -> BoxFuture<Result<Arc<dyn Harness>, Failure>> {
        Box::pin(async move {
            let client = tenure::connect(&self.url).await?;
            self.guarantees = Some(client.guarantees().clone());
            client.close().await;
            Ok(Arc::new(self) as _)
        })
    }

    /// Does this to all servers.
    fn all(&self, act: impl Fn(&Redis) + Send + 'static) -> Option<BoxFuture<Verdict>> {
        let servers = self.servers.clone();
        Some(Box::pin(async move {
            servers.into_iter().for_each(act);
            Ok(())
        }))
    }

    fn look_at(servers: &[&Redis], kind: Kind, name: &str) -> Look {
        let keys = Keys::of(name);
        let look = |server: &&Redis| match kind {
            Kind::Redisson => keys.look_at_redisson(server),
            _ => keys.look(server),
        };
        let seen: Vec<_> = servers.iter().map(look).collect();
        let waiters = seen.iter().map(|(_, waiters)| *waiters).max().unwrap_or(0);
        let holders = match kind {
            Kind::One | Kind::Redisson | Kind::Cluster => {
                seen.iter().flat_map(|(holder, _)| holder).count()
            }
            // Who has more than half of the servers; there is one such at most.
            Kind::Majority => {
                seen.iter().flat_map(|(holder, _)| holder).count() / (servers.len() / 2 + 1)
            }
        };
        Look {
            holders,
            waiters: Some(waiters),
        }
    }
}

impl Harness for Site {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let url = self.url.clone();
        Box::pin(async move { tenure::connect(&url).await })
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
            .clone()
            .expect("asked for when this was opened")
    }

    fn look(&self, name: &str) -> BoxFuture<Result<Look, Failure>> {
        let look = Self::look_at(&self.servers, self.kind, name);
        Box::pin(std::future::ready(Ok(look)))
    }

    fn leases(&self) -> bool {
        true
    }

    /// The servers answer within a millisecond; two busy cores may need a tenth of this.
    fn ttl(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn taker(&self) -> Option<PathBuf> {
        Some(env!("CARGO_BIN_EXE_tenure-taker").into())
    }

    fn secret(&self) -> Option<String> {
        self.has_secret.then(|| PASSWORD.into())
    }

    fn requests(&self) -> Option<u64> {
        self.proxy.as_ref().map(Proxy::requests)
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let name = name.to_owned();
        self.all(move |server| {
            // A node of a cluster that does not have it says so; another one does it.
            server.ask(&["DEL", &Keys::of(&name).lock]);
        })
    }

    fn disturb(&self, step: Step, trouble: Trouble) -> Option<BoxFuture<Verdict>> {
        let proxy = self.proxy.as_ref()?;
        let fault = match trouble {
            Trouble::RequestLost => Fault::Answer("LOADING Redis is loading the dataset in memory"),
            Trouble::ReplyLost => Fault::CutAfter,
            Trouble::ReplyNever => Fault::NoReply,
            Trouble::Late(by) => Fault::Late(by),
            _ => return None,
        };
        let step = match step {
            Step::Acquire => "acquire",
            Step::Renew => "renew",
            Step::Release => "release",
            _ => "look",
        };
        let planner = proxy.planner();
        Some(Box::pin(async move {
            planner.plan(step, fault);
            Ok(())
        }))
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        self.all(Redis::cut_all)
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        self.all(Redis::stop)
    }

    /// Also wakes up a server that was not stopped, which does no harm.
    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.proxy.as_ref().map(Proxy::planner);
        let servers = self.servers.clone();
        Some(Box::pin(async move {
            if let Some(planner) = planner {
                planner.resume();
            }
            servers.into_iter().for_each(Redis::resume);
            Ok(())
        }))
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        self.all(|server| {
            server.order(&["FLUSHALL"]);
        })
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let (servers, kind) = (self.servers.clone(), self.kind);
        Some(Box::pin(async move {
            for server in &servers {
                server.restart();
                until("it has loaded", || {
                    server.info("persistence", "loading") == "0"
                });
            }
            if kind == Kind::Cluster {
                // They serve nobody before they have found each other again, longer than a request takes.
                until("the cluster is whole", || {
                    servers.iter().all(|server| {
                        let info = server.ask(&["CLUSTER", "INFO"]).text();
                        info.contains("cluster_state:ok")
                    })
                });
            }
            Ok(())
        }))
    }
}

/// Where a lock lies, by the published format and not by the library's code.
struct Keys {
    lock: String,
    queue: String,
}

impl Keys {
    fn of(name: &str) -> Self {
        let lock = if name.starts_with("tenure:{") || name.starts_with("tenure:=") {
            format!("tenure:={name}")
        } else {
            name.to_owned()
        };
        let hashed = hashed(&lock);
        let tag = if hashed.contains('}') {
            let slot = slot(hashed);
            let mut numbers = (0_u32..).map(|number| number.to_string());
            let fits = |number: &String| self::slot(number) == slot;
            numbers.find(fits).expect("decimal numbers have all slots")
        } else {
            hashed.to_owned()
        };
        let tail = if tag == lock {
            String::new()
        } else {
            format!(":{lock}")
        };
        Self {
            queue: format!("tenure:{{{tag}}}:queue{tail}"),
            lock,
        }
    }

    /// Who holds, if anybody does, and how many wait, as one server has it.
    fn look(&self, server: &Redis) -> (Option<Vec<u8>>, usize) {
        let holder = match server.ask(&["GET", &self.lock]) {
            // Reserved, and nobody's.
            Value::Bulk(value) if value == b"-" => None,
            Value::Bulk(value) => Some(value),
            _ => None,
        };
        let waiters = match server.ask(&["LLEN", &self.queue]) {
            // Two elements of each.
            Value::Int(length) => usize::try_from(length / 2).unwrap_or(0),
            _ => 0,
        };
        (holder, waiters)
    }

    /// There a lock is a hash with its owner as the field, and who waits listens to the lock's channel.
    fn look_at_redisson(&self, server: &Redis) -> (Option<Vec<u8>>, usize) {
        let holder = match server.ask(&["HLEN", &self.lock]) {
            Value::Int(1) => Some(server.ask(&["HKEYS", &self.lock]).text().into_bytes()),
            _ => None,
        };
        let channel = match self.lock.contains('{') {
            true => format!("redisson_lock__channel:{}", self.lock),
            false => format!("redisson_lock__channel:{{{}}}", self.lock),
        };
        let listeners = server.ask(&["PUBSUB", "NUMSUB", &channel]).items();
        let waiters = listeners.get(1).map_or(0, Value::int);
        (holder, usize::try_from(waiters).unwrap_or(0))
    }
}

/// What Redis Cluster hashes of a key.
fn hashed(key: &str) -> &str {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// CRC-16/XMODEM, modulo the number of slots, as the specification of Redis Cluster has it.
fn slot(hashed: &str) -> u16 {
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    });
    crc % tenure_testkit::redis::SLOTS
}
