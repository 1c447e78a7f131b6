//! Waiting in the queue: order, deleted keys, and watches that break or report nothing.

use std::time::{Duration, Instant};

use tenure::{Error, ErrorKind};

use crate::support::{
    LONG, SHARED, TTL, assert_says, connect, direct, name, proxied, soon, start_acquire, take,
    take_and_release, until, wait_behind,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};

/// etcd-io/etcd#11456: the lease of a waiter ended while the waiter waited, and then the waiter was granted the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_lease_ends_is_never_told_that_it_holds() {
    needs!(etcd);
    let (holder, waiter, name) = (direct().await, direct().await, name("a1"));
    let path = format!("{name}/");
    for round in 0..10 {
        let guard = take(&holder, &name, TTL).await;
        let waiting = wait_behind(&SHARED, &waiter, &name, 1).await;
        let entry = SHARED.keys(&path)[1].clone();
        // In half of the rounds the lease ends after the release, in the others while the release is under way.
        let release = tokio::spawn(guard.release());
        if round % 2 == 0 {
            soon(release).await.unwrap().unwrap();
            SHARED.revoke(entry.lease);
        } else {
            SHARED.revoke(entry.lease);
            soon(release).await.unwrap().unwrap();
        }
        let next = soon(waiting).await.unwrap().unwrap();
        let is_held = |token: u64| {
            let keys = SHARED.keys(&path);
            keys.first().is_some_and(|key| key.created == token)
        };
        if next.token().get() == entry.created {
            // The lock was granted before the lease ended; then the loss is reported.
            soon(next.lost()).await;
        } else {
            assert!(is_held(next.token().get()), "granted without a key");
            soon(next.release()).await.unwrap();
        }
    }
}

/// Both kinds of waiters: those with few keys ahead, which count deletions, and those with many.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_key_is_deleted_queues_again() {
    needs!(etcd);
    let (holder, name) = (direct().await, name("deleted"));
    let path = format!("{name}/");
    let guard = take(&holder, &name, TTL).await;
    let mut clients = Vec::new();
    let mut waiting = Vec::new();
    for others in 1..=11 {
        let client = direct().await;
        waiting.push(wait_behind(&SHARED, &client, &name, others).await);
        clients.push(client);
    }
    for at in [2, 11] {
        let before = SHARED.keys(&path);
        SHARED.delete(&before[at].key);
        let youngest = before.last().unwrap().created;
        until("the waiter is the last in the queue", || {
            let keys = SHARED.keys(&path);
            keys.len() == 12 && keys[11].created > youngest
        })
        .await;
    }
    soon(guard.release()).await.unwrap();
    for waiting in waiting {
        // In any order: each waiter gets its turn.
        tokio::spawn(async move { waiting.await.unwrap().unwrap().release().await.unwrap() });
    }
    until("each waiter had its turn", || SHARED.keys(&path).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_breaks_is_opened_again() {
    needs!(etcd);
    let holder = direct().await;
    for fault in [
        Fault::Answer("14 etcdserver: no leader"),
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
    ] {
        let (proxy, waiter) = proxied().await;
        let name = name("watch");
        let guard = take(&holder, &name, TTL).await;
        proxy.plan("watch", fault);
        let waiting = wait_behind(&SHARED, &waiter, &name, 1).await;
        until("the fault happened", || proxy.is_done()).await;
        soon(guard.release()).await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        // A watch that works is cut again and again.
        let other = wait_behind(&SHARED, &holder, &name, 1).await;
        for _ in 0..3 {
            proxy.take_seen();
            proxy.cut();
        }
        // The outcome of this release may be unknown.
        let _ = soon(next.release()).await;
        soon(soon(other).await.unwrap().unwrap().release())
            .await
            .unwrap();
    }
}

/// The watch reports nothing, and all other requests work: the waiter learns of its turn by reading the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_not_trusted_for_ever() {
    needs!(etcd);
    let (proxy, waiter) = proxied().await;
    let (holder, name) = (direct().await, name("silent"));
    let guard = take(&holder, &name, TTL).await;
    proxy.block("events");
    let waiting = wait_behind(&SHARED, &waiter, &name, 1).await;
    until("the waiter watches", || {
        proxy.take_seen().contains(&"watch".to_owned())
    })
    .await;
    soon(guard.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
}

/// etcd-io/etcd#18089, #19179: events are compacted away before the watch reports them.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_loses_no_wake_up() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let holder = connect(&etcd.url()).await;
    let waiter = connect(&format!("{}?timeout=20s", etcd.url_by(&[proxy.address()]))).await;
    for round in 0..10 {
        // A new name each time, for which no watch is open yet.
        let name = format!("x{round}");
        let guard = take(&holder, &name, TTL).await;
        proxy.take_seen();
        let waiting = wait_behind(&etcd, &waiter, &name, 1).await;
        // Before that the cut could hit the request that puts the key.
        until("the waiter watches", || {
            proxy.take_seen().contains(&"watch".to_owned())
        })
        .await;
        if round % 2 == 0 {
            proxy.cut();
        }
        soon(guard.release()).await.unwrap();
        etcd.compact();
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
    }
}

/// The reply to the delete of the key is lost, or never comes; the key is deleted in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_leaves_leaves_nothing() {
    needs!(etcd);
    let (holder, name) = (direct().await, name("leaves"));
    let path = format!("{name}/");
    let guard = take(&holder, &name, TTL).await;
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::NoReply] {
        let (proxy, waiter) = proxied().await;
        let waiting = wait_behind(&SHARED, &waiter, &name, 1).await;
        proxy.plan("release", fault);
        waiting.abort();
        until("the waiter has left", || SHARED.keys(&path).len() == 1).await;
        proxy.resume();
    }
    let (_proxy, waiter) = proxied().await;
    let wait = std::time::Duration::from_millis(50);
    let lock = waiter.lock(&name).ttl(TTL).wait(wait);
    // The error waits only for a moment for the name of the holder, which a busy machine may tell later.
    let start = Instant::now();
    let is_told = |err: &Error| err.holder().is_some() || start.elapsed() > TEST_TIMEOUT;
    let err = loop {
        let err = soon(lock.acquire()).await.map(drop).unwrap_err();
        if is_told(&err) {
            break err;
        }
    };
    assert_says::<()>(Err(err), ErrorKind::WaitElapsed, &["is held by"]);
    until("the waiter has left", || SHARED.keys(&path).len() == 1).await;
    soon(guard.release()).await.unwrap();
}

/// Another program has put keys where ours would be: a waiter tries one key after the other, with pauses.
#[tokio::test(flavor = "multi_thread")]
async fn keys_in_the_way_are_no_reason_for_a_flood_of_requests() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let client = connect(&etcd.url_by(&[proxy.address()])).await;
    take_and_release(&client, "x", TTL).await;
    let lease = etcd.leases()[0];
    for number in 0..400 {
        let key = match number {
            0 => format!("y/{lease:x}"),
            _ => format!("y/{lease:x}-{number}"),
        };
        etcd.try_put(&key, "of another program").unwrap();
    }
    let before = proxy.requests();
    let wait = Duration::from_secs(1);
    let refused = soon(client.lock("y").ttl(TTL).wait(wait).acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::WaitElapsed);
    let requests = proxy.requests() - before;
    assert!(requests < 100, "{requests} requests in a wait of {wait:?}");
}

/// A thousand holds are over in the same moment and their keys have to be deleted, each after a delay: the lease of a
/// waiter is kept alive meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_keeps_its_place_while_many_keys_are_deleted() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = etcd.url_by(&[proxy.address()]);
    let (client, other) = (connect(&url).await, connect(&etcd.url()).await);
    let held = take(&other, "held", TTL * 10).await;
    let waiting = start_acquire(client.lock("held").ttl(LONG));
    until("it waits", || etcd.keys("held/").len() == 2).await;
    let place = etcd.keys("held/").pop().unwrap().key;
    let mut guards = Vec::new();
    for number in 0..1_000 {
        let name = format!("many-{number}");
        let lock = client.lock(&name).ttl(LONG * 3 / 2).max_hold(TTL);
        guards.push(soon(lock.acquire()).await.unwrap());
    }
    // One after the other, the deletions take three times as long as the lease of the waiter. The lease of the keys ends
    // before that, and later than that of the waiter.
    proxy.delay(Direction::Up, LONG * 3 / 1_000);
    until("their keys are gone", || etcd.keys("many-").is_empty()).await;
    let keys = etcd.keys("held/");
    assert!(keys.iter().any(|key| key.key == place), "{keys:?}");
    soon(held.release()).await.unwrap();
    let granted = soon(waiting).await.unwrap().unwrap();
    proxy.resume();
    soon(granted.release()).await.unwrap();
}
