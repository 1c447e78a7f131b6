//! An etcd server for each test, which the test inspects directly, and the foreign lock clients.
//!
//! The Lock service is used through the JSON gateway that every server has.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure::Client;
use tenure::conformance::lock_holder::LockHolder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::{Driver, LONG, Server, WAIT_TIMEOUT, millis, soon, until};
use tenure_testkit::etcd::{self, base64, unbase64};
use tenure_testkit::skip_unless_installed;

/// A server of its own for each test.
#[derive(Clone)]
pub(crate) struct Etcd(Arc<etcd::Etcd>);

impl Etcd {
    /// `None` where etcd is not installed.
    pub(crate) fn start() -> Option<Self> {
        (!etcd::skip_unless_installed()).then(|| Self(Arc::new(etcd::Etcd::start(1, &[]))))
    }

    pub(crate) fn url(&self, options: &str) -> String {
        format!("{}/{options}", self.0.url())
    }

    pub(crate) async fn client(&self, options: &str) -> Client {
        tenure::connect(&self.url(options)).await.unwrap()
    }

    /// The keys of the holder and of the waiters, in this order.
    pub(crate) fn keys(&self, name: &str) -> Vec<String> {
        let keys = self.0.keys(&format!("{name}/"));
        keys.into_iter().map(|key| key.key).collect()
    }

    /// The revisions at which these keys were created.
    pub(crate) fn created(&self, name: &str) -> Vec<u64> {
        let keys = self.0.keys(&format!("{name}/"));
        keys.into_iter().map(|key| key.created).collect()
    }

    /// The number of leases.
    pub(crate) fn leases(&self) -> usize {
        self.0.leases().len()
    }

    /// Deletes that key by the Lock service, which compares no owner.
    pub(crate) fn unlock(&self, key: &str) {
        let order = json!({ "key": base64(key.as_bytes()) });
        self.0.order("lock/unlock", &order);
    }

    /// All keys in the store.
    pub(crate) fn all_keys(&self) -> Vec<String> {
        let keys = self.0.keys("");
        keys.into_iter().map(|key| key.key).collect()
    }

    /// Sends a request to a service of the gateway, which must not wait.
    pub(crate) fn order(&self, path: &str, order: &Value) {
        self.0.order(path, order);
    }

    /// The value of the leader, as the Election service says.
    pub(crate) fn leader_of_service(&self, name: &str) -> Option<String> {
        if self.keys(name).is_empty() {
            // The service answers with an error, which the gateway of each version tells in another way.
            return None;
        }
        let order = json!({ "name": base64(name.as_bytes()) });
        let answer = self.0.order("election/leader", &order);
        let value = answer["kv"]["value"].as_str().unwrap_or_default();
        Some(String::from_utf8(unbase64(value)).unwrap())
    }

    /// Acquires the lock by the Lock service, and returns its key. Dropping the future cancels the request.
    async fn lock(self, name: String, lease: i64) -> String {
        let order = json!({ "name": base64(name.as_bytes()), "lease": lease.to_string() });
        let body = self.call("lock/lock", order).await;
        String::from_utf8(unbase64(body["key"].as_str().unwrap())).unwrap()
    }

    /// Calls a service that may wait. Dropping the future cancels the request.
    pub(crate) async fn call(self, path: &'static str, order: Value) -> Value {
        let order = order.to_string();
        // After an answer in HTTP/1.0 the connection ends, and nothing in it is cut into pieces.
        let length = order.len();
        let request =
            format!("POST /v3/{path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{order}");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port()))
            .await
            .unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        serde_json::from_str(body).unwrap()
    }

    pub(crate) fn grant(&self, ttl: Duration) -> i64 {
        let order = json!({ "TTL": ttl.as_secs().to_string() });
        let lease = self.0.order("lease/grant", &order);
        lease["ID"].as_str().unwrap().parse().unwrap()
    }
}

impl Server for Etcd {
    fn port(&self) -> u16 {
        self.0.members[0].port()
    }
}

/// One foreign process or connection.
pub(crate) struct ForeignClient {
    etcd: Etcd,
    client: Foreign,
}

enum Foreign {
    Driver(Driver),
    /// The process runs while it waits or holds, prints its key when it holds, and releases the lock at a SIGTERM.
    Etcdctl(Option<LockHolder>),
    /// A call of the Lock service that waits, and its lease; later the key that the call returned.
    Service {
        call: Option<JoinHandle<String>>,
        lease: i64,
        key: String,
    },
}

impl ForeignClient {
    /// The Mutex of etcd's concurrency package. `None` where its driver is not built.
    pub(crate) async fn go(etcd: &Etcd) -> Option<Self> {
        let driver = Driver::start_with("go", etcd, &["etcd"]).await?;
        Some(Self::new(etcd, Foreign::Driver(driver)))
    }

    pub(crate) async fn jetcd(etcd: &Etcd) -> Option<Self> {
        let driver = Driver::start("jetcd", etcd).await?;
        Some(Self::new(etcd, Foreign::Driver(driver)))
    }

    pub(crate) async fn etcdctl(etcd: &Etcd) -> Option<Self> {
        let is_skipped = skip_unless_installed(&["etcdctl"]);
        (!is_skipped).then(|| Self::new(etcd, Foreign::Etcdctl(None)))
    }

    /// The Lock service by plain HTTP.
    pub(crate) async fn gateway(etcd: &Etcd) -> Option<Self> {
        let service = Foreign::Service {
            call: None,
            lease: 0,
            key: String::new(),
        };
        Some(Self::new(etcd, service))
    }

    fn new(etcd: &Etcd, client: Foreign) -> Self {
        let etcd = etcd.clone();
        Self { etcd, client }
    }

    /// Requests the lock, and does not wait for the answer.
    pub(crate) async fn begin(&mut self, name: &str, ttl: Duration) {
        match &mut self.client {
            Foreign::Driver(driver) => {
                driver.tell(&["lock", name, &millis(WAIT_TIMEOUT), &millis(ttl)]);
            }
            Foreign::Etcdctl(process) => {
                let mut command = Command::new("etcdctl");
                command.env("ETCDCTL_API", "3");
                command.arg(format!("--endpoints=127.0.0.1:{}", self.etcd.port()));
                command.args(["lock", name, &format!("--ttl={}", ttl.as_secs())]);
                *process = Some(LockHolder::spawn(command).unwrap());
            }
            Foreign::Service { call, lease, .. } => {
                *lease = self.etcd.grant(ttl);
                let locking = self.etcd.clone().lock(name.to_owned(), *lease);
                *call = Some(tokio::spawn(locking));
            }
        }
    }

    /// Waits for the lock that was requested, and returns its key.
    pub(crate) async fn granted(&mut self) -> String {
        soon("their turn", self.next_key()).await
    }

    /// The next key of a granted lock. The future may be dropped.
    async fn next_key(&mut self) -> String {
        match &mut self.client {
            Foreign::Driver(driver) => from_hex(&driver.held().await),
            Foreign::Etcdctl(process) => {
                let line = process.as_mut().unwrap().line().await;
                line.expect("etcdctl ended")
            }
            Foreign::Service { call, key, .. } => {
                *key = call.as_mut().unwrap().await.unwrap();
                *call = None;
                key.clone()
            }
        }
    }

    /// Acquires the lock, which is free, and returns its key.
    pub(crate) async fn take(&mut self, name: &str, ttl: Duration) -> String {
        self.begin(name, ttl).await;
        self.granted().await
    }

    /// Whether the client would have to wait; otherwise it holds the lock afterwards.
    pub(crate) async fn try_fails(&mut self, name: &str) -> bool {
        if let Foreign::Driver(driver) = &mut self.client {
            return driver.try_fails(name).await;
        }
        let before = self.etcd.keys(name);
        self.begin(name, LONG).await;
        let try_fails = loop {
            let moment = Duration::from_millis(5);
            if tokio::time::timeout(moment, self.next_key()).await.is_ok() {
                break false;
            }
            // The first key must still be that of the holder.
            let now = self.etcd.keys(name);
            if now.len() > before.len() && now.first() == before.first() {
                break true;
            }
        };
        if try_fails {
            self.stop().await;
            until("they are gone", || self.etcd.keys(name) == before).await;
        }
        try_fails
    }

    /// Ends the wait or the hold of the client.
    async fn stop(&mut self) {
        match &mut self.client {
            Foreign::Driver(_) => unreachable!("a driver is told what to do"),
            Foreign::Etcdctl(process) => {
                let mut process = process.take().unwrap();
                let pid = Pid::from_raw(process.pid().cast_signed()).unwrap();
                kill_process(pid, Signal::TERM).unwrap();
                let end = async { while process.line().await.is_some() {} };
                soon("the end of etcdctl", end).await;
            }
            Foreign::Service { call, lease, key } => {
                if let Some(call) = call.take() {
                    call.abort();
                } else {
                    self.etcd.unlock(key);
                }
                self.etcd.0.revoke(*lease);
            }
        }
    }

    /// Releases the lock, which the client holds.
    pub(crate) async fn unlock(&mut self, name: &str) {
        match &mut self.client {
            Foreign::Driver(driver) => driver.unlock(name).await,
            _ => self.stop().await,
        }
    }

    /// Kills the client, so that no process renews its lease.
    pub(crate) fn kill(&mut self) {
        match &mut self.client {
            Foreign::Driver(driver) => driver.kill(),
            Foreign::Etcdctl(process) => process.as_mut().unwrap().kill().unwrap(),
            // No process renews the lease of the service.
            Foreign::Service { .. } => {}
        }
    }
}

pub(crate) fn from_hex(text: &str) -> String {
    let bytes = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).unwrap();
        u8::from_str_radix(pair, 16).unwrap()
    });
    String::from_utf8(bytes.collect()).unwrap()
}
