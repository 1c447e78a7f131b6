//! Elections: what observers are told, and what they cost.

use tenure::ErrorKind;

use crate::elections::{LONG, campaign, dir, heard, start_campaign, value};
use crate::support::{
    ROOT, SHARED, TTL, assert_says, client_by, client_of, connect, nodes, soon, take, unique,
    until, url,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::zookeeper::Zookeeper;

/// The paths on which clients have watches.
fn watches(server: &Zookeeper) -> String {
    server.word("wchp")
}

/// Waits until an observer watches the node or the directory of that name.
async fn until_watched(server: &Zookeeper, name: &str) {
    let path = format!("{ROOT}/{name}");
    until("it is watched", || watches(server).contains(&path)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_pushed() {
    needs!(zookeeper);
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("pushed");
    let mut observer = client_of(&SHARED).await.election(&name).observe();
    assert_eq!(heard(&mut observer).await, None);
    let term = campaign(&client, &name, "one").await;
    let leader = heard(&mut observer).await.expect("there is a leader");
    assert_eq!(leader.token, Some(term.token()));
    assert_eq!(leader.value(), Some("one"));
    assert_eq!(leader.holder.pid, std::process::id());
    soon(term.proclaim("two")).await.unwrap();
    assert_eq!(value(&mut observer).await.as_deref(), Some("two"));
    let waiting = start_campaign(&other, &name, "three");
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    soon(term.resign()).await.unwrap();
    assert_eq!(value(&mut observer).await.as_deref(), Some("three"));
    let term = soon(waiting).await.unwrap();
    soon(term.resign()).await.unwrap();
    assert_eq!(heard(&mut observer).await, None);
    let guard = take(&client, &name, LONG).await;
    let leader = heard(&mut observer).await.expect("a lock is one too");
    assert_eq!(leader.token, Some(guard.token()));
    assert_eq!(leader.value(), None);
    assert_eq!(leader.holder.value, None);
    soon(guard.release()).await.unwrap();
}

/// A program with Curator queued before the upgrade of the hold in front of it, and takes no new token.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_of_another_program_is_seen_after_an_upgrade_before_it() {
    needs!(zookeeper);
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("foreign");
    let upgradable = client.lock(&name).upgradable().ttl(LONG);
    let upgradable = soon(upgradable.acquire()).await.unwrap();
    let mut wire = SHARED.session();
    let theirs = format!(
        "{}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-",
        dir(&name)
    );
    let node = wire.create(&theirs, b"", 3).unwrap();
    soon(upgradable.upgrade()).await.unwrap();
    let upgraded = Some(upgradable.token());
    let mut observer = other.election(&name).observe();
    assert_eq!(heard(&mut observer).await.unwrap().token, upgraded);
    soon(upgradable.release()).await.unwrap();
    let leader = heard(&mut observer).await.expect("theirs leads");
    assert_eq!(leader.holder.label, "another program");
    assert!(leader.token > upgraded);
    // A request reaches the leader under this number.
    let asked = soon(other.election(&name).ask_to_resign()).await.unwrap();
    assert_eq!(asked.unwrap().token, leader.token);
    assert_eq!(wire.get(&node).unwrap().data, b"__REVOKE__");
    let waiting = start_campaign(&client, &name, "next");
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    wire.delete(&node);
    let term = soon(waiting).await.unwrap();
    while value(&mut observer).await.as_deref() != Some("next") {}
    assert!(Some(term.token()) > leader.token);
    soon(term.resign()).await.unwrap();
}

/// Candidates that come and go cost observers nothing, and all observers of one client read once for each change.
#[tokio::test(flavor = "multi_thread")]
async fn observers_read_once_for_each_change() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let proxy = Proxy::zookeeper(server.port());
    let (leader, candidate) = (client_of(&server).await, client_of(&server).await);
    let name = unique("counted");
    let term = campaign(&leader, &name, "one").await;
    let observing = client_by(&proxy).await;
    let election = observing.election(&name);
    proxy.take_seen();
    let mut observers: Vec<_> = (0..20).map(|_| election.observe()).collect();
    for observer in &mut observers {
        assert_eq!(value(observer).await.as_deref(), Some("one"));
    }
    // Each begins with what is true by now.
    assert_eq!(proxy.take_seen()[..3], ["sync", "list", "watch"]);
    for _ in 0..5 {
        let waiting = start_campaign(&candidate, &name, "never");
        until("it waits", || nodes(&server, &name).len() == 2).await;
        waiting.abort();
        until("it is gone", || nodes(&server, &name).len() == 1).await;
    }
    assert_eq!(proxy.take_seen(), [""; 0]);
    soon(term.proclaim("two")).await.unwrap();
    for observer in &mut observers {
        assert_eq!(value(observer).await.as_deref(), Some("two"));
    }
    assert_eq!(proxy.take_seen(), ["list", "watch"]);
    drop(observers);
    let watch = || watches(&server).contains(&format!("{ROOT}/{name}/"));
    until("no watch is left", || !watch()).await;
    // The next observer begins anew.
    let mut observer = election.observe();
    assert_eq!(value(&mut observer).await.as_deref(), Some("two"));
    assert!(watch());
    observing.close().await;
    assert!(soon(observer.next()).await.is_none());
    soon(term.resign()).await.unwrap();
}

/// An observer of a name that nobody uses makes no node, and is told of the first leader.
#[tokio::test(flavor = "multi_thread")]
async fn observing_makes_no_node() {
    needs!(zookeeper);
    for (options, name, dir) in [
        ("", "never/used", "never%2Fused"),
        ("&names=raw", "never/used/raw", "never/used/raw"),
    ] {
        let server = Zookeeper::start_with(&["-Dznode.container.checkIntervalMs=100"], &[]);
        let at = url(server.port(), options);
        let (client, observing) = (connect(&at).await, connect(&at).await);
        let election = observing.election(name);
        let mut observer = election.observe();
        assert_eq!(heard(&mut observer).await, None);
        assert!(soon(election.leader()).await.unwrap().is_none());
        let asked = soon(election.ask_to_resign()).await.unwrap();
        assert!(asked.is_none());
        until_watched(&server, dir).await;
        assert_eq!(server.session().children(ROOT), [""; 0]);
        let mut last = None;
        for _ in 0..2 {
            let term = campaign(&client, name, "one").await;
            let leader = heard(&mut observer).await.expect("there is a leader");
            assert_eq!(leader.token, Some(term.token()));
            assert!(leader.token > last);
            last = leader.token;
            soon(term.resign()).await.unwrap();
            assert_eq!(heard(&mut observer).await, None);
            until("the directory is collected", || {
                server.session().children(ROOT).is_empty()
            })
            .await;
        }
        assert!(soon(election.leader()).await.unwrap().is_none());
    }
}

/// The connection of an observer breaks: the observer asks again, and an outage is an error once.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_outlives_its_connection_and_its_session() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let proxy = Proxy::zookeeper(server.port());
    let (client, name) = (client_of(&server).await, unique("outage"));
    let mut observer = client_by(&proxy).await.election(&name).observe();
    let term = campaign(&client, &name, "one").await;
    while value(&mut observer).await.as_deref() != Some("one") {}
    // A broken connection that is opened again at once is no outage.
    proxy.cut();
    soon(term.proclaim("two")).await.unwrap();
    assert_eq!(value(&mut observer).await.as_deref(), Some("two"));
    // The session of the observer ends in the server.
    let sessions = || server.word("cons").matches("sid=").count();
    let before = sessions();
    proxy.hold_both(true);
    let err = soon(observer.next()).await.unwrap().unwrap_err();
    assert!(
        err.is_retryable() || err.kind() == ErrorKind::Indeterminate,
        "{err}"
    );
    until("its session is over", || sessions() < before).await;
    soon(term.resign()).await.unwrap();
    let term = campaign(&client, &name, "three").await;
    proxy.resume();
    assert_eq!(value(&mut observer).await.as_deref(), Some("three"));
    soon(term.resign()).await.unwrap();
    assert_eq!(heard(&mut observer).await, None);
}

/// The leader's session ends: observers are told by the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_vanishes_is_seen_when_its_session_ends() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, name) = (client_by(&proxy).await, unique("vanishes"));
    let mut observer = client_of(&SHARED).await.election(&name).observe();
    let election = client.election(&name).value("one").ttl(TTL);
    let term = soon(election.campaign()).await.unwrap();
    while value(&mut observer).await.as_deref() != Some("one") {}
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
    }
    proxy.cut();
    assert_eq!(heard(&mut observer).await, None);
    assert!(!term.is_leader());
    proxy.resume();
}

/// An observer without the right to read the leader's node sees its token; one that may not read the directory ends.
#[tokio::test(flavor = "multi_thread")]
async fn rights_of_observers() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    server.session().create("/open", b"", 0).unwrap();
    server.session().create("/open/a", b"", 0).unwrap();
    let with_user = url(server.port(), "").replace(ROOT, "/open");
    let plain = format!("zookeeper://127.0.0.1:{}/open?ttl=8s", server.port());
    let (client, other) = (connect(&with_user).await, connect(&plain).await);
    let term = campaign(&client, "a", "secret").await;
    let mut observer = other.election("a").observe();
    let leader = heard(&mut observer).await.expect("there is a leader");
    assert_eq!((leader.token, leader.value()), (Some(term.token()), None));
    let refused = soon(other.election("a").ask_to_resign()).await;
    assert_says(refused, ErrorKind::Denied, &["only a user may do that"]);
    soon(term.resign()).await.unwrap();
    assert_eq!(heard(&mut observer).await, None);
    let term = campaign(&client, "closed", "secret").await;
    let mut observer = other.election("closed").observe();
    let denied = soon(observer.next()).await.unwrap();
    assert_says(denied, ErrorKind::Denied, &["only a user may do that"]);
    assert!(soon(observer.next()).await.is_none());
    soon(term.resign()).await.unwrap();
}
