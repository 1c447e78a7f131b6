//! How many requests of which kind each operation sends, on each server store. Not on `redlock:`: what it sends depends
//! on which of its servers answers first.
//!
//! Each story has clients of its own and ends with `close`, which waits for everything that the clients have under
//! way, so nothing depends on time. What an operation costs is the difference between two stories.

use crate::stories::{Counted, Site, tell_all};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Redis;
use tenure_testkit::zookeeper::{PASSWORD, USER, Zookeeper};

/// No lease ends and no renewal is due during a story, and a server that has just started is trusted.
const OPTIONS: &str = "timeout=20s&restart_guard=off";

/// The same for sessions, whose connections are not validated during a story either.
const OF_SESSIONS: &str = "timeout=20s&restart_guard=off&tls=off&validate=60s";

const OF_TABLES: &str = "mode=table&tls=off&timeout=20s";

/// A server on this port, by way of the proxy and past it; `url` makes a URL of a port.
fn site(port: u16, proxy: Proxy, url: impl Fn(u16) -> String) -> Site {
    let traced = url(proxy.port());
    Site::new(traced, url(port), proxy)
}

async fn compare(store: &str, site: Site) {
    site.init().await;
    let told = tell_all(&site).await;
    crate::compare(&format!("traces/{store}"), &told);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = |port| format!("{}?{OPTIONS}", server.url_by(port));
    let site = site(server.port(), Proxy::redis(server.port()), url);
    compare("redis", site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_redisson() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = |port| format!("{}?{OPTIONS}&dialect=redisson", server.url_by(port));
    let site = site(server.port(), Proxy::redis(server.port()), url);
    compare("redis-redisson", site.without_waits()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd() {
    needs!(etcd);
    let server = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(server.members[0].port());
    let url = |address| format!("{}?timeout=20s", server.url_by(&[address]));
    let direct = url(format!("127.0.0.1:{}", server.members[0].port()));
    let site = Site::new(url(proxy.address()), direct, proxy);
    // A release may come before the waiter watches.
    compare("etcd", site.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let url =
        |port| format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{port}/locks?timeout=20s&ttl=60s");
    let site = site(server.port(), Proxy::zookeeper(server.port()), url);
    // How often a waiter lists the contenders depends on when the event of its watch comes.
    compare("zookeeper", site.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let url = |port| format!("{}?{OF_SESSIONS}", server.url_at(port));
    let proxy = Proxy::mysql(server.port());
    compare("mysql", site(server.port(), proxy, url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_table() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let url = |port| format!("{}?{OF_TABLES}", server.url_at(port));
    let site = site(server.port(), Proxy::mysql(server.port()), url);
    compare("mysql-table", site.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = |port| format!("{}?{OF_SESSIONS}", server.url_at(port));
    let proxy = Proxy::postgres(server.port());
    compare("postgres", site(server.port(), proxy, url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_table() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = |port| format!("{}?{OF_TABLES}", server.url_at(port));
    let site = site(server.port(), Proxy::postgres(server.port()), url);
    compare("postgres-table", site.counted(Counted::AllButWaits)).await;
}
