//! Acquiring a lock again with one request, and the cases in which that request alone proves nothing.

use crate::support::{
    ROOT, SHARED, TTL, client_by, client_of, nodes, soon, take, take_and_release, unique, until,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::zookeeper::Zookeeper;

/// Requests of one acquisition and its release, when the directory is in the cache.
const REQUESTS_OF_A_PAIR: u64 = 2;

/// Another client gets the number that would have been ours, in a directory that was collected and made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_directory_is_not_the_one_that_was_known() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("again"));
    let dir = format!("{ROOT}/{name}");
    for round in 0..5_u32 {
        // Our last node had the number `round`.
        for _ in 0..=round {
            take_and_release(&client, &name, TTL).await;
        }
        let mut wire = SHARED.session();
        wire.delete(&dir);
        wire.create(&dir, b"", 0).unwrap();
        let mut last = 0;
        for number in 0..=round {
            let node = wire.create(&format!("{dir}/other-lock-"), b"", 3).unwrap();
            assert!(node.ends_with(&format!("{number:010}")), "{node}");
            last = wire.get(&node).unwrap().czxid;
        }
        let tried = soon(client.lock(&name).ttl(TTL).try_acquire()).await;
        assert!(
            tried.unwrap().is_none(),
            "acquired while another client holds"
        );
        drop(wire);
        let guard = soon(client.lock(&name).ttl(TTL).acquire()).await.unwrap();
        assert!(guard.token().get() > last.unsigned_abs());
        soon(guard.release()).await.unwrap();
        SHARED.session().delete_all(&dir);
    }
}

/// The same, while our connection is broken.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_directory_is_noticed_after_a_reconnect() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("away"));
    let dir = format!("{ROOT}/{name}");
    take_and_release(&client, &name, TTL).await;
    for direction in [
        tenure_testkit::proxy::Direction::Up,
        tenure_testkit::proxy::Direction::Down,
    ] {
        proxy.hold(direction, true);
    }
    proxy.cut();
    let mut wire = SHARED.session();
    wire.delete(&dir);
    wire.create(&dir, b"", 0).unwrap();
    let node = wire.create(&format!("{dir}/other-lock-"), b"", 3).unwrap();
    assert!(node.ends_with("0000000000"), "{node}");
    proxy.resume();
    let tried = soon(client.lock(&name).ttl(TTL).try_acquire()).await;
    assert!(
        !matches!(tried, Ok(Some(_))),
        "acquired while another client holds"
    );
    drop(wire);
    let guard = soon(client.lock(&name).ttl(TTL).acquire()).await.unwrap();
    soon(guard.release()).await.unwrap();
}

/// The server collects the empty directory by itself: tokens continue to grow, while numbers begin again.
#[tokio::test(flavor = "multi_thread")]
async fn a_collected_container_is_made_again() {
    needs!(zookeeper);
    let server = Zookeeper::start_with(&["-Dznode.container.checkIntervalMs=100"], &[]);
    let (client, name) = (client_of(&server).await, unique("container"));
    let mut last = 0;
    for _ in 0..3 {
        let guard = take(&client, &name, TTL).await;
        let node = nodes(&server, &name).remove(0);
        assert!(node.ends_with("0000000000"), "{node}");
        let token = guard.token().get();
        assert!(token > last, "{token} follows {last}");
        last = token;
        soon(guard.release()).await.unwrap();
        until("the directory is collected", || {
            server.session().get(&format!("{ROOT}/{name}")).is_none()
        })
        .await;
    }
}

/// After a hold of another client the queue has to be read once; later acquisitions cost one request again.
#[tokio::test(flavor = "multi_thread")]
async fn a_contender_in_between_is_noticed() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    let name = unique("between");
    take_and_release(&client, &name, TTL * 10).await;
    let holder = take(&other, &name, TTL * 10).await;
    let tried = soon(client.lock(&name).ttl(TTL * 10).try_acquire()).await;
    assert!(tried.unwrap().is_none());
    soon(holder.release()).await.unwrap();
    // The first acquisition reads the queue, the next ones do not.
    take_and_release(&client, &name, TTL * 10).await;
    let before = proxy.requests();
    take_and_release(&client, &name, TTL * 10).await;
    assert_eq!(proxy.requests() - before, REQUESTS_OF_A_PAIR);
}
