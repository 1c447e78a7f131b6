//! Clients that are cut off, and servers that are stopped: a holder notices in time that its hold has ended.

use std::time::{Duration, Instant};

use tenure::LostReason;

use crate::common::power;
use crate::support::{
    SHARED, TTL, client_by, client_of, connect, nodes, soon, start_acquire, take, unique, until,
    until_renewed, url,
};
use tenure_testkit::disk::Disk;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::zookeeper::Zookeeper;

/// With several session timeouts: the holder learns of the loss before the server deletes its node.
#[tokio::test(flavor = "multi_thread")]
async fn lost_comes_before_the_server_gives_it_away() {
    needs!(zookeeper);
    let mut cases = Vec::new();
    for ttl in [4, 5, 6].map(Duration::from_secs) {
        cases.push(tokio::spawn(async move {
            let proxy = Proxy::zookeeper(SHARED.port());
            let (client, name) = (client_by(&proxy).await, unique("cut"));
            let guard = take(&client, &name, ttl).await;
            until_renewed(&guard).await;
            let cut = Instant::now();
            for direction in [Direction::Up, Direction::Down] {
                proxy.hold(direction, true);
            }
            let look = name.clone();
            let gone = tokio::task::spawn_blocking(move || {
                tenure_testkit::until("the node is gone", || nodes(&SHARED, &look).is_empty());
                Instant::now()
            });
            // The instant until which the holder believes. The guard may hear of a renewal that passed before the cut.
            let mut end = cut;
            until("the hold is over", || {
                end = end.max(Instant::now() + guard.remaining());
                !guard.is_held()
            })
            .await;
            assert_eq!(soon(guard.lost()).await, Some(LostReason::Expired));
            let gone = gone.await.unwrap();
            let (believed, freed) = (end - cut, gone - cut);
            eprintln!("ttl {ttl:?}: believed for {believed:?}, freed after {freed:?}");
            assert!(end < gone, "believed {:?} too long", end - gone);
            proxy.resume();
        }));
    }
    for case in cases {
        case.await.unwrap();
    }
}

/// A session expires while its client waits: the client continues to wait in a new session.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_outlives_its_session() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    let name = unique("expires");
    let holder = take(&other, &name, TTL).await;
    let waiting = start_acquire(client.lock(&name).ttl(TTL));
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    let before = nodes(&SHARED, &name);
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
    }
    until("its session is over", || nodes(&SHARED, &name).len() == 1).await;
    proxy.resume();
    until("it waits again", || {
        assert!(!waiting.is_finished(), "the wait is over");
        nodes(&SHARED, &name).len() == 2
    })
    .await;
    assert_ne!(nodes(&SHARED, &name), before);
    soon(holder.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

/// A waiter whose node was deleted by another client goes to the end of the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_waiter_comes_back() {
    needs!(zookeeper);
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("deleted");
    let holder = take(&other, &name, TTL).await;
    let waiting = start_acquire(client.lock(&name).ttl(TTL));
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    let node = nodes(&SHARED, &name).remove(1);
    let path = format!("{}/{name}/{node}", crate::support::ROOT);
    SHARED.session().delete(&path);
    until("it waits again", || {
        let nodes = nodes(&SHARED, &name);
        nodes.len() == 2 && nodes[1] != node
    })
    .await;
    soon(holder.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
}

/// The power fails for a moment: the server finds on its disk what it has synced, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_power_is_lost() {
    needs!(zookeeper, "cc");
    for (syncs, remembers) in [("yes", true), ("no", false)] {
        let disk = Disk::make();
        let setting = format!("-Dzookeeper.forceSync={syncs}");
        let server = Zookeeper::start_after(&disk.command(), &[&setting]);
        let ttl = Duration::from_secs(20);
        power::lose_power(&disk, &url(server.port(), ""), ttl, remembers, |act| {
            server.kill();
            act(server.dir());
            server.begin();
            server.until_serving();
        })
        .await;
    }
}

/// With one server each write is a contact, so a waiter gets a whole lease at once, whatever its client did meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_wants_a_whole_lease_gets_a_free_lock_at_once() {
    needs!(zookeeper);
    // A quarter of this session is longer than the limit of the assertion.
    let ttl = Duration::from_secs(60);
    let url = url(SHARED.port(), "").replace("ttl=8s", "ttl=60s");
    let (holder, client) = (connect(&url).await, connect(&url).await);
    let name = unique("whole-lease");
    let held = take(&holder, &name, ttl).await;
    let lock = client.lock(&name).ttl(ttl).min_lease(ttl);
    let waiting = start_acquire(lock);
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    // Longer than the time between two records of a process that runs. The next request is such a record.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(soon(client.inspect(&name)).await.unwrap().is_held());
    soon(held.release()).await.unwrap();
    let granted = tokio::time::timeout(Duration::from_secs(12), waiting).await;
    let guard = granted.expect("it waits for a longer lease").unwrap();
    soon(guard.unwrap().release()).await.unwrap();
}
