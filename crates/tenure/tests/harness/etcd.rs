//! The store on etcd, on real members that each test program starts once. Looks are by the published format of
//! keys (docs/stores/etcd.md) and ask the members out of band.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tenure::conformance::{ContenderCounts, Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::store::BoxFuture;

use super::callers::{Connect, etcd_over_channel};
use super::server::{
    Opened, Store, at_once, by_url, methods_of_stores, open_at, open_by, requests_of,
};
use tenure_testkit::etcd::{Etcd, Key, Member};
use tenure_testkit::proxy::{Fault, Planner, Proxy};
use tenure_testkit::redis::{Certificates, PASSWORD};

/// One member, each harness with a proxy of its own in front.
pub(crate) fn open() -> Opened {
    open_through_proxy(by_url)
}

/// The same over a channel of the caller.
pub(crate) fn open_channel() -> Opened {
    open_through_proxy(etcd_over_channel)
}

fn open_through_proxy(connect: Connect) -> Opened {
    static ETCD: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1, &[]));
    let proxy = Proxy::etcd(ETCD.members[0].port());
    let url = ETCD.url_by(&[proxy.address()]);
    let url = format!("{url}?timeout=3s");
    open_by(connect, url, move |store| ServerHarness {
        proxy: Some(proxy),
        ..ServerHarness::new(store, &ETCD)
    })
}

/// Three members.
pub(crate) fn open_three() -> Opened {
    static ETCD: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(3, &[]));
    let relays: Vec<_> = ETCD.members.iter().map(Member::port).collect();
    let relays: Vec<_> = relays.into_iter().map(Proxy::tcp).map(Arc::new).collect();
    let addresses: Vec<_> = relays.iter().map(|relay| relay.address()).collect();
    let url = format!("{}?timeout=3s", ETCD.url_by(&addresses));
    open_at(url, |store| ServerHarness {
        relays,
        ..ServerHarness::new(store, &ETCD)
    })
}

/// TLS, with certificates on both sides, and a password.
pub(crate) fn open_tls() -> Opened {
    static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(Certificates::make);
    static ETCD: LazyLock<Etcd> = LazyLock::new(|| Etcd::start_tls(&CERTIFICATES, "server"));
    let relay = Proxy::tcp(ETCD.members[0].tls_port());
    let file = |name: &str| CERTIFICATES.file(name).display().to_string();
    let address = relay.address();
    let url = ETCD.url_by(&[address]).replace("etcd://", "etcds://");
    let (ca, cert, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let url = format!("{url}?timeout=3s&ca={ca}&cert={cert}&key={key}");
    open_at(url, |store| ServerHarness {
        relays: vec![Arc::new(relay)],
        has_secret: true,
        ..ServerHarness::new(store, &ETCD)
    })
}

/// One member; every lock has a lease of its own, and stands behind a prefix.
pub(crate) fn open_lease_per_lock() -> Opened {
    static ETCD: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1, &[]));
    let relay = Proxy::tcp(ETCD.members[0].port());
    let url = ETCD.url_by(&[relay.address()]) + "?timeout=3s&lease=lock&prefix=locks/";
    open_at(url, |store| ServerHarness {
        relays: vec![Arc::new(relay)],
        prefix: "locks/",
        ..ServerHarness::new(store, &ETCD)
    })
}

struct ServerHarness {
    store: Store,
    etcd: &'static Etcd,
    proxy: Option<Proxy>,
    relays: Vec<Arc<Proxy>>,
    prefix: &'static str,
    has_secret: bool,
}

impl ServerHarness {
    fn new(store: Store, etcd: &'static Etcd) -> Self {
        Self {
            store,
            etcd,
            proxy: None,
            relays: Vec::new(),
            prefix: "",
            has_secret: false,
        }
    }

    /// Does this to all members.
    fn all(&self, act: impl Fn(&Member) + Send + 'static) -> Option<BoxFuture<Verdict>> {
        let etcd = self.etcd;
        at_once(move || etcd.members.iter().for_each(act))
    }

    fn planner(&self) -> Option<Planner> {
        self.proxy.as_ref().map(Proxy::planner)
    }
}

impl Harness for ServerHarness {
    methods_of_stores!();

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let counts = look(self.etcd, &directory(self.prefix, name));
        Box::pin(std::future::ready(Ok(counts)))
    }

    /// Ten round trips on a busy machine.
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
        let (etcd, directory) = (self.etcd, directory(self.prefix, name));
        at_once(move || etcd.delete(&directory))
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let planner = self.planner()?;
        let fault = match request_fault {
            RequestFault::RequestLost => Fault::Answer("14 etcdserver: no leader"),
            RequestFault::ReplyLost => Fault::CutAfter,
            RequestFault::ReplyNever => Fault::NoReply,
            RequestFault::Late(by) => Fault::Late(by),
            _ => return None,
        };
        let requests = match step {
            Step::Upgrade => "change",
            step => requests_of(step),
        };
        at_once(move || planner.plan(requests, fault))
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        let (planner, relays) = (self.planner(), self.relays.clone());
        at_once(move || {
            if let Some(planner) = planner {
                planner.cut();
            }
            relays.iter().for_each(|relay| relay.cut());
        })
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        self.all(Member::stop)
    }

    /// Also wakes up a member that was not stopped, which does no harm.
    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let (etcd, planner) = (self.etcd, self.planner());
        at_once(move || {
            if let Some(planner) = planner {
                planner.resume();
            }
            etcd.members.iter().for_each(Member::resume);
            etcd.until_ready();
        })
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        let etcd = self.etcd;
        at_once(move || etcd.delete(""))
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        let etcd = self.etcd;
        at_once(move || {
            etcd.members.iter().for_each(Member::kill);
            etcd.members.iter().for_each(Member::start);
            etcd.until_ready();
        })
    }
}

/// Where the keys of a lock lie, by the published format and not by the library's code.
pub(crate) fn directory(prefix: &str, name: &str) -> String {
    let mut directory = prefix.to_owned();
    for c in name.chars() {
        if c == '/' || c == '%' || c.is_ascii_control() {
            directory += &format!("%{:02X}", c as u32);
        } else {
            directory.push(c);
        }
    }
    directory + "/"
}

/// Who holds and who waits in that [`directory`]. The first key holds, alone or together with the following keys of its kind.
pub(crate) fn look(etcd: &Etcd, directory: &str) -> ContenderCounts {
    let keys = etcd.keys(directory);
    let value = |key: &Key| serde_json::from_str(&key.value).unwrap_or(serde_json::Value::Null);
    let (mut holders, mut waiters, mut permits, mut upgradable) = (0, 0, 0, 0);
    let mut is_blocked = false;
    // From an upgrade on only keys hold that held at that time.
    let mut last_holder = u64::MAX;
    for (at, key) in keys.iter().enumerate() {
        let value = value(key);
        let mut holds = !is_blocked && key.created <= last_holder;
        match value["mode"].as_str() {
            Some("shared") => {}
            Some("upgradable" | "upgrading") => {
                upgradable += 1;
                holds &= upgradable == 1;
                last_holder = value["last_holder"].as_u64().unwrap_or(last_holder);
            }
            Some("permits") => {
                permits += 1;
                holds &= permits <= value["limit"].as_u64().unwrap_or(0);
            }
            _ => {
                holds &= at == 0;
                is_blocked = true;
            }
        }
        is_blocked |= !holds;
        if value["mode"] == "reserved" || value["reserved"] == true {
            continue;
        }
        holders += usize::from(holds);
        waiters += usize::from(!holds);
    }
    ContenderCounts {
        holders,
        waiters: Some(waiters),
    }
}
