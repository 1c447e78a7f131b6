//! Nothing is left in the store: no key, no lease, no watch.

use std::time::{Duration, Instant};

use tenure::Renew;

use crate::support::{connect, soon, take, take_and_release, until, until_renewed};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_per_lock_goes_with_its_lock() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let url = format!("{}?lease=lock", etcd.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    // Far longer than this test, so that no lease expires during it.
    let ttl = Duration::from_secs(3_600);
    let guard = take(&first, "x", ttl).await;
    let key = &etcd.keys("x/")[0];
    assert_eq!(
        key.key,
        format!("x/{:x}", key.lease),
        "the key of etcd's own library"
    );
    for i in 0..100_u64 {
        let lock = second.lock("x").ttl(ttl);
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let wait = Duration::from_micros(i * 50);
        let _ = tokio::time::timeout(wait, lock.acquire()).await;
        take_and_release(&second, "y", ttl).await;
        drop(take(&second, &format!("z{i}"), ttl).await);
    }
    until("one lease is left", || etcd.leases().len() == 1).await;
    assert_eq!(etcd.keys("").len(), 1);
    soon(guard.release()).await.unwrap();
    until("no lease is left", || etcd.leases().is_empty()).await;
    until("no watch is left", || etcd.watches() == 0).await;
}

/// A program may end as soon as its client is closed, and its background tasks end with it.
#[tokio::test]
async fn nothing_is_left_when_close_returns() {
    needs!(etcd);
    /// The delay of the request that only `close` waits for.
    const LATE: Fault = Fault::Late(Duration::from_millis(50));
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = etcd.url_by(&[proxy.address()]);
    // Far longer than this test, so that no lease expires during it.
    let ttl = Duration::from_secs(3_600);
    let holder = connect(&etcd.url()).await;
    let guard = take(&holder, "held", ttl).await;
    let (keys, leases) = (etcd.keys("").len(), etcd.leases());
    let mut kept = Vec::new();
    for option in ["", "?lease=lock"] {
        // With both options a hold that is not renewed has a lease of its own.
        for renew in [Renew::Automatic, Renew::Never] {
            for case in ["released", "dropped", "kept", "busy", "given up"] {
                let client = connect(&format!("{url}{option}")).await;
                let name = if case == "busy" { "held" } else { "x" };
                let lock = client.lock(name).ttl(ttl).renew(renew);
                let step = if case == "given up" {
                    "grant"
                } else {
                    "revoke"
                };
                proxy.plan(step, LATE);
                let mut acquire = Box::pin(lock.try_acquire());
                let guard = match case {
                    // Polled until the request for a lease is sent.
                    "given up" => {
                        proxy.take_seen();
                        let is_sent = || proxy.take_seen().contains(&"grant".to_owned());
                        tokio::select! {
                            biased;
                            () = until("the request is sent", is_sent) => None,
                            _ = &mut acquire => panic!("the grant is late"),
                        }
                    }
                    _ => soon(&mut acquire).await.unwrap(),
                };
                drop(acquire);
                assert_eq!(guard.is_none(), case == "busy" || case == "given up");
                match (case, guard) {
                    ("released", Some(guard)) => soon(guard.release()).await.unwrap(),
                    ("kept", guard) => kept.extend(guard),
                    (_, guard) => drop(guard),
                }
                let start = Instant::now();
                soon(client.close()).await;
                let case = format!("{case}, {renew:?}, {option}");
                let is_clean = || etcd.leases() == leases && etcd.keys("").len() == keys;
                // After a second `close` waits no longer, which is right on a busy machine.
                if start.elapsed() >= Duration::from_secs(1) {
                    until("nothing is left", || is_clean() && proxy.is_done()).await;
                }
                assert!(is_clean() && proxy.is_done(), "{case}");
            }
        }
    }
    soon(guard.release()).await.unwrap();
}

/// The shared lease of a client without locks expires, and the next lock gets a new lease.
#[tokio::test(flavor = "multi_thread")]
async fn the_session_of_an_idle_client_runs_out() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let client = connect(&etcd.url()).await;
    for _ in 0..2 {
        take_and_release(&client, "x", Duration::from_secs(1)).await;
        until("the lease expires", || etcd.leases().is_empty()).await;
    }
    let guard = take(&client, "x", Duration::from_secs(1)).await;
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
}
