//! Clusters: hand-over on every node, silent and dead nodes, and what is no cluster.

use std::time::Duration;

use tenure::error::ErrorKind;
use tenure::{Client, Guard};
use tenure_testkit::needs;
use tenure_testkit::redis::{Cluster, Redis};
use tenure_testkit::resp::Value;
use tenure_testkit::until;

/// Longer than any failover in these tests.
const TTL: Duration = Duration::from_secs(20);

/// Without the restart guard: these servers were started just now, and have no locks to forget.
async fn client(url: &str) -> Client {
    tenure::connect(&format!("{url}?restart_guard=off&timeout=5s"))
        .await
        .unwrap()
}

async fn held(client: &Client, name: &str) -> Guard {
    loop {
        let lock = client
            .lock(name)
            .ttl(TTL)
            .wait(tenure_testkit::TEST_TIMEOUT);
        match lock.acquire().await {
            // The request was under way when a server died.
            Err(err) if err.kind() == ErrorKind::Indeterminate => {}
            outcome => return outcome.unwrap(),
        }
    }
}

fn has(server: &Redis, key: &str) -> bool {
    server.is_up() && server.ask(&["EXISTS", key]).int() == 1
}

/// How many sharded channels have subscribers.
fn channels(cluster: &Cluster) -> usize {
    let up = cluster.nodes.iter().filter(|node| node.is_up());
    up.map(|node| node.ask(&["PUBSUB", "SHARDCHANNELS"]).items().len())
        .sum()
}

/// Starts a waiter in the background, and returns when the waiter is in the queue of the server.
fn queue(
    cluster: &Cluster,
    client: &Client,
    name: &'static str,
) -> tokio::task::JoinHandle<Result<Guard, tenure::Error>> {
    let lock = client
        .lock(name)
        .ttl(TTL)
        .wait(tenure_testkit::TEST_TIMEOUT);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let slot = cluster.slot(name);
    let queue = format!("tenure:{{{name}}}:queue");
    until("it waits", || {
        cluster.owner(slot).ask(&["LLEN", &queue]).int() == 2
    });
    waiter
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_hands_over_in_every_slot_and_leaves_no_channel_behind() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let (one, two) = (client(&cluster.url()).await, client(&cluster.url()).await);
    // One name on each node.
    let names = ["a", "b", "c"];
    let owners: std::collections::BTreeSet<_> = names
        .map(|name| cluster.owner(cluster.slot(name)).port())
        .into();
    assert_eq!(owners.len(), 3);
    for _ in 0..3 {
        for name in names {
            let guard = held(&one, name).await;
            assert!(two.lock(name).try_acquire().await.unwrap().is_none());
            let waiter = queue(&cluster, &two, name);
            until("it is subscribed", || channels(&cluster) > 0);
            guard.release().await.unwrap();
            let next = waiter.await.unwrap().unwrap();
            next.release().await.unwrap();
        }
    }
    until("no subscription is left", || channels(&cluster) == 0);
    let guard = held(&one, "a").await;
    let waiter = queue(&cluster, &two, "a");
    until("it is subscribed", || channels(&cluster) == 1);
    two.close().await;
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    until("no subscription is left", || channels(&cluster) == 0);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_locks_of_redisson() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let url = format!("{}?dialect=redisson&restart_guard=off", cluster.url());
    let one = tenure::connect(&url).await.unwrap();
    let two = tenure::connect(&url).await.unwrap();
    for name in ["a", "b", "c"] {
        let guard = held(&one, name).await;
        assert!(two.lock(name).try_acquire().await.unwrap().is_none());
        let lock = two.lock(name).ttl(TTL).wait(tenure_testkit::TEST_TIMEOUT);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let owner = cluster.owner(cluster.slot(name));
        until("it is subscribed", || {
            owner.ask(&["PUBSUB", "NUMSUB", &channel]).items()[1].int() == 1
        });
        let token = guard.token();
        guard.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_delays_no_renewal_of_others() {
    needs!(redis);
    let cluster = Cluster::start(false);
    for node in &cluster.nodes {
        node.order(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // A request to a silent node takes longer than the leases on the other nodes last.
    let url = format!("{}?restart_guard=off&timeout=20s", cluster.url());
    let client = tenure::connect(&url).await.unwrap();
    let lock = |name| client.lock(name).ttl(Duration::from_secs(6));
    let silent = lock("a").acquire().await.unwrap();
    let others = [
        lock("b").acquire().await.unwrap(),
        lock("c").acquire().await.unwrap(),
    ];
    let node = cluster.owner(cluster.slot("a"));
    node.stop();
    for _ in 0..2 {
        for guard in &others {
            let mut before = guard.remaining();
            until("it is renewed", || {
                assert!(guard.is_held());
                let now = guard.remaining();
                std::mem::replace(&mut before, now) < now
            });
        }
    }
    silent.lost().await;
    node.resume();
    for guard in others {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_for_a_dead_node() {
    needs!(redis);
    let cluster = Cluster::start(true);
    // A request lasts until the replica has taken over.
    let url = format!("{}?restart_guard=off&timeout=20s", cluster.url());
    let one = tenure::connect(&url).await.unwrap();
    let two = tenure::connect(&url).await.unwrap();
    let slot = cluster.slot("x");
    let guard = held(&one, "x").await;
    let waiter = queue(&cluster, &two, "x");
    until("it is subscribed", || channels(&cluster) >= 1);
    let old = cluster.owner(slot);
    // What the replica does not have when the node dies is lost, as the table of guarantees says.
    until("the replica has the queue", || {
        cluster.nodes.iter().skip(3).any(|replica| {
            let mut connection = replica.connection();
            connection.ask(&["READONLY"]).unwrap();
            let queue = connection.ask(&["EXISTS", "tenure:{x}:queue"]).unwrap();
            matches!(queue, Value::Int(1))
        })
    });
    old.kill();
    // The request is sent before the slot has a new owner, and the new owner answers it.
    let free = held(&one, "{x}:other").await;
    free.release().await.unwrap();
    guard.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(next.is_held());
    assert!(has(cluster.owner(slot), "x"));
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_says_what_is_wrong() {
    needs!(redis);
    let alone = Redis::start(&[]);
    let kind = async |url: &str| tenure::connect(url).await.unwrap_err().kind();
    let url = format!("redis+cluster://{}", alone.address());
    assert_eq!(kind(&url).await, ErrorKind::Invalid);
    let url = format!("{url},127.0.0.1:1");
    assert_eq!(kind(&url).await, ErrorKind::Invalid);
    assert_eq!(
        kind("redis+cluster://127.0.0.1:1").await,
        ErrorKind::Unreachable
    );
    // Only the slots of the node that is down cannot be used.
    let cluster = Cluster::start(false);
    let keep = "cluster-require-full-coverage";
    for node in &cluster.nodes {
        node.order(&["CONFIG", "SET", keep, "no"]);
    }
    let client = client(&cluster.url()).await;
    cluster.owner(cluster.slot("a")).kill();
    held(&client, "b").await.release().await.unwrap();
    let _ = client.lock("a").try_acquire().await.unwrap_err();
    let err = client.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unreachable, "{err}");
    let late = self::client(&cluster.url()).await;
    held(&late, "b").await.release().await.unwrap();
}
