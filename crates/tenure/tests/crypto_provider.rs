//! The provider of cryptography that rustls keeps for the whole process belongs to the program: a store that speaks
//! TLS neither sets it nor needs it. ZooKeeper is the exception, because its client library knows no other.
//!
//! What is set once in a process stays, so each test here runs in a process of its own.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod common;

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use tenure::ErrorKind;

use common::{soon, until};
use tenure_testkit::etcd::{self, Etcd};
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::redis::{Certificates, PASSWORD, Redis, SERVICE, USER};
use tenure_testkit::zookeeper::{self, Zookeeper};

/// Names the test that this process was started for.
const OWN_PROCESS: &str = "TENURE_TEST_OWN_PROCESS";

/// Runs the test `name` of this program alone in a new process, and there returns `true`.
fn is_own_process(name: &str) -> bool {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(OWN_PROCESS, name)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{name}:\n{text}");
    assert!(text.contains("1 passed"), "{name} did not run:\n{text}");
    // Past the capture of output, as the testkit prints them.
    for line in text.lines().filter(|line| line.starts_with("SKIP ")) {
        std::io::stdout()
            .write_all(format!("\n{line}\n").as_bytes())
            .unwrap();
    }
    false
}

/// Takes a lock and releases it.
async fn use_store(url: &str) {
    let client = soon(tenure::connect(url)).await.unwrap();
    let guard = soon(client.lock("tls").try_acquire()).await.unwrap();
    soon(guard.unwrap().release()).await.unwrap();
    client.close().await;
}

/// Uses every store that speaks TLS, save ZooKeeper, and calls `check` with its name before and after that.
async fn use_all_stores(check: impl Fn(&str)) {
    check("before");
    if Certificates::skip_unless_installed() {
        return;
    }
    let certificates = Certificates::make();
    let file = |name: &str| certificates.file(name).display().to_string();
    let ca = format!("ca={}", file("ca.crt"));
    let own = format!("cert={}&key={}", file("server.crt"), file("server.key"));
    let login = format!("{USER}:{PASSWORD}@127.0.0.1");

    let server = Redis::start_tls_as(&certificates, "server", true);
    use_store(&format!(
        "rediss://{login}:{}/?restart_guard=off&{ca}&{own}",
        server.tls_port()
    ))
    .await;
    check("redis");
    // Without `ca` the authorities of the system count, and they signed nothing here.
    let unsigned = format!("rediss://{login}:{}/?{own}", server.tls_port());
    let refused = soon(tenure::connect(&unsigned)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    check("redis with the authorities of the system");

    let server = Redis::start_tls(&certificates);
    let sentinel = Redis::start_tls_sentinel(&certificates, &server);
    use_store(&format!(
        "redis+sentinel://{login}:{}/{SERVICE}?tls=on&restart_guard=off&{ca}",
        sentinel.tls_port()
    ))
    .await;
    check("redis+sentinel");
    use_cluster(&Redis::start_tls_cluster(&certificates), &ca).await;
    check("redis+cluster");

    if !etcd::skip_unless_installed() {
        let server = Etcd::start_tls(&certificates, "server");
        let port = server.members[0].tls_port();
        use_store(&format!("etcds://{login}:{port}?{ca}&{own}")).await;
        check("etcd");
    }
    let databases = [
        format!("restart_guard=off&tls=on&{ca}"),
        // Without a check of the certificate, and on this machine only.
        "restart_guard=off&tls=prefer".to_owned(),
    ];
    if !mariadb::skip_unless_installed() {
        let server = MariaDb::start_tls(&certificates, "server");
        for options in &databases {
            use_store(&format!(
                "mysql://{login}:{}/locks?{options}",
                server.port()
            ))
            .await;
            check("mysql");
        }
    }
    if !postgres::skip_unless_installed() {
        let server = Postgres::start_tls(&certificates, "server");
        for options in &databases {
            use_store(&format!(
                "postgres://{login}:{}/locks?{options}",
                server.port()
            ))
            .await;
            check("postgres");
        }
    }
}

/// Waits for a lock of a cluster, so that there is also a connection for the channels of slots.
async fn use_cluster(node: &Redis, ca: &str) {
    let at = format!("127.0.0.1:{}", node.tls_port());
    let url = format!("redis+cluster://{USER}:{PASSWORD}@{at}/?tls=on&restart_guard=off&{ca}");
    let client = soon(tenure::connect(&url)).await.unwrap();
    let guard = soon(client.lock("tls").try_acquire()).await.unwrap();
    let lock = client.lock("tls");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter is subscribed", || {
        !node.ask(&["PUBSUB", "SHARDCHANNELS"]).items().is_empty()
    })
    .await;
    soon(guard.unwrap().release()).await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
    client.close().await;
}

/// Uses ZooKeeper over TLS. `false`: it is not installed.
async fn use_zookeeper() -> bool {
    if zookeeper::skip_unless_installed_for_tls() {
        return false;
    }
    let certificates = Certificates::make();
    let server = Zookeeper::start_tls(&certificates, "server");
    let ca = certificates.file("ca.crt");
    use_store(&format!(
        "zookeeper://{USER}:{PASSWORD}@127.0.0.1:{}/locks?ttl=2s&tls=on&ca={}",
        server.tls_port(),
        ca.display()
    ))
    .await;
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn no_store_installs_a_provider() {
    if is_own_process("no_store_installs_a_provider") {
        use_all_stores(|store| assert!(CryptoProvider::get_default().is_none(), "{store}")).await;
    }
}

/// A provider without cipher suites fails every handshake that takes it.
#[tokio::test(flavor = "multi_thread")]
async fn no_store_takes_the_provider_of_the_program() {
    if is_own_process("no_store_takes_the_provider_of_the_program") {
        let useless = CryptoProvider {
            cipher_suites: Vec::new(),
            ..ring::default_provider()
        };
        useless.install_default().unwrap();
        use_all_stores(|store| {
            let installed = CryptoProvider::get_default().unwrap();
            assert!(installed.cipher_suites.is_empty(), "{store}");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_installs_a_provider_if_the_program_has_none() {
    if is_own_process("zookeeper_installs_a_provider_if_the_program_has_none") {
        let is_used = use_zookeeper().await;
        assert_eq!(CryptoProvider::get_default().is_some(), is_used);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_takes_the_provider_of_the_program() {
    if is_own_process("zookeeper_takes_the_provider_of_the_program") {
        ring::default_provider().install_default().unwrap();
        let installed = CryptoProvider::get_default().unwrap().clone();
        use_zookeeper().await;
        assert!(Arc::ptr_eq(
            &installed,
            CryptoProvider::get_default().unwrap()
        ));
    }
}
