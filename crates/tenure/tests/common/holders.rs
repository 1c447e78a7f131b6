//! Holders in processes of their own, on each server.

use std::process::Command;
use std::time::Duration;

use tenure::Client;
use tenure::conformance::lock_holder::LockHolder;

use super::soon;
use tenure_testkit::TEST_TIMEOUT;

/// A process that takes `name`.
pub(crate) fn start(url: &str, name: &str, ttl: Duration) -> LockHolder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
    command.arg(url).arg(name);
    command.arg("--ttl").arg(format!("{}ms", ttl.as_millis()));
    LockHolder::spawn(command).unwrap()
}

/// A holder goes on when another client has the lock, and neither its renewals nor its release touch that hold.
/// `owner` is what the server has of the lock; empty when it is free.
pub(crate) async fn stop_one_for_longer_than_its_ttl(
    (url, client): (&str, &Client),
    name: &str,
    ttl: Duration,
    owner: impl Fn() -> String,
) {
    let mut old = start(url, name, ttl);
    let token = soon(old.held()).await.unwrap();
    old.stop().unwrap();
    let lock = client.lock(name).ttl(ttl);
    let next = tokio::time::timeout(ttl + TEST_TIMEOUT, lock.acquire()).await;
    let next = next.expect("the lease of the stopped one ends").unwrap();
    assert!(next.token().get() > token);
    let theirs = owner();
    old.go_on().unwrap();
    old.say("status").unwrap();
    let word = soon(old.line()).await.unwrap();
    assert!(
        word.starts_with("lost") || word.starts_with("status lost"),
        "it says {word}"
    );
    old.say("release").unwrap();
    old.hang_up();
    let ended = tokio::task::spawn_blocking(move || old.wait()).await;
    ended.unwrap().unwrap();
    tokio::time::sleep(ttl).await;
    assert_eq!(owner(), theirs);
    assert!(next.is_held(), "{:?}", next.state());
    soon(next.release()).await.unwrap();
    assert_eq!(owner(), "");
}
