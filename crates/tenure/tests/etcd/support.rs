//! What the tests about etcd share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Client, Error, Guard};
use tokio::task::JoinHandle;

pub(crate) use crate::common::{
    assert_says, connect, soon, start_acquire, take, take_and_release, until, until_renewed,
};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::proxy::Proxy;

/// Far above what a server and two busy cores need, short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// Longer than an election and a silent member take together.
pub(crate) const LONG: Duration = Duration::from_secs(8);

/// One member for all tests that do nothing to it but lock.
pub(crate) static SHARED: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1, &[]));

/// A name of this test only.
pub(crate) fn name(tail: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{tail}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

/// A client of the shared member by way of a proxy of its own.
pub(crate) async fn proxied() -> (Proxy, Client) {
    let proxy = Proxy::etcd(SHARED.members[0].port());
    let url = SHARED.url_by(&[proxy.address()]);
    let client = connect(&format!("{url}?timeout=2s")).await;
    (proxy, client)
}

/// A client of the shared member that nothing happens to.
pub(crate) async fn direct() -> Client {
    connect(&SHARED.url()).await
}

/// Begins to wait, and returns when it stands in the queue behind so many others.
pub(crate) async fn wait_behind(
    etcd: &Etcd,
    client: &Client,
    name: &str,
    others: usize,
) -> JoinHandle<Result<Guard, Error>> {
    let waiting = start_acquire(client.lock(name).ttl(TTL));
    until("it stands in the queue", || {
        etcd.keys(&format!("{name}/")).len() > others
    })
    .await;
    waiting
}
