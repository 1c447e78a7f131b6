//! Several locks are acquired with one script, all or none.

use std::sync::Arc;

use tenure::ErrorKind::Indeterminate;
use tenure_testkit::needs;
use tenure_testkit::redis::{Cluster, Redis};

use crate::steps::{FAULTS, Site};
use crate::support::{
    TTL, assert_all_expire, assert_clear, connect, owner, soon, start_acquire, take, until, waiting,
};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn assert_free(server: &Redis, names: &[&str]) {
    for name in names {
        assert_eq!(owner(server, name), "", "{name}");
    }
}

#[tokio::test]
async fn lock_all_of_free_names_is_one_script() {
    needs!(redis);
    let site = Site::new().await;
    // The process may stand still for some seconds, and the lease lasts.
    let ttl = TTL * 3 / 2;
    let lock = site.client.lock_all(NAMES).ttl(ttl);
    soon(lock.acquire()).await.unwrap().release().await.unwrap();
    site.proxy.take_seen();
    let guard = soon(lock.acquire()).await.unwrap();
    let mut seen = site.proxy.take_seen();
    // What a grant needs besides when the machine is busy.
    seen.retain(|it| it != "look" && it != "renew");
    assert_eq!(seen, ["acquire_all"]);
    for ((name, token), id) in guard.tokens().zip(guard.owner_ids()) {
        assert_eq!(owner(&site.server, name.as_str()), id.to_hex());
        let status = soon(site.other.inspect(name)).await.unwrap();
        assert_eq!(status.holds[0].token, Some(token));
        assert_eq!(status.holds[0].holder.pid, std::process::id());
    }
    let before: Vec<_> = guard.tokens().map(|(_, token)| token).collect();
    // A renewal, and a loss of one of them.
    tokio::time::sleep(ttl).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_free(&site.server, &NAMES);
    let guard = soon(lock.acquire()).await.unwrap();
    for ((_, token), before) in guard.tokens().zip(before) {
        assert!(token > before, "{token} follows {before}");
    }
    let token = guard.tokens().nth(1).unwrap().1;
    assert!(soon(site.other.break_lock("b", token)).await.unwrap());
    soon(guard.lost()).await;
    assert!(guard.release().await.unwrap_err().is_lost());
    until("all names are free", || {
        NAMES
            .iter()
            .all(|name| owner(&site.server, name).is_empty())
    })
    .await;
    assert_all_expire(&site.server);
}

/// Another program has one of the names, or what is under a name is no lock.
#[tokio::test]
async fn names_that_are_not_free() {
    needs!(redis);
    let site = Site::new().await;
    let lock = site.client.lock_all(NAMES).ttl(TTL);
    let attempt = || async { soon(lock.try_acquire()).await };
    site.server
        .order(&["SET", "c", "another program", "PX", "60000"]);
    assert!(attempt().await.unwrap().is_none());
    site.server.order(&["DEL", "c"]);
    // A key that is no lock.
    for key in ["b", "tenure:{b}:hold"] {
        site.server.order(&["DEL", key]);
        site.server.order(&["RPUSH", key, "x"]);
        let err = attempt().await.unwrap_err();
        assert_clear(&err);
        assert_free(&site.server, &["a", "c"]);
        site.server.order(&["DEL", key]);
    }
    soon(lock.acquire()).await.unwrap().release().await.unwrap();
}

/// A lock whose holder has vanished belongs to its first waiter, although the key is gone.
#[tokio::test]
async fn waiters_are_not_overtaken() {
    needs!(redis);
    let site = Site::new().await;
    let held = take(&site.other, "b", TTL * 10).await;
    let first = start_acquire(site.other.lock("b").ttl(TTL * 10));
    until("a client waits", || waiting(&site.server, "b") == 1).await;
    let second = connect(&format!("{}?restart_guard=off", site.server.url())).await;
    let first_of_another = start_acquire(second.lock("b").ttl(TTL * 10));
    until("two clients wait", || waiting(&site.server, "b") == 2).await;
    site.server.order(&["DEL", "b"]);
    let lock = site.client.lock_all(NAMES).ttl(TTL * 10);
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    assert_free(&site.server, &["a", "c"]);
    let all = start_acquire(lock);
    let guard = soon(first).await.unwrap().unwrap();
    guard.release().await.unwrap();
    let guard = soon(first_of_another).await.unwrap().unwrap();
    assert!(!all.is_finished());
    guard.release().await.unwrap();
    soon(all).await.unwrap().unwrap().release().await.unwrap();
    assert!(held.release().await.unwrap_err().is_lost());
    // The queue is empty, but the server does not know that before it has looked: all names are free all the same.
    let lock = site.client.lock_all(NAMES).ttl(TTL);
    let guard = soon(lock.try_acquire()).await.unwrap();
    guard.expect("all names are free").release().await.unwrap();
    assert_all_expire(&site.server);
}

/// A refused request is made again name by name; a request of unknown outcome is reported, and leaves nothing.
#[tokio::test]
async fn a_request_for_several_names_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        let names = NAMES.map(|name| format!("{name}{i}"));
        site.proxy.plan("acquire_all", fault.clone());
        let lock = site.client.lock_all(&names).ttl(TTL);
        match soon(lock.try_acquire()).await {
            Ok(guard) => {
                assert_ne!(*due, Some(Indeterminate), "after {fault:?}");
                guard.expect("it is free").release().await.unwrap();
            }
            Err(err) => {
                assert_eq!(err.kind(), Indeterminate, "after {fault:?}: {err}");
                assert_eq!(*due, Some(Indeterminate), "after {fault:?}");
                assert_clear(&err);
            }
        }
        assert!(site.proxy.is_done(), "the fault did not happen");
        site.proxy.resume();
        until("no lock is held", || {
            names.iter().all(|name| owner(&server, name).is_empty())
        })
        .await;
        let lock = site.other.lock_all(&names).ttl(TTL);
        soon(lock.acquire()).await.unwrap().release().await.unwrap();
        assert_all_expire(&server);
    }
}

/// Names of one slot are acquired together, other names one by one.
#[tokio::test(flavor = "multi_thread")]
async fn lock_all_in_a_cluster() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let client = connect(&format!("{}?timeout=3s&restart_guard=off", cluster.url())).await;
    for names in [["{t}a", "{t}b", "{t}c"], ["a", "b", "c"]] {
        let lock = client.lock_all(names).ttl(TTL);
        let guard = soon(lock.acquire()).await.unwrap();
        assert_eq!(guard.names().count(), 3);
        for name in names {
            assert!(soon(client.inspect(name)).await.unwrap().is_held());
        }
        assert!(
            soon(client.lock_all(names).try_acquire())
                .await
                .unwrap()
                .is_none()
        );
        guard.release().await.unwrap();
        soon(lock.acquire()).await.unwrap().release().await.unwrap();
    }
}
