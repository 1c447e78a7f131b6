//! ZooKeeper: Curator, go-zk, zookeeper-client and kazoo with Curator's names, and recipes that are compatible in one
//! direction only.

use std::time::Duration;

use tenure::ErrorKind;

use crate::support::{
    self, Driver, LONG, WAIT_TIMEOUT, granted_by_mistake, hex, millis, or_skip, our_holder, soon,
    take, try_fails, waiting,
};
use crate::zookeeper_peers::{SESSION, SHORT_SESSION, Zookeeper, number, start};

/// The clients that wait for each other and for our client.
const CURATOR: (&str, &str) = ("curator", "");
const KAZOO: (&str, &str) = ("python", "kazoo-curator");
const GO: (&str, &str) = ("go", "go-zk");
const RUST: (&str, &str) = ("rust", "zookeeper-client");

macro_rules! with_each_client {
    ($($test:ident)*) => {
        with_each_client! { @ curator CURATOR $($test)* }
        with_each_client! { @ kazoo KAZOO $($test)* }
        with_each_client! { @ go_zk GO $($test)* }
        with_each_client! { @ zookeeper_client RUST $($test)* }
    };
    (@ $client:ident $who:ident $($test:ident)*) => {
        mod $client {
            use super::Zookeeper;
            $(
                #[tokio::test]
                async fn $test() {
                    let Some(zookeeper) = Zookeeper::start().await else { return };
                    super::$test(zookeeper, super::$who).await;
                }
            )*
        }
    };
}

with_each_client! {
    tenure_waits_for_a_foreign_holder
    a_foreign_client_waits_for_tenure
    all_are_served_in_order
    a_foreign_holder_is_killed
    a_holder_of_ours_is_killed
    no_increment_is_lost
    paths_are_taken_as_written
}

/// Whether Curator and compatible libraries take the node for a contender, and sort it by its number.
fn has_name_of_curator(node: &str) -> bool {
    let rest = node.strip_prefix("_c_").unwrap_or_default();
    let uuid = rest.get(..36).unwrap_or_default();
    let digits = number(node).bytes().all(|byte| byte.is_ascii_digit());
    uuid.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && rest[36..] == format!("-lock-{}", number(node))
        && digits
}

async fn tenure_waits_for_a_foreign_holder(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SESSION).await);
    let our_client = zookeeper.client("").await;
    let node = foreign.take("a", LONG).await;
    let nodes = zookeeper.nodes("a").await;
    assert_eq!(nodes.len(), 1);
    assert_eq!(hex(nodes[0].as_bytes()), node);
    assert!(try_fails(&our_client, "a").await);
    assert!(our_client.inspect("a").await.unwrap().is_held());
    let short = our_client.lock("a").wait(Duration::from_millis(50));
    let error = short.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    // Our node may be deleted a moment after the call has returned.
    zookeeper.until_queued("a", 1).await;
    assert_eq!(zookeeper.nodes("a").await, nodes);

    let mut waiting = waiting(&our_client, "a");
    zookeeper.until_queued("a", 2).await;
    assert!(
        !granted_by_mistake(&mut waiting).await,
        "we have not waited"
    );
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    assert!(foreign.try_fails("a").await);
    guard.release().await.unwrap();
    assert!(!foreign.try_fails("a").await);
}

async fn a_foreign_client_waits_for_tenure(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SESSION).await);
    let our_client = zookeeper.client("").await;
    let guard = take(&our_client, "a").await;
    let ours = zookeeper.nodes("a").await;
    assert!(ours.len() == 1 && has_name_of_curator(&ours[0]), "{ours:?}");
    let data = zookeeper.data(&format!("/a/{}", ours[0])).await;
    assert!(data.contains(&std::process::id().to_string()), "{data}");
    assert!(foreign.try_fails("a").await);
    assert_eq!(foreign.ask(&["locked", "a"]).await, "yes");
    assert_eq!(foreign.ask(&["lock", "a", "200", "0"]).await, "busy");
    zookeeper.until_queued("a", 1).await;

    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    zookeeper.until_queued("a", 2).await;
    assert_eq!(zookeeper.nodes("a").await[0], ours[0], "we hold");
    guard.release().await.unwrap();
    let node = foreign.held().await;
    assert_eq!(hex(zookeeper.nodes("a").await[0].as_bytes()), node);
    assert!(try_fails(&our_client, "a").await);
    foreign.unlock("a").await;
    zookeeper.until_queued("a", 0).await;
}

/// The client that came first is served first, no matter which program it is.
async fn all_are_served_in_order(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SESSION).await);
    // A client asks for a name once, also when several of its tasks want the name; so each waiter is a client.
    let (our_client, other) = (zookeeper.client("").await, zookeeper.client("").await);
    let last = zookeeper.client("").await;
    let first = take(&our_client, "a").await;
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    zookeeper.until_queued("a", 2).await;
    let mut second = waiting(&other, "a");
    zookeeper.until_queued("a", 3).await;
    let mut third = waiting(&last, "a");
    zookeeper.until_queued("a", 4).await;
    let first_token = first.token();
    first.release().await.unwrap();
    foreign.held().await;
    assert!(!granted_by_mistake(&mut second).await && !granted_by_mistake(&mut third).await);
    foreign.unlock("a").await;
    let second = soon("the second one's turn", second).await.unwrap();
    assert!(!granted_by_mistake(&mut third).await);
    let second_token = second.token();
    assert!(first_token < second_token);
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    zookeeper.until_queued("a", 3).await;
    second.release().await.unwrap();
    let third = soon("the third one's turn", third).await.unwrap();
    assert!(second_token < third.token());
    third.release().await.unwrap();
    foreign.held().await;
    foreign.unlock("a").await;
}

async fn a_foreign_holder_is_killed(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SHORT_SESSION).await);
    let our_client = zookeeper.client("").await;
    foreign.take("a", LONG).await;
    foreign.kill();
    let lock = our_client.lock("a").wait(WAIT_TIMEOUT);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    guard.release().await.unwrap();
}

async fn a_holder_of_ours_is_killed(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SESSION).await);
    let mut our_client = our_holder(&zookeeper.url(""), "a", "6s").await;
    assert!(foreign.try_fails("a").await);
    our_client.kill().unwrap();
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    let node = foreign.held().await;
    assert_eq!(hex(zookeeper.nodes("a").await[0].as_bytes()), node);
}

async fn no_increment_is_lost(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SESSION).await);
    let ours = (&zookeeper.client("").await, Duration::ZERO);
    support::no_increment_is_lost((&mut foreign, "0"), ours, "a", [3, 25]).await;
}

/// A path in our URL, or a path as a name, is the same directory for the foreign client, which creates missing parents
/// itself.
async fn paths_are_taken_as_written(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut foreign = or_skip!(start(&zookeeper, who, SESSION).await);
    let raw = zookeeper.client("?names=raw").await;
    let rooted = zookeeper.client("locks/app").await;
    let path = "locks/app/orders-42";
    foreign.take(path, LONG).await;
    assert!(try_fails(&raw, path).await);
    assert!(try_fails(&rooted, "orders-42").await);
    assert!(!try_fails(&rooted, "orders-43").await);
    foreign.unlock(path).await;
    for (client, name) in [(&raw, path), (&rooted, "orders-42")] {
        let guard = take(client, name).await;
        assert!(foreign.try_fails(path).await, "{name}");
        guard.release().await.unwrap();
    }
    // The foreign client also uses a directory that our client created.
    let guard = take(&raw, "made/by/us").await;
    assert!(foreign.try_fails("made/by/us").await);
    guard.release().await.unwrap();
    foreign.take("made/by/us", LONG).await;
}

/// kazoo's own node names differ from those of Curator: kazoo does not see our nodes, and Curator does not see kazoo's
/// nodes. Our client sees them.
#[tokio::test]
async fn kazoo_with_its_own_names_overtakes_us_and_we_wait_for_it() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(start(&zookeeper, ("python", "kazoo"), SESSION).await);
    let our_client = zookeeper.client("").await;
    foreign.take("a", LONG).await;
    assert!(try_fails(&our_client, "a").await);
    let waiting = waiting(&our_client, "a");
    zookeeper.until_queued("a", 2).await;
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    // As docs/stores/zookeeper.md says.
    assert!(!foreign.try_fails("a").await, "kazoo has learned of us");
    assert!(guard.is_held());
}

/// With `extra_lock_patterns=["-lock-"]` kazoo and our client exclude each other; Curator would still overtake kazoo.
#[tokio::test]
async fn kazoo_with_a_pattern_and_we_exclude_each_other() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let client = ("python", "kazoo-patterns");
    let mut foreign = or_skip!(start(&zookeeper, client, SESSION).await);
    let our_client = zookeeper.client("").await;
    foreign.take("a", LONG).await;
    assert!(try_fails(&our_client, "a").await);
    let waiting = waiting(&our_client, "a");
    zookeeper.until_queued("a", 2).await;
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    assert!(foreign.try_fails("a").await);
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    zookeeper.until_queued("a", 2).await;
    guard.release().await.unwrap();
    foreign.held().await;
    let mut curator = or_skip!(start(&zookeeper, CURATOR, SESSION).await);
    assert!(
        !curator.try_fails("a").await,
        "Curator has learned of kazoo"
    );
    assert!(
        try_fails(&our_client, "a").await,
        "two hold, and we are not a third"
    );
}

/// Curator's read and write locks do not see a mutex, and our client takes both for exclusive locks.
#[tokio::test]
async fn read_and_write_locks_of_curator_are_waited_for() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(start(&zookeeper, CURATOR, SESSION).await);
    let our_client = zookeeper.client("").await;
    for kind in ["read", "write"] {
        assert_eq!(foreign.ask(&["kind", kind]).await, format!("kind\t{kind}"));
        foreign.take("a", LONG).await;
        assert!(try_fails(&our_client, "a").await, "{kind}");
        let waiting = waiting(&our_client, "a");
        zookeeper.until_queued("a", 2).await;
        foreign.unlock("a").await;
        let guard = soon("our turn", waiting).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// ZooKeeper's own recipe orders by numbers only, as our client does, but takes the text behind the last dash for a
/// number.
#[tokio::test]
async fn write_lock_of_zookeeper_and_we_exclude_each_other() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(start(&zookeeper, CURATOR, SESSION).await);
    let our_client = zookeeper.client("?dialect=session-prefix").await;
    assert_eq!(foreign.ask(&["kind", "recipe"]).await, "kind\trecipe");
    foreign.take("a", LONG).await;
    assert!(try_fails(&our_client, "a").await);
    let waiting = waiting(&our_client, "a");
    zookeeper.until_queued("a", 2).await;
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    zookeeper.until_queued("a", 2).await;
    // The recipe waits for ever for a node that is deleted between its list and its watch.
    zookeeper.until_watched("a").await;
    guard.release().await.unwrap();
    foreign.held().await;
    assert!(try_fails(&our_client, "a").await);
    foreign.unlock("a").await;
    zookeeper.until_queued("a", 0).await;
    // This comes last, because the watch of the refused contender stays, and creates a node again when it fires.
    let _guard = take(&our_client, "a").await;
    assert!(foreign.try_fails("a").await);
}

/// A node whose name does not end in ten digits is no contender.
#[tokio::test]
async fn a_node_without_a_number_is_no_contender() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let our_client = zookeeper.client("").await;
    take(&our_client, "a").await.release().await.unwrap();
    zookeeper.put_plain_node("/a/notes").await;
    let guard = take(&our_client, "a").await;
    assert!(try_fails(&our_client, "a").await);
    guard.release().await.unwrap();
}

type Drivers = (Driver, Driver);

/// Two foreign clients and ours in one queue.
#[tokio::test]
async fn three_libraries_in_one_queue() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let pair = (
        start(&zookeeper, CURATOR, SESSION).await,
        start(&zookeeper, KAZOO, SESSION).await,
    );
    let (Some(curator), Some(kazoo)) = pair else {
        return;
    };
    let (mut curator, mut kazoo): Drivers = (curator, kazoo);
    let our_client = zookeeper.client("").await;
    curator.take("a", LONG).await;
    kazoo.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    zookeeper.until_queued("a", 2).await;
    let mut ours = waiting(&our_client, "a");
    zookeeper.until_queued("a", 3).await;
    curator.unlock("a").await;
    curator.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "0"]);
    kazoo.held().await;
    zookeeper.until_queued("a", 3).await;
    assert!(!granted_by_mistake(&mut ours).await, "kazoo was before us");
    kazoo.unlock("a").await;
    let guard = soon("our turn", ours).await.unwrap();
    zookeeper.until_queued("a", 2).await;
    guard.release().await.unwrap();
    curator.held().await;
}
