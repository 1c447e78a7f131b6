//! `redis+sentinel:` and `redis+cluster:` on real servers: what happens when another server takes over.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod servers;

use std::time::Duration;

use servers::redis::{Redis, SERVICE, Watched, is_missing};
use servers::until;
use tenure::error::ErrorKind;
use tenure::{Client, Guard};

/// These servers were started just now and keep nothing on disk.
async fn client(url: &str) -> Client {
    tenure::connect(&format!("{url}?restart_guard=off&timeout=5s"))
        .await
        .unwrap()
}

async fn held(client: &Client, name: &str) -> Guard {
    let lock = client.lock(name).ttl(Duration::from_secs(20));
    lock.wait(servers::PATIENCE).acquire().await.unwrap()
}

fn has(server: &Redis, key: &str) -> bool {
    server.is_up() && server.ask(&["EXISTS", key]).int() == 1
}

/// What the next answer of each sentinel is, when they agree on it.
fn agreed(watched: &Watched) -> Option<u16> {
    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
    let port = |sentinel: &Redis| sentinel.ask(&words).items()[1].text();
    let ports: Vec<_> = watched.sentinels.iter().map(port).collect();
    ports
        .iter()
        .all(|port| *port == ports[0])
        .then(|| ports[0].parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_a_planned_failover_is_followed_at_once() {
    if is_missing() {
        return;
    }
    let watched = Watched::start(60_000);
    let new = &watched.servers[1];
    let client = client(&watched.url()).await;
    let guard = held(&client, "kept").await;
    until("the replica has it", || has(new, "kept"));
    // The old primary is not told before long; whoever does not follow goes on writing to it.
    watched.sentinels[0].order(&["SENTINEL", "FAILOVER", SERVICE]);
    until("all sentinels know", || {
        agreed(&watched) == Some(new.port())
    });
    // The news is on its way to us, no more.
    let (mut attempt, mut late) = (0, 0);
    while attempt == 0 || late > 0 && attempt < 100 {
        let name = format!("after-{attempt}");
        let guard = held(&client, &name).await;
        late = u32::from(!has(new, &name));
        guard.release().await.unwrap();
        attempt += 1;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(!has(new, "kept"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_who_waits_and_who_holds_survive_a_dead_primary() {
    if is_missing() {
        return;
    }
    let watched = Watched::start(500);
    let [old, new] = &watched.servers;
    let (one, two) = (client(&watched.url()).await, client(&watched.url()).await);
    let guard = held(&one, "x").await;
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { held(&two, "x").await }
    });
    until("the replica has the queue", || {
        new.ask(&["ZCARD", "tenure:{x}:queue"]).int() == 1
    });
    old.kill();
    until("the sentinels have another primary", || {
        watched.primary_port() == new.port()
    });
    guard.release().await.unwrap();
    let next = waiter.await.unwrap();
    assert!(next.is_held());
    assert!(has(new, "x"));
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_says_what_is_wrong() {
    if is_missing() {
        return;
    }
    let watched = Watched::start(60_000);
    let kind = async |url: &str| tenure::connect(url).await.unwrap_err().kind();
    let other = watched.url().replace(SERVICE, "other");
    assert_eq!(kind(&other).await, ErrorKind::Invalid);
    // One sentinel that lives is enough.
    let client = client(&watched.url()).await;
    watched.sentinels[0].kill();
    watched.sentinels[1].kill();
    held(&client, "x").await.release().await.unwrap();
    let late = self::client(&watched.url()).await;
    held(&late, "x").await.release().await.unwrap();
    watched.sentinels[2].kill();
    assert_eq!(kind(&watched.url()).await, ErrorKind::Unreachable);
    // And none is needed as long as the primary is the same.
    held(&client, "x").await.release().await.unwrap();
    watched.servers[0].kill();
    let err = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unreachable, "{err}");
}
