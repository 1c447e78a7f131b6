//! Requests and sessions that only etcd has, when they are lost, late, or refused; the others are in `faults/requests.rs`.

use std::time::Duration;

use tenure::{Error, ErrorKind, LostReason};

use crate::support::{
    SHARED, TTL, assert_says, connect, direct, name, proxied, soon, take, take_and_release, until,
    wait_behind,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

fn faults() -> [Fault; 4] {
    [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
        // Later than the time limit of a request.
        Fault::Late(Duration::from_secs(3)),
    ]
}

/// The first request made the key and got no reply, the second one finds the key, and then the queue cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_key_was_made_leaves_nothing() {
    needs!(etcd);
    let proxy = Proxy::etcd(SHARED.members[0].port());
    // Two members for the client, so that it sends its request again.
    let client = connect(&SHARED.url_by(&[proxy.address(), proxy.address()])).await;
    let name = name("unread");
    take_and_release(&client, &name, TTL).await;
    proxy.plan("acquire", Fault::CutAfter);
    proxy.plan("look", Fault::Answer("7 etcdserver: permission denied"));
    let outcome = soon(client.lock(&name).ttl(TTL).try_acquire()).await;
    assert_says(outcome, ErrorKind::Denied, &[]);
    assert!(proxy.is_done());
    assert_eq!(SHARED.keys(&format!("{name}/")).len(), 0, "the key is left");
    take_and_release(&direct().await, &name, TTL).await;
}

/// A lease whose grant got no reply is revoked.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_grant_of_a_lease_leaves_no_lease() {
    needs!(etcd);
    for fault in faults() {
        let (proxy, client) = proxied().await;
        let name = name("grant");
        // Long enough not to expire during this test.
        let ttl = Duration::from_secs(3_333);
        proxy.plan("grant", fault);
        let outcome = soon(client.lock(&name).ttl(ttl).try_acquire()).await;
        assert_says(outcome, ErrorKind::Unreachable, &["did not answer"]);
        proxy.resume();
        until("the fault happened", || proxy.is_done()).await;
        let guard = take(&client, &name, ttl).await;
        let lease = SHARED.keys(&format!("{name}/"))[0].lease;
        assert!(SHARED.leases().contains(&lease));
        soon(guard.release()).await.unwrap();
        soon(client.close()).await;
        until("the lease is revoked", || !SHARED.leases().contains(&lease)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_too_much_to_do_is_asked_again() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    for _ in 0..3 {
        proxy.plan("acquire", Fault::Answer("8 etcdserver: too many requests"));
    }
    let guard = take(&client, &name("busy"), TTL).await;
    proxy.plan("release", Fault::Answer("8 etcdserver: too many requests"));
    soon(guard.release()).await.unwrap();
    assert!(proxy.is_done());
}

/// The holder counts its hold as lost before the lease ends in the store.
#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_that_do_not_pass_end_the_hold_in_time() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let (other, name) = (direct().await, name("blocked"));
    let guard = take(&client, &name, TTL).await;
    let waiting = wait_behind(&SHARED, &other, &name, 1).await;
    proxy.block("keep-alive");
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(!guard.is_held(), "two clients hold the lock");
    assert_eq!(soon(guard.lost()).await, Some(LostReason::Expired));
    assert!(next.token() > guard.token());
    assert_says(soon(guard.release()).await, ErrorKind::Lost, &["ended"]);
    assert!(next.is_held());
    proxy.resume();
    soon(next.release()).await.unwrap();
    // The client gets a new lease.
    take_and_release(&client, &name, TTL).await;
}

/// The loss is reported by the store, long before the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_gone_takes_its_holds_along() {
    needs!(etcd);
    let client = direct().await;
    let (sender, mut losses) = tokio::sync::mpsc::unbounded_channel();
    client.on_lost(move |loss| drop(sender.send(loss.clone())));
    let names = [name("gone"), name("gone")];
    let ttl = Duration::from_secs(6);
    let guards = [
        take(&client, &names[0], ttl).await,
        take(&client, &names[1], ttl).await,
    ];
    let lease = SHARED.keys(&format!("{}/", names[0]))[0].lease;
    assert_eq!(SHARED.keys(&format!("{}/", names[1]))[0].lease, lease);
    SHARED.revoke(lease);
    for guard in &guards {
        let reason = soon(guard.lost()).await;
        assert!(
            matches!(
                reason,
                Some(LostReason::SessionGone | LostReason::StoreSaysNo)
            ),
            "{reason:?}"
        );
        let loss = soon(losses.recv()).await.unwrap();
        assert!(loss.cause().is_some_and(Error::is_lost), "{loss:#}");
    }
    let again = take(&client, &names[0], ttl).await;
    assert_ne!(SHARED.keys(&format!("{}/", names[0]))[0].lease, lease);
    soon(again.release()).await.unwrap();
}
