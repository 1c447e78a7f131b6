//! The primary is replaced, and sentinels say by whom.

use std::time::{Duration, Instant};

use tenure::ErrorKind;

use crate::common::answered;
use crate::support::{
    TTL, assert_all_expire, assert_says, connect, owner, soon, start_acquire, take, until,
    until_renewed,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::redis::{Redis, SERVICE, SentinelSetup};

/// What a primary may be silent for, in ms.
const DOWN_AFTER: u32 = 4_000;
/// Longer than a failover takes, and that twice.
const LONG: Duration = Duration::from_secs(24);

fn url(watched: &SentinelSetup) -> String {
    format!("{}?timeout=3s&restart_guard=off", watched.url())
}

async fn until_replaced(watched: &SentinelSetup, before: u16) {
    until("another primary", || watched.primary_port() != before).await;
    until("it is one", || {
        watched.primary().info_is("replication", "role", "master")
    })
    .await;
}

/// What the replica had by then continues there: holds are renewed, waiters are served.
#[tokio::test(flavor = "multi_thread")]
async fn the_primary_is_killed() {
    needs!(redis);
    let watched = SentinelSetup::start(DOWN_AFTER);
    let (first, second) = (connect(&url(&watched)).await, connect(&url(&watched)).await);
    let guard = take(&first, "x", LONG).await;
    let waiter = start_acquire(second.lock("x").ttl(LONG));
    let [primary, replica] = &watched.servers;
    until("it waits", || crate::support::waiting(replica, "x") == 1).await;
    let value = owner(replica, "x");
    assert!(!value.is_empty());
    let before = primary.port();
    primary.kill();
    until_replaced(&watched, before).await;
    until_renewed(&guard).await;
    assert_eq!(owner(replica, "x"), value);
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = tokio::time::timeout(LONG + TEST_TIMEOUT, waiter).await;
    let next = next.expect("its turn comes").unwrap().unwrap();
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
    assert_eq!(owner(replica, "x"), "");
    assert_all_expire(replica);
}

/// `SENTINEL FAILOVER`: the old primary goes on answering for a while, and is not asked any more.
#[tokio::test(flavor = "multi_thread")]
async fn the_primary_is_replaced_by_order() {
    needs!(redis);
    let watched = SentinelSetup::start(DOWN_AFTER);
    let client = connect(&url(&watched)).await;
    let guard = take(&client, "x", LONG).await;
    let [primary, replica] = &watched.servers;
    until("the replica has it", || !owner(replica, "x").is_empty()).await;
    watched.sentinels[0].order(&["SENTINEL", "FAILOVER", SERVICE]);
    until_replaced(&watched, primary.port()).await;
    let mut last = 0;
    let mut number = 0;
    let start = Instant::now();
    loop {
        number += 1;
        let name = format!("y{number}");
        if let Ok(Some(new)) = soon(client.lock(&name).ttl(TTL).try_acquire()).await {
            assert!(new.token().get() > last);
            last = new.token().get();
            let is_there = !owner(replica, &name).is_empty();
            let _ = soon(new.release()).await;
            if is_there {
                break;
            }
        }
        assert!(
            start.elapsed() < TEST_TIMEOUT,
            "locks go on being taken at the old primary"
        );
        tokio::time::sleep(TTL / 20).await;
    }
    until("the old one follows", || {
        primary.info_is("replication", "role", "slave")
    })
    .await;
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
    assert_eq!(owner(replica, "x"), "");
}

/// A replica that lacks the lock takes over, and two clients hold the lock, as the guarantee table says. Tokens still
/// grow.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_takes_over() {
    needs!(redis);
    let watched = SentinelSetup::start(DOWN_AFTER);
    let [primary, replica] = &watched.servers;
    let (first, second) = (connect(&url(&watched)).await, connect(&url(&watched)).await);
    let careful = connect(&format!("{}&wait_replicas=1", url(&watched))).await;
    let known = take(&careful, "known", LONG).await;
    replica.stop();
    // Or the kernel would keep for it what it is sent.
    assert_eq!(
        primary.order(&["CLIENT", "KILL", "TYPE", "replica"]).int(),
        1
    );
    let old = take(&first, "x", LONG * 3).await;
    // A client that asks gets an error that says so.
    let refused = soon(careful.lock("y").ttl(TTL).try_acquire()).await;
    assert_says(
        refused,
        ErrorKind::Unreachable,
        &["replica", "wait_replicas"],
    );
    assert_eq!(owner(primary, "y"), "");
    let before = primary.port();
    primary.kill();
    replica.resume();
    until_replaced(&watched, before).await;
    let start = Instant::now();
    let next = loop {
        match soon(second.lock("x").ttl(TTL).try_acquire()).await {
            Ok(Some(next)) => break next,
            other => assert!(start.elapsed() < TEST_TIMEOUT, "{other:?}"),
        }
        tokio::time::sleep(TTL / 20).await;
    };
    assert!(
        next.token() > old.token(),
        "{} follows {}",
        next.token(),
        old.token()
    );
    assert!(
        !owner(replica, "known").is_empty(),
        "acknowledged and forgotten"
    );
    soon(old.lost()).await;
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
    drop(known);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_down() {
    needs!(redis);
    let watched = SentinelSetup::start(DOWN_AFTER);
    let client = connect(&url(&watched)).await;
    // The process may stand still for some seconds, and the lease lasts.
    let guard = take(&client, "x", TTL * 3 / 2).await;
    // One sentinel that answers is enough.
    watched.sentinels[0].kill();
    watched.sentinels[1].kill();
    let other = connect(&url(&watched)).await;
    assert!(soon(other.lock("x").try_acquire()).await.unwrap().is_none());
    watched.sentinels[2].kill();
    let refused = soon(tenure::connect(&url(&watched))).await;
    assert_says(refused, ErrorKind::Unreachable, &["sentinel"]);
    // Who has a connection needs none of them.
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        assert!(guard.is_held(), "{:?}", guard.state());
        tokio::time::sleep(TTL / 20).await;
    }
    soon(guard.release()).await.unwrap();
    watched.servers[0].kill();
    // The first request may be under way when the connection breaks.
    let _ = soon(client.lock("x").try_acquire()).await.unwrap_err();
    let refused = soon(client.lock("x").try_acquire()).await;
    assert_says(refused, ErrorKind::Unreachable, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_do_not_know_the_service() {
    needs!(redis);
    let watched = SentinelSetup::start(DOWN_AFTER);
    let wrong = url(&watched).replace(&format!("/{SERVICE}"), "/somebody");
    let refused = soon(tenure::connect(&wrong)).await;
    assert_says(refused, ErrorKind::Invalid, &["somebody"]);
    // A server is no sentinel, and says so.
    let server = Redis::start(&[]);
    let wrong = format!("redis+sentinel://{}/{SERVICE}?timeout=3s", server.address());
    let refused = soon(tenure::connect(&wrong)).await;
    crate::support::assert_clear(&refused.unwrap_err());
}

/// An upgrade is a grant, which counts when the replicas have it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_no_replica_has_is_undone() {
    needs!(redis);
    let primary = Redis::start(&[]);
    let replica = Redis::start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
    until("the replica follows", || {
        replica.info_is("replication", "master_link_status", "up")
    })
    .await;
    let options = "timeout=1s&restart_guard=off";
    let careful = connect(&format!("{}?{options}&wait_replicas=1", primary.url())).await;
    let lock = careful.lock("x").ttl(LONG * 10).upgradable();
    let guard = answered(async || lock.acquire().await).await;
    replica.kill();
    let refused = soon(guard.try_upgrade()).await;
    assert_says(
        refused,
        ErrorKind::Unreachable,
        &["replica", "wait_replicas"],
    );
    assert_eq!(owner(&primary, "x"), "*", "it is upgradable again");
    let other = connect(&format!("{}?{options}", primary.url())).await;
    let lock = other.lock("x").ttl(LONG).shared();
    let reader = soon(lock.try_acquire()).await.unwrap();
    let reader = reader.expect("it is beside a reader");
    soon(reader.release()).await.unwrap();
    replica.launch();
    let upgraded = answered(async || guard.try_upgrade().await).await;
    assert!(upgraded && owner(&primary, "x") != "*");
    soon(guard.release()).await.unwrap();
}

/// A grant that does not count was never used, so nothing stays reserved.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_no_replica_has_leaves_nothing() {
    needs!(redis);
    let server = Redis::start(&[]);
    let options = "?timeout=1s&restart_guard=off&wait_replicas=1";
    let client = connect(&format!("{}{options}", server.url())).await;
    let lock = client.lock("x").ttl(LONG).min_hold(LONG * 400);
    for lock in [lock.clone(), lock.permits(2)] {
        let refused = soon(lock.try_acquire()).await;
        assert_says(refused, ErrorKind::Unreachable, &["wait_replicas"]);
        assert_eq!(owner(&server, "x"), "");
    }
}

/// What fails after a grant leaves no lock behind, also when the release fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_given_back_when_replicas_cannot_be_asked() {
    needs!(redis);
    let server = Redis::start(&[]);
    let user = [
        "ACL", "SETUSER", "weak", "on", "nopass", "~*", "&*", "+@all", "-wait",
    ];
    server.order(&user);
    let options = "?timeout=1s&restart_guard=off&wait_replicas=1";
    let url = server.url().replace("redis://", "redis://weak:word@");
    let client = connect(&format!("{url}{options}")).await;
    let lock = client.lock("x").ttl(LONG * 400);
    assert_says(soon(lock.try_acquire()).await, ErrorKind::Denied, &[]);
    assert_eq!(owner(&server, "x"), "");

    let proxy = Proxy::redis(server.port());
    let url = server.url_by(proxy.port());
    let client = connect(&format!("{url}{options}")).await;
    proxy.plan("release", Fault::Answer("NOREPLICAS Not enough"));
    let lock = client.lock("x").ttl(LONG * 400);
    assert_says(
        soon(lock.try_acquire()).await,
        ErrorKind::Indeterminate,
        &[],
    );
    until("it is given back later", || owner(&server, "x").is_empty()).await;
    assert!(proxy.is_done());
}

/// `WAIT` blocks its connection, and a renewal does not wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_renewed_while_grants_wait_for_replicas() {
    needs!(redis);
    let primary = Redis::start(&[]);
    let replica = Redis::start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
    until("the replica follows", || {
        replica.info_is("replication", "master_link_status", "up")
    })
    .await;
    let options = "timeout=4s&restart_guard=off&wait_replicas=1";
    let client = connect(&format!("{}?{options}", primary.url())).await;
    let lock = client.lock("x").ttl(LONG / 2);
    let guard = answered(async || lock.acquire().await).await;
    replica.stop();
    // Each of them waits for 2 s, so ten of them in a row would take longer than the lease.
    let others: Vec<_> = (0..10)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..2 {
                    let lock = client.lock(format!("{task}-{round}")).ttl(LONG * 4);
                    assert_says(
                        lock.try_acquire().await,
                        ErrorKind::Unreachable,
                        &["wait_replicas"],
                    );
                }
            })
        })
        .collect();
    for other in others {
        soon(other).await.unwrap();
    }
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
    replica.resume();
}
