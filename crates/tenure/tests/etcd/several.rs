//! Several locks are acquired with one transaction, all or none.

use std::time::Duration;

use tenure::{ErrorKind, Renew};
use tenure_testkit::needs;
use tenure_testkit::proxy::Fault;

use crate::support::{SHARED, TTL, assert_says, direct, name, proxied, soon, take, until};

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
    for busy in &names {
        let held = take(&other, busy, TTL).await;
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        assert_eq!(keys(&names), 1);
        soon(held.release()).await.unwrap();
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_unknown_fate_leaves_none_of_the_names() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let other = direct().await;
    // The driver keeps the shared lease alive for this hold, so the lease does not delete what is left.
    let kept = take(&client, &name("kept"), TTL).await;
    for fault in [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
        Fault::Late(Duration::from_secs(3)),
    ] {
        let names = names();
        let lock = client.lock_all(&names).ttl(TTL);
        // The shared lease exists after this, so the fault hits the request for the keys.
        soon(lock.acquire()).await.unwrap().release().await.unwrap();
        proxy.plan("acquire", fault.clone());
        let outcome = soon(lock.try_acquire()).await;
        assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
        proxy.resume();
        until("the fault happened", || proxy.is_done()).await;
        let all = other.lock_all(&names).ttl(TTL);
        soon(soon(all.acquire()).await.unwrap().release())
            .await
            .unwrap();
        until("nothing is left", || keys(&names) == 0).await;
    }
    drop(kept);
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

#[tokio::test(flavor = "multi_thread")]
async fn lock_all_does_not_overtake_a_waiter() {
    needs!(etcd);
    let (holder, waiter, all) = (direct().await, direct().await, direct().await);
    let names = names();
    let held = take(&holder, &names[1], TTL).await;
    let lock = waiter.lock(&names[1]).ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("a client waits", || keys(&names) == 2).await;
    let lock = all.lock_all(&names).ttl(TTL);
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    let last = tokio::spawn(async move { lock.acquire().await });
    until("both wait, and the first name is held", || {
        keys(&names) == 4
    })
    .await;
    soon(held.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(!last.is_finished());
    soon(next.release()).await.unwrap();
    let guard = soon(last).await.unwrap().unwrap();
    guard.release().await.unwrap();
    until("nothing is left", || keys(&names) == 0).await;
}
