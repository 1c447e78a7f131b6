//! Shared holds and changes of their modes: foreign nodes, crashes, lost requests, and the data that other
//! programs write.

use std::sync::Arc;
use std::time::Duration;

use tenure::{ErrorKind, Mode};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

use crate::support::{
    ROOT, SHARED, TTL, client_by, client_of, nodes, soon, start_acquire, states, take_and_release,
    unique, until,
};

/// Longer than a test.
const LONG: Duration = Duration::from_secs(120);

/// A program that knows Curator's nodes excludes all our modes. By its rule, which counts the contenders in front of its
/// own node, it is excluded by them.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_holder_excludes_readers_and_permits() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("theirs"));
    let dir = format!("{ROOT}/{name}");
    take_and_release(&client, &name, TTL).await;
    let mut wire = SHARED.session();
    let foreign = format!("{dir}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-");
    for lock in [
        client.lock(&name).shared(),
        client.lock(&name).upgradable(),
        client.lock(&name).permits(3),
    ] {
        let theirs = wire.create(&foreign, b"127.0.0.1", 3).unwrap();
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let mine = start_acquire(lock.ttl(LONG));
        until("it waits", || nodes(&SHARED, &name).len() == 2).await;
        wire.delete(&theirs);
        let guard = soon(mine).await.unwrap().unwrap();
        let waits = wire.create(&foreign, b"127.0.0.1", 3).unwrap();
        if guard.mode() == Mode::Upgradable {
            // Their node is behind, so an upgrade need not wait for it, and it stays behind.
            soon(guard.upgrade()).await.unwrap();
            let all = nodes(&SHARED, &name);
            assert!(waits.ends_with(&all[1]) && all.len() == 2, "{all:?}");
        }
        soon(guard.release()).await.unwrap();
        let all = nodes(&SHARED, &name);
        assert!(waits.ends_with(&all[0]), "nothing in front: {all:?}");
        wire.delete(&waits);
    }
}

/// The session of an exclusive holder that was upgraded ends, and one of a holder that waits for its upgrade: the next
/// ones come in, with greater tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_upgrades_crashes() {
    needs!(zookeeper);
    for waits in [false, true] {
        let proxy = Proxy::zookeeper(SHARED.port());
        let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
        let name = unique("crash");
        let lock = client.lock(&name).ttl(TTL).upgradable();
        let upgradable = Arc::new(soon(lock.acquire()).await.unwrap());
        let reader = match waits {
            true => Some(soon(other.lock(&name).shared().ttl(LONG).acquire()).await),
            false => None,
        };
        let upgrading = {
            let guard = upgradable.clone();
            tokio::spawn(async move { guard.upgrade().await })
        };
        let mode = if waits { "\"last\":" } else { "exclusive" };
        until("it is written", || {
            states(&SHARED, &name).iter().any(|it| it.contains(mode))
        })
        .await;
        let third = client_of(&SHARED).await;
        let waiting = start_acquire(third.lock(&name).shared().ttl(LONG));
        let count = 2 + usize::from(waits);
        until("it waits", || nodes(&SHARED, &name).len() == count).await;
        assert!(!waiting.is_finished());
        if !waits {
            soon(upgrading).await.unwrap().unwrap();
        }
        let last = upgradable.token().get();
        proxy.hold_both(true);
        proxy.cut();
        let guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token().get() > last);
        assert!(!upgradable.is_held(), "two hold");
        soon(guard.release()).await.unwrap();
        if let Some(reader) = reader {
            soon(reader.unwrap().release()).await.unwrap();
        }
        proxy.resume();
    }
}

/// Each request of an upgrade and of a downgrade is lost, or its reply is: no other contender comes in beside an
/// exclusive hold, and the hold can be upgraded, downgraded and released afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_mode_survives_what_happens_to_its_requests() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    for step in ["watch", "change", "list", "renew"] {
        for fault in [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::Answer("throttled"),
            Fault::Late(Duration::from_millis(100)),
        ] {
            let (name, what) = (unique("mode"), format!("{step}, {fault:?}"));
            let lock = client.lock(&name).ttl(LONG).upgradable();
            let guard = soon(lock.acquire()).await.unwrap();
            proxy.plan(step, fault.clone());
            let upgraded = soon(guard.upgrade()).await;
            assert!(proxy.is_done(), "{what} has not happened");
            assert_eq!(upgraded.is_ok(), guard.mode() == Mode::Exclusive, "{what}");
            let shared = other.lock(&name).shared().ttl(LONG);
            if guard.mode() == Mode::Exclusive {
                let beside = soon(shared.try_acquire()).await.unwrap();
                assert!(beside.is_none(), "{what}: a reader beside a writer");
            } else {
                let beside = soon(shared.acquire()).await.unwrap();
                soon(beside.release()).await.unwrap();
                soon(guard.upgrade()).await.unwrap();
            }
            if matches!(step, "watch" | "change") {
                proxy.plan(step, fault.clone());
                let _ = soon(guard.downgrade()).await;
                assert!(proxy.is_done(), "{what} has not happened");
                let beside = soon(shared.acquire()).await.unwrap();
                assert!(guard.is_held(), "{what}");
                soon(beside.release()).await.unwrap();
            }
            soon(guard.release()).await.unwrap();
            until("nothing is left", || nodes(&SHARED, &name).is_empty()).await;
        }
    }
}

/// The connection breaks while an upgrade waits, and again: the wait goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_waits_outlives_its_connections() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    let name = unique("broken");
    let reader = soon(other.lock(&name).shared().ttl(LONG).acquire()).await;
    let lock = client.lock(&name).upgradable().ttl(LONG);
    let guard = Arc::new(soon(lock.acquire()).await.unwrap());
    let upgrading = {
        let guard = guard.clone();
        tokio::spawn(async move { guard.upgrade().await })
    };
    let is_said = || {
        let states = states(&SHARED, &name);
        states.iter().any(|state| state.contains("\"last\":"))
    };
    until("the request has arrived", is_said).await;
    for _ in 0..3 {
        let before = proxy.connections();
        proxy.cut();
        until("it is connected again", || proxy.connections() > before).await;
    }
    assert!(!upgrading.is_finished() && is_said());
    soon(reader.unwrap().release()).await.unwrap();
    soon(upgrading).await.unwrap().unwrap();
    assert_eq!(guard.mode(), Mode::Exclusive);
}

/// A reader makes its node between the announcement of an upgrade and the list that the upgrade reads: the reader waits
/// until the exclusive hold is over, whether or not another reader holds beside the upgrade.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_comes_after_an_upgrade_waits() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let client = client_by(&proxy).await;
    let (early, late) = (client_of(&SHARED).await, client_of(&SHARED).await);
    for has_reader in [false, true] {
        let name = unique("late");
        let lock = client.lock(&name).upgradable().ttl(LONG);
        let guard = soon(lock.acquire()).await.unwrap();
        let mut reader = None;
        if has_reader {
            let lock = early.lock(&name).shared().ttl(LONG);
            reader = Some(soon(lock.acquire()).await.unwrap());
        }
        proxy.block("list");
        let upgrading = tokio::spawn(async move { guard.upgrade().await.map(|()| guard) });
        let says = |what: &str| states(&SHARED, &name).iter().any(|it| it.contains(what));
        until("the upgrade is announced", || says("upgrading")).await;
        let waiting = start_acquire(late.lock(&name).shared().ttl(LONG));
        let count = 2 + usize::from(has_reader);
        until("it waits", || nodes(&SHARED, &name).len() == count).await;
        proxy.resume();
        if let Some(reader) = reader {
            until("the last holder is written", || says("\"last\":")).await;
            assert!(says("\"last\":1,"), "{:?}", states(&SHARED, &name));
            soon(reader.release()).await.unwrap();
        }
        let guard = soon(upgrading).await.unwrap().unwrap();
        assert!(guard.is_held() && !waiting.is_finished());
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        let reader = soon(waiting).await.unwrap().unwrap();
        assert!(reader.token() > token);
        soon(reader.release()).await.unwrap();
    }
}

/// While a reader reads the data of the contenders in front, the first of two writers releases, and the second one is
/// granted and downgrades: the reader comes in before it looks again by itself, with a transaction and a list.
#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_between_list_and_watch_is_noticed() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (first, second) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let client = client_by(&proxy).await;
    // The reply to the reader's first, second or third request for data is late.
    for before in 0..3 {
        let name = unique("downgrade");
        let holder = soon(first.lock(&name).ttl(LONG).acquire()).await.unwrap();
        let waiting = start_acquire(second.lock(&name).ttl(LONG));
        until("it waits", || nodes(&SHARED, &name).len() == 2).await;
        for _ in 0..before {
            proxy.plan("watch", Fault::Late(Duration::ZERO));
        }
        proxy.plan("watch", Fault::NoReply);
        proxy.take_seen();
        let reading = start_acquire(client.lock(&name).shared().ttl(LONG));
        until("the data are read", || proxy.is_done()).await;
        soon(holder.release()).await.unwrap();
        let writer = soon(waiting).await.unwrap().unwrap();
        soon(writer.downgrade()).await.unwrap();
        proxy.resume();
        let reader = soon(reading).await.unwrap().unwrap();
        let seen = proxy.take_seen();
        let looked_again = seen.windows(2).any(|two| two == ["renew", "list"]);
        assert!(!looked_again, "{before}: {seen:?}");
        assert!(writer.is_held());
        soon(reader.release()).await.unwrap();
        soon(writer.release()).await.unwrap();
    }
}

/// Curator's way to ask for a release overwrites the data of a node, and so do operators by mistake: no reader comes in.
#[tokio::test(flavor = "multi_thread")]
async fn overwritten_data_let_no_reader_in() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("revoke"));
    let lock = || client.lock(&name).ttl(LONG);
    for upgrades in [false, true] {
        let guard = soon(lock().upgradable().acquire()).await.unwrap();
        if upgrades {
            soon(guard.upgrade()).await.unwrap();
        }
        let node = nodes(&SHARED, &name).remove(0);
        let path = format!("{ROOT}/{name}/{node}");
        SHARED.session().set(&path, b"__REVOKE__").unwrap();
        assert!(soon(lock().shared().try_acquire()).await.unwrap().is_none());
        if !upgrades {
            // The node says again what it is.
            soon(guard.upgrade()).await.unwrap();
            assert!(soon(lock().shared().try_acquire()).await.unwrap().is_none());
        }
        let waiting = start_acquire(lock().shared());
        until("it waits", || nodes(&SHARED, &name).len() == 2).await;
        soon(guard.downgrade()).await.unwrap();
        let reader = soon(waiting).await.unwrap().unwrap();
        soon(reader.release()).await.unwrap();
        soon(guard.release()).await.unwrap();
    }
}

/// A hold that another program has deleted is not upgraded.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_gone_is_not_upgraded() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("gone"));
    let lock = client.lock(&name).ttl(LONG).upgradable();
    let guard = soon(lock.acquire()).await.unwrap();
    let node = nodes(&SHARED, &name).remove(0);
    SHARED.session().delete(&format!("{ROOT}/{name}/{node}"));
    let upgraded = soon(guard.upgrade()).await;
    assert_eq!(upgraded.map_err(|err| err.kind()), Err(ErrorKind::Lost));
    assert!(nodes(&SHARED, &name).is_empty());
    take_and_release(&client, &name, TTL).await;
}

/// Without other contenders an upgrade costs six requests, and a downgrade two.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_change_of_mode() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("count"));
    let lock = client.lock(&name).ttl(LONG).upgradable();
    let guard = soon(lock.acquire()).await.unwrap();
    let before = proxy.requests();
    soon(guard.upgrade()).await.unwrap();
    let upgraded = proxy.requests();
    soon(guard.downgrade()).await.unwrap();
    // The data of the node, the announcement, the list, the data again, the directory, the transaction.
    assert_eq!((upgraded - before, proxy.requests() - upgraded), (6, 2));
}
