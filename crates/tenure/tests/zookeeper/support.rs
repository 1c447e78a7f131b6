//! What the tests about ZooKeeper share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::Client;

pub(crate) use crate::common::{
    assert_says, connect, soon, start_acquire, take, take_and_release, until, until_renewed,
};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::zookeeper::{PASSWORD, USER, Zookeeper};

/// Far longer than the server and two busy cores need, and short enough for a test to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(8);

/// The node under which all locks of these tests lie.
pub(crate) const ROOT: &str = "/app/locks";

/// For tests that do not change their server.
pub(crate) static SHARED: LazyLock<Zookeeper> = LazyLock::new(|| Zookeeper::start(&[]));

pub(crate) fn url(port: u16, options: &str) -> String {
    format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{port}{ROOT}?ttl=8s&timeout=3s{options}")
}

pub(crate) async fn client_of(server: &Zookeeper) -> Client {
    connect(&url(server.port(), "")).await
}

pub(crate) async fn client_by(proxy: &Proxy) -> Client {
    connect(&url(proxy.port(), "")).await
}

/// A name that no other test has.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The nodes of holders and waiters in order, read past the client under test.
pub(crate) fn nodes(server: &Zookeeper, name: &str) -> Vec<String> {
    let mut wire = server.session();
    wire.sync("/");
    let mut nodes = wire.children(&format!("{ROOT}/{name}"));
    nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
    nodes
}

/// The data of these nodes.
pub(crate) fn states(server: &Zookeeper, name: &str) -> Vec<String> {
    let mut wire = server.session();
    let mut data = |node: &String| {
        let node = wire.get(&format!("{ROOT}/{name}/{node}"))?;
        Some(String::from_utf8_lossy(&node.data).into_owned())
    };
    nodes(server, name).iter().filter_map(&mut data).collect()
}
