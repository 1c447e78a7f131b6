//! etcd: the Election of its own Go package, `etcdctl elect`, and the Election service over HTTP.

use std::time::Duration;

use tenure::{Client, ErrorKind, Observer, Term};
use tokio::task::JoinHandle;

use crate::etcd_candidates::{ForeignCandidate, ForeignObserver};
use crate::etcd_peers::Etcd;
use crate::support::{LONG, or_skip, our_holder_in, soon, until};

/// The shortest lease that the server grants: it is never shorter than one and a half election timeouts.
const SHORT: Duration = Duration::from_secs(2);

macro_rules! with_each_candidate {
    ($($test:ident)*) => {
        with_each_candidate! { @ go $($test)* }
        with_each_candidate! { @ etcdctl $($test)* }
        with_each_candidate! { @ service $($test)* }
    };
    (@ $candidate:ident $($test:ident)*) => {
        mod $candidate {
            use super::{Etcd, ForeignCandidate};
            $(
                #[tokio::test]
                async fn $test() {
                    let Some(etcd) = Etcd::start() else { return };
                    let Some(foreign) = ForeignCandidate::$candidate(&etcd).await else { return };
                    super::$test(etcd, foreign).await;
                }
            )*
        }
    };
}

with_each_candidate! {
    tenure_waits_for_a_foreign_leader
    a_foreign_candidate_waits_for_our_leader
    a_leader_of_ours_is_killed
    all_are_elected_in_order
}

async fn campaign(client: &Client, name: &str, value: &str) -> Term {
    let election = client.election(name).ttl(LONG).value(value);
    soon("our election", election.campaign()).await.unwrap()
}

fn start_campaign(client: &Client, name: &str, value: &str) -> JoinHandle<Term> {
    let election = client.election(name).ttl(LONG).value(value);
    tokio::spawn(async move { election.campaign().await.unwrap() })
}

/// Waits until `count` candidates lead or wait.
async fn until_queued(etcd: &Etcd, name: &str, count: usize) {
    let what = format!("{count} candidates for {name}");
    until(&what, || etcd.keys(name).len() == count).await;
}

/// Token, host and value of the next leader that our observer tells; `None`: nobody leads.
async fn next(observer: &mut Observer) -> Option<(u64, String, String)> {
    let told = soon("what the observer tells", observer.next()).await;
    let leader = told.unwrap().unwrap()?;
    let value = leader.value().unwrap_or_default().to_owned();
    Some((leader.token.unwrap().get(), leader.holder.host, value))
}

/// The value of the next leader, which is not ours: it has no host.
async fn next_foreign(observer: &mut Observer) -> (u64, String) {
    let (token, host, value) = next(observer).await.expect("there is a leader");
    assert_eq!(host, "");
    (token, value)
}

/// The next leader is ours.
async fn assert_next_is(observer: &mut Observer, term: &Term, value: &str) {
    let (token, host, shown) = next(observer).await.expect("there is a leader");
    assert_eq!((token, &*shown), (term.token().get(), value));
    assert_ne!(host, "");
}

async fn tenure_waits_for_a_foreign_leader(etcd: Etcd, mut foreign: ForeignCandidate) {
    let (our_client, looks) = (etcd.client("").await, etcd.client("").await);
    let mut observer = looks.election("e").observe();
    assert_eq!(next(&mut observer).await, None);
    let key = foreign.campaign("e", "theirs", LONG).await;
    assert_eq!(etcd.keys("e"), [key]);
    let created = etcd.created("e")[0];
    assert_eq!(
        next_foreign(&mut observer).await,
        (created, "theirs".into())
    );
    let leader = looks.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value(), Some("theirs"));
    assert_eq!(leader.token.unwrap().get(), created);
    // No request can reach another program.
    let asked = looks.election("e").ask_to_resign().await;
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::Unsupported);
    let mut waiting = start_campaign(&our_client, "e", "ours");
    until_queued(&etcd, "e", 2).await;
    let moment = Duration::from_millis(50);
    let early = tokio::time::timeout(moment, &mut waiting).await;
    assert!(early.is_err(), "we have not waited");
    for value in ["again", "", "and again"] {
        if foreign.proclaim("e", value).await {
            assert_eq!(next_foreign(&mut observer).await, (created, value.into()));
        }
    }
    foreign.resign("e").await;
    let term = soon("our turn", waiting).await.unwrap();
    assert!(term.token().get() > created);
    assert_next_is(&mut observer, &term, "ours").await;
    soon("our end", term.resign()).await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    until_queued(&etcd, "e", 0).await;
    assert_eq!(etcd.all_keys(), [""; 0]);
}

async fn a_foreign_candidate_waits_for_our_leader(etcd: Etcd, mut foreign: ForeignCandidate) {
    let our_client = etcd.client("").await;
    let term = campaign(&our_client, "e", "ours").await;
    assert_eq!(etcd.leader_of_service("e").as_deref(), Some("ours"));
    foreign.begin("e", "theirs", LONG).await;
    until_queued(&etcd, "e", 2).await;
    assert!(!foreign.is_elected().await, "two lead");
    soon("our value", term.proclaim("ours, later"))
        .await
        .unwrap();
    assert_eq!(etcd.leader_of_service("e").as_deref(), Some("ours, later"));
    assert!(!foreign.is_elected().await, "two lead");
    soon("our end", term.resign()).await.unwrap();
    let key = foreign.elected().await;
    assert_eq!(etcd.keys("e"), [key]);
    assert_eq!(etcd.leader_of_service("e").as_deref(), Some("theirs"));
    foreign.resign("e").await;
    until_queued(&etcd, "e", 0).await;
    assert_eq!(etcd.leader_of_service("e"), None);
    assert_eq!(etcd.all_keys(), [""; 0]);
}

/// After `kill -9` the server ends the lease, and the next candidate leads.
async fn a_leader_of_ours_is_killed(etcd: Etcd, mut foreign: ForeignCandidate) {
    let options = ["--value", "killed", "--ttl", "6s"];
    let mut ours = our_holder_in(&etcd.url(""), "e", &options).await;
    let mut observer = etcd.client("").await.election("e").observe();
    let (killed, host, value) = next(&mut observer).await.unwrap();
    assert_eq!(value, "killed");
    assert_ne!(host, "");
    foreign.begin("e", "theirs", LONG).await;
    until_queued(&etcd, "e", 2).await;
    ours.kill().unwrap();
    foreign.elected().await;
    let (token, value) = next_foreign(&mut observer).await;
    assert!(token > killed && value == "theirs");
    foreign.resign("e").await;
    assert_eq!(next(&mut observer).await, None);
    assert_eq!(etcd.all_keys(), [""; 0], "the record of the killed leader");
}

/// The candidate that came first is elected first, no matter which program it is.
async fn all_are_elected_in_order(etcd: Etcd, mut foreign: ForeignCandidate) {
    let clients = [etcd.client("").await, etcd.client("?lease=lock").await];
    let term = campaign(&clients[0], "e", "first").await;
    foreign.begin("e", "second", LONG).await;
    until_queued(&etcd, "e", 2).await;
    let mut third = start_campaign(&clients[1], "e", "third");
    until_queued(&etcd, "e", 3).await;
    let first = term.token().get();
    soon("our end", term.resign()).await.unwrap();
    foreign.elected().await;
    let second = etcd.created("e")[0];
    let moment = Duration::from_millis(50);
    assert!(tokio::time::timeout(moment, &mut third).await.is_err());
    foreign.resign("e").await;
    let term = soon("the third one's turn", third).await.unwrap();
    assert!(first < second && second < term.token().get());
    soon("our end", term.resign()).await.unwrap();
}

#[tokio::test]
async fn a_leader_of_go_is_killed() {
    let Some(etcd) = Etcd::start() else { return };
    let mut foreign = or_skip!(ForeignCandidate::go(&etcd).await);
    let our_client = etcd.client("").await;
    foreign.campaign("e", "theirs", SHORT).await;
    let waiting = start_campaign(&our_client, "e", "ours");
    until_queued(&etcd, "e", 2).await;
    foreign.kill();
    let term = soon("our turn", waiting).await.unwrap();
    soon("our end", term.resign()).await.unwrap();
}

/// A lock of Go and an election of ours exclude each other, and the other way round.
#[tokio::test]
async fn a_mutex_of_go_waits_for_our_leader() {
    let Some(etcd) = Etcd::start() else { return };
    let mut mutex = or_skip!(crate::etcd_peers::ForeignClient::go(&etcd).await);
    let our_client = etcd.client("").await;
    let term = campaign(&our_client, "e", "ours").await;
    assert!(mutex.try_fails("e").await);
    soon("our end", term.resign()).await.unwrap();
    mutex.take("e", LONG).await;
    let waiting = start_campaign(&our_client, "e", "ours");
    until_queued(&etcd, "e", 2).await;
    assert!(!waiting.is_finished());
    // What holds has no value, whatever it is.
    let leader = our_client.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value(), None);
    mutex.unlock("e").await;
    soon("our turn", waiting)
        .await
        .unwrap()
        .resign()
        .await
        .unwrap();
}

/// Observers of other programs see each leader and each value of ours, bare.
async fn foreign_observers_see_ours(etcd: &Etcd, mut foreign: ForeignObserver) {
    let (first, second) = (etcd.client("").await, etcd.client("?lease=lock").await);
    let term = campaign(&first, "e", "one").await;
    assert_eq!(foreign.next().await, "one");
    for value in ["two", "https://h:1/?a=\"b\"", "three"] {
        soon("our value", term.proclaim(value)).await.unwrap();
        assert_eq!(foreign.next().await, value);
    }
    let waiting = start_campaign(&second, "e", "four");
    until_queued(etcd, "e", 2).await;
    soon("our end", term.resign()).await.unwrap();
    let term = soon("the next term", waiting).await.unwrap();
    assert_eq!(foreign.next().await, "four");
    soon("our end", term.resign()).await.unwrap();
}

#[tokio::test]
async fn observe_of_go_sees_ours() {
    let Some(etcd) = Etcd::start() else { return };
    let foreign = or_skip!(ForeignObserver::go(&etcd, "e").await);
    foreign_observers_see_ours(&etcd, foreign).await;
}

#[tokio::test]
async fn etcdctl_sees_ours() {
    let Some(etcd) = Etcd::start() else { return };
    let foreign = or_skip!(ForeignObserver::etcdctl(&etcd, "e").await);
    foreign_observers_see_ours(&etcd, foreign).await;
}

#[tokio::test]
async fn leader_of_go_is_ours() {
    let Some(etcd) = Etcd::start() else { return };
    let mut foreign = or_skip!(ForeignCandidate::go(&etcd).await);
    assert_eq!(foreign.leader("e").await, None);
    let our_client = etcd.client("").await;
    let term = campaign(&our_client, "e", "ours").await;
    assert_eq!(foreign.leader("e").await.as_deref(), Some("ours"));
    soon("our end", term.resign()).await.unwrap();
    assert_eq!(foreign.leader("e").await, None);
}
