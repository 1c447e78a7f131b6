//! What the tests about Redis share.

use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard};

use crate::servers::PATIENCE;
use crate::servers::redis::{PASSWORD, Redis};

/// Far above what the server and a machine with other work need, short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// For servers that keep nothing on disk, where the test is not about that: by default nothing
/// would be granted for half a minute after their start.
pub(crate) const TRUSTED: &str = "?timeout=3s&restart_guard=off";

pub(crate) async fn connect(url: &str) -> Client {
    soon(tenure::connect(url)).await.unwrap()
}

/// A client of a server that the test is not about.
pub(crate) async fn client_of(server: &Redis) -> Client {
    connect(&format!("{}{TRUSTED}", server.url())).await
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
    assert_clear(&err);
}

/// One line of sensible length without a password, in all ways to print it.
#[track_caller]
pub(crate) fn assert_clear(err: &Error) {
    let mut texts = vec![err.to_string(), format!("{err:?}"), format!("{err:#?}")];
    let mut source = std::error::Error::source(err);
    while let Some(inner) = source {
        texts.extend([inner.to_string(), format!("{inner:?}")]);
        source = inner.source();
    }
    for text in &texts {
        assert!(!text.contains(PASSWORD), "the password is in \"{text}\"");
    }
    let text = &texts[0];
    assert!(
        !text.contains('\n') && !text.is_empty(),
        "not one line: {text:?}"
    );
    assert!(text.len() < 300, "{} characters: {text}", text.len());
    assert!(!text.contains("script:"), "a digest: {text}");
    assert!(
        !text.starts_with(char::is_uppercase),
        "not in lower case: {text}"
    );
}

/// Keys of the server.
pub(crate) fn keys(server: &Redis) -> Vec<String> {
    let keys = server.ask(&["KEYS", "*"]).items();
    keys.iter().map(|key| key.text()).collect()
}

/// Who holds the lock, by its key.
pub(crate) fn owner(server: &Redis, name: &str) -> String {
    server.ask(&["GET", name]).text()
}

/// How many wait, by the queue's key.
pub(crate) fn waiting(server: &Redis, name: &str) -> i64 {
    server
        .ask(&["ZCARD", &format!("tenure:{{{name}}}:queue")])
        .int()
}

/// No key stays for ever, and no client listens.
#[track_caller]
pub(crate) fn assert_all_expire(server: &Redis) {
    for key in keys(server) {
        let left = server.ask(&["PTTL", &key]).int();
        assert!(left != -1, "{key} has no ttl");
    }
}
