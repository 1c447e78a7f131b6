//! Helpers of the tests about etcd.

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
pub(crate) const TTL: Duration = Duration::from_secs(8);

/// Longer than an election and a silent member take together.
pub(crate) const LONG: Duration = Duration::from_secs(8);

/// One member for all tests that only use locks.
pub(crate) static SHARED: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1, &[]));

/// A name that no other test uses.
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

/// A client of the shared member, without a proxy.
pub(crate) async fn direct() -> Client {
    connect(&SHARED.url()).await
}

/// Begins to wait, and returns when the waiter is in the queue behind `others` keys.
pub(crate) async fn wait_behind(
    etcd: &Etcd,
    client: &Client,
    name: &str,
    others: usize,
) -> JoinHandle<Result<Guard, Error>> {
    let waiting = start_acquire(client.lock(name).ttl(TTL));
    until("the waiter is in the queue", || {
        etcd.keys(&format!("{name}/")).len() > others
    })
    .await;
    waiting
}
