//! Many who give up or die leave nothing: no key without a ttl, no place in a queue, no subscription, no
//! connection, no task.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{
    TRUSTED, TTL, assert_all_expire, client_of, connect, keys, owner, soon, start_acquire, take,
    take_and_release, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::redis::Redis;

/// Connections of clients, ours for looking not counted.
fn connections(server: &Redis) -> usize {
    let clients = server.ask(&["CLIENT", "LIST"]).text();
    clients.lines().count() - 1
}

fn channels(server: &Redis) -> usize {
    server.ask(&["PUBSUB", "CHANNELS", "*"]).items().len()
}

/// A thousand clients that wait for one name die with the runtime that they run in, without a word.
/// The one behind them has its turn within the bound, and nothing of them stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_queued_clients_die() {
    const CLIENTS: usize = 1_000;
    needs!(redis);
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let holder = take(&client, "x", TTL).await;
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let url = format!("{}?timeout=20s&restart_guard=off", server.url());
    for batch in 1..=CLIENTS / 50 {
        for _ in 0..50 {
            let url = url.clone();
            doomed.spawn(async move {
                let client = tenure::connect(&url).await.unwrap();
                let _guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
                std::future::pending::<()>().await;
            });
        }
        let expected = i64::try_from(batch * 50).unwrap();
        until("all of them wait", || waiting(&server, "x") == expected).await;
    }
    assert_eq!(
        (connections(&server), channels(&server)),
        (CLIENTS + 1, CLIENTS + 1)
    );
    doomed.shutdown_background();
    until("their connections are gone", || connections(&server) == 1).await;
    assert_eq!(channels(&server), 1);

    let behind = connect(&format!("{}{TRUSTED}", server.url())).await;
    let waiter = start_acquire(behind.lock("x").ttl(TTL * 10));
    soon(holder.release()).await.unwrap();
    // At the moment of its grant one of them may have looked alive: that costs one place.
    let guard = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, waiter).await;
    let guard = guard.expect("its turn comes").unwrap().unwrap();
    assert_eq!(waiting(&server, "x"), 0, "the dead are skipped");
    soon(guard.release()).await.unwrap();
    assert_eq!(owner(&server, "x"), "");
    until("the queue's keys are gone", || {
        keys(&server) == ["tenure:{x}:hold"]
    })
    .await;
    assert_all_expire(&server);
}

/// A request that was sent cannot be cancelled. When its caller gives up before the request arrives, and it arrives
/// after all other clients have ended, the server grants the lock. The hold lasts until the client gets the answer and
/// releases the lock. Redisson's waiters send such a request each time after they have subscribed.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_of_a_dropped_acquire_holds_for_a_moment_only() {
    needs!(redis);
    for dialect in [
        "",
        "&dialect=redisson",
        "&dialect=redisson&lock=rw",
        "&dialect=redisson&lock=fair",
    ] {
        let server = Redis::start(&[]);
        let proxy = Proxy::redis(server.port());
        let options = format!("{TRUSTED}{dialect}");
        let late = connect(&format!("{}{options}", server.url_by(proxy.port()))).await;
        let other = connect(&format!("{}{options}", server.url())).await;
        let is_held = || server.ask(&["EXISTS", "x"]).int() == 1;
        // Far longer than this test: no lease runs out.
        let ttl = TTL * 100;
        let guard = take(&other, "x", ttl).await;
        let before = proxy.requests();
        proxy.hold(Direction::Up, true);
        let lock = late.lock("x").ttl(ttl);
        let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
        until("its request is on its way", || proxy.requests() > before).await;
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        soon(guard.release()).await.unwrap();
        take_and_release(&other, "x", ttl).await;
        assert!(!is_held());

        // The request arrives, and the answer does not yet.
        proxy.hold(Direction::Down, true);
        proxy.hold(Direction::Up, false);
        until("it is granted for a moment", is_held).await;
        let tried = soon(other.lock("x").ttl(ttl).try_acquire()).await.unwrap();
        assert!(tried.is_none(), "the name is not free");
        let next = start_acquire(other.lock("x").ttl(ttl));
        proxy.hold(Direction::Down, false);
        // The moment ends, and the waiter has the lock.
        let next = soon(next).await.unwrap().unwrap();
        soon(next.release()).await.unwrap();
        assert!(!is_held());
        assert_eq!(waiting(&server, "x"), 0);
    }
}

/// `close` waits for the request that ends a subscription: no request of ours is sent after `close` has returned.
#[tokio::test(flavor = "multi_thread")]
async fn close_waits_until_a_subscription_has_ended() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let options = format!("{TRUSTED}&dialect=redisson");
    let client = connect(&format!("{}{options}", server.url_by(proxy.port()))).await;
    let other = connect(&format!("{}{options}", server.url())).await;
    let holder = take(&other, "x", TTL * 100).await;
    let subscribers = || {
        let count = ["PUBSUB", "NUMSUB", "redisson_lock__channel:{x}"];
        server.ask(&count).items()[1].int()
    };
    let waiter = start_acquire(client.lock("x").ttl(TTL * 100));
    until("it is subscribed", || subscribers() == 1).await;
    proxy.take_seen();
    // Far below the time limit of `close`.
    proxy.delay(Direction::Up, Duration::from_millis(20));
    soon(client.close()).await;
    assert_eq!(subscribers(), 0);
    // The release may be sent twice: by the wait that ends and by the client that closes.
    let seen = proxy.take_seen();
    assert_eq!(
        seen.last().map(String::as_str),
        Some("unsubscribe"),
        "{seen:?}"
    );
    assert_eq!(
        soon(waiter).await.unwrap().unwrap_err().kind(),
        tenure::ErrorKind::Closed
    );
    soon(holder.release()).await.unwrap();
}
