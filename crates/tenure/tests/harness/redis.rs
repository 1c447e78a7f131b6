//! The stores on Redis, on real servers that each test program starts once. Looks are by the published
//! format of keys (docs/stores/redis.md) and ask the servers out of band.

use std::sync::LazyLock;
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::store::BoxFuture;

use super::callers::{Connect, redis_of_client};
use super::server::{
    Opened, Store, at_once, by_url, disturb, methods_of_stores, open_at, open_by, requests_of,
};
use super::skips::{ONE_PERMIT, ONE_SET_OF_PERMITS};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::{
    Certificates, Cluster, PASSWORD, Redis, SentinelSetup, independent, redlock_url,
};
use tenure_testkit::resp::Value;
use tenure_testkit::until;

/// One server that has every write on disk before it answers, each harness with a proxy of its own in front.
pub(crate) fn open() -> Opened {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::One, "")
}

/// One server, which a client of another crate knows.
pub(crate) fn open_settings() -> Opened {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_by_proxy(redis_of_client, &SERVER, Kind::One, "")
}

/// The same with locks as Redisson has them.
pub(crate) fn open_redisson() -> Opened {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::Redisson, "&dialect=redisson")
}

/// The same with read-write locks of Redisson.
pub(crate) fn open_redisson_rw() -> Opened {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::ReadWrite, "&dialect=redisson&lock=rw")
}

/// The same with fair locks of Redisson.
pub(crate) fn open_redisson_fair() -> Opened {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::Fair, "&dialect=redisson&lock=fair")
}

/// The same with semaphores of Redisson.
pub(crate) fn open_redisson_semaphore() -> Opened {
    static SERVER: LazyLock<Redis> =
        LazyLock::new(|| Redis::start_secured(&["appendonly yes", "appendfsync always"]));
    open_through_proxy(&SERVER, Kind::Semaphore, "&dialect=redisson&lock=semaphore")
}

fn open_through_proxy(server: &'static Redis, kind: Kind, options: &str) -> Opened {
    open_by_proxy(by_url, server, kind, options)
}

fn open_by_proxy(connect: Connect, server: &'static Redis, kind: Kind, options: &str) -> Opened {
    let proxy = Proxy::redis(server.port());
    let url = format!("{}?timeout=3s{options}", server.url_by(proxy.port()));
    open_by(connect, url, move |store| ServerHarness {
        kind,
        proxy: Some(proxy),
        has_secret: true,
        ..ServerHarness::new(store, vec![server])
    })
}

/// TLS and a password, without a proxy, which cannot read TLS.
pub(crate) fn open_tls() -> Opened {
    static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(Certificates::make);
    static SERVER: LazyLock<Redis> = LazyLock::new(|| Redis::start_tls(&CERTIFICATES));
    let ca = CERTIFICATES.file("ca.crt").display().to_string();
    let url = format!("{}?{FORGETS}&ca={ca}", SERVER.tls_url());
    open_at(url, |store| ServerHarness {
        has_secret: true,
        ..ServerHarness::new(store, vec![&SERVER])
    })
}

/// Failover is slow here, so that a primary that was stopped stays the primary; `tests/redis` tests failovers.
pub(crate) fn open_sentinel() -> Opened {
    static WATCHED: LazyLock<SentinelSetup> = LazyLock::new(|| SentinelSetup::start(120_000));
    let url = format!("{}?{FORGETS}", WATCHED.url());
    // A primary that comes back empty empties its replica.
    open_at(url, |store| {
        ServerHarness::new(store, vec![&WATCHED.servers[0]])
    })
}

pub(crate) fn open_cluster() -> Opened {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(false));
    let url = format!("{}?{FORGETS}", CLUSTER.url());
    open_at(url, |store| ServerHarness {
        kind: Kind::Cluster,
        ..ServerHarness::new(store, CLUSTER.masters().iter().collect())
    })
}

pub(crate) fn open_redlock() -> Opened {
    static SERVERS: LazyLock<Vec<Redis>> = LazyLock::new(|| independent(5));
    let url = format!("{}?{FORGETS}", redlock_url(&SERVERS));
    open_at(url, |store| ServerHarness {
        kind: Kind::Majority,
        ..ServerHarness::new(store, SERVERS.iter().collect())
    })
}

/// These servers keep nothing on disk. With the guard no lease longer than their uptime would be granted.
const FORGETS: &str = "timeout=3s&restart_guard=off";

/// Which servers have a key, and the format of the key.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    One,
    Redisson,
    ReadWrite,
    Fair,
    Semaphore,
    Cluster,
    Majority,
}

struct ServerHarness {
    store: Store,
    kind: Kind,
    servers: Vec<&'static Redis>,
    proxy: Option<Proxy>,
    has_secret: bool,
}

impl ServerHarness {
    fn new(store: Store, servers: Vec<&'static Redis>) -> Self {
        Self {
            store,
            kind: Kind::One,
            servers,
            proxy: None,
            has_secret: false,
        }
    }

    /// Calls `act` on all servers.
    fn all(&self, act: impl Fn(&Redis) + Send + 'static) -> Option<BoxFuture<Verdict>> {
        let servers = self.servers.clone();
        at_once(move || servers.into_iter().for_each(act))
    }

    fn counts_of(servers: &[&Redis], kind: Kind, name: &str) -> ContenderCounts {
        let keys = Keys::of(name);
        let counts = |server: &&Redis| match kind {
            Kind::Redisson => keys.look_at_redisson(server),
            Kind::ReadWrite => keys.look_at_read_write(server),
            Kind::Fair => keys.look_at_fair(server),
            Kind::Semaphore => keys.look_at_semaphore(server),
            _ => keys.count_contenders(server),
        };
        let seen: Vec<_> = servers.iter().map(counts).collect();
        let waiters = seen.iter().map(|(_, waiters)| *waiters).max().unwrap_or(0);
        let holders = match kind {
            // So many are on more than half of the servers.
            Kind::Majority => {
                let mut holders: Vec<_> = seen.iter().map(|(holders, _)| *holders).collect();
                holders.sort_unstable();
                holders[(servers.len() - 1) / 2]
            }
            _ => seen.iter().map(|(holders, _)| holders).sum(),
        };
        ContenderCounts {
            holders,
            waiters: Some(waiters),
        }
    }
}

impl Harness for ServerHarness {
    methods_of_stores!();

    fn cannot_show(&self, behaviour: &str) -> Option<&'static str> {
        let reasons = [ONE_PERMIT, ONE_SET_OF_PERMITS];
        let reason = reasons.iter().find(|(_, names)| names.contains(&behaviour));
        reason
            .filter(|_| self.kind == Kind::Semaphore)
            .map(|(why, _)| *why)
    }

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let counts = Self::counts_of(&self.servers, self.kind, name);
        Box::pin(std::future::ready(Ok(counts)))
    }

    /// The servers answer within a millisecond; two busy cores may need a tenth of this.
    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn recovers(&self) -> bool {
        true
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
            // A cluster node that does not have the key refuses; another node deletes the key.
            // Of a semaphore the holders are in a key of their own.
            let keys = Keys::of(&name);
            server.ask(&["DEL", &keys.lock]);
            server.ask(&["DEL", &format!("{}:timeout", keys.tagged())]);
        })
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let proxy = self.proxy.as_ref()?;
        let refusal = "LOADING Redis is loading the dataset in memory";
        disturb(proxy.planner(), requests_of(step), request_fault, refusal)
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        self.all(Redis::cut_all)
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        self.all(Redis::stop)
    }

    /// Also sends SIGCONT to a server that was not stopped, which does no harm.
    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.proxy.as_ref().map(Proxy::planner);
        let servers = self.servers.clone();
        at_once(move || {
            if let Some(planner) = planner {
                planner.resume();
            }
            servers.into_iter().for_each(Redis::resume);
        })
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        self.all(|server| {
            server.order(&["FLUSHALL"]);
        })
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let (servers, kind) = (self.servers.clone(), self.kind);
        at_once(move || {
            for server in &servers {
                server.restart();
                until("it has loaded", || {
                    server.info_is("persistence", "loading", "0")
                });
            }
            if kind == Kind::Cluster {
                // The nodes serve no request before they have found each other again, which takes longer than a
                // request.
                until("the cluster is whole", || {
                    servers.iter().all(|server| {
                        let info = server.ask(&["CLUSTER", "INFO"]).text();
                        info.contains("cluster_state:ok")
                    })
                });
            }
        })
    }
}

/// The keys of a lock, by the published format and not by the library's code.
pub(crate) struct Keys {
    lock: String,
    queue: String,
    holders: String,
}

impl Keys {
    pub(crate) fn of(name: &str) -> Self {
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
            holders: format!("tenure:{{{tag}}}:holders{tail}"),
            lock,
        }
    }

    /// The number of holders and of waiters on one server, in tenure's own format.
    pub(crate) fn count_contenders(&self, server: &Redis) -> (usize, usize) {
        let holders = match server.ask(&["GET", &self.lock]) {
            // The name is reserved, and there is no holder.
            Value::Bulk(value) if value == b"-" => 0,
            // Several hold beside each other. A field that begins with `-` is a reservation.
            Value::Bulk(value) if value == b"*" => {
                let fields = server.ask(&["HKEYS", &self.holders]).items();
                let fields = fields.iter().map(|field| field.text());
                fields.filter(|field| !field.starts_with('-')).count()
            }
            Value::Bulk(_) => 1,
            _ => 0,
        };
        let waiters = match server.ask(&["LLEN", &self.queue]) {
            // The list has two elements for each waiter.
            Value::Int(length) => usize::try_from(length / 2).unwrap_or(0),
            _ => 0,
        };
        (holders, waiters)
    }

    /// Redisson's lock is a hash with its owner as the field, and a waiter subscribes to the lock's channel.
    fn look_at_redisson(&self, server: &Redis) -> (usize, usize) {
        let holders = usize::from(server.ask(&["HLEN", &self.lock]) == Value::Int(1));
        (holders, self.subscribers(server, "redisson_lock__channel"))
    }

    /// A read-write lock is a hash too, with its mode and a field for each holder.
    fn look_at_read_write(&self, server: &Redis) -> (usize, usize) {
        let fields = match server.ask(&["HLEN", &self.lock]) {
            Value::Int(fields) => usize::try_from(fields).unwrap_or(0),
            _ => 0,
        };
        let holders = fields.saturating_sub(1);
        (holders, self.subscribers(server, "redisson_rwlock"))
    }

    /// A fair lock has its waiters in a list.
    fn look_at_fair(&self, server: &Redis) -> (usize, usize) {
        let holders = usize::from(server.ask(&["HLEN", &self.lock]) == Value::Int(1));
        let queue = format!("redisson_lock_queue:{}", self.tagged());
        let waiters = server.ask(&["LLEN", &queue]).int();
        (holders, usize::try_from(waiters).unwrap_or(0))
    }

    /// A semaphore has the ids of the permits that are held in a sorted set, by the end of their leases.
    fn look_at_semaphore(&self, server: &Redis) -> (usize, usize) {
        let time = server.ask(&["TIME"]).items();
        let seconds: u64 = time[0].text().parse().expect("a number");
        let micros: u64 = time[1].text().parse().expect("a number");
        let now = (seconds * 1_000 + micros / 1_000).to_string();
        let held = format!("{}:timeout", self.tagged());
        let holders = server.ask(&["ZCOUNT", &held, &now, "+inf"]).int();
        let holders = usize::try_from(holders).unwrap_or(0);
        (holders, self.subscribers(server, "redisson_sc"))
    }

    /// The lock as it is called in Redisson's side keys.
    fn tagged(&self) -> String {
        match self.lock.contains('{') {
            true => self.lock.clone(),
            false => format!("{{{}}}", self.lock),
        }
    }

    /// How many connections have subscribed to the lock's channel.
    fn subscribers(&self, server: &Redis, kind: &str) -> usize {
        let channel = format!("{kind}:{}", self.tagged());
        let listeners = server.ask(&["PUBSUB", "NUMSUB", &channel]).items();
        let waiters = listeners.get(1).map_or(0, Value::int);
        usize::try_from(waiters).unwrap_or(0)
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
