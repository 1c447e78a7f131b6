//! Each request of a lock's life, when the request or its reply is lost, late, or never comes.

use std::time::Duration;

use tenure::{ErrorKind, LostReason};

use crate::support::{
    SHARED, TTL, assert_says, connect, direct, name, proxied, soon, take, take_and_release, until,
    until_renewed, wait_behind,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

/// Later than the time limit of a request.
const LATE: Duration = Duration::from_secs(3);

fn faults() -> [Fault; 4] {
    [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
        Fault::Late(LATE),
    ]
}

fn keys(name: &str) -> usize {
    SHARED.keys(&format!("{name}/")).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_of_unknown_fate_leaves_nothing() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let other = direct().await;
    // The driver keeps the shared lease alive for this hold, so the lease does not delete what is left.
    let kept = take(&client, &name("kept"), TTL).await;
    for waits in [false, true] {
        for fault in faults() {
            let name = name("acquire");
            // The shared lease exists after this, so the fault hits the request for the key.
            take_and_release(&client, &name, TTL).await;
            let is_late = matches!(fault, Fault::Late(_));
            proxy.plan("acquire", fault);
            let lock = client.lock(&name).ttl(TTL);
            let outcome = match waits {
                true => soon(lock.acquire()).await.map(Some),
                false => soon(lock.try_acquire()).await,
            };
            assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
            proxy.resume();
            until("the fault happened", || proxy.is_done()).await;
            if is_late {
                // The key is put after it was released, and is deleted again: another client can acquire the name soon.
                let lock = other.lock(&name).ttl(TTL);
                soon(soon(lock.acquire()).await.unwrap().release())
                    .await
                    .unwrap();
            }
            until("nothing is left", || keys(&name) == 0).await;
            take_and_release(&other, &name, TTL).await;
        }
    }
    drop(kept);
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
    assert_eq!(keys(&name), 0, "the key is left");
    take_and_release(&direct().await, &name, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_unknown_fate_frees_the_name_and_nobody_else() {
    needs!(etcd);
    let (proxy, client) = proxied().await;
    let other = direct().await;
    for fault in faults() {
        let name = name("release");
        let guard = take(&client, &name, TTL).await;
        proxy.plan("release", fault.clone());
        let outcome = soon(guard.release()).await;
        assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
        until("nothing is left", || keys(&name) == 0).await;
        let next = take(&other, &name, TTL).await;
        proxy.resume();
        until("the fault happened", || proxy.is_done()).await;
        // One more request, so that late requests have arrived.
        take_and_release(&client, &crate::support::name("after"), TTL).await;
        assert_eq!(keys(&name), 1, "{fault:?} freed the next hold");
        soon(next.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_renewal_is_neither_loss_nor_success() {
    needs!(etcd);
    let mut cases = Vec::new();
    for step in ["renew", "keep-alive"] {
        for fault in [
            Fault::Answer("14 etcdserver: no leader"),
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::NoReply,
        ] {
            // At the same time, because the leases are long: a busy machine has time for another renewal.
            cases.push(tokio::spawn(async move {
                let (proxy, client) = proxied().await;
                let guard = take(&client, &name("renew"), TTL * 3).await;
                proxy.plan(step, fault);
                until("the fault happened", || proxy.is_done()).await;
                until_renewed(&guard).await;
                assert!(guard.is_held(), "{:?}", guard.state());
                proxy.resume();
                soon(guard.release()).await.unwrap();
            }));
        }
    }
    for case in cases {
        case.await.unwrap();
    }
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
    }
    let again = take(&client, &names[0], ttl).await;
    assert_ne!(SHARED.keys(&format!("{}/", names[0]))[0].lease, lease);
    soon(again.release()).await.unwrap();
}
