//! What the tests about ZooKeeper share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard};

use crate::servers::PATIENCE;
use crate::servers::proxy::Proxy;
use crate::servers::zookeeper::{PASSWORD, USER, Zookeeper};

/// Far above what the server and two busy cores need, short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// Where all locks of these tests lie.
pub(crate) const ROOT: &str = "/app/locks";

/// For tests that leave their server as it is.
pub(crate) static SHARED: LazyLock<Zookeeper> = LazyLock::new(|| Zookeeper::start(&[]));

pub(crate) fn url(port: u16, options: &str) -> String {
    format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{port}{ROOT}?ttl=4s&timeout=3s{options}")
}

pub(crate) async fn connect(url: &str) -> Client {
    soon(tenure::connect(url)).await.unwrap()
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

/// The nodes of those who hold or wait, first come first, out of band.
pub(crate) fn nodes(server: &Zookeeper, name: &str) -> Vec<String> {
    let mut wire = server.wire();
    wire.sync("/");
    let mut nodes = wire.children(&format!("{ROOT}/{name}"));
    nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
    nodes
}

/// Awaits what happens at once on an idle machine.
#[track_caller]
pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(value) => value,
            Err(_) => panic!("did not happen: {caller}"),
        }
    }
}

/// Looks again and again, without blocking the thread.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = std::time::Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < PATIENCE,
                "never happened: {what}, {caller}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// One try on a free name.
#[track_caller]
pub(crate) fn take(client: &Client, name: &str, ttl: Duration) -> impl Future<Output = Guard> {
    let caller = std::panic::Location::caller();
    let lock = client.lock(name).ttl(ttl);
    async move {
        match soon(lock.try_acquire()).await {
            Ok(Some(guard)) => guard,
            other => panic!("not acquired but {other:?}, {caller}"),
        }
    }
}

/// An error is of that kind, and one clear line with these words and no password.
#[track_caller]
pub(crate) fn assert_says<T>(outcome: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let Err(err) = outcome else {
        panic!("no error, {kind:?} was due");
    };
    let text = err.to_string();
    assert_eq!(err.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "no \"{word}\" in \"{text}\"");
    }
    assert!(!format!("{text}{err:#?}").contains(PASSWORD), "{text}");
    assert!(!text.contains('\n'), "not one line: {text:?}");
    assert!(text.len() < 300, "{} characters: {text}", text.len());
}
