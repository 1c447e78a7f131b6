//! ZooKeeper: Curator, go-zk, zookeeper-client and kazoo with Curator's names; and who only half belongs to them.

use std::time::Duration;

use tenure::ErrorKind;

use crate::support::{
    self, Driver, LONG, PATIENCE, granted_by_mistake, hex, millis, or_skip, our_holder, soon, take,
    try_fails, waiting,
};
use crate::zookeeper_peers::{SESSION, SHORT_SESSION, Zookeeper, number, start};

/// The clients that wait for each other, and we with them.
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
    we_wait_for_them
    they_wait_for_us
    all_are_served_in_order
    they_are_killed
    we_are_killed
    no_increment_is_lost
    paths_are_taken_as_written
}

/// What Curator and its family would take for a contender, and sort by its number.
fn is_curators(node: &str) -> bool {
    let rest = node.strip_prefix("_c_").unwrap_or_default();
    let uuid = rest.get(..36).unwrap_or_default();
    let digits = number(node).bytes().all(|byte| byte.is_ascii_digit());
    uuid.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && rest[36..] == format!("-lock-{}", number(node))
        && digits
}

async fn we_wait_for_them(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SESSION).await);
    let we = zookeeper.client("").await;
    let node = they.take("a", LONG).await;
    let nodes = zookeeper.nodes("a").await;
    assert_eq!(nodes.len(), 1);
    assert_eq!(hex(nodes[0].as_bytes()), node);
    assert!(try_fails(&we, "a").await);
    assert!(we.inspect("a").await.unwrap().is_held());
    let short = we.lock("a").wait(Duration::from_millis(50));
    let error = short.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    assert_eq!(zookeeper.nodes("a").await, nodes, "we have left a node");

    let mut waiting = waiting(&we, "a");
    zookeeper.until_queued("a", 2).await;
    assert!(
        !granted_by_mistake(&mut waiting).await,
        "we have not waited"
    );
    they.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    assert!(they.try_fails("a").await);
    guard.release().await.unwrap();
    assert!(!they.try_fails("a").await);
}

async fn they_wait_for_us(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SESSION).await);
    let we = zookeeper.client("").await;
    let guard = take(&we, "a").await;
    let ours = zookeeper.nodes("a").await;
    assert!(ours.len() == 1 && is_curators(&ours[0]), "{ours:?}");
    let data = zookeeper.data(&format!("/a/{}", ours[0])).await;
    assert!(data.contains(&std::process::id().to_string()), "{data}");
    assert!(they.try_fails("a").await);
    assert_eq!(they.ask(&["locked", "a"]).await, "yes");
    assert_eq!(they.ask(&["lock", "a", "200", "0"]).await, "busy");
    zookeeper.until_queued("a", 1).await;

    they.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    zookeeper.until_queued("a", 2).await;
    assert_eq!(zookeeper.nodes("a").await[0], ours[0], "we hold");
    guard.release().await.unwrap();
    let node = they.held().await;
    assert_eq!(hex(zookeeper.nodes("a").await[0].as_bytes()), node);
    assert!(try_fails(&we, "a").await);
    they.unlock("a").await;
    zookeeper.until_queued("a", 0).await;
}

/// Whoever came first is served first, whatever program it runs.
async fn all_are_served_in_order(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SESSION).await);
    // A client asks for a name once, however many of its tasks want it.
    let (we, other) = (zookeeper.client("").await, zookeeper.client("").await);
    let last = zookeeper.client("").await;
    let first = take(&we, "a").await;
    they.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    zookeeper.until_queued("a", 2).await;
    let mut second = waiting(&other, "a");
    zookeeper.until_queued("a", 3).await;
    let mut third = waiting(&last, "a");
    zookeeper.until_queued("a", 4).await;
    let first_token = first.token();
    first.release().await.unwrap();
    they.held().await;
    assert!(!granted_by_mistake(&mut second).await && !granted_by_mistake(&mut third).await);
    they.unlock("a").await;
    let second = soon("the second one's turn", second).await.unwrap();
    assert!(!granted_by_mistake(&mut third).await);
    let second_token = second.token();
    assert!(first_token < second_token);
    they.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    zookeeper.until_queued("a", 3).await;
    second.release().await.unwrap();
    let third = soon("the third one's turn", third).await.unwrap();
    assert!(second_token < third.token());
    third.release().await.unwrap();
    they.held().await;
    they.unlock("a").await;
}

async fn they_are_killed(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SHORT_SESSION).await);
    let we = zookeeper.client("").await;
    they.take("a", LONG).await;
    they.kill();
    let lock = we.lock("a").wait(PATIENCE);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    guard.release().await.unwrap();
}

async fn we_are_killed(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SESSION).await);
    let mut we = our_holder(&zookeeper.url(""), "a", "2s").await;
    assert!(they.try_fails("a").await);
    we.kill().unwrap();
    they.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    let node = they.held().await;
    assert_eq!(hex(zookeeper.nodes("a").await[0].as_bytes()), node);
}

async fn no_increment_is_lost(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SESSION).await);
    let ours = (&zookeeper.client("").await, Duration::ZERO);
    support::no_increment_is_lost((&mut they, "0"), ours, "a", [3, 25]).await;
}

/// A root in our URL, or a path as a name, is the same directory to them. They need no parents made for them.
async fn paths_are_taken_as_written(zookeeper: Zookeeper, who: (&str, &str)) {
    let mut they = or_skip!(start(&zookeeper, who, SESSION).await);
    let raw = zookeeper.client("?names=raw").await;
    let rooted = zookeeper.client("locks/app").await;
    let path = "locks/app/orders-42";
    they.take(path, LONG).await;
    assert!(try_fails(&raw, path).await);
    assert!(try_fails(&rooted, "orders-42").await);
    assert!(!try_fails(&rooted, "orders-43").await);
    they.unlock(path).await;
    for (client, name) in [(&raw, path), (&rooted, "orders-42")] {
        let guard = take(client, name).await;
        assert!(they.try_fails(path).await, "{name}");
        guard.release().await.unwrap();
    }
    // A directory that we have made is theirs, too.
    let guard = take(&raw, "made/by/us").await;
    assert!(they.try_fails("made/by/us").await);
    guard.release().await.unwrap();
    they.take("made/by/us", LONG).await;
}

/// Its own names are not those of the family: it does not see ours, and nobody else sees its. We do.
#[tokio::test]
async fn kazoo_as_it_is_barges_past_us_and_we_wait_for_it() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut they = or_skip!(start(&zookeeper, ("python", "kazoo"), SESSION).await);
    let we = zookeeper.client("").await;
    they.take("a", LONG).await;
    assert!(try_fails(&we, "a").await);
    let waiting = waiting(&we, "a");
    zookeeper.until_queued("a", 2).await;
    they.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    // As docs/stores/zookeeper.md says.
    assert!(!they.try_fails("a").await, "kazoo has learned of us");
    assert!(guard.is_held());
}

/// `extra_lock_patterns=["-lock-"]` makes it wait for the family, and us for it; Curator would still barge past it.
#[tokio::test]
async fn kazoo_with_a_pattern_and_we_exclude_each_other() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let client = ("python", "kazoo-patterns");
    let mut they = or_skip!(start(&zookeeper, client, SESSION).await);
    let we = zookeeper.client("").await;
    they.take("a", LONG).await;
    assert!(try_fails(&we, "a").await);
    let waiting = waiting(&we, "a");
    zookeeper.until_queued("a", 2).await;
    they.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    assert!(they.try_fails("a").await);
    they.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    zookeeper.until_queued("a", 2).await;
    guard.release().await.unwrap();
    they.held().await;
    let mut curator = or_skip!(start(&zookeeper, CURATOR, SESSION).await);
    assert!(
        !curator.try_fails("a").await,
        "Curator has learned of kazoo"
    );
    assert!(
        try_fails(&we, "a").await,
        "two hold, and we are not a third"
    );
}

/// Curator's read and write locks do not see a mutex, and we take both for exclusive ones.
#[tokio::test]
async fn read_and_write_locks_of_curator_are_waited_for() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut they = or_skip!(start(&zookeeper, CURATOR, SESSION).await);
    let we = zookeeper.client("").await;
    for kind in ["read", "write"] {
        assert_eq!(they.ask(&["kind", kind]).await, format!("kind\t{kind}"));
        they.take("a", LONG).await;
        assert!(try_fails(&we, "a").await, "{kind}");
        let waiting = waiting(&we, "a");
        zookeeper.until_queued("a", 2).await;
        they.unlock("a").await;
        let guard = soon("our turn", waiting).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// ZooKeeper's own recipe looks at numbers only, as we do, but takes the text behind the last dash for one.
#[tokio::test]
async fn write_lock_of_zookeeper_and_we_exclude_each_other() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut they = or_skip!(start(&zookeeper, CURATOR, SESSION).await);
    let we = zookeeper.client("?dialect=session-prefix").await;
    assert_eq!(they.ask(&["kind", "recipe"]).await, "kind\trecipe");
    they.take("a", LONG).await;
    assert!(try_fails(&we, "a").await);
    let waiting = waiting(&we, "a");
    zookeeper.until_queued("a", 2).await;
    they.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    they.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    zookeeper.until_queued("a", 2).await;
    // It waits for ever for a node that goes between its list and its watch.
    zookeeper.until_watched("a").await;
    guard.release().await.unwrap();
    they.held().await;
    assert!(try_fails(&we, "a").await);
    they.unlock("a").await;
    zookeeper.until_queued("a", 0).await;
    // Last, because the watch of who was refused stays, and puts a node there again when it fires.
    let _guard = take(&we, "a").await;
    assert!(they.try_fails("a").await);
}

/// What does not end in ten digits contends with nobody.
#[tokio::test]
async fn a_stray_node_is_nobodys() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let we = zookeeper.client("").await;
    take(&we, "a").await.release().await.unwrap();
    zookeeper.put_plain_node("/a/notes").await;
    let guard = take(&we, "a").await;
    assert!(try_fails(&we, "a").await);
    guard.release().await.unwrap();
}

type Drivers = (Driver, Driver);

/// Two foreign clients and ours in one queue.
#[tokio::test]
async fn three_families_in_one_queue() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let pair = (
        start(&zookeeper, CURATOR, SESSION).await,
        start(&zookeeper, KAZOO, SESSION).await,
    );
    let (Some(curator), Some(kazoo)) = pair else {
        return;
    };
    let (mut curator, mut kazoo): Drivers = (curator, kazoo);
    let we = zookeeper.client("").await;
    curator.take("a", LONG).await;
    kazoo.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    zookeeper.until_queued("a", 2).await;
    let mut ours = waiting(&we, "a");
    zookeeper.until_queued("a", 3).await;
    curator.unlock("a").await;
    curator.tell(&["lock", "a", &millis(PATIENCE), "0"]);
    kazoo.held().await;
    zookeeper.until_queued("a", 3).await;
    assert!(!granted_by_mistake(&mut ours).await, "kazoo was before us");
    kazoo.unlock("a").await;
    let guard = soon("our turn", ours).await.unwrap();
    zookeeper.until_queued("a", 2).await;
    guard.release().await.unwrap();
    curator.held().await;
}
