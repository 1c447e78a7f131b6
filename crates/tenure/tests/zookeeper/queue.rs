//! The order of the queue, and which nodes are contenders.

use crate::support::{
    ROOT, SHARED, TTL, client_of, connect, nodes, soon, start_acquire, take, take_and_release,
    unique, until, url,
};
use tenure_testkit::needs;

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
