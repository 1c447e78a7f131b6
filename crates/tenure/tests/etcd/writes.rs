//! Writes that count only while the lock is held.

use std::sync::LazyLock;

use tenure::{ErrorKind, Guard};

use crate::support::{SHARED, TTL, assert_says, direct, name, proxied, soon, take, until};
use tenure_testkit::etcd::{base64, skip_unless_installed};
use tenure_testkit::grpc::{Direction, Fault};

fn read(key: &str) -> String {
    let keys = SHARED.keys(key);
    keys.first()
        .map_or_else(String::new, |key| key.value.clone())
}

/// What it is refused with when it is late, and that nothing came of it.
async fn assert_refused(guard: &Guard, key: &str) {
    let before = read(key);
    for outcome in [
        soon(guard.put(key, "late")).await,
        soon(guard.delete(key)).await,
    ] {
        assert_says(outcome, ErrorKind::Lost, &["nothing was written"]);
    }
    assert_eq!(read(key), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_writes_and_a_former_one_does_not() {
    if skip_unless_installed() {
        return;
    }
    LazyLock::force(&SHARED);
    let (first, second) = (direct().await, direct().await);
    let (lock, total) = (name("written"), name("total"));
    let old = take(&first, &lock, TTL).await;
    soon(old.put(&total, "one")).await.unwrap();
    assert_eq!(read(&total), "one");
    soon(old.delete(&total)).await.unwrap();
    soon(old.delete(&total)).await.unwrap();
    assert_eq!(read(&total), "");
    // Its key goes, it does not know that yet, and somebody else is next.
    SHARED.delete(&format!("{lock}/"));
    assert_refused(&old, &total).await;
    let next = take(&second, &lock, TTL).await;
    soon(next.put(&total, "two")).await.unwrap();
    assert_refused(&old, &total).await;
    soon(next.release()).await.unwrap();
}

/// It checks that it holds, stops for a minute, and writes: the one case that no lease can prevent.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_arrives_late_does_not_count() {
    if skip_unless_installed() {
        return;
    }
    let (proxy, first) = proxied().await;
    let (lock, total) = (name("late"), name("late-total"));
    let old = take(&first, &lock, TTL).await;
    proxy.take_seen();
    proxy.hold(Direction::Up, true);
    let key = total.clone();
    let writing = tokio::spawn(async move { (old.put(&key, "late").await, old) });
    until("it is on its way", || {
        proxy.take_seen().contains(&"write".to_owned())
    })
    .await;
    let next = direct().await.lock(&lock).ttl(TTL);
    let next = soon(next.acquire()).await.unwrap();
    soon(next.put(&total, "two")).await.unwrap();
    let (outcome, old) = soon(writing).await.unwrap();
    assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
    proxy.resume();
    assert_refused(&old, &total).await;
    assert_eq!(read(&total), "two");
    soon(next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_indeterminate() {
    if skip_unless_installed() {
        return;
    }
    let (proxy, client) = proxied().await;
    let (lock, total) = (name("unsure"), name("unsure-total"));
    let guard = take(&client, &lock, TTL).await;
    for (fault, written) in [(Fault::CutBefore, ""), (Fault::CutAfter, "one")] {
        proxy.plan("write", fault);
        let outcome = soon(guard.put(&total, "one")).await;
        assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
        assert_eq!(read(&total), written);
    }
    soon(guard.release()).await.unwrap();
}

/// All names must still be held.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_several_names_wants_all_of_them() {
    if skip_unless_installed() {
        return;
    }
    let client = direct().await;
    let (locks, total) = ([name("w"), name("w"), name("w")], name("all"));
    let guard = soon(client.lock_all(&locks).ttl(TTL).acquire())
        .await
        .unwrap();
    soon(guard.put(&total, "one")).await.unwrap();
    SHARED.delete(&format!("{}/", locks[1]));
    assert_refused(&guard, &total).await;
}

/// A transaction of the user's own, by a client of the user's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_the_compare_is_applied_while_the_lock_is_held() {
    if skip_unless_installed() {
        return;
    }
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
            // One of the two is enough.
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
