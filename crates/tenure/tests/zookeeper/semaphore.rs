//! Permits in the layout of Curator's semaphore, without Curator.

use std::time::Duration;

use tenure::ErrorKind;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

use crate::support::{ROOT, SHARED, connect, soon, start_acquire, unique, until, url};

const LONG: Duration = Duration::from_secs(120);

const SEMAPHORE: &str = "&dialect=curator-semaphore";

/// The nodes at the gate, and among the permits.
fn counts(name: &str) -> [usize; 2] {
    let mut wire = SHARED.session();
    wire.sync("/");
    ["locks", "leases"].map(|dir| wire.children(&format!("{ROOT}/{name}/{dir}")).len())
}

/// Each request of an acquisition and of a release is lost, or its reply is: there is one permit in the end, and none is
/// left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_survives_what_happens_to_its_requests() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let client = connect(&url(proxy.port(), SEMAPHORE)).await;
    for step in ["parents", "acquire", "watch", "list", "release"] {
        for fault in [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::Answer("throttled"),
            Fault::Late(Duration::from_millis(100)),
        ] {
            let (name, what) = (unique("permit"), format!("{step}, {fault:?}"));
            proxy.plan(step, fault);
            let guard = soon(client.lock(&name).permits(2).ttl(LONG).acquire()).await;
            let guard = guard.unwrap_or_else(|err| panic!("{what}: {err}"));
            assert!(proxy.is_done(), "{what} has not happened");
            assert_eq!(counts(&name), [0, 1], "{what}");
            soon(guard.release()).await.unwrap();
            assert_eq!(counts(&name), [0, 0], "{what}");
        }
    }
}

/// One try, a wait that is dropped and one that is over leave nothing at the gate, nor among the permits.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_granted_leaves_nothing() {
    needs!(zookeeper);
    let clients = [
        connect(&url(SHARED.port(), SEMAPHORE)).await,
        connect(&url(SHARED.port(), SEMAPHORE)).await,
        connect(&url(SHARED.port(), SEMAPHORE)).await,
    ];
    let name = unique("left");
    let lock = |client: usize| clients[client].lock(&name).permits(1).ttl(LONG);
    let holder = soon(lock(0).acquire()).await.unwrap();
    assert!(soon(lock(1).try_acquire()).await.unwrap().is_none());
    assert_eq!(counts(&name), [0, 1]);
    let first = start_acquire(lock(1));
    until("one waits among the permits", || counts(&name) == [1, 2]).await;
    let second = start_acquire(lock(2));
    until("one waits at the gate", || counts(&name) == [2, 2]).await;
    let status = soon(clients[0].inspect(&name)).await.unwrap();
    assert_eq!(status.holds.len(), 1);
    assert_eq!(status.queue.unwrap().len(), 2);
    first.abort();
    until("the second is among the permits", || {
        counts(&name) == [1, 2]
    })
    .await;
    second.abort();
    until("no contender waits", || counts(&name) == [0, 1]).await;
    let over = lock(1).wait(Duration::from_millis(50));
    let over = soon(over.acquire()).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::WaitElapsed);
    assert!(holder.is_held());
    soon(holder.release()).await.unwrap();
    assert_eq!(counts(&name), [0, 0]);
}

/// In each dialect, what other programs with its node names do not know is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_dialect_refuses_what_its_programs_do_not_know() {
    needs!(zookeeper);
    let (name, kind) = (unique("refused"), ErrorKind::Unsupported);
    let semaphore = connect(&url(SHARED.port(), SEMAPHORE)).await;
    for lock in [
        semaphore.lock(&name),
        semaphore.lock(&name).shared(),
        semaphore.lock(&name).upgradable(),
    ] {
        assert_eq!(soon(lock.acquire()).await.unwrap_err().kind(), kind);
    }
    let read_write = connect(&url(SHARED.port(), "&dialect=curator-readwrite")).await;
    for lock in [
        read_write.lock(&name).upgradable(),
        read_write.lock(&name).permits(2),
    ] {
        assert_eq!(soon(lock.acquire()).await.unwrap_err().kind(), kind);
    }
    let guard = soon(read_write.lock(&name).acquire()).await.unwrap();
    soon(guard.release()).await.unwrap();
}
