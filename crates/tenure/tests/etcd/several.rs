//! Several locks are acquired with one transaction, all or none.

use tenure::Renew;
use tenure_testkit::needs;
use tenure_testkit::proxy::Fault;

use crate::support::{SHARED, TTL, direct, name, proxied, soon};

fn names() -> [String; 3] {
    let stem = name("several");
    [1, 2, 3].map(|number| format!("{stem}-{number}"))
}

fn keys(names: &[String]) -> usize {
    let count = |name: &String| SHARED.keys(&format!("{name}/")).len();
    names.iter().map(count).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_all_of_free_names_is_one_transaction() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let (other, names) = (direct().await, names());
    let lock = client.lock_all(&names).ttl(TTL);
    soon(lock.acquire()).await.unwrap().release().await.unwrap();
    proxy.take_seen();
    let guard = soon(lock.acquire()).await.unwrap();
    let seen = proxy.take_seen();
    let acquires = seen.iter().filter(|kind| *kind == "acquire").count();
    assert_eq!(acquires, 1, "{seen:?}");
    assert_eq!(keys(&names), 3);
    for (name, token) in guard.tokens() {
        let status = soon(other.inspect(name)).await.unwrap();
        assert_eq!(status.holds[0].token, Some(token));
    }
    let before: Vec<_> = guard.tokens().map(|(_, token)| token).collect();
    guard.release().await.unwrap();
    assert_eq!(keys(&names), 0);
    let guard = soon(lock.acquire()).await.unwrap();
    for ((_, token), before) in guard.tokens().zip(before) {
        assert!(token > before, "{token} follows {before}");
    }
    guard.release().await.unwrap();
}

/// Also when the holds shall begin with a whole lease, as those of the command line do.
#[tokio::test(flavor = "multi_thread")]
async fn holds_with_a_whole_lease_are_one_transaction() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let names = names();
    let lock = client.lock_all(&names).ttl(TTL).min_lease(TTL);
    for _ in 0..2 {
        proxy.take_seen();
        let guard = soon(lock.acquire()).await.unwrap();
        let seen = proxy.take_seen();
        let acquires = seen.iter().filter(|kind| *kind == "acquire").count();
        assert_eq!(acquires, 1, "{seen:?}");
        assert_eq!(keys(&names), 3);
        guard.release().await.unwrap();
        assert_eq!(keys(&names), 0);
    }
    // Without renewal each hold ends with a lease of its own.
    let fixed = client.lock_all(&names).ttl(TTL).renew(Renew::Never);
    proxy.take_seen();
    let guard = soon(fixed.acquire()).await.unwrap();
    let seen = proxy.take_seen();
    let acquires = seen.iter().filter(|kind| *kind == "acquire").count();
    assert_eq!(acquires, 3, "{seen:?}");
    guard.release().await.unwrap();
    assert_eq!(keys(&names), 0);
}

/// The server refuses more operations in one transaction than it is set to, and none of them is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_transaction_is_made_name_by_name() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let names = names();
    proxy.plan(
        "acquire",
        Fault::Answer("3 etcdserver: too many operations in txn request"),
    );
    let lock = client.lock_all(&names).ttl(TTL);
    let guard = soon(lock.acquire()).await.unwrap();
    assert_eq!(guard.names().count(), 3);
    assert!(proxy.is_done());
    guard.release().await.unwrap();
    assert_eq!(keys(&names), 0);
}
