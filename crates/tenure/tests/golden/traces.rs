//! How many requests of which kind each operation sends, on each server store. `redlock:` is left out, because its
//! requests depend on which of its servers answers first.
//!
//! Each scenario has clients of its own and ends with `close`, which waits for all requests of the clients, so no
//! number depends on time. The cost of an operation is the difference between two scenarios.

use crate::scenarios::{Counted, TracedStore, run_all, run_elections};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Redis;
use tenure_testkit::zookeeper::{PASSWORD, USER, Zookeeper};

/// No lease ends and no renewal is due during a scenario, and a server that has just started is trusted.
const OPTIONS: &str = "timeout=20s&restart_guard=off";

/// The same for sessions, whose connections are not validated during a scenario either.
const SESSION_OPTIONS: &str = "timeout=20s&restart_guard=off&tls=off&validate=60s";

const TABLE_OPTIONS: &str = "mode=table&tls=off&timeout=20s";

/// A server on this port, with a URL through the proxy and a direct URL; `url` makes a URL of a port.
fn traced_store(port: u16, proxy: Proxy, url: impl Fn(u16) -> String) -> TracedStore {
    let traced = url(proxy.port());
    TracedStore::new(traced, url(port), proxy)
}

async fn compare(store: &str, traced: TracedStore) {
    traced.init().await;
    let lines = run_all(&traced).await;
    crate::compare(&format!("traces/{store}"), &lines);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = |port| format!("{}?{OPTIONS}", server.url_by(port));
    let traced = traced_store(server.port(), Proxy::redis(server.port()), url);
    compare("redis", traced).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_election() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = |port| format!("{}?{OPTIONS}", server.url_by(port));
    let traced = traced_store(server.port(), Proxy::redis(server.port()), url);
    crate::compare("traces/redis-election", &run_elections(&traced).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_redisson() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = |port| format!("{}?{OPTIONS}&dialect=redisson", server.url_by(port));
    let traced = traced_store(server.port(), Proxy::redis(server.port()), url);
    compare("redis-redisson", traced.without_waits()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd() {
    needs!(etcd);
    let server = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(server.members[0].port());
    let url = |address| format!("{}?timeout=20s", server.url_by(&[address]));
    let direct = url(format!("127.0.0.1:{}", server.members[0].port()));
    let traced = TracedStore::new(url(proxy.address()), direct, proxy);
    // A release may come before the waiter has its watch.
    compare("etcd", traced.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let url =
        |port| format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{port}/locks?timeout=20s&ttl=60s");
    let traced = traced_store(server.port(), Proxy::zookeeper(server.port()), url);
    // How often a waiter lists the contenders depends on when the event of its watch comes.
    compare("zookeeper", traced.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let url = |port| format!("{}?{SESSION_OPTIONS}", server.url_at(port));
    let proxy = Proxy::mysql(server.port());
    compare("mysql", traced_store(server.port(), proxy, url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_table() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let url = |port| format!("{}?{TABLE_OPTIONS}", server.url_at(port));
    let traced = traced_store(server.port(), Proxy::mysql(server.port()), url);
    compare("mysql-table", traced.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = |port| format!("{}?{SESSION_OPTIONS}", server.url_at(port));
    let proxy = Proxy::postgres(server.port());
    compare("postgres", traced_store(server.port(), proxy, url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_table() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = |port| format!("{}?{TABLE_OPTIONS}", server.url_at(port));
    let traced = traced_store(server.port(), Proxy::postgres(server.port()), url);
    compare("postgres-table", traced.counted(Counted::AllButWaits)).await;
}
