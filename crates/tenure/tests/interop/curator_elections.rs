//! Curator's `LeaderLatch` and `LeaderSelector`, and kazoo's `Election`, beside our elections: one leader at a time, and each
//! sees the id or the value of the other.

use std::time::Duration;

use tenure::{Client, ErrorKind, Observer, Term};
use tokio::task::JoinHandle;

use crate::support::{
    Driver, LONG, WAIT_TIMEOUT, millis, or_skip, our_holder_in, soon, take, try_fails,
};
use crate::zookeeper_peers::{SESSION, SHORT_SESSION, Zookeeper, start};

/// A kind of election of Curator, and the option of our URL for the same election.
type Kind = (&'static str, &'static str);

const LATCH: Kind = ("latch", "?dialect=curator-latch");
const SELECTOR: Kind = ("selector", "?dialect=curator-selector");

async fn curator(zookeeper: &Zookeeper, session: Duration) -> Option<Driver> {
    start(zookeeper, ("curator", ""), session).await
}

/// Participants of Curator have this id from now on.
async fn set_kind(driver: &mut Driver, (kind, _): Kind, id: &str) {
    let answer = driver.ask(&["kind", kind, id]).await;
    assert_eq!(answer, format!("kind\t{kind}"));
}

/// The id of the leader, as Curator's `getLeader` returns it.
async fn leader(driver: &mut Driver) -> String {
    let answer = driver.ask(&["leader", "a"]).await;
    let id = answer.strip_prefix("leader\t");
    id.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

async fn leads(driver: &mut Driver) -> bool {
    driver.ask(&["leads", "a"]).await == "yes"
}

/// A participant of Curator starts to wait.
fn tell_campaign(driver: &mut Driver) {
    driver.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
}

async fn campaign(client: &Client, value: &str) -> Term {
    let election = client.election("a").value(value).ttl(LONG);
    soon("our term", election.campaign()).await.unwrap()
}

/// A candidate of ours starts to wait.
fn start_campaign(client: &Client, value: &str) -> JoinHandle<Term> {
    let election = client.election("a").value(value).ttl(LONG);
    tokio::spawn(async move { election.campaign().await.unwrap() })
}

/// Whether no candidate of ours is elected now.
async fn is_taken(client: &Client) -> bool {
    try_fails(client, "a").await
}

/// Waits until the observer shows a leader with this value.
async fn until_seen(observer: &mut Observer, value: &str) {
    soon(&format!("{value} is seen"), async {
        loop {
            let next = observer.next().await.expect("it goes on").unwrap();
            if next.is_some_and(|leader| leader.value() == Some(value)) {
                return;
            }
        }
    })
    .await;
}

async fn lead_in_turn(kind: Kind) {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    let (ours, other) = (
        zookeeper.client(kind.1).await,
        zookeeper.client(kind.1).await,
    );
    let mut observer = zookeeper.client(kind.1).await.election("a").observe();
    set_kind(&mut foreign, kind, "theirs").await;
    set_kind(&mut second, kind, "second").await;

    // Ours leads: theirs waits, and sees our value as the id.
    let term = campaign(&ours, "ours").await;
    until_seen(&mut observer, "ours").await;
    assert!(second.try_fails("a").await);
    zookeeper.until_queued("a", 1).await;
    assert_eq!(leader(&mut second).await, "ours");
    tell_campaign(&mut foreign);
    zookeeper.until_queued("a", 2).await;
    zookeeper.until_watched("a").await;
    assert_eq!(leader(&mut second).await, "ours");
    assert!(term.is_leader());
    soon("the end", term.resign()).await.unwrap();
    foreign.held().await;
    assert!(leads(&mut foreign).await);
    until_seen(&mut observer, "theirs").await;

    // Theirs leads: ours waits, and sees the id as the value.
    assert!(is_taken(&ours).await && second.try_fails("a").await);
    let seen = ours.election("a").leader().await.unwrap().unwrap();
    assert_eq!(seen.value(), Some("theirs"));
    let waiting = start_campaign(&other, "other");
    zookeeper.until_queued("a", 2).await;
    assert!(!waiting.is_finished());
    assert_eq!(leader(&mut second).await, "theirs");
    foreign.unlock("a").await;
    let term = soon("our turn", waiting).await.unwrap();
    assert!(Some(term.token()) > seen.token);
    until_seen(&mut observer, "other").await;
    assert_eq!(leader(&mut second).await, "other");
    assert!(second.try_fails("a").await);
    soon("the end", term.resign()).await.unwrap();
    zookeeper.until_queued("a", 0).await;
}

#[tokio::test]
async fn a_latch_and_ours_lead_in_turn() {
    lead_in_turn(LATCH).await;
}

#[tokio::test]
async fn a_selector_and_ours_lead_in_turn() {
    lead_in_turn(SELECTOR).await;
}

async fn leaders_are_killed(kind: Kind) {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SHORT_SESSION).await);
    let client = zookeeper.client(kind.1).await;
    let mut observer = zookeeper.client(kind.1).await.election("a").observe();
    set_kind(&mut foreign, kind, "theirs").await;
    foreign.take("a", LONG).await;
    until_seen(&mut observer, "theirs").await;
    let waiting = start_campaign(&client, "ours");
    zookeeper.until_queued("a", 2).await;
    foreign.kill();
    let term = soon("our turn", waiting).await.unwrap();
    until_seen(&mut observer, "ours").await;
    soon("the end", term.resign()).await.unwrap();

    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    set_kind(&mut second, kind, "second").await;
    let options = ["--ttl", "6s", "--value", "process"];
    let mut process = our_holder_in(&zookeeper.url(kind.1), "a", &options).await;
    until_seen(&mut observer, "process").await;
    assert!(second.try_fails("a").await);
    assert_eq!(leader(&mut second).await, "process");
    process.kill().unwrap();
    tell_campaign(&mut second);
    second.held().await;
    assert!(leads(&mut second).await && is_taken(&client).await);
    until_seen(&mut observer, "second").await;
}

#[tokio::test]
async fn a_latch_is_killed_and_a_leader_of_ours_is() {
    leaders_are_killed(LATCH).await;
}

#[tokio::test]
async fn a_selector_is_killed_and_a_leader_of_ours_is() {
    leaders_are_killed(SELECTOR).await;
}

/// A new value of ours is the new id, and a selector that waits behind us goes on waiting and takes over.
#[tokio::test]
async fn a_selector_sees_what_we_proclaim() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    let client = zookeeper.client(SELECTOR.1).await;
    set_kind(&mut foreign, SELECTOR, "theirs").await;
    set_kind(&mut second, SELECTOR, "second").await;
    let term = campaign(&client, "one").await;
    tell_campaign(&mut foreign);
    zookeeper.until_queued("a", 2).await;
    for value in ["two", "three"] {
        zookeeper.until_watched("a").await;
        soon("the value", term.proclaim(value)).await.unwrap();
        assert_eq!(leader(&mut second).await, value);
    }
    // The request to let go does not touch the value either.
    let election = client.election("a");
    soon("asking", election.ask_to_resign()).await.unwrap();
    assert!(soon("the request", term.asked_to_resign()).await);
    assert_eq!(leader(&mut second).await, "three");
    soon("the end", term.resign()).await.unwrap();
    foreign.held().await;
    foreign.unlock("a").await;
    zookeeper.until_queued("a", 0).await;
}

/// A latch takes one event of the node before its own, so nothing of ours may change that node but its end.
#[tokio::test]
async fn a_latch_behind_ours_takes_over_whatever_was_asked_of_us() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let client = zookeeper.client(LATCH.1).await;
    set_kind(&mut foreign, LATCH, "theirs").await;
    let term = campaign(&client, "ours").await;
    tell_campaign(&mut foreign);
    zookeeper.until_queued("a", 2).await;
    zookeeper.until_watched("a").await;
    let refused = soon("the refusal", term.proclaim("new")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let election = client.election("a");
    soon("asking", election.ask_to_resign()).await.unwrap();
    assert!(soon("the request", term.asked_to_resign()).await);
    soon("the end", term.resign()).await.unwrap();
    foreign.held().await;
    assert!(leads(&mut foreign).await);
}

/// In the default layout a selector and our election exclude each other too, and our observers see its id.
#[tokio::test]
async fn the_default_layout_excludes_a_selector() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let client = zookeeper.client("").await;
    let mut observer = zookeeper.client("").await.election("a").observe();
    set_kind(&mut foreign, SELECTOR, "theirs").await;
    let term = campaign(&client, "ours").await;
    until_seen(&mut observer, "ours").await;
    assert!(foreign.try_fails("a").await);
    tell_campaign(&mut foreign);
    zookeeper.until_queued("a", 2).await;
    soon("the value", term.proclaim("new")).await.unwrap();
    until_seen(&mut observer, "new").await;
    soon("the end", term.resign()).await.unwrap();
    foreign.held().await;
    until_seen(&mut observer, "theirs").await;
    let asked = client.election("a").ask_to_resign().await;
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::Unsupported);
    let waiting = start_campaign(&client, "ours");
    zookeeper.until_queued("a", 2).await;
    foreign.unlock("a").await;
    let term = soon("our turn", waiting).await.unwrap();
    until_seen(&mut observer, "ours").await;
    soon("the end", term.resign()).await.unwrap();
}

/// Curator's `Revoker` asks our holder, and we ask a lock of Curator that can be revoked.
#[tokio::test]
async fn curator_asks_us_and_we_ask_curator() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    for options in ["", SELECTOR.1] {
        let client = zookeeper.client(options).await;
        let guard = take(&client, "a").await;
        assert_eq!(foreign.ask(&["revoke", "a"]).await, "asked");
        assert!(soon("the request", guard.asked_to_release()).await);
        soon("the end", guard.release()).await.unwrap();
        let term = campaign(&client, "ours").await;
        let asked = tokio::spawn(term.asked_to_resign());
        zookeeper.until_watched("a").await;
        assert_eq!(foreign.ask(&["revoke", "a"]).await, "asked");
        assert!(soon("the request", asked).await.unwrap());
        assert!(term.is_leader());
        soon("the end", term.resign()).await.unwrap();
    }
    let client = zookeeper.client("").await;
    let election = client.election("a");
    set_kind(&mut foreign, ("revocable", ""), "").await;
    foreign.take("a", LONG).await;
    let asked = soon("asking", election.ask_to_resign()).await.unwrap();
    assert!(asked.is_some());
    let wait = millis(WAIT_TIMEOUT);
    assert_eq!(foreign.ask(&["revoked", "a", &wait]).await, "yes");
    foreign.unlock("a").await;
}

/// kazoo's `Election` with Curator's names: its identifier is the value.
#[tokio::test]
async fn an_election_of_kazoo_and_ours_lead_in_turn() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let client = ("python", "kazoo-election");
    let mut foreign = or_skip!(start(&zookeeper, client, SESSION).await);
    let client = zookeeper.client("").await;
    let mut observer = zookeeper.client("").await.election("a").observe();
    tell_campaign(&mut foreign);
    foreign.held().await;
    until_seen(&mut observer, "kazoo-7").await;
    assert!(is_taken(&client).await);
    let waiting = start_campaign(&client, "ours");
    zookeeper.until_queued("a", 2).await;
    foreign.unlock("a").await;
    let term = soon("our turn", waiting).await.unwrap();
    until_seen(&mut observer, "ours").await;
    tell_campaign(&mut foreign);
    zookeeper.until_queued("a", 2).await;
    soon("the value", term.proclaim("new")).await.unwrap();
    soon("the end", term.resign()).await.unwrap();
    foreign.held().await;
    until_seen(&mut observer, "kazoo-7").await;
    foreign.unlock("a").await;
}
