//! Holds beside others, and changes of their mode: compared with the reference table, and with lost requests and leases.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard, Mode};
use tenure_testkit::etcd::{Etcd, Key};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tokio::task::JoinHandle;

use crate::common::walk::{Walk, WalkOptions};
use crate::support::{
    SHARED, TTL, assert_says, connect, direct, name, proxied, soon, start_acquire, take,
    take_and_release, until,
};

/// Longer than the test.
const HOUR: Duration = Duration::from_secs(3_600);

/// The create revision of the key whose holder waits to become exclusive, when the key says who holds beside it.
fn upgrading_key(etcd: &Etcd, name: &str) -> Option<u64> {
    let keys = etcd.keys(&format!("{name}/"));
    let is_upgrading = |value: &str| {
        let value: serde_json::Value = serde_json::from_str(value).unwrap();
        value["mode"] == "upgrading" && value["last_holder"].is_u64()
    };
    let key = keys.iter().find(|key| is_upgrading(&key.value));
    key.map(|key| key.created)
}

/// Whether no key has a token that is taken. The client of such a key makes another one, at the end of the queue.
fn is_settled(name: &str) -> bool {
    let keys = SHARED.keys(&format!("{name}/"));
    let value = |key: &Key| serde_json::from_str::<serde_json::Value>(&key.value).unwrap();
    let may_upgrade = |key: &Key| {
        let value = value(key);
        matches!(
            value["mode"].as_str(),
            Some("upgradable" | "upgrading" | "upgraded")
        )
    };
    (0..keys.len()).all(|me| {
        let (key, ahead) = (&keys[me], &keys[..me]);
        let value = value(key);
        let is_exclusive = value["mode"].is_null();
        let is_early = value["early"] == true || may_upgrade(key) || ahead.iter().any(may_upgrade);
        let early = key.created - 1;
        let is_taken = |other: &Key| other.created == early || other.modified == early;
        // A later change of a key ahead hides what was there when this key was made; the key of a holder is settled.
        is_exclusive || !value["token"].is_null() || !is_early || !ahead.iter().any(is_taken)
    })
}

async fn until_upgrading(etcd: &Etcd, name: &str) {
    let has_arrived = || upgrading_key(etcd, name).is_some();
    until("the request to upgrade is there", has_arrived).await;
}

fn start_upgrade(guard: &Arc<Guard>) -> JoinHandle<Result<(), Error>> {
    let guard = guard.clone();
    tokio::spawn(async move { guard.upgrade().await })
}

fn keys(name: &str) -> usize {
    SHARED.keys(&format!("{name}/")).len()
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_does_what_the_table_says() {
    needs!(etcd);
    let shows_upgrade = |name: &str, expected| upgrading_key(&SHARED, name).is_some() == expected;
    let options = WalkOptions {
        shows_upgrade: &shows_upgrade,
        is_settled: &is_settled,
        ..WalkOptions::default()
    };
    for seed in 0..12 {
        let name = name("walk");
        let mut walk = Walk::new(&name, direct, seed, options).await;
        walk.goes_as_the_table_says(60).await;
        walk.close().await;
        until("nothing is left", || keys(&name) == 0).await;
    }
}

/// An upgradable holder, and a reader of another client.
struct Scene {
    name: String,
    reader: Guard,
    upgradable: Arc<Guard>,
}

impl Scene {
    async fn new(client: &Client, tail: &str) -> Self {
        let (other, name) = (direct().await, name(tail));
        let upgradable = client.lock(&name).ttl(TTL).upgradable();
        let upgradable = soon(upgradable.acquire()).await.unwrap();
        let reader = other.lock(&name).ttl(TTL).shared();
        Self {
            reader: soon(reader.acquire()).await.unwrap(),
            upgradable: Arc::new(upgradable),
            name,
        }
    }
}

/// The key of the reader gets a value that says that its token is early. The reply gets lost, and so does the request to
/// leave the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_unknown_fate_beside_an_upgradable_holder_leaves_nothing() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let (other, name) = (direct().await, name("early"));
    // The driver keeps the shared lease alive for this hold, so the lease does not delete what is left.
    let kept = take(&client, &crate::support::name("kept"), TTL).await;
    let upgradable = other.lock(&name).ttl(TTL).upgradable();
    let upgradable = soon(upgradable.acquire()).await.unwrap();
    // Now the revision before that of the reader's key belongs to another lock.
    take_and_release(&other, &crate::support::name("between"), TTL).await;
    proxy.plan("change", Fault::CutAfter);
    proxy.plan("release", Fault::CutBefore);
    let reader = client.lock(&name).ttl(TTL).shared();
    assert_says(
        soon(reader.try_acquire()).await,
        ErrorKind::Indeterminate,
        &[],
    );
    until("the faults happened", || proxy.is_done()).await;
    until("only the upgradable holder is left", || keys(&name) == 1).await;
    drop((kept, upgradable));
}

/// As before, or the reply to the first request gets lost, and the reader waits: its key is deleted by the next request, and
/// the reader makes another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_unknown_fate_that_waits_makes_its_next_key() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let other = direct().await;
    // A lease that is there already, so that the next requests are those of the reader.
    let kept = take(&client, &crate::support::name("kept"), TTL).await;
    for lost in ["acquire", "change"] {
        let name = name("early-waits");
        let upgradable = other.lock(&name).ttl(TTL).upgradable();
        let upgradable = soon(upgradable.acquire()).await.unwrap();
        take_and_release(&other, &crate::support::name("between"), TTL).await;
        proxy.plan(lost, Fault::CutAfter);
        proxy.plan("release", Fault::CutBefore);
        let reader = client.lock(&name).ttl(TTL).shared();
        let reader = soon(reader.acquire()).await.unwrap();
        assert!(proxy.is_done(), "{lost}: the faults happened");
        assert_ne!(reader.token(), upgradable.token());
        assert_eq!(keys(&name), 2);
        soon(reader.release()).await.unwrap();
        drop(upgradable);
        until("nothing is left", || keys(&name) == 0).await;
    }
    drop(kept);
}

/// The request gets lost, its reply gets lost, or the request arrives when the hold is upgradable again.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_unknown_fate_keeps_no_reader_out() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let late = Duration::from_secs(3);
    for fault in [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
        Fault::Late(late),
    ] {
        // The request that says that the upgrade arrived, the one that says who held, and the one that ends it.
        for nth in 0..3 {
            let scene = Scene::new(&client, "unknown").await;
            let upgradable = scene.upgradable.clone();
            if nth == 0 {
                proxy.plan("change", fault.clone());
            }
            let upgrading = start_upgrade(&upgradable);
            if nth > 0 {
                until_upgrading(&SHARED, &scene.name).await;
                proxy.plan("change", fault.clone());
            }
            match nth {
                2 => soon(scene.reader.release()).await.unwrap(),
                // The fault then happens to the request that makes the hold upgradable again.
                1 => upgrading.abort(),
                _ => {}
            }
            match soon(upgrading).await {
                Ok(outcome) => assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]),
                Err(_) => assert_eq!(nth, 1, "the upgrade was aborted"),
            }
            assert_eq!(upgradable.mode(), Mode::Upgradable);
            until("the fault happened", || proxy.is_done()).await;
            // The connection of that client may be broken at this moment.
            let reader = direct().await.lock(&scene.name).ttl(TTL).shared();
            let reader = soon(reader.acquire()).await.unwrap();
            proxy.resume();
            // Late requests have arrived after this.
            soon(reader.release()).await.unwrap();
            assert!(upgrading_key(&SHARED, &scene.name).is_none());
            let upgradable = Arc::into_inner(upgradable);
            drop((upgradable, scene.upgradable));
            until("nothing but the reader is left", || keys(&scene.name) <= 1).await;
        }
    }
}

/// A lease ends while an upgrade waits: that of a reader, of the upgradable holder, or of a reader that waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_and_the_end_of_leases() {
    needs!(etcd);
    for gone in ["reader", "upgradable", "waiter"] {
        let (client, third) = (direct().await, direct().await);
        let scene = Scene::new(&client, "leases").await;
        let upgrading = start_upgrade(&scene.upgradable);
        until_upgrading(&SHARED, &scene.name).await;
        let waiting = third.lock(&scene.name).ttl(TTL).shared();
        let waiting = start_acquire(waiting);
        // A reader whose early token is taken makes its key again.
        let waits = || keys(&scene.name) == 3 && is_settled(&scene.name);
        until("a reader waits", waits).await;
        let path = format!("{}/", scene.name);
        let lease = |at: usize| SHARED.keys(&path)[at].lease;
        match gone {
            "reader" => {
                SHARED.revoke(lease(1));
                soon(upgrading).await.unwrap().unwrap();
                assert!(
                    !waiting.is_finished(),
                    "a reader beside an exclusive holder"
                );
                soon(Arc::into_inner(scene.upgradable).unwrap().release())
                    .await
                    .unwrap();
            }
            "upgradable" => {
                SHARED.revoke(lease(0));
                let ended = soon(upgrading).await.unwrap();
                assert_says(ended, ErrorKind::Lost, &["lost"]);
                assert!(scene.reader.is_held());
            }
            _ => {
                SHARED.revoke(lease(2));
                until("the waiter queues again", || keys(&scene.name) == 3).await;
                soon(scene.reader.release()).await.unwrap();
                soon(upgrading).await.unwrap().unwrap();
                soon(scene.upgradable.downgrade()).await.unwrap();
            }
        }
        let reader = soon(waiting).await.unwrap().unwrap();
        soon(reader.release()).await.unwrap();
    }
}

/// No other key is there when the upgrade looks and when it becomes exclusive, but one came and went in between.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_has_a_greater_token_than_a_reader_that_came_and_went() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let (other, name) = (direct().await, name("came-and-went"));
    for _ in 0..3 {
        let upgradable = soon(client.lock(&name).ttl(TTL).upgradable().acquire()).await;
        let upgradable = Arc::new(upgradable.unwrap());
        proxy.take_seen();
        proxy.block("change");
        let upgrading = start_upgrade(&upgradable);
        let is_sent = || proxy.take_seen().contains(&"change".to_owned());
        until("the upgrade has looked", is_sent).await;
        let reader = soon(other.lock(&name).ttl(TTL).shared().acquire()).await;
        let reader = reader.unwrap();
        let last = reader.token();
        soon(reader.release()).await.unwrap();
        proxy.resume();
        soon(upgrading).await.unwrap().unwrap();
        assert!(
            upgradable.token() > last,
            "{:?} after {last:?}",
            upgradable.token()
        );
        let last = upgradable.token();
        soon(Arc::into_inner(upgradable).unwrap().release())
            .await
            .unwrap();
        let next = soon(other.lock(&name).ttl(TTL).shared().acquire())
            .await
            .unwrap();
        assert!(next.token() > last, "{:?} after {last:?}", next.token());
        soon(next.release()).await.unwrap();
    }
}

/// A waiter came right behind a reader, so that its client has to make its key again. Meanwhile the reader leaves and the
/// upgrade becomes exclusive: the number below the key of the waiter is the token of the reader.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_before_a_waiter_that_queues_again_has_a_token_of_its_own() {
    needs!(etcd);
    // No other test moves the revision.
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = etcd.url_by(&[proxy.address()]);
    let (holder, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let waiter = connect(&format!("{url}?timeout=60s")).await;
    for waits in [false, true] {
        let name = format!("again-{waits}");
        let upgradable = soon(holder.lock(&name).ttl(TTL).upgradable().acquire()).await;
        let upgradable = Arc::new(upgradable.unwrap());
        let reader = soon(other.lock(&name).ttl(TTL).shared().acquire()).await;
        let reader = reader.unwrap();
        let last = reader.token();
        proxy.take_seen();
        proxy.block("release");
        let waiting = start_acquire(waiter.lock(&name).ttl(HOUR).upgradable());
        until("it makes its key again", || {
            proxy.take_seen().contains(&"release".to_owned())
        })
        .await;
        let has_arrived = || {
            let keys = etcd.keys(&format!("{name}/"));
            keys.iter().any(|key| {
                key.value.contains("\"mode\":\"upgrad") && !key.value.contains("upgradable")
            })
        };
        let upgrading = match waits {
            true => {
                let upgrading = start_upgrade(&upgradable);
                until("the upgrade is there", has_arrived).await;
                soon(reader.release()).await.unwrap();
                upgrading
            }
            false => {
                soon(reader.release()).await.unwrap();
                let upgrading = start_upgrade(&upgradable);
                until("the upgrade is there", has_arrived).await;
                upgrading
            }
        };
        proxy.resume();
        soon(upgrading).await.unwrap().unwrap();
        let upgraded = upgradable.token();
        assert!(upgraded > last, "{upgraded:?} after {last:?}");
        soon(Arc::into_inner(upgradable).unwrap().release())
            .await
            .unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(
            next.token() > upgraded,
            "{:?} after {upgraded:?}",
            next.token()
        );
        soon(next.release()).await.unwrap();
    }
}
