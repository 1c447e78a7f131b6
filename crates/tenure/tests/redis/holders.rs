//! Holders in processes of their own that are stopped and killed; looked at from the server's side.

use std::process::Command;

use tenure::conformance::taker::Taker;

use crate::support::{
    TRUSTED, TTL, assert_all_expire, client_of, keys, owner, soon, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::redis::{self, Redis};

fn taker(server: &Redis, options: &[&str]) -> Taker {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-taker"));
    command.arg(format!("{}{TRUSTED}", server.url())).arg("x");
    command.arg("--ttl").arg(format!("{}ms", TTL.as_millis()));
    command.args(options);
    Taker::spawn(command).unwrap()
}

/// It goes on when somebody else has the lock, and neither its renewals nor its release touch that.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_stopped_for_longer_than_its_ttl() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let mut old = taker(&server, &[]);
    let token = soon(old.held()).await.unwrap();
    old.stop().unwrap();
    let client = client_of(&server).await;
    let lock = client.lock("x").ttl(TTL);
    let next = tokio::time::timeout(TTL + TEST_TIMEOUT, lock.acquire()).await;
    let next = next.expect("the lease of the stopped one ends").unwrap();
    assert!(next.token().get() > token);
    let value = owner(&server, "x");
    old.go_on().unwrap();
    old.say("status").unwrap();
    let word = soon(old.line()).await.unwrap();
    assert!(
        word.starts_with("lost") || word.starts_with("status lost"),
        "it says {word}"
    );
    old.say("release").unwrap();
    old.hang_up();
    tokio::task::spawn_blocking(move || old.wait())
        .await
        .unwrap()
        .unwrap();
    tokio::time::sleep(TTL).await;
    assert_eq!(owner(&server, "x"), value);
    assert!(next.is_held(), "{:?}", next.state());
    soon(next.release()).await.unwrap();
    assert_eq!(owner(&server, "x"), "");
}

/// Its key ends with its lease, its place in the queue is skipped, its channel is gone at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_a_waiter_are_killed() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let mut holder = taker(&server, &[]);
    soon(holder.held()).await.unwrap();
    let mut waiter = taker(&server, &[]);
    soon(waiter.expect("waiting")).await.unwrap();
    until("it waits", || waiting(&server, "x") == 1).await;
    assert_eq!(server.ask(&["PUBSUB", "CHANNELS", "*"]).items().len(), 2);
    holder.kill().unwrap();
    waiter.kill().unwrap();
    until("nobody listens", || {
        server.ask(&["PUBSUB", "CHANNELS", "*"]).items().is_empty()
    })
    .await;
    assert_all_expire(&server);
    let client = client_of(&server).await;
    let lock = client.lock("x").ttl(TTL);
    let guard = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, lock.acquire()).await;
    soon(guard.expect("both leases end").unwrap().release())
        .await
        .unwrap();
    assert_eq!(owner(&server, "x"), "");
    assert_eq!(waiting(&server, "x"), 0);
    // What stays is the last token, for a day.
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);
    assert_all_expire(&server);
}
