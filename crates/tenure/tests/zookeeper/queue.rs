//! The order of the queue, and which nodes are contenders.

use std::sync::{Arc, Mutex};

use crate::support::{
    ROOT, SHARED, TTL, client_of, connect, nodes, soon, start_acquire, take, take_and_release,
    unique, until, url,
};
use tenure_testkit::needs;

/// Two hundred contenders in eight clients are served in the order of their nodes.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_are_served_in_order() {
    needs!(zookeeper);
    let name = unique("order");
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(client_of(&SHARED).await);
    }
    let holder = take(&clients[0], &name, TTL * 10).await;
    let served: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut waiting = Vec::new();
    for number in 0..200 {
        // A client has one contender for a name in the store; its other tasks wait in the client.
        let lock = clients[number % 8].lock(&name).ttl(TTL * 10);
        let served = served.clone();
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.lock().unwrap().push(guard.token().get());
            guard.release().await.unwrap();
        }));
    }
    until("eight wait", || nodes(&SHARED, &name).len() == 9).await;
    soon(holder.release()).await.unwrap();
    for task in waiting {
        soon(task).await.unwrap();
    }
    let served = served.lock().unwrap();
    assert_eq!(served.len(), 200);
    // A token is the number of the transaction that made the node, so tokens grow as the numbers of nodes do.
    assert!(served.is_sorted(), "{served:?}");
    assert_eq!(nodes(&SHARED, &name).len(), 0);
}

/// Every sequential child excludes us, whatever its name is; a child without a number does not.
#[tokio::test(flavor = "multi_thread")]
async fn every_sequential_child_is_a_contender() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("foreign"));
    let dir = format!("{ROOT}/{name}");
    take_and_release(&client, &name, TTL).await;
    for prefix in [
        "_c_0-lock-",
        "x-17-",
        "0__lock__",
        "_c_0-__READ__",
        "n-",
        "",
    ] {
        let mut wire = SHARED.session();
        let node = wire.create(&format!("{dir}/{prefix}"), b"", 3).unwrap();
        let tried = soon(client.lock(&name).ttl(TTL).try_acquire()).await;
        assert!(tried.unwrap().is_none(), "{node} was not waited for");
        let waiting = start_acquire(client.lock(&name).ttl(TTL));
        until("we wait", || nodes(&SHARED, &name).len() == 2).await;
        wire.delete(&node);
        let guard = soon(waiting).await.unwrap().unwrap();
        soon(guard.release()).await.unwrap();
    }
    let mut wire = SHARED.session();
    wire.create(&format!("{dir}/readme"), b"", 0).unwrap();
    take_and_release(&client, &name, TTL).await;
    wire.delete(&format!("{dir}/readme"));
}

/// In ZooKeeper's own dialect a session has one node in a directory, so a client uses two.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_prefix_is_not_reentrant() {
    needs!(zookeeper);
    let client = connect(&url(SHARED.port(), "&dialect=session-prefix")).await;
    let name = unique("recipe");
    let holder = take(&client, &name, TTL).await;
    let node = nodes(&SHARED, &name).remove(0);
    let owner = SHARED
        .session()
        .get(&format!("{ROOT}/{name}/{node}"))
        .unwrap()
        .owner;
    assert!(node.starts_with(&format!("x-{owner}-")), "{node}");
    let waiting = start_acquire(client.lock(&name).ttl(TTL));
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    assert!(!waiting.is_finished());
    soon(holder.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
    // Both sessions can be used again.
    take_and_release(&client, &name, TTL).await;
    let shared = soon(client.lock(&name).shared().ttl(TTL).acquire()).await;
    assert_eq!(shared.unwrap_err().kind(), tenure::ErrorKind::Unsupported);
}
