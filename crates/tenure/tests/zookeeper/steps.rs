//! Each request of an acquisition, a renewal and a release is lost, or its reply is lost: there is one node for each
//! hold, and none is left behind.

use std::time::{Duration, Instant};

use tenure::ErrorKind;

use crate::support::{
    SHARED, TTL, client_by, client_of, nodes, soon, start_acquire, take, take_and_release, unique,
    until, until_renewed,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};

/// Another client finds the lock taken, and free after the release.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_survives_what_happens_to_its_requests() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    for step in ["parents", "acquire", "watch"] {
        for fault in [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::Answer("throttled"),
            Fault::Late(Duration::from_millis(100)),
        ] {
            let name = unique("step");
            if step != "parents" {
                take_and_release(&other, &name, TTL).await;
            }
            let what = format!("{step}, {fault:?}");
            proxy.plan(step, fault);
            let guard = soon(client.lock(&name).ttl(TTL).acquire()).await;
            let guard = guard.unwrap_or_else(|err| panic!("{what}: {err}"));
            assert!(proxy.is_done(), "{what} has not happened");
            assert_eq!(nodes(&SHARED, &name).len(), 1, "{what}");
            let busy = soon(other.lock(&name).ttl(TTL).try_acquire()).await;
            assert!(busy.unwrap().is_none(), "{what}: two hold it");
            soon(guard.release()).await.unwrap();
            assert_eq!(nodes(&SHARED, &name).len(), 0, "{what}");
        }
    }
}

/// The requests of a waiter: creation, list, watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_what_happens_to_its_requests() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    for step in ["acquire", "list", "watch"] {
        for fault in [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::Late(Duration::from_millis(100)),
        ] {
            let what = format!("{step}, {fault:?}");
            let name = unique("wait");
            let holder = take(&other, &name, TTL).await;
            proxy.plan(step, fault);
            let waiting = start_acquire(client.lock(&name).ttl(TTL));
            until("two are there", || nodes(&SHARED, &name).len() == 2).await;
            until("it has happened", || proxy.is_done()).await;
            soon(holder.release()).await.unwrap();
            let guard = soon(waiting).await.unwrap();
            let guard = guard.unwrap_or_else(|err| panic!("{what}: {err}"));
            assert_eq!(nodes(&SHARED, &name).len(), 1, "{what}");
            soon(guard.release()).await.unwrap();
            assert_eq!(nodes(&SHARED, &name).len(), 0, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_survives_what_happens_to_its_request() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    for fault in [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::Late(Duration::from_millis(100)),
    ] {
        let name = unique("release");
        let guard = take(&client, &name, TTL).await;
        proxy.plan("release", fault.clone());
        let released = soon(guard.release()).await;
        assert!(released.is_ok(), "{fault:?}: {released:?}");
        assert_eq!(nodes(&SHARED, &name).len(), 0, "{fault:?}");
        take_and_release(&other, &name, TTL).await;
    }
}

/// A renewal without a reply is neither loss nor success; the next renewal extends the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_survives_what_happens_to_its_request() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let client = client_by(&proxy).await;
    let name = unique("renew");
    let guard = take(&client, &name, TTL).await;
    for fault in [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::Answer("throttled"),
    ] {
        proxy.plan("renew", fault);
        until("it has happened", || proxy.is_done()).await;
        until_renewed(&guard).await;
        assert!(guard.is_held());
    }
    soon(guard.release()).await.unwrap();
}

/// An attempt to acquire a lock that is held leaves no node, whichever request or reply is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_leaves_nothing() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (other, name) = (client_of(&SHARED).await, unique("try"));
    let holder = take(&other, &name, TTL).await;
    for step in ["acquire", "list", "watch", "release"] {
        for fault in [Fault::CutBefore, Fault::CutAfter] {
            let client = client_by(&proxy).await;
            let what = format!("{step}, {fault:?}");
            proxy.plan(step, fault);
            let tried = soon(client.lock(&name).ttl(TTL).try_acquire()).await;
            assert!(!matches!(tried, Ok(Some(_))), "{what}");
            assert!(proxy.is_done(), "{what} has not happened");
            until("only the holder is there", || {
                nodes(&SHARED, &name).len() == 1
            })
            .await;
            client.close().await;
        }
    }
    assert!(holder.is_held());
    soon(holder.release()).await.unwrap();
}

/// How many requests a free lock costs. Times are printed and not compared.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_free_lock() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("count"));
    take_and_release(&client, &name, TTL * 10).await;
    proxy.delay(Direction::Up, Duration::from_millis(5));
    proxy.delay(Direction::Down, Duration::from_millis(5));
    for _ in 0..3 {
        let before = proxy.requests();
        let start = std::time::Instant::now();
        let guard = take(&client, &name, TTL * 10).await;
        let (took, asked) = (start.elapsed(), proxy.requests() - before);
        eprintln!("warm acquire: {asked} requests, {took:?} at 10 ms per round trip");
        assert_eq!(asked, 1, "requests of a warm acquire");
        let start = std::time::Instant::now();
        guard.release().await.unwrap();
        let (took, asked) = (start.elapsed(), proxy.requests() - before - 1);
        eprintln!("release: {asked} requests, {took:?}");
        assert_eq!(asked, 1, "requests of a release");
    }
}

/// A node of unknown outcome cannot be looked for during more than a ttl, while its session lives: the node does not go
/// by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_unknown_fate_is_looked_for_as_long_as_its_session_lives() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("ghost"));
    let ttl = Duration::from_secs(6);
    let other = take(&client, &unique("beside"), ttl).await;
    proxy.plan("acquire", Fault::CutAfter);
    // No request that looks for the node gets a reply, neither of the acquisition nor of the clean-up.
    let plan = || {
        // Many are planned ahead, or a request gets through while a busy machine does not run this test.
        for _ in proxy.pending()..500 {
            proxy.plan("sync", Fault::CutAfter);
        }
    };
    plan();
    let tried = soon(client.lock(&name).ttl(ttl).try_acquire()).await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Indeterminate);
    let start = Instant::now();
    while start.elapsed() < ttl * 2 {
        plan();
        assert_eq!(nodes(&SHARED, &name).len(), 1);
    }
    proxy.forget_plans();
    until("the node is deleted", || nodes(&SHARED, &name).is_empty()).await;
    assert!(other.is_held(), "it went with its session");
    soon(other.release()).await.unwrap();
}
