//! The server is killed and started again.

use std::time::Duration;

use tenure_testkit::TEST_TIMEOUT;

use crate::common::{answered, soon, take, until, until_renewed};
use crate::stores::{LostReply, Store, TTL, acquire, name, on};

on!(alone [redis etcd zookeeper mysql_table postgres_table]: a_restart_keeps_holder_and_waiter);
on!(alone [redis redis_in_memory etcd zookeeper mysql postgres mysql_table postgres_table]:
    an_idle_client_goes_on_after_a_restart
    a_waiter_outlasts_a_server_that_is_down);
on!(alone [mysql postgres]: a_waiter_outlasts_a_server_that_starts_slowly);

/// What was granted is on disk: the holder goes on, and so does the waiter.
async fn a_restart_keeps_holder_and_waiter(store: &'static Store) {
    let (first, second, third) = (
        store.client().await,
        store.client().await,
        store.client().await,
    );
    // A restart takes a moment.
    let (ttl, name) = (TTL * 3, name("restarted"));
    let guard = take(&first, &name, ttl).await;
    let waiting = store.wait(&second, &name, ttl).await;
    for _ in 0..2 {
        store.server.restart();
        assert_eq!(store.counts(&name).0, 1, "the hold is forgotten");
        assert!(guard.is_held(), "{:?}", guard.state());
        let lock = third.lock(&name).ttl(ttl);
        let tried = answered(async || lock.try_acquire().await).await;
        assert!(tried.is_none(), "granted to a second client");
        until_renewed(&guard).await;
        assert!(!waiting.is_finished(), "two hold it");
    }
    until("the waiter has its place", || store.counts(&name) == (1, 1)).await;
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token, "{} follows {token}", next.token());
    soon(next.release()).await.unwrap();
    store.until_idle(&name).await;
}

/// Connections that lay idle ended with the server. A store that recovers tells no caller of that.
async fn an_idle_client_goes_on_after_a_restart(store: &'static Store) {
    let (client, name) = (store.client().await, name("idle"));
    let mut last = 0;
    for round in 0..3 {
        let lock = client.lock(&name).ttl(TTL);
        let guard = match store.lost_reply {
            LostReply::Recovered => take(&client, &name, TTL).await,
            _ => acquire(&lock).await,
        };
        let token = guard.token().get();
        assert!(token > last, "{token} follows {last} in round {round}");
        last = token;
        soon(guard.release()).await.unwrap();
        store.server.restart();
    }
}

/// Waiters go on waiting when the server dies, and are served when it is back, whether it still knows the holder or not.
async fn a_waiter_outlasts_a_server_that_is_down(store: &'static Store) {
    outlast(store, Duration::ZERO).await;
}

/// The same, when the server answers nothing for longer than a request may take after its start.
async fn a_waiter_outlasts_a_server_that_starts_slowly(store: &'static Store) {
    outlast(store, Duration::from_secs(5)).await;
}

async fn outlast(store: &'static Store, silence: Duration) {
    let (first, second) = (store.client().await, store.client().await);
    let (ttl, name) = (TTL * 6, name("down"));
    let holder = take(&first, &name, ttl).await;
    let waiting = store.wait(&second, &name, ttl).await;
    store.server.kill();
    tokio::time::sleep(TTL / 4).await;
    store.server.start();
    if !silence.is_zero() {
        store.server.stop();
        tokio::time::sleep(silence).await;
        store.server.resume();
    }
    // The holder may learn that it lost the lock, or keep the lock and release it.
    let released = soon(holder.release()).await;
    let waited = tokio::time::timeout(ttl + TEST_TIMEOUT, waiting).await;
    match waited.expect("its turn comes").unwrap() {
        Ok(guard) => soon(guard.release()).await.unwrap(),
        Err(err) => panic!("told {err} instead of served ({released:?})"),
    }
    store.until_idle(&name).await;
}
