//! Writes that count only while the lock is held.

use tenure::{ErrorKind, Guard};

use crate::support::{TRUSTED, TTL, assert_says, client_of, connect, owner, soon, take, until};
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::redis::{self, Cluster, Redis};

fn read(server: &Redis, key: &str) -> String {
    server.ask(&["GET", key]).text()
}

/// What it is refused with when it is late, and that nothing came of it.
async fn assert_refused(guard: &Guard, server: &Redis, key: &str) {
    let before = read(server, key);
    for outcome in [
        soon(guard.put(key, "late")).await,
        soon(guard.delete(key)).await,
    ] {
        assert_says(outcome, ErrorKind::Lost, &["nothing was written"]);
    }
    assert_eq!(read(server, key), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_writes_and_a_former_one_does_not() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    for dialect in ["token", "redisson"] {
        let url = format!("{}{TRUSTED}&dialect={dialect}", server.url());
        let (first, second) = (connect(&url).await, connect(&url).await);
        let name = format!("x with {dialect} 🔒");
        let old = take(&first, &name, TTL).await;
        soon(old.put("total", "one")).await.unwrap();
        assert_eq!(read(&server, "total"), "one");
        soon(old.put("total", b"\x00\xff")).await.unwrap();
        soon(old.delete("total")).await.unwrap();
        soon(old.delete("total")).await.unwrap();
        assert_eq!(read(&server, "total"), "");
        // Its key goes, it does not know that yet, and somebody else is next.
        server.order(&["DEL", &name]);
        assert_refused(&old, &server, "total").await;
        let next = take(&second, &name, TTL).await;
        soon(next.put("total", "two")).await.unwrap();
        assert_refused(&old, &server, "total").await;
        soon(next.release()).await.unwrap();
        drop(old);
    }
}

/// It checks that it holds, stops for a minute, and writes: the one case that no lease can prevent.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_arrives_late_does_not_count() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let proxy = Proxy::start(server.port());
    let first = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let old = take(&first, "x", TTL).await;
    proxy.hold(Direction::Up, true);
    // It is on its way, and stays there until the lease is over and the next one has written.
    let writing = tokio::spawn(async move { (old.put("total", "late").await, old) });
    let second = client_of(&server).await;
    let next = second.lock("x").ttl(TTL);
    let next = tokio::time::timeout(TTL * 4, next.acquire()).await;
    let next = next.expect("the lease of the first one ends").unwrap();
    soon(next.put("total", "two")).await.unwrap();
    let (outcome, old) = soon(writing).await.unwrap();
    assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
    let calls = || server.ask(&["INFO", "commandstats"]).text();
    let before = calls().matches("cmdstat_eval").count();
    server.order(&["CONFIG", "RESETSTAT"]);
    assert!(before > 0 && !calls().contains("cmdstat_eval"));
    proxy.resume();
    until("it arrives", || calls().contains("cmdstat_eval")).await;
    assert_refused(&old, &server, "total").await;
    assert_eq!(read(&server, "total"), "two");
    soon(next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_indeterminate() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let proxy = Proxy::start(server.port());
    let client = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let guard = take(&client, "x", TTL).await;
    for (fault, total) in [(Fault::CutBefore, ""), (Fault::CutAfter, "one")] {
        proxy.plan("write", fault);
        let outcome = soon(guard.put("total", "one")).await;
        assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
        assert_eq!(read(&server, "total"), total);
    }
    soon(guard.release()).await.unwrap();
}

/// All names must still be held.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_several_names_wants_all_of_them() {
    if redis::skip_unless_installed() {
        return;
    }
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let guard = soon(client.lock_all(["a", "b", "c"]).ttl(TTL).acquire()).await;
    let guard = guard.unwrap();
    soon(guard.put("total", "one")).await.unwrap();
    assert_ne!(owner(&server, "b"), "");
    server.order(&["DEL", "b"]);
    assert_refused(&guard, &server, "total").await;
    assert_eq!(read(&server, "total"), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_the_key_lies_where_the_lock_does() {
    if redis::skip_unless_installed() {
        return;
    }
    let cluster = Cluster::start(false);
    let url = format!("{}?timeout=1s&restart_guard=off", cluster.url());
    let client = connect(&url).await;
    let guard = take(&client, "orders/42", TTL).await;
    soon(guard.put("{orders/42}:total", "one")).await.unwrap();
    let node = cluster.owner(cluster.slot("orders/42"));
    assert_eq!(read(node, "{orders/42}:total"), "one");
    let elsewhere = soon(guard.put("total", "one")).await;
    assert_says(
        elsewhere,
        ErrorKind::Invalid,
        &["\"total\"", "{orders/42}:data"],
    );
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_without_data_say_so() {
    let client = tenure::connect("memory:").await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let outcome = guard.put("total", "one").await;
    assert_says(
        outcome,
        ErrorKind::Unsupported,
        &["memory", "fencing token"],
    );
}
