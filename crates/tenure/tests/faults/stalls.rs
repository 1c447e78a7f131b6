//! Nothing passes between a client and the server, and no connection is closed.

use std::time::Duration;

use tenure::{ErrorKind, LostReason};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::proxy::{Direction, Fault};

use crate::common::{assert_says, connect, soon, start_acquire, take, until, until_renewed};
use crate::stores::{Store, TTL, acquire, name, on};

on!(shared [redis etcd zookeeper mysql postgres mysql_table postgres_table]:
    a_stalled_holder_knows_before_the_next_one_holds
    a_slow_link_is_no_broken_one
    max_hold_may_be_shorter_than_the_time_since_a_renewal);
on!(shared [etcd zookeeper]:
    a_renewal_without_a_reply_delays_no_other_hold);

/// In both directions, or in one of them, for longer than the ttl.
async fn a_stalled_holder_knows_before_the_next_one_holds(store: &'static Store) {
    let stalls = [
        &[Direction::Up, Direction::Down][..],
        &[Direction::Up],
        &[Direction::Down],
    ];
    let stalls = stalls.map(|directions| tokio::spawn(stall(store, directions)));
    for stalled in stalls {
        stalled.await.unwrap();
    }
}

async fn stall(store: &Store, directions: &[Direction]) {
    let (proxy, client) = store.proxied().await;
    let (other, name) = (store.client().await, name("stalled"));
    let old = take(&client, &name, TTL).await;
    let waits_before = directions.len() > 1;
    let waiting = match waits_before {
        true => Some(store.wait(&other, &name, TTL).await),
        false => None,
    };
    for direction in directions {
        proxy.hold(*direction, true);
    }
    let waiting = waiting.unwrap_or_else(|| start_acquire(other.lock(&name).ttl(TTL)));
    let next = tokio::time::timeout(TTL * 3 + TEST_TIMEOUT, waiting).await;
    let next = next.expect("the lease ends").unwrap().unwrap();
    assert!(!old.is_held(), "both claim to hold it");
    let reason = soon(old.lost()).await;
    let is_told = store.ends_with_connection && reason == Some(LostReason::SessionGone);
    assert!(is_told || reason == Some(LostReason::Expired), "{reason:?}");
    assert!(next.token() > old.token());
    proxy.resume();
    // Late renewals and releases of the old holder arrive now.
    assert_says(soon(old.release()).await, ErrorKind::Lost, &[]);
    until_renewed(&next).await;
    assert!(next.is_held(), "{:?}", next.state());
    assert_eq!(store.counts(&name), (1, 0));
    soon(next.release()).await.unwrap();
    let lock = client.lock(&name).ttl(TTL);
    let own = acquire(&lock).await;
    soon(own.release()).await.unwrap();
    store.until_idle(&name).await;
}

/// Each message takes 40 ms on its way.
async fn a_slow_link_is_no_broken_one(store: &'static Store) {
    let (proxy, client) = store.proxied().await;
    let (other, name) = (store.client().await, name("slow"));
    for direction in [Direction::Up, Direction::Down] {
        proxy.delay(direction, Duration::from_millis(40));
    }
    let guard = take(&client, &name, TTL).await;
    for _ in 0..3 {
        until_renewed(&guard).await;
    }
    let waiting = store.wait(&other, &name, TTL).await;
    assert!(guard.is_held(), "{:?}", guard.state());
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
    store.until_idle(&name).await;
}

/// Of two holds of a client, with leases or sessions of their own: while the renewal of one gets no reply, the
/// other one is renewed in time.
async fn a_renewal_without_a_reply_delays_no_other_hold(store: &'static Store) {
    let proxy = store.server.proxy();
    // One request may take longer than a lease.
    let url = store.url_at(proxy.port());
    let url = url.replace("timeout=3s", "timeout=60s");
    let client = connect(&url.replace("timeout=2s", "timeout=60s")).await;
    let guards = [
        take(&client, &name("silent"), TTL).await,
        take(&client, &name("renewed"), TTL + Duration::from_secs(1)).await,
    ];
    proxy.plan("renew", Fault::NoReply);
    until("the renewal of one of them got no reply", || {
        proxy.is_done()
    })
    .await;
    let lost = async {
        tokio::select! {
            _ = guards[0].lost() => &guards[1],
            _ = guards[1].lost() => &guards[0],
        }
    };
    // The other one lives on, also when the first one has ended.
    let other = match tokio::time::timeout(TTL * 2, lost).await {
        Ok(other) => other,
        Err(_) => &guards[0],
    };
    until_renewed(other).await;
    assert!(other.is_held(), "{:?}", other.state());
    proxy.resume();
}

/// `max_hold` counts from the request for the lock, and not from the last renewal of the lease or session that the hold
/// shares.
async fn max_hold_may_be_shorter_than_the_time_since_a_renewal(store: &'static Store) {
    let (client, ttl) = (store.client().await, Duration::from_secs(60));
    let guard = take(&client, &name("max-hold"), ttl).await;
    soon(guard.release()).await.unwrap();
    // The next renewal comes after a third of the ttl.
    tokio::time::sleep(TTL).await;
    let lock = client.lock(name("max-hold")).ttl(ttl).max_hold(TTL);
    let guard = soon(lock.acquire()).await.unwrap();
    soon(guard.release()).await.unwrap();
}
