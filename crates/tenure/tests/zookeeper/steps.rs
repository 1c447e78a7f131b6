//! How many requests a lock costs, and a node of which no request tells; what becomes of lost requests is in
//! `faults/requests.rs`.

use std::time::{Duration, Instant};

use tenure::ErrorKind;

use crate::support::{SHARED, TTL, client_by, nodes, soon, take, take_and_release, unique, until};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};

/// How many requests a free lock costs. Times are printed and not compared.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_free_lock() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("count"));
    take_and_release(&client, &name, TTL * 10).await;
    proxy.delay(Direction::Up, Duration::from_millis(5));
    proxy.delay(Direction::Down, Duration::from_millis(5));
    for _ in 0..3 {
        let before = proxy.requests();
        let start = std::time::Instant::now();
        let guard = take(&client, &name, TTL * 10).await;
        let (took, asked) = (start.elapsed(), proxy.requests() - before);
        eprintln!("warm acquire: {asked} requests, {took:?} at 10 ms per round trip");
        assert_eq!(asked, 1, "requests of a warm acquire");
        let start = std::time::Instant::now();
        guard.release().await.unwrap();
        let (took, asked) = (start.elapsed(), proxy.requests() - before - 1);
        eprintln!("release: {asked} requests, {took:?}");
        assert_eq!(asked, 1, "requests of a release");
    }
}

/// A node of unknown outcome cannot be looked for during more than a ttl, while its session lives: the node does not go
/// by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_unknown_fate_is_looked_for_as_long_as_its_session_lives() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("ghost"));
    let ttl = Duration::from_secs(6);
    let other = take(&client, &unique("beside"), ttl).await;
    proxy.plan("acquire", Fault::CutAfter);
    // No request that looks for the node gets a reply, neither of the acquisition nor of the clean-up.
    let plan = || {
        // Many are planned ahead, or a request gets through while a busy machine does not run this test.
        for _ in proxy.pending()..500 {
            proxy.plan("sync", Fault::CutAfter);
        }
    };
    plan();
    let tried = soon(client.lock(&name).ttl(ttl).try_acquire()).await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Indeterminate);
    let start = Instant::now();
    while start.elapsed() < ttl * 2 {
        plan();
        assert_eq!(nodes(&SHARED, &name).len(), 1);
    }
    proxy.forget_plans();
    until("the node is deleted", || nodes(&SHARED, &name).is_empty()).await;
    assert!(other.is_held(), "it went with its session");
    soon(other.release()).await.unwrap();
}
