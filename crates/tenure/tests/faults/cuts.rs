//! The server, or something in front of it, closes connections (FIN).

use std::time::Instant;

use tenure_testkit::process::Port;

use crate::common::{soon, start_acquire, take, until, until_renewed};
use crate::stores::{Store, TTL, name, on};

on!(shared [redis etcd zookeeper mysql_table postgres_table]:
    a_hold_outlives_its_connection
    a_hold_without_a_connection_ends_before_the_next_begins);
on!(shared [redis etcd zookeeper mysql postgres mysql_table postgres_table]:
    a_waiter_outlives_its_connection);

/// The client connects again, and the hold goes on.
async fn a_hold_outlives_its_connection(store: &'static Store) {
    let (proxy, holder) = store.proxied().await;
    let (waiter, name) = (store.client().await, name("cut"));
    // Longer than the machine may be busy with other things.
    let ttl = TTL * 2;
    let guard = take(&holder, &name, ttl).await;
    let waiting = store.wait(&waiter, &name, ttl).await;
    for _ in 0..2 {
        let connections = proxy.connections();
        proxy.cut();
        until("the client connects again", || {
            proxy.connections() > connections
        })
        .await;
        until_renewed(&guard).await;
        assert!(guard.is_held() && !waiting.is_finished());
    }
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
}

/// No new connection is to be had: the hold ends for its holder before the next one begins.
async fn a_hold_without_a_connection_ends_before_the_next_begins(store: &'static Store) {
    let (proxy, holder) = store.proxied().await;
    let (waiter, name) = (store.client().await, name("cut-off"));
    let guard = take(&holder, &name, TTL).await;
    let waiting = store.wait(&waiter, &name, TTL).await;
    let nowhere = Port::reserve();
    proxy.redirect(nowhere.number());
    proxy.cut();
    let start = Instant::now();
    let lost = async {
        let reason = soon(guard.lost()).await;
        (start.elapsed(), reason)
    };
    let granted = async {
        let next = soon(waiting).await.unwrap().unwrap();
        let both = guard.is_held();
        (start.elapsed(), next, both)
    };
    let ((lost, reason), (granted, next, both)) = tokio::join!(lost, granted);
    println!("ttl {TTL:?}: lost after {lost:?}, granted after {granted:?}");
    assert!(reason.is_some() && !both, "two hold it");
    assert!(next.token() > guard.token());
    soon(next.release()).await.unwrap();
}

/// The waiter goes on, also when it is cut off before the reply to its first request; nothing of a lost request is left in
/// the queue.
async fn a_waiter_outlives_its_connection(store: &'static Store) {
    let (proxy, waiter) = store.proxied().await;
    let (holder, name) = (store.client().await, name("cut-waiter"));
    let guard = take(&holder, &name, TTL * 10).await;
    let waiting = start_acquire(waiter.lock(&name).ttl(TTL * 10));
    for _ in 0..3 {
        until("it waits", || store.counts(&name) == (1, 1)).await;
        let connections = proxy.connections();
        proxy.cut();
        until("the waiter connects again, or is told", || {
            waiting.is_finished() || proxy.connections() > connections
        })
        .await;
    }
    until("it waits, or is told", || {
        waiting.is_finished() || store.counts(&name) == (1, 1)
    })
    .await;
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
    store.until_idle(&name).await;
}
