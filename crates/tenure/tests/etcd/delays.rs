//! Names that stay reserved after a hold: `lock_delay` after an unclean end, and `min_hold`.

use std::time::{Duration, Instant};

use tenure::{ErrorKind, Renew};

use crate::support::{
    SHARED, TTL, assert_says, connect, direct, name, soon, start_acquire, take_and_release, until,
};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

/// Longer than the test.
const HOUR: Duration = Duration::from_secs(3_600);

/// The hold runs out: its reservation keeps out what the hold kept out, and ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_runs_out_reserves_its_name() {
    needs!(etcd);
    let (client, other) = (direct().await, direct().await);
    for is_shared in [false, true] {
        let name = name("delay");
        let lock = client.lock(&name).ttl(TTL).renew(Renew::Never);
        let delay = Duration::from_secs(2);
        let lock = lock.lock_delay(delay);
        let start = Instant::now();
        let lock = if is_shared { lock.shared() } else { lock };
        let guard = soon(lock.acquire()).await.unwrap();
        let status = soon(other.inspect(&name)).await.unwrap();
        assert_eq!(status.holds[0].token, Some(guard.token()));
        assert!(status.holds[0].ttl_left.unwrap() <= TTL && status.reserved.is_none());
        assert_eq!(soon(other.list(&name)).await.unwrap().len(), 1);
        let writer = start_acquire(other.lock(&name).ttl(TTL));
        soon(guard.lost()).await;
        drop(guard);
        let path = format!("{name}/");
        assert!(!writer.is_finished(), "not reserved");
        let reader = other.lock(&name).ttl(TTL).shared();
        assert!(soon(reader.try_acquire()).await.unwrap().is_none());
        let next = soon(writer).await.unwrap().unwrap();
        assert!(start.elapsed() >= TTL + delay, "not reserved for so long");
        assert_eq!(SHARED.keys(&path).len(), 1);
        soon(next.release()).await.unwrap();
    }
}

/// Readers go on beside the reservation of a reader, with either option.
#[tokio::test(flavor = "multi_thread")]
async fn the_reservation_of_a_reader_lets_readers_in() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    for option in ["lock_delay", "min_hold"] {
        let lock = client.lock(option).ttl(TTL).shared();
        if option == "min_hold" {
            let guard = soon(lock.min_hold(HOUR).acquire()).await.unwrap();
            soon(guard.release()).await.unwrap();
        } else {
            let guard = soon(lock.lock_delay(HOUR).acquire()).await.unwrap();
            let token = guard.token().get();
            assert!(soon(other.break_lock(option, token)).await.unwrap());
            soon(guard.lost()).await;
        }
        let status = soon(other.inspect(option)).await.unwrap();
        assert!(status.holds.is_empty() && status.reserved > Some(HOUR / 2));
        take_and_release_shared(&other, option).await;
        assert!(
            soon(other.lock(option).try_acquire())
                .await
                .unwrap()
                .is_none()
        );
    }
}

async fn take_and_release_shared(client: &tenure::Client, name: &str) {
    let lock = client.lock(name).ttl(TTL).shared();
    let guard = soon(lock.try_acquire()).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
}

/// A broken hold is not renewed by its reservation, and writes nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_leaves_its_lock_delay() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let lock = client.lock("x").ttl(TTL).lock_delay(HOUR);
    let guard = soon(lock.acquire()).await.unwrap();
    soon(guard.put("theirs", "1")).await.unwrap();
    let token = guard.token().get();
    assert!(soon(other.break_lock("x", token)).await.unwrap());
    let written = soon(guard.put("theirs", "2")).await;
    assert_says(written, ErrorKind::Lost, &[]);
    soon(guard.lost()).await;
    drop(guard);
    assert!(soon(other.inspect("x")).await.unwrap().reserved.is_some());
    let tried = soon(other.lock("x").try_acquire()).await.unwrap();
    assert!(tried.is_none());
    // The client has the key of that lease no more, and takes another one.
    let waiting = start_acquire(client.lock("x").ttl(TTL));
    until("it waits", || etcd.keys("x/").len() == 2).await;
    etcd.revoke(etcd.keys("x/")[0].lease);
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
}

/// A waiter that vanishes reserves nothing, and neither does a clean release; no lease is left.
#[tokio::test(flavor = "multi_thread")]
async fn only_an_unclean_end_of_a_hold_reserves() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    for option in ["", "?lease=lock"] {
        let url = format!("{}{option}", etcd.url());
        let (client, other) = (connect(&url).await, connect(&url).await);
        let holder = soon(other.lock("x").ttl(TTL).acquire()).await.unwrap();
        let waiting = start_acquire(client.lock("x").ttl(TTL).lock_delay(HOUR));
        until("it waits", || etcd.keys("x/").len() == 2).await;
        let lease = etcd.keys("x/")[1].lease;
        etcd.revoke(lease);
        until("it waits again", || {
            let keys = etcd.keys("x/");
            keys.len() == 2 && keys[1].lease != lease
        })
        .await;
        soon(holder.release()).await.unwrap();
        let guard = soon(waiting).await.unwrap().unwrap();
        soon(guard.release()).await.unwrap();
        take_and_release(&other, "x", TTL).await;
        soon(client.close()).await;
        soon(other.close()).await;
        assert_eq!((etcd.keys("").len(), etcd.leases().len()), (0, 0));
    }
}

/// The requests that a `lock_delay` adds to an acquisition get lost, or their replies: nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_delay_of_unknown_fate_leaves_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = format!("{}?timeout=1s", etcd.url_by(&[proxy.address()]));
    for option in ["", "&lease=lock"] {
        for step in ["grant", "change"] {
            for fault in [
                Fault::Answer("14 etcdserver: no leader"),
                Fault::CutBefore,
                Fault::CutAfter,
                Fault::NoReply,
                Fault::Late(Duration::from_secs(2)),
            ] {
                let client = connect(&format!("{url}{option}")).await;
                if option.is_empty() {
                    // The shared lease exists after this, so the fault hits the lease of the lock.
                    take_and_release(&client, "x", TTL).await;
                }
                let is_refused = matches!(fault, Fault::Answer(_));
                proxy.plan(step, fault.clone());
                let lock = client.lock("x").ttl(TTL).lock_delay(HOUR);
                match soon(lock.acquire()).await {
                    Ok(guard) => {
                        assert!(is_refused, "{step}, {fault:?}");
                        soon(guard.release()).await.unwrap();
                    }
                    Err(err) => assert!(
                        matches!(
                            err.kind(),
                            ErrorKind::Indeterminate | ErrorKind::Unreachable
                        ),
                        "{err}"
                    ),
                }
                until("the fault happened", || proxy.is_done()).await;
                proxy.resume();
                until("no key is left", || etcd.keys("x/").is_empty()).await;
                take_and_release(&client, "x", TTL).await;
                soon(client.close()).await;
                until("no lease is left", || etcd.leases().is_empty()).await;
                assert!(etcd.keys("").is_empty());
            }
        }
    }
}
