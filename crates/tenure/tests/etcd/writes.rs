//! Writes that are applied only while the lock is held; the steps are in `common::writes`.

use std::sync::LazyLock;

use tenure::etcd::EtcdGuard as _;
use tenure_core::guard_traits::ZooKeeperGuard as _;

use crate::common::writes::{Data, Server};
use crate::support::{SHARED, TTL, direct, name, proxied, soon, take, until};
use tenure_testkit::etcd::{Etcd, base64};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault};

impl Server for Etcd {
    fn read(&self, key: &str) -> String {
        let keys = self.keys(key);
        keys.first()
            .map_or_else(String::new, |key| key.value.clone())
    }

    fn evict(&self, name: &str) {
        self.delete(&format!("{name}/"));
    }
}

fn total() -> Data<'static, Etcd> {
    Data {
        server: &SHARED,
        key: name("total"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_writes_and_a_former_one_does_not() {
    needs!(etcd);
    let (clients, lock) = ([direct().await, direct().await], name("written"));
    total().refuses_a_former_holder(clients, &lock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_arrives_late_does_not_count() {
    needs!(etcd);
    let (proxy, first) = proxied().await;
    let (lock, total) = (name("late"), total());
    let old = take(&first, &lock, TTL).await;
    proxy.take_seen();
    proxy.hold(Direction::Up, true);
    let writing = total.write_late(old);
    until("the write is on its way", || {
        proxy.take_seen().contains(&"write".to_owned())
    })
    .await;
    let (other, arrive) = ((direct().await, lock.as_str()), async || proxy.resume());
    total.refuses_a_late_write(writing, other, arrive).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_indeterminate() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let guard = take(&client, &name("unsure"), TTL).await;
    let (faults, plan) = ([Fault::CutBefore, Fault::CutAfter], |it| {
        proxy.plan("write", it)
    });
    total().loses_an_answer(guard, faults, plan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_several_names_wants_all_of_them() {
    needs!(etcd);
    let (client, names) = (direct().await, [name("w"), name("w"), name("w")]);
    total().wants_all_names(client, names).await;
}

/// The user sends a transaction with another client library.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_the_compare_is_applied_while_the_lock_is_held() {
    needs!(etcd);
    LazyLock::force(&SHARED);
    let client = direct().await;
    let lock_name = name("compare");
    let total = name("total");
    let guard = soon(
        client
            .lock_all([lock_name.clone(), format!("{lock_name}/b")])
            .acquire(),
    )
    .await;
    let guard = guard.unwrap();
    assert!(guard.zookeeper().is_none());
    let lock = guard.etcd().unwrap();
    assert_eq!(lock.compare().len(), 2);
    let compare = |it: &tenure::fence::EtcdCompare| {
        serde_json::json!({
            "result": "EQUAL",
            "target": "CREATE",
            "key": base64(&it.key),
            "create_revision": it.create_revision,
        })
    };
    for is_held in [true, false] {
        if !is_held {
            // One lost lock of two is enough.
            SHARED.delete(&String::from_utf8(lock.compare()[1].key.clone()).unwrap());
        }
        let put = serde_json::json!({
            "key": base64(total.as_bytes()),
            "value": base64(format!("{is_held}").as_bytes()),
        });
        let txn = serde_json::json!({
            "compare": lock.compare().iter().map(compare).collect::<Vec<_>>(),
            "success": [{ "request_put": put }],
        });
        let answer = SHARED.order("kv/txn", &txn);
        assert_eq!(answer["succeeded"] == true, is_held, "{answer}");
        assert_eq!(SHARED.keys(&total)[0].value, "true");
    }
}
