//! Elections: the values of leaders, and requests to let go.

use std::time::Duration;

use tenure::{Client, ErrorKind, Guard, Leader, Observer, Term};
use tokio::task::JoinHandle;

use crate::support::{
    ROOT, SHARED, assert_says, client_of, connect, nodes, soon, states, take, unique, until, url,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;

/// Longer than a test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) async fn campaign(client: &Client, name: &str, value: &str) -> Term {
    let election = client.election(name).value(value).ttl(LONG);
    soon(election.campaign()).await.unwrap()
}

/// A candidate that waits.
pub(crate) fn start_campaign(client: &Client, name: &str, value: &str) -> JoinHandle<Term> {
    let election = client.election(name).value(value).ttl(LONG);
    tokio::spawn(async move { election.campaign().await.unwrap() })
}

pub(crate) async fn heard(observer: &mut Observer) -> Option<Leader> {
    let next = soon(observer.next()).await;
    next.expect("the observer goes on").unwrap()
}

/// The value of the leader that the observer shows next; `None`: nobody leads.
pub(crate) async fn value(observer: &mut Observer) -> Option<String> {
    let leader = heard(observer).await?;
    Some(leader.value().unwrap_or_default().to_owned())
}

pub(crate) fn dir(name: &str) -> String {
    format!("{ROOT}/{name}")
}

fn paths(name: &str) -> Vec<String> {
    let node = |node: &String| format!("{}/{node}", dir(name));
    nodes(&SHARED, name).iter().map(node).collect()
}

/// The value is in the node from its creation on, and what is read of it in each way.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_in_the_data_of_the_node() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("value"));
    let hostile = "{\"hold\":{\"mode\":\"shared\"}}\n__REVOKE__ \u{0} 🔒";
    let term = campaign(&client, &name, hostile).await;
    let state = states(&SHARED, &name).remove(0);
    assert!(state.contains(r#""number":0,"ttl":"#), "{state}");
    let leader = soon(client.election(&name).leader()).await.unwrap();
    assert_eq!(leader.unwrap().value(), Some(hostile));
    let status = soon(client.inspect(&name)).await.unwrap();
    let shown = status.holds[0].holder.value.clone().unwrap();
    assert_eq!(&*shown.text, hostile);
    // Another program overwrites the data: the term goes on, and the next value makes them whole again.
    let path = paths(&name).remove(0);
    SHARED.session().set(&path, b"nonsense").unwrap();
    let reader = client_of(&SHARED).await.lock(&name).shared();
    assert!(soon(reader.try_acquire()).await.unwrap().is_none());
    soon(term.proclaim("whole")).await.unwrap();
    let leader = soon(client.election(&name).leader()).await.unwrap();
    let leader = leader.unwrap();
    assert_eq!(leader.token, Some(term.token()));
    assert_eq!(leader.value(), Some("whole"));
    assert_eq!(leader.holder.pid, std::process::id());
    soon(term.resign()).await.unwrap();
}

/// After an upgrade a waiting candidate gets a token that is not the czxid of its node. The token stays when the value
/// changes, and when the leader is asked to resign.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_stays_when_the_node_is_written() {
    needs!(zookeeper);
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("token");
    let upgradable = client.lock(&name).upgradable().ttl(LONG);
    let upgradable = soon(upgradable.acquire()).await.unwrap();
    let waiting = start_campaign(&other, &name, "one");
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    soon(upgradable.upgrade()).await.unwrap();
    let upgraded = upgradable.token();
    let mut observer = client_of(&SHARED).await.election(&name).observe();
    let leader = heard(&mut observer).await.expect("an upgraded hold leads");
    assert_eq!(leader.token, Some(upgraded));
    soon(upgradable.release()).await.unwrap();
    let term = soon(waiting).await.unwrap();
    assert!(term.token() > upgraded);
    let token = Some(term.token());
    for text in ["two", "three"] {
        soon(term.proclaim(text)).await.unwrap();
        let leader = soon(client.election(&name).leader()).await.unwrap();
        let leader = leader.unwrap();
        assert_eq!((leader.token, leader.value()), (token, Some(text)));
    }
    let asked = soon(client.election(&name).ask_to_resign()).await.unwrap();
    assert_eq!(asked.unwrap().token, token);
    assert!(soon(term.asked_to_resign()).await);
    let leader = soon(client.election(&name).leader()).await.unwrap();
    assert_eq!(leader.unwrap().token, token);
    while heard(&mut observer).await.unwrap().value() != Some("three") {}
    soon(term.resign()).await.unwrap();
}

/// Names that are no paths of ZooKeeper, observed before there is a node.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_have_leaders() {
    needs!(zookeeper);
    let (client, observing) = (client_of(&SHARED).await, client_of(&SHARED).await);
    for name in [
        "..",
        "a/../b",
        "a\nb\u{0}",
        "lock 🔒",
        "zookeeper",
        "%2F",
        "x-0000000001",
    ] {
        let mut observer = observing.election(name).observe();
        assert_eq!(heard(&mut observer).await, None, "{name:?}");
        let term = campaign(&client, name, name).await;
        let leader = heard(&mut observer).await.expect("there is a leader");
        assert_eq!(leader.token, Some(term.token()), "{name:?}");
        assert_eq!(leader.value(), Some(name));
        let asked = soon(observing.election(name).ask_to_resign())
            .await
            .unwrap();
        assert_eq!(asked.map(|leader| leader.token), Some(leader.token));
        assert!(soon(term.asked_to_resign()).await, "{name:?}");
        soon(term.resign()).await.unwrap();
        assert_eq!(heard(&mut observer).await, None, "{name:?}");
    }
}

async fn assert_asked(guard: &Guard) {
    assert!(soon(guard.asked_to_release()).await);
    assert!(guard.is_held(), "the holder decides");
}

/// A request reaches the holder of a lock and a leader, before and after it listens, and no later holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_let_go_is_for_one_hold() {
    needs!(zookeeper);
    for options in [
        "",
        "&dialect=curator-readwrite",
        "&dialect=curator-selector",
        "&dialect=curator-latch",
    ] {
        let at = url(SHARED.port(), options);
        let (client, other) = (connect(&at).await, connect(&at).await);
        let name = unique("asked");
        let election = other.election(&name);
        let guard = take(&client, &name, LONG).await;
        let asked = soon(election.ask_to_resign()).await.unwrap().unwrap();
        assert_eq!(asked.token, Some(guard.token()), "{options}");
        assert_asked(&guard).await;
        soon(guard.release()).await.unwrap();

        let term = campaign(&client, &name, "one").await;
        let mut waiting = std::pin::pin!(term.asked_to_resign());
        let is_early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
        assert!(
            is_early.is_err(),
            "{options}: a request to an earlier holder"
        );
        for _ in 0..2 {
            soon(election.ask_to_resign()).await.unwrap().unwrap();
        }
        assert!(soon(waiting).await, "{options}");
        // The value is still there.
        let leader = soon(election.leader()).await.unwrap().unwrap();
        assert_eq!(
            (leader.token, leader.value()),
            (Some(term.token()), Some("one")),
            "{options}"
        );
        soon(term.resign()).await.unwrap();
        assert!(soon(election.ask_to_resign()).await.unwrap().is_none());
    }
}

/// A candidate that waits while others are asked keeps its place and its token.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_let_go_changes_nothing_for_those_who_wait() {
    needs!(zookeeper);
    for options in ["", "&dialect=curator-latch"] {
        let at = url(SHARED.port(), options);
        let (client, other) = (connect(&at).await, connect(&at).await);
        let name = unique("queued");
        let term = campaign(&client, &name, "one").await;
        let waiting = start_campaign(&other, &name, "two");
        until("it waits", || nodes(&SHARED, &name).len() == 2).await;
        let queue = nodes(&SHARED, &name);
        let czxid = SHARED.session().get(&paths(&name)[1]).unwrap().czxid;
        soon(client.election(&name).ask_to_resign()).await.unwrap();
        soon(term.resign()).await.unwrap();
        let term = soon(waiting).await.unwrap();
        assert_eq!(nodes(&SHARED, &name), queue[1..], "{options}");
        assert_eq!(term.token().get(), czxid.unsigned_abs(), "{options}");
        soon(term.resign()).await.unwrap();
    }
}

/// The holder resigns after its node was read, and before the request is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_let_go_that_comes_too_late_says_so() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let latch = "&dialect=curator-latch";
    let client = connect(&url(SHARED.port(), latch)).await;
    let asking = connect(&url(proxy.port(), latch)).await;
    let name = unique("too-late");
    let term = campaign(&client, &name, "one").await;
    proxy.take_seen();
    for kind in ["change", "renew"] {
        proxy.block(kind);
    }
    let election = asking.election(&name);
    let asked = tokio::spawn(async move { election.ask_to_resign().await });
    let mut seen = Vec::new();
    // Twice the node of the leader, and then the directory.
    until("all is read", || {
        seen.extend(proxy.take_seen());
        seen.iter().filter(|kind| *kind == "watch").count() == 3
    })
    .await;
    soon(term.resign()).await.unwrap();
    proxy.resume();
    assert!(soon(asked).await.unwrap().unwrap().is_none());
}

/// Curator asks by writing `__REVOKE__` into the node of the holder.
#[tokio::test(flavor = "multi_thread")]
async fn curators_requests_are_heard() {
    needs!(zookeeper);
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("revoked");
    let term = campaign(&client, &name, "one").await;
    let path = paths(&name).remove(0);
    SHARED.session().set(&path, b"__REVOKE__").unwrap();
    assert_asked(term.guard()).await;
    let asked = soon(other.election(&name).ask_to_resign()).await.unwrap();
    assert_eq!(asked.unwrap().token, Some(term.token()));
    soon(term.resign()).await.unwrap();
    // A value replaces the request, before the guard listens.
    let term = campaign(&client, &name, "one").await;
    let path = paths(&name).remove(0);
    SHARED.session().set(&path, b"__REVOKE__").unwrap();
    soon(term.proclaim("two")).await.unwrap();
    assert!(states(&SHARED, &name)[0].contains("two"));
    assert_asked(term.guard()).await;
    soon(term.resign()).await.unwrap();
    // A lock of Curator that can be revoked has no data; another one has an address or an id.
    let mut wire = SHARED.session();
    let theirs = format!(
        "{}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-",
        dir(&name)
    );
    let node = wire.create(&theirs, b"", 3).unwrap();
    let asked = soon(other.election(&name).ask_to_resign()).await.unwrap();
    assert!(asked.is_some());
    assert_eq!(wire.get(&node).unwrap().data, b"__REVOKE__");
    wire.delete(&node);
    let node = wire.create(&theirs, b"worker-7", 3).unwrap();
    let leader = soon(other.election(&name).leader()).await.unwrap();
    assert_eq!(leader.unwrap().value(), Some("worker-7"));
    let refused = soon(other.election(&name).ask_to_resign()).await;
    assert_says(refused, ErrorKind::Unsupported, &["another library"]);
    assert_eq!(wire.get(&node).unwrap().data, b"worker-7");
    wire.delete(&node);
}

/// With the dialects of Curator the data of a candidate's node are its value and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_bare_value_is_all_that_the_node_has() {
    needs!(zookeeper);
    for (dialect, stem) in [("curator-selector", "-lock-"), ("curator-latch", "-latch-")] {
        let at = url(SHARED.port(), &format!("&dialect={dialect}"));
        let client = connect(&at).await;
        let name = unique("bare");
        for value in ["worker-7", ""] {
            let term = campaign(&client, &name, value).await;
            assert_eq!(states(&SHARED, &name), [value]);
            assert!(nodes(&SHARED, &name)[0].contains(stem));
            let leader = soon(client.election(&name).leader()).await.unwrap();
            let leader = leader.unwrap();
            assert_eq!(leader.value().unwrap_or_default(), value);
            assert_eq!(leader.token, Some(term.token()));
            soon(term.resign()).await.unwrap();
        }
        // A lock says who holds it.
        let guard = take(&client, &name, LONG).await;
        let status = soon(client.inspect(&name)).await.unwrap();
        assert_eq!(status.holds[0].holder.pid, std::process::id());
        soon(guard.release()).await.unwrap();

        let term = campaign(&client, &name, "one").await;
        let changed = soon(term.proclaim("two")).await;
        match dialect {
            "curator-selector" => changed.unwrap(),
            _ => assert_says(
                changed,
                ErrorKind::Unsupported,
                &["curator-latch", "curator-selector"],
            ),
        }
        assert!(term.is_leader());
        soon(term.resign()).await.unwrap();
        let hostile = client
            .election(&name)
            .value(r#"{"hold":{"mode":"shared"}}"#);
        assert_says(
            soon(hostile.campaign()).await,
            ErrorKind::Invalid,
            &["another value"],
        );
        let shared = client.lock(&name).shared();
        let refused = soon(shared.try_acquire()).await;
        assert_says(refused, ErrorKind::Unsupported, &[dialect]);
    }
}

/// A hold of the default layout was upgraded while a candidate with a bare value waited.
#[tokio::test(flavor = "multi_thread")]
async fn a_bare_candidate_gets_a_greater_token_than_an_upgrade_before_it() {
    needs!(zookeeper);
    let client = client_of(&SHARED).await;
    let at = url(SHARED.port(), "&dialect=curator-selector");
    let candidate = connect(&at).await;
    let name = unique("upgraded");
    let upgradable = client.lock(&name).upgradable().ttl(LONG);
    let upgradable = soon(upgradable.acquire()).await.unwrap();
    let waiting = start_campaign(&candidate, &name, "worker-7");
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    soon(upgradable.upgrade()).await.unwrap();
    let upgraded = upgradable.token();
    // A request to let go does not hide the upgrade.
    soon(candidate.election(&name).ask_to_resign())
        .await
        .unwrap();
    soon(upgradable.release()).await.unwrap();
    let term = soon(waiting).await.unwrap();
    assert!(term.token() > upgraded);
    assert_eq!(states(&SHARED, &name), ["worker-7"]);
    soon(term.resign()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_has_no_leader() {
    needs!(zookeeper);
    let at = url(SHARED.port(), "&dialect=curator-semaphore");
    let client = connect(&at).await;
    let election = client.election("sem");
    let refused = soon(election.campaign()).await;
    assert_says(
        refused,
        ErrorKind::Unsupported,
        &["no elections", "another `dialect`"],
    );
    let refused = soon(election.observe().next()).await.unwrap();
    assert_says(refused, ErrorKind::Unsupported, &["no elections"]);
}
