//! What the tests about etcd share.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard};
use tokio::task::JoinHandle;

use crate::servers::PATIENCE;
use crate::servers::etcd::Etcd;
use crate::servers::grpc::Proxy;
use crate::servers::redis::PASSWORD;

/// Far above what a server and two busy cores need, short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// One member for all tests that do nothing to it but lock.
pub(crate) static SHARED: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1, &[]));

/// A name of this test only.
pub(crate) fn name(tail: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{tail}-{}", COUNT.fetch_add(1, Ordering::SeqCst))
}

pub(crate) async fn connect(url: &str) -> Client {
    soon(tenure::connect(url)).await.unwrap()
}

/// A client of the shared member by way of a proxy of its own.
pub(crate) async fn proxied() -> (Proxy, Client) {
    let proxy = Proxy::start(SHARED.members[0].port());
    let url = SHARED.url_by(&[proxy.address()]);
    let client = connect(&format!("{url}?timeout=2s")).await;
    (proxy, client)
}

/// A client of the shared member that nothing happens to.
pub(crate) async fn direct() -> Client {
    connect(&SHARED.url()).await
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

/// Looks again and again, without blocking the thread for long.
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
            tokio::time::sleep(Duration::from_millis(5)).await;
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

/// Begins to wait, and returns when it stands in the queue behind so many others.
pub(crate) async fn wait_behind(
    etcd: &Etcd,
    client: &Client,
    name: &str,
    others: usize,
) -> JoinHandle<Result<Guard, Error>> {
    let lock = client.lock(name).ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("it stands in the queue", || {
        etcd.keys(&format!("{name}/")).len() > others
    })
    .await;
    waiting
}

/// The next renewal has its answer.
#[track_caller]
pub(crate) fn until_renewed(guard: &Guard) -> impl Future<Output = ()> {
    let mut last = guard.remaining();
    until("it is renewed", move || {
        let before = std::mem::replace(&mut last, guard.remaining());
        last > before
    })
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
    let mut texts = vec![text.clone(), format!("{err:?}"), format!("{err:#?}")];
    let mut source = std::error::Error::source(&err);
    while let Some(inner) = source {
        texts.extend([inner.to_string(), format!("{inner:?}")]);
        source = inner.source();
    }
    for text in &texts {
        assert!(!text.contains(PASSWORD), "the password is in \"{text}\"");
    }
    assert!(
        !text.contains('\n') && !text.is_empty(),
        "not one line: {text:?}"
    );
    assert!(text.len() < 400, "{} characters: {text}", text.len());
}
