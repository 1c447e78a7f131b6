//! What tests about real servers say all the time, through the library.

#![allow(
    dead_code,
    reason = "several test programs share this, and each needs its own part"
)]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

pub(crate) mod partitions;
pub(crate) mod power;

use std::panic::Location;
use std::time::{Duration, Instant};

use tenure::{Client, Error, ErrorKind, Guard};

use tenure_testkit::{PASSWORD, TEST_TIMEOUT};

/// Awaits what happens at once on an idle machine.
#[track_caller]
pub(crate) fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        match tokio::time::timeout(TEST_TIMEOUT, future).await {
            Ok(value) => value,
            Err(_) => panic!("did not happen: {caller}"),
        }
    }
}

/// Looks again and again, without blocking the thread for long.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "never happened: {what}, {caller}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    soon(tenure::connect(url)).await.unwrap()
}

/// The first answer that is none of "later" and "nobody can tell": servers that were just brought together again
/// may need a moment.
pub(crate) async fn answered<T>(ask: impl AsyncFn() -> Result<T, Error>) -> T {
    let start = Instant::now();
    loop {
        match soon(ask()).await {
            Ok(answer) => return answer,
            Err(err) => assert!(
                err.is_retryable() && start.elapsed() < TEST_TIMEOUT,
                "{err}"
            ),
        }
    }
}

/// One try on a free name.
#[track_caller]
pub(crate) fn take(client: &Client, name: &str, ttl: Duration) -> impl Future<Output = Guard> {
    let caller = Location::caller();
    let lock = client.lock(name).ttl(ttl);
    async move {
        match soon(lock.try_acquire()).await {
            Ok(Some(guard)) => guard,
            other => panic!("not acquired but {other:?}, {caller}"),
        }
    }
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
    assert_eq!(err.kind(), kind, "{err:?}");
    for word in words {
        assert!(text.contains(word), "no \"{word}\" in \"{text}\"");
    }
    assert_clear(&err);
}

/// What an error may begin with, though it has capital letters.
const NAMES: [&str; 6] = [
    "MariaDB",
    "MySQL",
    "PgBouncer",
    "PostgreSQL",
    "Redis",
    "ZooKeeper",
];

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
    assert!(text.len() < 500, "{} characters: {text}", text.len());
    assert!(
        !text.contains("script:"),
        "a digest as Redis tells it: {text}"
    );
    let is_name = NAMES.iter().any(|name| text.starts_with(name));
    assert!(
        is_name || !text.starts_with(char::is_uppercase),
        "not in lower case: {text}"
    );
}
