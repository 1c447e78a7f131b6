//! The queue, from the waiter's side.

use std::sync::{Arc, Mutex};

use tenure::ErrorKind;

use crate::support::{
    SHARED, TTL, assert_says, connect, direct, name, proxied, soon, take, until, wait_behind,
};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

/// etcd-io/etcd#11456: the lease of a waiter ran out while it waited, and it was told that it holds the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_lease_ends_is_never_told_that_it_holds() {
    needs!(etcd);
    let (holder, waiter, name) = (direct().await, direct().await, name("a1"));
    let path = format!("{name}/");
    for round in 0..10 {
        let guard = take(&holder, &name, TTL).await;
        let waiting = wait_behind(&SHARED, &waiter, &name, 1).await;
        let place = SHARED.keys(&path)[1].clone();
        // At the same time as the release in some rounds, well before it in others.
        let release = tokio::spawn(guard.release());
        if round % 2 == 0 {
            soon(release).await.unwrap().unwrap();
            SHARED.revoke(place.lease);
        } else {
            SHARED.revoke(place.lease);
            soon(release).await.unwrap().unwrap();
        }
        let next = soon(waiting).await.unwrap().unwrap();
        let is_held = |token: u64| {
            let keys = SHARED.keys(&path);
            keys.first().is_some_and(|key| key.created == token)
        };
        if next.token().get() == place.created {
            // It was told so before its lease ended; then it hears of the end.
            soon(next.lost()).await;
        } else {
            assert!(is_held(next.token().get()), "told so without a key");
            soon(next.release()).await.unwrap();
        }
    }
}

/// Both kinds of waiters: near ones, that count down by themselves, and far ones.
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
        until("it stands at the end", || {
            let keys = SHARED.keys(&path);
            keys.len() == 12 && keys[11].created > youngest
        })
        .await;
    }
    soon(guard.release()).await.unwrap();
    for waiting in waiting {
        // Whoever it is: all of them get their turn.
        tokio::spawn(async move { waiting.await.unwrap().unwrap().release().await.unwrap() });
    }
    until("all had their turn", || SHARED.keys(&path).is_empty()).await;
}

/// The judge is the order of the keys in the store: whoever is granted has the oldest one.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_contenders_are_served_in_the_order_of_their_keys() {
    needs!(etcd);
    let name = name("fifo");
    let holder = direct().await;
    let guard = take(&holder, &name, TTL).await;
    let granted = Arc::new(Mutex::new(vec![guard.token().get()]));
    let mut crowd = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..40 {
        let client = direct().await;
        for _ in 0..5 {
            let (lock, granted) = (client.lock(&name).ttl(TTL), granted.clone());
            crowd.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                granted.lock().unwrap().push(guard.token().get());
                guard.release().await.unwrap();
            }));
        }
        clients.push(client);
    }
    let path = format!("{name}/");
    until("all clients wait", || SHARED.keys(&path).len() == 41).await;
    soon(guard.release()).await.unwrap();
    for one in crowd {
        soon(one).await.unwrap();
    }
    let granted = granted.lock().unwrap();
    assert_eq!(granted.len(), 201);
    assert!(granted.is_sorted(), "{granted:?}");
    assert!(SHARED.keys(&path).is_empty());
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
        // One that works is cut, again and again.
        let other = wait_behind(&SHARED, &holder, &name, 1).await;
        for _ in 0..3 {
            proxy.take_seen();
            proxy.cut();
        }
        // It may be told that nobody knows what came of it.
        let _ = soon(next.release()).await;
        soon(soon(other).await.unwrap().unwrap().release())
            .await
            .unwrap();
    }
}

/// The hand-over is told to nobody: the watch says nothing, and everything else works.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_not_trusted_for_ever() {
    needs!(etcd);
    let (proxy, waiter) = proxied().await;
    let (holder, name) = (direct().await, name("silent"));
    let guard = take(&holder, &name, TTL).await;
    proxy.block("events");
    let waiting = wait_behind(&SHARED, &waiter, &name, 1).await;
    until("it watches", || {
        proxy.take_seen().contains(&"watch".to_owned())
    })
    .await;
    soon(guard.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
}

/// etcd-io/etcd#18089, #19179: what happened is compacted away before a watch could tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_loses_no_wake_up() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let holder = connect(&etcd.url()).await;
    let waiter = connect(&format!(
        "{}?timeout=500ms",
        etcd.url_by(&[proxy.address()])
    ))
    .await;
    for round in 0..10 {
        // Another name each time, for which nobody watches yet.
        let name = format!("x{round}");
        let guard = take(&holder, &name, TTL).await;
        proxy.take_seen();
        let waiting = wait_behind(&etcd, &waiter, &name, 1).await;
        // Before that the cut could hit the request for the place itself.
        until("it watches", || {
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

/// Its answer is lost, or never comes; the key goes all the same.
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
        until("it has left", || SHARED.keys(&path).len() == 1).await;
        proxy.resume();
    }
    let (_proxy, waiter) = proxied().await;
    let wait = std::time::Duration::from_millis(50);
    let lock = waiter.lock(&name).ttl(TTL).wait(wait);
    assert_says(
        soon(lock.acquire()).await,
        ErrorKind::WaitElapsed,
        &["is held by"],
    );
    until("it has left", || SHARED.keys(&path).len() == 1).await;
    soon(guard.release()).await.unwrap();
}
