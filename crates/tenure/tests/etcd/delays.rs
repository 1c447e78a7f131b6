//! Names that stay reserved after a hold: `lock_delay` after an unclean end, and `min_hold`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::etcd::KeyValueGuard as _;
use tenure::store::{Answer, Hold, Release, Request, Store as _};
use tenure::{Client, ErrorKind, Guard, LockName, OwnerId, Renew};

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
        // A busy machine may come so late that the reservation is over, too.
        let is_granted = writer.is_finished();
        let is_over = start.elapsed() >= TTL + delay;
        assert!(!is_granted || is_over, "not reserved");
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

/// The hold ends with `max_hold`, long before its lease: the name stays reserved for the `lock_delay` from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_ends_before_its_lease_leaves_its_lock_delay_at_once() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let lock = client.lock("x").ttl(HOUR).lock_delay(HOUR);
    let guard = soon(lock.max_hold(TTL).acquire()).await.unwrap();
    let lease = etcd.keys("x/")[0].lease;
    soon(guard.lost()).await;
    assert_says(soon(guard.release()).await, ErrorKind::Lost, &[]);
    until("the key has another lease", || {
        let keys = etcd.keys("x/");
        keys.len() == 1 && keys[0].lease != lease
    })
    .await;
    until("the longer lease is over", || {
        !etcd.leases().contains(&lease)
    })
    .await;
    let status = soon(other.inspect("x")).await.unwrap();
    assert!(status.holds.is_empty());
    assert!(status.reserved > Some(HOUR / 2) && status.reserved <= Some(HOUR));
    assert!(soon(other.lock("x").try_acquire()).await.unwrap().is_none());
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
        until("nothing is left", || {
            (etcd.keys("").len(), etcd.leases().len()) == (0, 0)
        })
        .await;
    }
}

/// The requests that a `lock_delay` adds to an acquisition get lost, or their replies: nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_delay_of_unknown_fate_leaves_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = format!("{}?timeout=1s", etcd.url_by(&[proxy.address()]));
    for (option, waits) in [("", true), ("&lease=lock", false)] {
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
                let acquired = match waits {
                    true => soon(lock.acquire()).await,
                    false => soon(lock.try_acquire()).await.map(Option::unwrap),
                };
                match acquired {
                    Ok(guard) => {
                        // An acquisition that waits queues again.
                        assert!(is_refused || waits, "{step}, {fault:?}");
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
                until("no lease and no key is left", || {
                    etcd.leases().is_empty() && etcd.keys("").is_empty()
                })
                .await;
            }
        }
    }
}

/// How a hold with `min_hold` ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Released,
    /// As after the death of its process.
    LeaseOver,
    Closed,
    Broken,
    /// `max_hold` is over, and the guard stays alive.
    NotRenewed,
}

/// Ends the hold on `x`, and returns when only the reservation is left.
async fn end(etcd: &Etcd, client: Client, other: &Client, guard: Guard, end: End) {
    match end {
        End::Released => soon(guard.release()).await.unwrap(),
        End::LeaseOver => {
            let keys = etcd.keys("x/");
            let key = keys.iter().find(|key| !key.key.ends_with("-reserved"));
            etcd.revoke(key.unwrap().lease);
        }
        End::Closed => soon(client.close()).await,
        End::Broken => {
            let token = guard.token().get();
            assert!(soon(other.break_lock("x", token)).await.unwrap());
        }
        End::NotRenewed => {
            soon(guard.lost()).await;
            until("the key of the hold is deleted", || {
                etcd.keys("x/").len() == 1
            })
            .await;
        }
    }
    let keys = etcd.keys("x/");
    assert_eq!(keys.len(), 1, "{end:?}");
    assert!(keys[0].key.ends_with("-reserved"), "{end:?}");
}

/// However the hold ends, the name stays taken for `min_hold` after the grant, as the hold had it.
#[tokio::test(flavor = "multi_thread")]
async fn the_reservation_of_min_hold_outlives_its_holder() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    for option in ["", "?lease=lock"] {
        let url = format!("{}{option}", etcd.url());
        let other = connect(&url).await;
        for ending in [
            End::Released,
            End::LeaseOver,
            End::Closed,
            End::Broken,
            End::NotRenewed,
        ] {
            let client = connect(&url).await;
            let is_shared = matches!(ending, End::Broken);
            let lock = client.lock("x").ttl(TTL).min_hold(HOUR);
            let lock = if is_shared { lock.shared() } else { lock };
            let lock = match ending {
                End::NotRenewed => lock.max_hold(TTL),
                _ => lock,
            };
            let guard = soon(lock.acquire()).await.unwrap();
            let status = soon(other.inspect("x")).await.unwrap();
            assert_eq!(status.holds.len(), 1);
            assert_eq!(status.holds[0].token, Some(guard.token()));
            assert_eq!((status.reserved, status.queue), (None, Some(Vec::new())));
            end(&etcd, client, &other, guard, ending).await;
            let status = soon(other.inspect("x")).await.unwrap();
            assert!(status.holds.is_empty() && status.reserved > Some(HOUR / 2));
            let writer = other.lock("x").ttl(TTL);
            assert!(soon(writer.try_acquire()).await.unwrap().is_none());
            let reader = other.lock("x").ttl(TTL).shared();
            let reader = soon(reader.try_acquire()).await.unwrap();
            assert_eq!(reader.is_some(), is_shared, "{ending:?}");
            if let Some(reader) = reader {
                soon(reader.release()).await.unwrap();
            }
            etcd.revoke(etcd.keys("x/")[0].lease);
            take_and_release(&other, "x", TTL).await;
        }
        soon(other.close()).await;
        assert_eq!((etcd.keys("").len(), etcd.leases().len()), (0, 0));
    }
}

/// A waiter with `min_hold` that vanishes or gives up reserves nothing, and its reservation is in front of all that came
/// later.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_with_min_hold_reserves_from_its_grant_on() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other, last) = (
        connect(&etcd.url()).await,
        connect(&etcd.url()).await,
        connect(&etcd.url()).await,
    );
    let holder = soon(other.lock("x").ttl(TTL).acquire()).await.unwrap();
    let lock = client.lock("x").ttl(TTL).min_hold(HOUR);
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    let waiting = start_acquire(lock.clone());
    until("it waits", || etcd.keys("x/").len() == 3).await;
    waiting.abort();
    until("it has left", || etcd.keys("x/").len() == 1).await;
    let waiting = start_acquire(lock);
    until("it waits", || etcd.keys("x/").len() == 3).await;
    let lease = etcd.keys("x/")[1].lease;
    etcd.revoke(lease);
    until("it waits again", || {
        let keys = etcd.keys("x/");
        keys.len() == 3 && keys.iter().all(|key| key.lease != lease)
    })
    .await;
    let later = start_acquire(last.lock("x").ttl(TTL));
    until("another waits", || etcd.keys("x/").len() == 4).await;
    soon(holder.release()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    soon(guard.release()).await.unwrap();
    let status = soon(other.inspect("x")).await.unwrap();
    assert!(status.holds.is_empty() && status.reserved > Some(HOUR / 2));
    assert!(!later.is_finished(), "not reserved");
    let reserved = etcd.keys("x/");
    let reserved = reserved.iter().find(|key| key.key.ends_with("-reserved"));
    etcd.revoke(reserved.unwrap().lease);
    soon(soon(later).await.unwrap().unwrap().release())
        .await
        .unwrap();
    for client in [client, other, last] {
        soon(client.close()).await;
    }
    assert_eq!((etcd.keys("").len(), etcd.leases().len()), (0, 0));
}

/// A permit and its reservation count as one permit.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_with_min_hold_is_one_permit() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let client = connect(&etcd.url()).await;
    let lock = client.lock("x").ttl(TTL).permits(2).min_hold(HOUR);
    let first = soon(lock.try_acquire()).await.unwrap().unwrap();
    let second = soon(lock.try_acquire()).await.unwrap().unwrap();
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    soon(first.release()).await.unwrap();
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    let first = etcd.keys("x/");
    let first = first.iter().find(|key| key.key.ends_with("-reserved"));
    etcd.revoke(first.unwrap().lease);
    let third = soon(lock.try_acquire()).await.unwrap().unwrap();
    soon(second.release()).await.unwrap();
    soon(third.release()).await.unwrap();
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
}

/// The reservation conflicts with what the hold kept out at last.
#[tokio::test(flavor = "multi_thread")]
async fn the_reservation_changes_its_mode_with_the_hold() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    for (name, is_shared) in [("x", false), ("y", true)] {
        let lock = client.lock(name).ttl(TTL).upgradable().min_hold(HOUR);
        let guard = Arc::new(soon(lock.acquire()).await.unwrap());
        let reader = other.lock(name).ttl(TTL).shared();
        let beside = soon(reader.acquire()).await.unwrap();
        let upgrading = guard.clone();
        let upgrading = tokio::spawn(async move { upgrading.upgrade().await });
        until("the upgrade has arrived", || {
            let keys = etcd.keys(&format!("{name}/"));
            keys.iter().any(|key| key.value.contains("last_holder"))
        })
        .await;
        soon(beside.release()).await.unwrap();
        soon(upgrading).await.unwrap().unwrap();
        if is_shared {
            soon(guard.downgrade()).await.unwrap();
        }
        soon(Arc::into_inner(guard).unwrap().release())
            .await
            .unwrap();
        assert!(soon(other.inspect(name)).await.unwrap().reserved.is_some());
        let reader = soon(reader.try_acquire()).await.unwrap();
        assert_eq!(reader.is_some(), is_shared);
        let writer = other.lock(name).ttl(TTL);
        assert!(soon(writer.try_acquire()).await.unwrap().is_none());
    }
}

/// The requests of an acquisition with `min_hold` get lost, or their replies: nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_min_hold_of_unknown_fate_leaves_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = format!("{}?timeout=1s", etcd.url_by(&[proxy.address()]));
    let other = connect(&etcd.url()).await;
    let kept = soon(other.lock("kept").ttl(TTL).acquire()).await.unwrap();
    for step in ["acquire", "grant", "write"] {
        for fault in [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::NoReply,
            Fault::Late(Duration::from_secs(2)),
        ] {
            let client = connect(&url).await;
            // The shared lease exists after this, so the fault hits the lease of the reservation, and stays.
            let kept = soon(client.lock("y").ttl(TTL).acquire()).await.unwrap();
            proxy.plan(step, fault.clone());
            let lock = client.lock("x").ttl(TTL).min_hold(HOUR);
            let err = soon(lock.try_acquire()).await.unwrap_err();
            assert!(
                matches!(
                    err.kind(),
                    ErrorKind::Indeterminate | ErrorKind::Unreachable
                ),
                "{err}"
            );
            until("the fault happened", || proxy.is_done()).await;
            proxy.resume();
            if let Fault::Late(_) = fault {
                soon(
                    soon(other.lock("x").ttl(TTL).acquire())
                        .await
                        .unwrap()
                        .release(),
                )
                .await
                .unwrap();
            }
            until("no key is left", || etcd.keys("x/").is_empty()).await;
            take_and_release(&other, "x", TTL).await;
            drop(kept);
            soon(client.close()).await;
            until("no lease is left", || etcd.leases().len() == 1).await;
        }
    }
    drop(kept);
}

/// A hold that was never used leaves no reservation, and one that was used does.
#[tokio::test(flavor = "multi_thread")]
async fn an_unused_hold_reserves_nothing() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let store = tenure::etcd::Store::connect(&etcd.url()).await.unwrap();
    for is_unused in [true, false] {
        let name = LockName::new("x").unwrap();
        let mut request = Request::new(name, OwnerId::random(), TTL);
        request.min_hold = HOUR;
        let request = Arc::new(request);
        let Answer::Granted(grant) = store.clone().acquire(request.clone()).await.unwrap() else {
            panic!("the name is taken");
        };
        let mut hold = Hold::new(&request, grant.token);
        hold.unused = is_unused;
        let released = store.clone().release(hold).await.unwrap();
        assert_eq!(released, Release::Released);
        let left = if is_unused { 0 } else { 1 };
        assert_eq!(etcd.keys("x/").len(), left);
        until("only leases in use are left", || {
            etcd.leases().len() == 1 + left
        })
        .await;
    }
}
