//! Curator's locks beside ours in every mode: `InterProcessMutex` beside holds that are upgraded, and
//! `InterProcessReadWriteLock`, whose readers share with ours, and the permits of `InterProcessSemaphoreV2`.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Client, Guard, Lock};
use tenure_testkit::proxy::Proxy;
use tokio::task::JoinHandle;

use crate::support::{
    self, Driver, LONG, Server as _, WAIT_TIMEOUT, granted_by_mistake, millis, or_skip, our_holder,
    soon, take, try_fails, waiting,
};
use crate::zookeeper_peers::{SESSION, SHORT_SESSION, Zookeeper, start};

const CURATOR: (&str, &str) = ("curator", "");

/// Our clients with the node names of Curator's readers and writers.
const READ_WRITE: &str = "?dialect=curator-readwrite";

async fn curator(zookeeper: &Zookeeper, session: Duration) -> Option<Driver> {
    start(zookeeper, CURATOR, session).await
}

async fn set_kind(driver: &mut Driver, kind: &str) {
    assert_eq!(driver.ask(&["kind", kind]).await, format!("kind\t{kind}"));
}

/// A client of ours whose host vanishes when the proxy holds its messages back.
async fn behind_a_proxy(zookeeper: &Zookeeper, options: &str) -> (Proxy, Client) {
    let proxy = Proxy::zookeeper(zookeeper.port());
    let url = format!("zookeeper://127.0.0.1:{}/{options}", proxy.port());
    let client = soon("a client", tenure::connect(&url)).await.unwrap();
    (proxy, client)
}

/// Curator starts to wait for the lock.
fn tell_lock(driver: &mut Driver, name: &str) {
    driver.tell(&["lock", name, &millis(WAIT_TIMEOUT), "0"]);
}

fn waiting_for(lock: Lock) -> JoinHandle<Guard> {
    let lock = lock.ttl(LONG).wait(WAIT_TIMEOUT);
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

async fn reader(client: &Client, name: &str) -> Guard {
    let guard = client.lock(name).shared().ttl(LONG).try_acquire().await;
    guard.unwrap().expect("a reader was refused")
}

async fn reader_fails(client: &Client, name: &str) -> bool {
    let tried = client.lock(name).shared().try_acquire().await;
    tried.unwrap().is_none()
}

/// Whether `try` of the foreign client is granted; it is released again.
async fn is_let_in(driver: &mut Driver, name: &str) -> bool {
    let is_granted = !driver.try_fails(name).await;
    if is_granted {
        driver.unlock(name).await;
    }
    is_granted
}

/// A mutex waits for our upgradable holder, stays behind its upgrade, and comes after it.
#[tokio::test]
async fn a_mutex_waits_for_upgradable_and_upgraded_holders() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let (our_client, other) = (zookeeper.client("").await, zookeeper.client("").await);
    let lock = our_client.lock("a").ttl(LONG).upgradable();
    let upgradable = Arc::new(lock.acquire().await.unwrap());
    assert!(foreign.try_fails("a").await);
    let beside = reader(&other, "a").await;
    tell_lock(&mut foreign, "a");
    zookeeper.until_queued("a", 3).await;
    let upgrading = {
        let guard = upgradable.clone();
        tokio::spawn(async move { guard.upgrade().await })
    };
    // The mutex waits for the reader just before it, and then for the holder that was upgraded.
    beside.release().await.unwrap();
    soon("the upgrade", upgrading).await.unwrap().unwrap();
    zookeeper.until_queued("a", 2).await;
    assert!(upgradable.is_held());
    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    assert!(second.try_fails("a").await);
    // Behind the mutex no reader of ours comes in, also after a downgrade.
    upgradable.downgrade().await.unwrap();
    assert!(reader_fails(&other, "a").await);
    assert!(second.try_fails("a").await);
    Arc::into_inner(upgradable)
        .unwrap()
        .release()
        .await
        .unwrap();
    foreign.held().await;
    assert!(reader_fails(&other, "a").await && try_fails(&other, "a").await);
    let lock = other.lock("a").upgradable();
    let mut waiting = waiting_for(lock);
    zookeeper.until_queued("a", 2).await;
    assert!(!granted_by_mistake(&mut waiting).await);
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    guard.upgrade().await.unwrap();
    assert!(second.try_fails("a").await);
    guard.release().await.unwrap();
    zookeeper.until_queued("a", 0).await;
}

/// The holder of a mutex is killed while our client waits with an upgradable request, and the other way round.
#[tokio::test]
async fn a_mutex_is_killed_and_an_upgraded_holder_is() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SHORT_SESSION).await);
    let (proxy, our_client) = behind_a_proxy(&zookeeper, "").await;
    foreign.take("a", LONG).await;
    let lock = our_client
        .lock("a")
        .upgradable()
        .ttl(Duration::from_secs(6));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    zookeeper.until_queued("a", 2).await;
    foreign.kill();
    let guard = soon("our turn", waiting).await.unwrap().unwrap();
    guard.upgrade().await.unwrap();
    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    tell_lock(&mut second, "a");
    zookeeper.until_queued("a", 2).await;
    proxy.hold_both(true);
    second.held().await;
    assert!(!guard.is_held(), "two hold");
    second.unlock("a").await;
}

/// Readers of Curator and ours hold together; a writer of either excludes them and is excluded by them.
#[tokio::test]
async fn readers_of_curator_and_ours_hold_together() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    let our_client = zookeeper.client(READ_WRITE).await;

    set_kind(&mut foreign, "read").await;
    foreign.take("a", LONG).await;
    let beside = reader(&our_client, "a").await;
    assert!(try_fails(&our_client, "a").await);
    set_kind(&mut second, "write").await;
    assert!(second.try_fails("a").await);
    let nodes = zookeeper.nodes("a").await;
    assert!(
        nodes.iter().all(|node| node.contains("-__READ__")),
        "{nodes:?}"
    );
    set_kind(&mut second, "read").await;
    assert!(is_let_in(&mut second, "a").await);
    foreign.unlock("a").await;
    beside.release().await.unwrap();

    let writer = take(&our_client, "a").await;
    let nodes = zookeeper.nodes("a").await;
    assert!(nodes[0].contains("-__WRIT__"), "{nodes:?}");
    for kind in ["read", "write"] {
        set_kind(&mut foreign, kind).await;
        assert!(foreign.try_fails("a").await, "{kind}");
    }
    writer.release().await.unwrap();

    set_kind(&mut foreign, "write").await;
    foreign.take("a", LONG).await;
    assert!(try_fails(&our_client, "a").await && reader_fails(&our_client, "a").await);
    set_kind(&mut second, "read").await;
    assert!(second.try_fails("a").await);
    foreign.unlock("a").await;
    assert!(is_let_in(&mut second, "a").await);
    reader(&our_client, "a").await.release().await.unwrap();
    zookeeper.until_queued("a", 0).await;
}

/// First come, first served: a writer of either keeps the readers of the other behind it, and the readers behind it come
/// in together.
#[tokio::test]
async fn no_reader_overtakes_a_writer_of_the_other() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut writer = or_skip!(curator(&zookeeper, SESSION).await);
    let mut late = or_skip!(curator(&zookeeper, SESSION).await);
    let (our_client, other) = (
        zookeeper.client(READ_WRITE).await,
        zookeeper.client(READ_WRITE).await,
    );
    let first = reader(&our_client, "a").await;
    set_kind(&mut writer, "write").await;
    tell_lock(&mut writer, "a");
    zookeeper.until_queued("a", 2).await;
    let mut ours = waiting_for(other.lock("a").shared());
    zookeeper.until_queued("a", 3).await;
    set_kind(&mut late, "read").await;
    tell_lock(&mut late, "a");
    zookeeper.until_queued("a", 4).await;
    assert!(
        !granted_by_mistake(&mut ours).await,
        "a reader overtook a writer"
    );
    first.release().await.unwrap();
    writer.held().await;
    assert!(
        !granted_by_mistake(&mut ours).await,
        "a reader beside a writer"
    );
    writer.unlock("a").await;
    let ours = soon("our reader's turn", ours).await.unwrap();
    late.held().await;
    // Both hold; a writer of ours waits for both, and their next reader behind it.
    let mut our_writer = waiting(&our_client, "a");
    zookeeper.until_queued("a", 3).await;
    ours.release().await.unwrap();
    set_kind(&mut writer, "read").await;
    assert!(writer.try_fails("a").await, "a reader overtook our writer");
    assert!(
        !granted_by_mistake(&mut our_writer).await,
        "a writer beside a reader"
    );
    late.unlock("a").await;
    let our_writer = soon("our writer's turn", our_writer).await.unwrap();
    our_writer.release().await.unwrap();
    zookeeper.until_queued("a", 0).await;
}

/// A reader of Curator is killed, and a reader and a writer of ours: the other side comes in.
#[tokio::test]
async fn readers_and_writers_are_killed() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SHORT_SESSION).await);
    let our_client = zookeeper.client(READ_WRITE).await;
    set_kind(&mut foreign, "read").await;
    foreign.take("a", LONG).await;
    let writer = waiting(&our_client, "a");
    zookeeper.until_queued("a", 2).await;
    foreign.kill();
    let guard = soon("our writer's turn", writer).await.unwrap();
    guard.release().await.unwrap();

    let mut second = or_skip!(curator(&zookeeper, SESSION).await);
    let mut ours = our_holder(&zookeeper.url(READ_WRITE), "a", "6s").await;
    set_kind(&mut second, "read").await;
    assert!(second.try_fails("a").await);
    ours.kill().unwrap();
    tell_lock(&mut second, "a");
    second.held().await;
    let (proxy, vanishing) = behind_a_proxy(&zookeeper, READ_WRITE).await;
    let lock = vanishing.lock("a").shared().ttl(Duration::from_secs(6));
    let beside = soon("our reader", lock.acquire()).await.unwrap();
    second.unlock("a").await;
    set_kind(&mut second, "write").await;
    tell_lock(&mut second, "a");
    zookeeper.until_queued("a", 2).await;
    proxy.hold_both(true);
    second.held().await;
    assert!(!beside.is_held(), "a writer beside a reader");
    second.unlock("a").await;
}

#[tokio::test]
async fn no_increment_of_a_writer_is_lost() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(curator(&zookeeper, SESSION).await);
    let our_client = zookeeper.client(READ_WRITE).await;
    set_kind(&mut foreign, "write").await;
    let ours = (&our_client, Duration::ZERO);
    support::no_increment_is_lost((&mut foreign, "0"), ours, "a", [3, 25]).await;
}

/// Our clients with the node names of Curator's semaphore.
const SEMAPHORE: &str = "?dialect=curator-semaphore";

async fn semaphore(zookeeper: &Zookeeper, session: Duration) -> Option<Driver> {
    let mut driver = curator(zookeeper, session).await?;
    let kind = driver.ask(&["kind", "semaphore", "2"]).await;
    assert_eq!(kind, "kind\tsemaphore");
    Some(driver)
}

async fn permit(client: &Client, name: &str) -> Option<Guard> {
    let lock = client.lock(name).permits(2).ttl(LONG);
    soon("an answer", lock.try_acquire()).await.unwrap()
}

/// There are two permits for the clients of both libraries; the client that came first is served first.
#[tokio::test]
async fn a_semaphore_of_curator_and_our_permits_are_one() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(semaphore(&zookeeper, SESSION).await);
    let mut second = or_skip!(semaphore(&zookeeper, SESSION).await);
    let (our_client, other) = (
        zookeeper.client(SEMAPHORE).await,
        zookeeper.client(SEMAPHORE).await,
    );
    let first = permit(&our_client, "a").await.expect("both are free");
    foreign.take("a", LONG).await;
    assert!(permit(&other, "a").await.is_none() && second.try_fails("a").await);
    let status = our_client.inspect("a").await.unwrap();
    assert_eq!(status.holds.len(), 2);
    assert!(
        status
            .holds
            .iter()
            .any(|hold| hold.token == Some(first.token()))
    );
    let listed = our_client.list("").await.unwrap();
    assert!(listed.iter().any(|status| status.name.as_str() == "a"));

    // Ours waits among the permits, Curator at the gate.
    let mut ours = waiting_for(other.lock("a").permits(2));
    zookeeper.until_queued("a/leases", 3).await;
    tell_lock(&mut second, "a");
    zookeeper.until_queued("a/locks", 2).await;
    assert!(!granted_by_mistake(&mut ours).await, "three permits");
    foreign.unlock("a").await;
    let ours = soon("our turn", ours).await.unwrap();
    assert!(ours.token() > first.token());
    zookeeper.until_queued("a/leases", 3).await;
    first.release().await.unwrap();
    second.held().await;
    zookeeper.until_queued("a/locks", 0).await;

    // The other way round.
    tell_lock(&mut foreign, "a");
    zookeeper.until_queued("a/leases", 3).await;
    let mut last = waiting_for(our_client.lock("a").permits(2));
    zookeeper.until_queued("a/locks", 2).await;
    ours.release().await.unwrap();
    foreign.held().await;
    assert!(!granted_by_mistake(&mut last).await, "three permits");
    second.unlock("a").await;
    let last = soon("our turn", last).await.unwrap();
    foreign.unlock("a").await;
    last.release().await.unwrap();
    zookeeper.until_queued("a/leases", 0).await;
    zookeeper.until_queued("a/locks", 0).await;
}

/// A holder of Curator is killed, and one that waits; the host of a holder of ours vanishes.
#[tokio::test]
async fn holders_of_permits_are_killed() {
    let zookeeper = or_skip!(Zookeeper::start().await);
    let mut foreign = or_skip!(semaphore(&zookeeper, SHORT_SESSION).await);
    let mut waits = or_skip!(semaphore(&zookeeper, SHORT_SESSION).await);
    let our_client = zookeeper.client(SEMAPHORE).await;
    let (proxy, vanishing) = behind_a_proxy(&zookeeper, SEMAPHORE).await;
    let lock = vanishing.lock("a").permits(2).ttl(Duration::from_secs(6));
    let first = soon("a permit", lock.acquire()).await.unwrap();
    foreign.take("a", LONG).await;
    tell_lock(&mut waits, "a");
    zookeeper.until_queued("a/leases", 3).await;
    let ours = waiting_for(our_client.lock("a").permits(2));
    zookeeper.until_queued("a/locks", 2).await;
    waits.kill();
    foreign.kill();
    let ours = soon("our turn", ours).await.unwrap();
    let mut second = or_skip!(semaphore(&zookeeper, SESSION).await);
    tell_lock(&mut second, "a");
    zookeeper.until_queued("a/leases", 3).await;
    proxy.hold_both(true);
    second.held().await;
    assert!(!first.is_held(), "three permits");
    assert!(ours.is_held());
    assert!(our_client.break_lock("a", ours.token()).await.unwrap());
    zookeeper.until_queued("a/leases", 1).await;
    second.unlock("a").await;
}
