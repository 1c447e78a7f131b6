//! Writes that count only while the lock is held; what happens is in `common::writes`.

use tenure::ErrorKind;
use tenure::redis::KeyValueGuard as _;

use crate::common::writes::{Data, Server};
use crate::support::{
    TRUSTED, TTL, assert_says, client_of, connect, soon, start_acquire, take, until,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::redis::{Cluster, Redis};

impl Server for Redis {
    fn read(&self, key: &str) -> String {
        self.ask(&["GET", key]).text()
    }

    fn evict(&self, name: &str) {
        // The permits of a semaphore of Redisson that are held are in the second key.
        let permits = format!("{{{name}}}:timeout");
        assert!(
            self.order(&["DEL", name, &permits]).int() >= 1,
            "it was held"
        );
    }
}

fn total(server: &Redis) -> Data<'_, Redis> {
    let key = "total".to_owned();
    Data { server, key }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_writes_and_a_former_one_does_not() {
    needs!(redis);
    let server = Redis::start(&[]);
    for dialect in [
        "token",
        "redisson",
        "redisson&lock=rw",
        "redisson&lock=fair",
        "redisson&lock=semaphore",
    ] {
        let url = format!("{}{TRUSTED}&dialect={dialect}", server.url());
        let clients = [connect(&url).await, connect(&url).await];
        let name = format!("x with {dialect} 🔒");
        let total = total(&server);
        total.refuses_a_former_holder(clients, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_arrives_late_does_not_count() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let first = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let old = take(&first, "x", TTL).await;
    proxy.hold(Direction::Up, true);
    let total = total(&server);
    let writing = total.write_late(old);
    let arrive = async || {
        let calls = || server.ask(&["INFO", "commandstats"]).text();
        let before = calls().matches("cmdstat_eval").count();
        server.order(&["CONFIG", "RESETSTAT"]);
        assert!(before > 0 && !calls().contains("cmdstat_eval"));
        proxy.resume();
        until("it arrives", || calls().contains("cmdstat_eval")).await;
    };
    let other = (client_of(&server).await, "x");
    total.refuses_a_late_write(writing, other, arrive).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_indeterminate() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let client = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let guard = take(&client, "x", TTL).await;
    let (faults, plan) = ([Fault::CutBefore, Fault::CutAfter], |it| {
        proxy.plan("write", it)
    });
    let total = total(&server);
    total.loses_an_answer(guard, faults, plan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_several_names_wants_all_of_them() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (client, names) = (client_of(&server).await, ["a", "b", "c"].map(String::from));
    let total = total(&server);
    total.wants_all_names(client, names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_the_key_lies_where_the_lock_does() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let url = format!("{}?timeout=1s&restart_guard=off", cluster.url());
    let client = connect(&url).await;
    let guard = take(&client, "orders/42", TTL).await;
    soon(guard.put("{orders/42}:total", "one")).await.unwrap();
    let node = cluster.owner(cluster.slot("orders/42"));
    assert_eq!(node.read("{orders/42}:total"), "one");
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

/// The server sees one owner for all tasks of a turn. A write that may still arrive must not count for the next task.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_without_an_answer_ends_the_turn() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let client = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let lock = client.lock("x").ttl(TTL);
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let before = soon(lock.acquire()).await.unwrap();
        let waiting = [(); 2].map(|()| start_acquire(lock.clone()));
        until("a task waits", || {
            crate::support::waiting(&server, "x") == 1
        })
        .await;
        soon(before.release()).await.unwrap();
        let [mut a, mut b] = waiting;
        let (guard, next) = tokio::select! {
            guard = &mut a => (guard, b),
            guard = &mut b => (guard, a),
        };
        let guard = guard.unwrap().unwrap();
        let owner = guard.owner_id();
        proxy.plan("write", fault.clone());
        let written = soon(guard.put("total", "late")).await;
        assert_says(written, ErrorKind::Indeterminate, &[]);
        drop(guard);
        let next = soon(next).await.unwrap().unwrap();
        assert_ne!(next.owner_id(), owner, "after {fault:?}");
        soon(next.release()).await.unwrap();
    }
}
