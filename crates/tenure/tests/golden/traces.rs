//! How many requests of which kind each operation sends, on each server store. Not on `redlock:`: what it sends depends
//! on which of its servers answers first.
//!
//! Each story has clients of its own and ends with `close`, which waits for everything that the clients have under
//! way, so nothing depends on time. What an operation costs is the difference between two stories.

use crate::stories::{Counted, Site, Traced, tell_all};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::{self, Redis};
use tenure_testkit::statements::{self, Protocol};
use tenure_testkit::zookeeper::{self, PASSWORD, USER, Zookeeper};
use tenure_testkit::{database, etcd, grpc, jute};

/// No lease ends and no renewal is due during a story, and a server that has just started is trusted.
const OPTIONS: &str = "timeout=20s&restart_guard=off";

async fn compare(store: &str, site: Site) {
    let told = tell_all(&site).await;
    crate::compare(&format!("traces/{store}"), &told);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = |port| format!("{}?{OPTIONS}", server.url_by(port));
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    compare("redis", site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_redisson() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = |port| format!("{}?{OPTIONS}&dialect=redisson", server.url_by(port));
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    compare("redis-redisson", site.without_waits()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd() {
    if etcd::skip_unless_installed() {
        return;
    }
    let server = Etcd::start(1, &[]);
    let proxy = grpc::Proxy::start(server.members[0].port());
    let url = |address| format!("{}?timeout=20s", server.url_by(&[address]));
    let direct = url(format!("127.0.0.1:{}", server.members[0].port()));
    let site = Site::new(url(proxy.address()), direct, vec![Traced::Grpc(proxy)]);
    // A release may come before the waiter watches.
    compare("etcd", site.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let server = Zookeeper::start(&[]);
    let proxy = jute::proxy(server.port());
    let url =
        |port| format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{port}/locks?timeout=20s&ttl=60s");
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    // How often a waiter lists the contenders depends on when the event of its watch comes.
    compare("zookeeper", site.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    if mariadb::skip_unless_installed() {
        return;
    }
    let server = MariaDb::start(&[]);
    let proxy = statements::start(server.port(), Protocol::MySql);
    let url = |port| format!("{}?{OPTIONS}&tls=off&validate=60s", server.url_at(port));
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    site.init().await;
    compare("mysql", site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_table() {
    if mariadb::skip_unless_installed() {
        return;
    }
    let server = MariaDb::start(&[]);
    let proxy = database::mysql(server.port());
    let url = |port| format!("{}?mode=table&tls=off&timeout=20s", server.url_at(port));
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    site.init().await;
    compare("mysql-table", site.counted(Counted::AllButWaits)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    if postgres::skip_unless_installed() {
        return;
    }
    let server = Postgres::start(&[]);
    let proxy = statements::start(server.port(), Protocol::Postgres);
    let url = |port| format!("{}?{OPTIONS}&tls=off&validate=60s", server.url_at(port));
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    site.init().await;
    compare("postgres", site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_table() {
    if postgres::skip_unless_installed() {
        return;
    }
    let server = Postgres::start(&[]);
    let proxy = database::postgres(server.port());
    let url = |port| format!("{}?mode=table&tls=off&timeout=20s", server.url_at(port));
    let site = Site::new(
        url(proxy.port()),
        url(server.port()),
        vec![Traced::Plain(proxy)],
    );
    site.init().await;
    compare("postgres-table", site.counted(Counted::AllButWaits)).await;
}
