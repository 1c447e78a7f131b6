//! Helpers of the tests about real servers. They use the library; the testkit does not.

#![allow(
    dead_code,
    reason = "several test programs share this, and each needs its own part"
)]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

pub(crate) mod hand_over;
pub(crate) mod holders;
pub(crate) mod power;
pub(crate) mod runtimes;
pub(crate) mod trio;
pub(crate) mod walk;
pub(crate) mod writes;

use std::panic::Location;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tenure::{Client, Error, ErrorKind, Guard, Lock};
use tokio::task::JoinHandle;

use tenure_testkit::{PASSWORD, TEST_TIMEOUT};

/// Awaits an event that happens at once on an idle machine.
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

/// Checks a condition again and again until it holds, and never blocks the thread for long.
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

/// Asks until the answer is a success. Errors that may be retried are passed over, because servers that have just
/// found each other again may need a moment.
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

/// One try on a free name, which is free again afterwards.
#[track_caller]
pub(crate) fn take_and_release(
    client: &Client,
    name: &str,
    ttl: Duration,
) -> impl Future<Output = ()> {
    let taken = take(client, name, ttl);
    async move { soon(taken.await.release()).await.unwrap() }
}

/// A task that acquires, however long that takes.
pub(crate) fn start_acquire(lock: Lock) -> JoinHandle<Result<Guard, Error>> {
    tokio::spawn(async move { lock.acquire().await })
}

/// Tasks of this runtime that have not ended.
pub(crate) fn alive_tasks() -> usize {
    let runtime = tokio::runtime::Handle::current();
    runtime.metrics().num_alive_tasks()
}

/// So many futures of `acquire`, each dropped after at most four polls; a fourth of them on a name that is held, the
/// others on so many names that are free.
pub(crate) async fn drop_acquires(client: &Client, ttl: Duration, count: u32, free: u32) {
    for number in 0..count {
        let name = match number % 4 {
            0 => "held".to_owned(),
            _ => format!("free{}", number % free),
        };
        let lock = client.lock(&name).ttl(ttl);
        let mut acquire = pin!(lock.acquire());
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..number % 5 {
            if let Poll::Ready(guard) = acquire.as_mut().poll(&mut cx) {
                drop(guard.unwrap());
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Returns after the next renewal has been confirmed.
#[track_caller]
pub(crate) fn until_renewed(guard: &Guard) -> impl Future<Output = ()> {
    let mut last = guard.remaining();
    until("it is renewed", move || {
        let before = std::mem::replace(&mut last, guard.remaining());
        last > before
    })
}

/// Asserts that the outcome is an error of that kind, whose text is one clear line with these words and no password.
#[track_caller]
pub(crate) fn assert_says<T>(outcome: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let Err(err) = outcome else {
        panic!("no error, {kind:?} was due");
    };
    let text = format!("{err:#}");
    assert_eq!(err.kind(), kind, "{err:?}");
    for word in words {
        assert!(text.contains(word), "no \"{word}\" in \"{text}\"");
    }
    assert_clear(&err);
}

/// Names with capital letters with which an error may begin.
const NAMES: [&str; 6] = [
    "MariaDB",
    "MySQL",
    "PgBouncer",
    "PostgreSQL",
    "Redis",
    "ZooKeeper",
];

/// Asserts that an error is one line of sensible length, and that no way to print it shows the password.
#[track_caller]
pub(crate) fn assert_clear(err: &Error) {
    let mut texts = vec![format!("{err:#}"), format!("{err:?}"), format!("{err:#?}")];
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
