//! etcd: the Mutex of its own Go package, `etcdctl lock`, jetcd, and the Lock service over HTTP.

use std::slice::from_ref;
use std::time::{Duration, Instant};

use tenure::{ErrorKind, Renew};

use crate::etcd_peers::{Etcd, ForeignClient};
use crate::support::{
    self, Driver, LONG, WAIT_TIMEOUT, granted_by_mistake, or_skip, our_holder, soon, take,
    try_fails, until, waiting,
};

/// The shortest lease that the server grants: it is never shorter than one and a half election timeouts.
const SHORT: Duration = Duration::from_secs(2);

/// The options of our URLs, each with a name to lock.
const OURS: [(&str, &str); 2] = [("", "job1"), ("?lease=lock", "job2")];

macro_rules! with_each_client {
    ($($test:ident)*) => {
        with_each_client! { @ go $($test)* }
        with_each_client! { @ jetcd $($test)* }
        with_each_client! { @ etcdctl $($test)* }
        with_each_client! { @ gateway $($test)* }
    };
    (@ $client:ident $($test:ident)*) => {
        mod $client {
            use super::{Etcd, ForeignClient};
            $(
                #[tokio::test]
                async fn $test() {
                    let Some(etcd) = Etcd::start() else { return };
                    let Some(foreign) = ForeignClient::$client(&etcd).await else { return };
                    super::$test(etcd, foreign).await;
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
    our_upgradable_holder_and_a_foreign_client
    a_reservation_of_ours_keeps_a_foreign_client_out
}

/// Waits until `count` clients hold the lock or wait for it.
async fn until_queued(etcd: &Etcd, name: &str, count: usize) {
    let what = format!("{count} in the queue for {name}");
    until(&what, || etcd.keys(name).len() == count).await;
}

async fn tenure_waits_for_a_foreign_holder(etcd: Etcd, mut foreign: ForeignClient) {
    for (options, name) in OURS {
        let our_client = etcd.client(options).await;
        let key = foreign.take(name, LONG).await;
        assert_eq!(etcd.keys(name), from_ref(&key));
        assert!(try_fails(&our_client, name).await);
        assert!(our_client.inspect(name).await.unwrap().is_held());
        let short = our_client.lock(name).wait(Duration::from_millis(50));
        let error = short.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
        // The wait is over before the key is deleted.
        until("we have left no key", || etcd.keys(name) == from_ref(&key)).await;

        let mut waiting = waiting(&our_client, name);
        until_queued(&etcd, name, 2).await;
        assert!(
            !granted_by_mistake(&mut waiting).await,
            "we have not waited"
        );
        foreign.unlock(name).await;
        let guard = soon("our turn", waiting).await.unwrap();
        assert!(foreign.try_fails(name).await);
        assert_eq!(etcd.keys(name).len(), 1, "they have left a key");
        guard.release().await.unwrap();
        assert_eq!(etcd.keys(name), [] as [String; 0]);
        foreign.take(name, LONG).await;
    }
}

async fn a_foreign_client_waits_for_tenure(etcd: Etcd, mut foreign: ForeignClient) {
    for (options, name) in OURS {
        let our_client = etcd.client(options).await;
        let guard = take(&our_client, name).await;
        let ours = etcd.keys(name);
        assert_eq!(ours.len(), 1);
        assert!(foreign.try_fails(name).await);
        foreign.begin(name, LONG).await;
        until_queued(&etcd, name, 2).await;
        assert_eq!(etcd.keys(name)[0], ours[0], "we hold");
        guard.release().await.unwrap();
        let key = foreign.granted().await;
        assert_eq!(etcd.keys(name), [key]);
        assert!(try_fails(&our_client, name).await);
        foreign.unlock(name).await;
        assert_eq!(etcd.keys(name), [] as [String; 0]);
    }
}

/// The client that came first is served first, no matter which program it is.
async fn all_are_served_in_order(etcd: Etcd, mut foreign: ForeignClient) {
    // A client asks for a name once, also when several of its tasks want the name; so each waiter is a client.
    let (our_client, other) = (etcd.client("").await, etcd.client("?lease=lock").await);
    let last = etcd.client("").await;
    let guard = take(&our_client, "a").await;
    foreign.begin("a", LONG).await;
    until_queued(&etcd, "a", 2).await;
    let mut second = waiting(&other, "a");
    until_queued(&etcd, "a", 3).await;
    let mut third = waiting(&last, "a");
    until_queued(&etcd, "a", 4).await;
    let first_token = guard.token();
    guard.release().await.unwrap();
    foreign.granted().await;
    assert!(!granted_by_mistake(&mut second).await && !granted_by_mistake(&mut third).await);
    foreign.unlock("a").await;
    let second = soon("the second one's turn", second).await.unwrap();
    assert!(!granted_by_mistake(&mut third).await);
    let tokens = (first_token, second.token());
    assert!(tokens.0 < tokens.1, "{tokens:?}");
    foreign.begin("a", LONG).await;
    until_queued(&etcd, "a", 3).await;
    second.release().await.unwrap();
    let third = soon("the third one's turn", third).await.unwrap();
    assert!(tokens.1 < third.token());
    third.release().await.unwrap();
    foreign.granted().await;
    foreign.unlock("a").await;
}

async fn a_foreign_holder_is_killed(etcd: Etcd, mut foreign: ForeignClient) {
    let our_client = etcd.client("").await;
    foreign.take("a", SHORT).await;
    foreign.kill();
    let lock = our_client.lock("a").wait(WAIT_TIMEOUT);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    guard.release().await.unwrap();
}

async fn a_holder_of_ours_is_killed(etcd: Etcd, mut foreign: ForeignClient) {
    let mut our_client = our_holder(&etcd.url(""), "a", "6s").await;
    assert!(foreign.try_fails("a").await);
    our_client.kill().unwrap();
    foreign.begin("a", LONG).await;
    let key = foreign.granted().await;
    assert_eq!(etcd.keys("a"), [key]);
}

/// Whether the foreign client, which waits, was granted the lock.
async fn is_granted(foreign: &mut ForeignClient) -> bool {
    let moment = Duration::from_millis(50);
    tokio::time::timeout(moment, foreign.granted())
        .await
        .is_ok()
}

/// A foreign client that waits comes after an upgrade and after a downgrade, and the tokens are in that order.
async fn our_upgradable_holder_and_a_foreign_client(etcd: Etcd, mut foreign: ForeignClient) {
    let (our_client, other) = (etcd.client("").await, etcd.client("?lease=lock").await);
    foreign.take("a", LONG).await;
    let lock = our_client.lock("a").upgradable();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    until_queued(&etcd, "a", 2).await;
    foreign.unlock("a").await;
    let upgradable = soon("our turn", waiting).await.unwrap();
    assert!(foreign.try_fails("a").await);
    let reader = other.lock("a").shared().acquire().await.unwrap();
    let last = upgradable.token().max(reader.token());
    foreign.begin("a", LONG).await;
    until_queued(&etcd, "a", 3).await;
    let upgradable = std::sync::Arc::new(upgradable);
    let upgrading = {
        let guard = upgradable.clone();
        tokio::spawn(async move { guard.upgrade().await.unwrap() })
    };
    assert!(!is_granted(&mut foreign).await && !upgrading.is_finished());
    reader.release().await.unwrap();
    soon("the upgrade", upgrading).await.unwrap();
    assert!(!is_granted(&mut foreign).await, "a writer in between");
    let theirs = etcd.created("a")[1];
    assert!(last < upgradable.token() && upgradable.token().get() < theirs);
    upgradable.downgrade().await.unwrap();
    assert!(!is_granted(&mut foreign).await, "a writer beside a reader");
    let guard = std::sync::Arc::into_inner(upgradable).unwrap();
    guard.release().await.unwrap();
    let key = foreign.granted().await;
    assert_eq!(etcd.keys("a"), [key]);
    foreign.unlock("a").await;
}

/// After a hold with `lock_delay` has run out, its key is still the first one.
async fn a_reservation_of_ours_keeps_a_foreign_client_out(etcd: Etcd, mut foreign: ForeignClient) {
    let our_client = etcd.client("").await;
    let lock = our_client.lock("a").ttl(SHORT).renew(Renew::Never);
    let start = Instant::now();
    let guard = lock.lock_delay(SHORT).acquire().await.unwrap();
    let ours = etcd.keys("a");
    foreign.begin("a", LONG).await;
    until_queued(&etcd, "a", 2).await;
    soon("the end of the lease", guard.lost()).await;
    drop(guard);
    let early = tokio::time::timeout(Duration::from_millis(50), foreign.granted());
    let early = early.await.ok();
    let keys = etcd.keys("a");
    // On a busy machine the reservation may be over by now.
    if start.elapsed() < 2 * SHORT {
        assert_eq!(early, None, "the name is not reserved");
        assert_eq!(keys[0], ours[0]);
    }
    let key = match early {
        Some(key) => key,
        None => foreign.granted().await,
    };
    assert_eq!(etcd.keys("a"), [key]);
    foreign.unlock("a").await;
}

/// Published vectors: the lease in hexadecimal, without zeros before it.
#[tokio::test]
async fn with_a_lease_for_each_lock_keys_are_those_of_the_go_package() {
    let Some(etcd) = Etcd::start() else { return };
    let mut foreign = or_skip!(ForeignClient::go(&etcd).await);
    let is_theirs = |key: &str| {
        let lease = key.strip_prefix("a/").unwrap();
        let digits = lease.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits && !lease.starts_with('0') && lease == lease.to_lowercase()
    };
    let key = foreign.take("a", LONG).await;
    assert!(is_theirs(&key), "{key}");
    foreign.unlock("a").await;
    let our_client = etcd.client("?lease=lock").await;
    let guard = take(&our_client, "a").await;
    let keys = etcd.keys("a");
    assert!(keys.len() == 1 && is_theirs(&keys[0]), "{keys:?}");
    guard.release().await.unwrap();
    until("the end of its lease", || etcd.leases() == 0).await;
}

/// Other clients wait by prefix: a client that wants `a` waits for all keys under `a/`, which may be keys of `a/b`.
#[tokio::test]
async fn a_slash_in_a_name() {
    let Some(etcd) = Etcd::start() else { return };
    let mut foreign = or_skip!(ForeignClient::go(&etcd).await);
    let our_client = etcd.client("").await;
    // Our directory for that name is beside the directory of the other package.
    let guard = take(&our_client, "a/b").await;
    foreign.take("a", LONG).await;
    foreign.unlock("a").await;
    guard.release().await.unwrap();
    // The directory of the other package is inside the directory of `a`.
    foreign.take("a/b", LONG).await;
    assert!(try_fails(&our_client, "a").await);
    assert!(!try_fails(&our_client, "a/b").await, "another one to them");
    foreign.unlock("a/b").await;
    // With `names=raw` the name is the same lock for both.
    let raw = etcd.client("?names=raw").await;
    foreign.take("a/b", LONG).await;
    assert!(try_fails(&raw, "a/b").await);
    foreign.unlock("a/b").await;
    let guard = take(&raw, "a/b").await;
    assert!(foreign.try_fails("a/b").await);
    guard.release().await.unwrap();
    // With a prefix the name is the part behind the prefix.
    let prefixed = etcd.client("?prefix=app/").await;
    let guard = take(&prefixed, "a").await;
    assert!(foreign.try_fails("app/a").await);
    guard.release().await.unwrap();
}

/// The Unlock of the service deletes a key without comparing its owner.
#[tokio::test]
async fn a_key_that_the_lock_service_deletes_is_a_lost_lock() {
    let Some(etcd) = Etcd::start() else { return };
    let our_client = etcd.client("").await;
    let lock = our_client.lock("a").ttl(Duration::from_secs(3));
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let keys = etcd.keys("a");
    etcd.unlock(&keys[0]);
    soon("the news of it", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

async fn no_increment_is_lost(etcd: Etcd, mut foreign: Driver) {
    let ours = (&etcd.client("").await, Duration::ZERO);
    support::no_increment_is_lost((&mut foreign, "30000"), ours, "a", [3, 25]).await;
}

#[tokio::test]
async fn no_increment_is_lost_beside_go() {
    let Some(etcd) = Etcd::start() else { return };
    if let Some(foreign) = Driver::start_with("go", &etcd, &["etcd"]).await {
        no_increment_is_lost(etcd, foreign).await;
    }
}

#[tokio::test]
async fn no_increment_is_lost_beside_jetcd() {
    let Some(etcd) = Etcd::start() else { return };
    if let Some(foreign) = Driver::start("jetcd", &etcd).await {
        no_increment_is_lost(etcd, foreign).await;
    }
}
