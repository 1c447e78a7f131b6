//! Faults that other libraries had with Redis and that no other file here is about. `docs/failures.md` has the list.

use std::time::Duration;

use tenure::ErrorKind::{Indeterminate, Invalid};

use crate::support::{
    TRUSTED, TTL, calls, client_of, connect, keys, owner, soon, start_acquire, take,
    take_and_release, until, waiting,
};
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::redis::Redis;

/// A thousand names waited for at once: one connection, one subscription, and each has its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters_share_one_subscription() {
    const WAITERS: usize = 1_000;
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    let ttl = TTL * 30;
    let names: Vec<_> = (0..WAITERS).map(|number| format!("x{number}")).collect();
    let guard = soon(first.lock_all(&names).ttl(ttl).acquire())
        .await
        .unwrap();
    let waiters: Vec<_> = names
        .iter()
        .map(|name| {
            let lock = second.lock(name).ttl(ttl);
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    until("all of them wait", || {
        let queues = server.ask(&["KEYS", "tenure:{*}:queue"]).items();
        queues.len() == WAITERS
    })
    .await;
    let channels = server.ask(&["PUBSUB", "CHANNELS", "*"]).items();
    assert_eq!(channels.len(), 2, "{channels:?}");
    let connections = server.ask(&["CLIENT", "LIST"]).text();
    assert_eq!(connections.lines().count(), 3, "{connections}");
    soon(guard.release()).await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
}

/// One of many waiting clients is woken, and the others do not race.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_sends_one_message() {
    const CLIENTS: i64 = 50;
    needs!(redis);
    let server = Redis::start(&[]);
    let ttl = TTL * 30;
    let holder = take(&client_of(&server).await, "x", ttl).await;
    let mut waiters = Vec::new();
    for number in 1..=CLIENTS {
        let lock = client_of(&server).await.lock("x").ttl(ttl);
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        until("it waits", || waiting(&server, "x") == number).await;
    }
    let mut guard = holder;
    for (waiter, released) in waiters.into_iter().zip(1..) {
        soon(guard.release()).await.unwrap();
        assert_eq!(calls(&server, "publish"), released, "messages");
        // In the order in which they came.
        guard = soon(waiter).await.unwrap().unwrap();
    }
    soon(guard.release()).await.unwrap();
}

/// The lock is handed over with a short lease. Requests that are slow for that lease are not slow for the ttl.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_handed_over_is_judged_by_its_ttl() {
    needs!(redis);
    let late = Duration::from_millis(900);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let url = server.url_by(proxy.port());
    let slow = connect(&format!("{url}?timeout=20s&restart_guard=off")).await;
    let holder = take(&client_of(&server).await, "x", TTL * 30).await;
    proxy.plan("acquire", Fault::Late(late));
    proxy.plan("look", Fault::Late(late));
    let waiter = start_acquire(slow.lock("x").ttl(TTL * 30));
    until("it waits", || waiting(&server, "x") == 1).await;
    soon(holder.release()).await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
}

/// A release that arrives when another client holds the lock releases nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_does_not_hit_the_next_holder() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let url = server.url_by(proxy.port());
    let first = connect(&format!("{url}?timeout=20s&restart_guard=off")).await;
    let second = client_of(&server).await;
    let guard = take(&first, "x", TTL).await;
    let token = guard.token();
    proxy.plan("release", Fault::Late(TTL * 2));
    let releasing = tokio::spawn(guard.release());
    let next = soon(second.lock("x").ttl(TTL * 10).acquire())
        .await
        .unwrap();
    assert!(next.token() > token);
    assert!(!releasing.is_finished(), "it was not late enough");
    let value = owner(&server, "x");
    // The outcome is the server's.
    let released = soon(releasing).await.unwrap();
    assert!(released.is_err(), "it was not its own any more");
    assert_eq!(owner(&server, "x"), value);
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
}

/// Only the first waiter notices that the lease of the holder has ended, so the next one is told when it becomes the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_waiter_that_leaves_wakes_the_next_one() {
    needs!(redis);
    let server = Redis::start(&[]);
    let guard = take(&client_of(&server).await, "x", TTL * 30).await;
    let mut waiters = Vec::new();
    for number in 1..=3 {
        let client = client_of(&server).await;
        waiters.push(start_acquire(client.lock("x").ttl(TTL * 30)));
        until("it waits", || waiting(&server, "x") == number).await;
    }
    // A waiter that is not the first wakes no other one.
    for (leaves, messages) in [(1, 0), (0, 1)] {
        let left = waiting(&server, "x") - 1;
        waiters.remove(leaves).abort();
        until("it has left", || waiting(&server, "x") == left).await;
        assert_eq!(calls(&server, "publish"), messages);
    }
    soon(guard.release()).await.unwrap();
    let next = soon(waiters.remove(0)).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
}

/// Tries that fail leave no lease, no place in a queue and no key, and cost one request each.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_failed_tries_leave_nothing() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    let guard = take(&first, "x", TTL * 30).await;
    let before = keys(&server);
    for _ in 0..1_000 {
        assert!(
            soon(second.lock("x").try_acquire())
                .await
                .unwrap()
                .is_none()
        );
    }
    assert_eq!(keys(&server).len(), before.len());
    soon(guard.release()).await.unwrap();
    take_and_release(&second, "x", TTL).await;
}

/// The server's wall clock stands still, so the key of a dead holder never expires: no client is granted the lock.
/// Waits end by the client's clock, and tokens still grow.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_clock_ends_no_lease_and_every_wait() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let url = format!("{}{TRUSTED}", server.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    clock.freeze();
    let mut last = 0;
    for _ in 0..10 {
        let guard = take(&first, "x", TTL).await;
        assert!(guard.token().get() > last);
        last = guard.token().get();
        soon(guard.release()).await.unwrap();
    }
    // It died, as far as the server can tell.
    server.order(&["SET", "y", "a dead holder", "PX", "100"]);
    let waited = soon(second.lock("y").ttl(TTL).wait(TTL).acquire()).await;
    assert_eq!(waited.unwrap_err().kind(), tenure::ErrorKind::WaitElapsed);
    assert_eq!(owner(&server, "y"), "a dead holder");
    // Our own claims end by our own clock.
    let guard = take(&first, "z", TTL).await;
    server.stop();
    soon(guard.lost()).await;
    server.resume();
    clock.set(0);
    let lock = second.lock("y").ttl(TTL);
    let guard = soon(lock.acquire()).await.unwrap();
    soon(guard.release()).await.unwrap();
}

/// After its release a lock is not renewed any more.
#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_outlives_its_lock() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let ttl = Duration::from_millis(300);
    for round in 0..100_u32 {
        let guard = match soon(client.lock("x").ttl(ttl).try_acquire()).await {
            Ok(guard) => guard.expect("the name is free"),
            Err(err) => {
                // The machine was away for so long that the ttl is too short for the round trip.
                assert!(matches!(err.kind(), Invalid | Indeterminate), "{err}");
                until("it runs out", || owner(&server, "x").is_empty()).await;
                continue;
            }
        };
        // Renewals are due after a third of the ttl: some releases meet one.
        tokio::time::sleep(ttl / 3 * (round % 3) / 2).await;
        if let Err(err) = soon(guard.release()).await {
            // The machine was away for longer than the ttl.
            assert_eq!(err.kind(), tenure::ErrorKind::Lost, "{err}");
            until("it runs out", || owner(&server, "x").is_empty()).await;
        }
    }
    assert_eq!(owner(&server, "x"), "");
    // The key of another program with that name expires in time.
    server.order(&["SET", "x", "somebody", "PX", "300"]);
    until("it runs out", || owner(&server, "x").is_empty()).await;
}
