//! Observers whose connection breaks, is slow, or moves to another server.

use std::time::Duration;

use crate::elections::{lead, seen, subscribers, until_seen};
use crate::support::{TRUSTED, client_of, connect, owner, soon, until, until_renewed};
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::{Cluster, Redis, SERVICE, SentinelSetup};

/// The connection of observer and leader breaks: the observer subscribes again, and sees what has changed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_goes_on_after_a_broken_connection() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let leader = client_of(&server).await;
    let outsider = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let mut observer = outsider.election("x").observe();
    let term = lead(&leader, "0").await;
    until_seen(&mut observer, Some("0")).await;
    for number in 1..5 {
        proxy.cut();
        let value = number.to_string();
        soon(term.proclaim(value.clone())).await.unwrap();
        until_seen(&mut observer, Some(&value)).await;
    }
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    drop(observer);
    until("no subscription is left", || subscribers(&server) == 0).await;
}

/// The new primary knows the leader, and pushes to observers.
#[tokio::test(flavor = "multi_thread")]
async fn observers_follow_a_failover() {
    needs!(redis);
    let watched = SentinelSetup::start(4_000);
    let url = format!("{}?timeout=3s&restart_guard=off", watched.url());
    let (leader, outsider) = (connect(&url).await, connect(&url).await);
    let mut observer = outsider.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    // Longer than a failover takes, and that twice.
    let ttl = Duration::from_secs(24);
    let election = leader.election("x").ttl(ttl).value("before");
    let term = soon(election.campaign()).await.unwrap();
    assert_eq!(seen(&mut observer).await.as_deref(), Some("before"));
    let [primary, replica] = &watched.servers;
    until("the replica has it", || !owner(replica, "x").is_empty()).await;
    let before = primary.port();
    primary.kill();
    until("another primary", || watched.primary_port() != before).await;
    until_renewed(term.guard()).await;
    crate::common::answered(async || term.proclaim("after").await).await;
    until_seen(&mut observer, Some("after")).await;
    until("it is subscribed there", || subscribers(replica) == 1).await;
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    drop(observer);
    until("no subscription is left", || subscribers(replica) == 0).await;
}

/// The old primary goes on answering for a while, and is heard no more.
#[tokio::test(flavor = "multi_thread")]
async fn observers_follow_a_failover_by_order() {
    needs!(redis);
    let watched = SentinelSetup::start(4_000);
    let url = format!("{}?timeout=3s&restart_guard=off", watched.url());
    let (leader, outsider) = (connect(&url).await, connect(&url).await);
    let mut observer = outsider.election("x").observe();
    let term = lead(&leader, "before").await;
    until_seen(&mut observer, Some("before")).await;
    let [primary, replica] = &watched.servers;
    until("the replica has it", || !owner(replica, "x").is_empty()).await;
    watched.sentinels[0].order(&["SENTINEL", "FAILOVER", SERVICE]);
    let before = primary.port();
    until("another primary", || watched.primary_port() != before).await;
    until("it is one", || {
        replica.info_is("replication", "role", "master")
    })
    .await;
    // An observer works only while it is polled.
    tokio::select! {
        () = until("it is subscribed there", || subscribers(replica) == 1) => {}
        () = async { while observer.next().await.is_some() {} } => panic!("the stream ends"),
    }
    crate::common::answered(async || term.proclaim("after").await).await;
    until_seen(&mut observer, Some("after")).await;
    until("the old one is not heard any more", || {
        subscribers(primary) == 0
    })
    .await;
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    drop(observer);
    until("no subscription is left", || subscribers(replica) == 0).await;
}

/// Sharded channels with subscribers, on all nodes.
fn shard_channels(cluster: &Cluster) -> Vec<String> {
    let mut all = Vec::new();
    for node in cluster.nodes.iter().filter(|node| node.is_up()) {
        let channels = node.ask(&["PUBSUB", "SHARDCHANNELS"]).items();
        all.extend(channels.iter().map(|channel| channel.text()));
    }
    all
}

/// Three observers, with names on each node, while a slot moves and a master dies.
#[tokio::test(flavor = "multi_thread")]
async fn observers_of_a_cluster_are_told_by_the_node_that_has_the_slot() {
    needs!(redis);
    let cluster = Cluster::start(true);
    let url = format!("{}?timeout=3s&restart_guard=off", cluster.url());
    let (leader, outsider) = (connect(&url).await, connect(&url).await);
    // A slot moves, and then the node that got the slot dies: longer than both take on a busy machine.
    let ttl = Duration::from_secs(60);
    let names = ["a", "b", "c"];
    let mut observers: Vec<_> = names
        .iter()
        .map(|name| outsider.election(name).observe())
        .collect();
    let mut terms = Vec::new();
    for (name, observer) in names.iter().zip(&mut observers) {
        assert_eq!(seen(observer).await, None);
        let election = leader.election(name).ttl(ttl).value("first");
        terms.push(soon(election.campaign()).await.unwrap());
        assert_eq!(seen(observer).await.as_deref(), Some("first"));
    }
    assert_eq!(shard_channels(&cluster).len(), 3);
    // The slot of one name moves to another node.
    let slot = cluster.slot("a");
    let from = cluster.owner(slot);
    let to = cluster.masters().iter();
    let to = to
        .into_iter()
        .find(|node| node.port() != from.port())
        .unwrap();
    tokio::task::block_in_place(|| cluster.migrate(slot, to, || {}));
    until("it is subscribed there", || {
        let channels = to.ask(&["PUBSUB", "SHARDCHANNELS"]).items();
        channels.iter().any(|it| it.text() == "tenure:{a}:leader")
    })
    .await;
    for (term, observer) in terms.iter().zip(&mut observers) {
        crate::common::answered(async || term.proclaim("second").await).await;
        until_seen(observer, Some("second")).await;
    }
    // The master of another name dies.
    let slot = cluster.slot("b");
    let dead = cluster.owner(slot);
    let before = dead.port();
    tokio::task::block_in_place(|| cluster.replica_with_all(dead));
    dead.kill();
    until("its replica takes over", || {
        let owner = cluster.find_owner(slot);
        owner.is_some_and(|owner| owner.port() != before)
    })
    .await;
    for (term, observer) in terms.iter().zip(&mut observers) {
        crate::common::answered(async || term.proclaim("third").await).await;
        until_seen(observer, Some("third")).await;
    }
    for (term, observer) in terms.into_iter().zip(&mut observers) {
        soon(term.resign()).await.unwrap();
        until_seen(observer, None).await;
    }
    drop(observers);
    until("no channel is left", || shard_channels(&cluster).is_empty()).await;
}

/// An observer that hears nothing reads, also while it still connects; and its read waits for the same connection.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_outlasts_a_connection_that_is_slow_to_open() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let leader = client_of(&server).await;
    // Longer than the connection is held up here.
    let url = format!(
        "{}?timeout=20s&restart_guard=off",
        server.url_by(proxy.port())
    );
    let outsider = connect(&url).await;
    let mut observer = outsider.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    let before = proxy.connections();
    proxy.hold_both(true);
    proxy.cut();
    let observing = tokio::spawn(async move {
        until_seen(&mut observer, Some("first")).await;
        observer
    });
    until("it connects again", || proxy.connections() > before).await;
    let term = lead(&leader, "first").await;
    // Longer than an observer waits for the first push.
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.hold_both(false);
    let mut observer = observing.await.unwrap();
    // The client is usable, and the observer hears pushes again.
    soon(outsider.election("x").leader()).await.unwrap();
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
}

/// An observer that is left alone while it connects keeps no other request of its client from the connection.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_is_not_polled_holds_up_no_request() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let url = format!(
        "{}?timeout=20s&restart_guard=off",
        server.url_by(proxy.port())
    );
    let client = connect(&url).await;
    let mut observer = client.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    let before = proxy.connections();
    proxy.hold_both(true);
    proxy.cut();
    // Until the observer connects again, and no longer.
    tokio::select! {
        item = observer.next() => panic!("nothing has changed: {item:?}"),
        () = until("it connects again", || proxy.connections() > before) => {}
    }
    proxy.hold_both(false);
    assert!(soon(client.election("x").leader()).await.unwrap().is_none());
    let term = lead(&client, "first").await;
    until_seen(&mut observer, Some("first")).await;
    soon(term.resign()).await.unwrap();
}
