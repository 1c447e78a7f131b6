//! etcd: the Mutex of its own Go package, `etcdctl lock`, jetcd, and the Lock service over HTTP.

use std::slice::from_ref;
use std::time::Duration;

use tenure::ErrorKind;

use crate::etcd_peers::{Etcd, They};
use crate::support::{
    self, Driver, LONG, PATIENCE, granted_by_mistake, or_skip, our_holder, soon, take, try_fails,
    until, waiting,
};

/// As short as a lease can be here: the server gives no shorter one than one and a half elections.
const SHORT: Duration = Duration::from_secs(2);

/// What our URLs say, and a name for each of them.
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
            use super::{Etcd, They};
            $(
                #[tokio::test]
                async fn $test() {
                    let Some(etcd) = Etcd::start() else { return };
                    let Some(they) = They::$client(&etcd).await else { return };
                    super::$test(etcd, they).await;
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
}

/// Waits until so many want the lock.
async fn until_queued(etcd: &Etcd, name: &str, count: usize) {
    let what = format!("{count} in the queue for {name}");
    until(&what, || etcd.keys(name).len() == count).await;
}

async fn we_wait_for_them(etcd: Etcd, mut they: They) {
    for (options, name) in OURS {
        let we = etcd.client(options).await;
        let key = they.take(name, LONG).await;
        assert_eq!(etcd.keys(name), from_ref(&key));
        assert!(try_fails(&we, name).await);
        assert!(we.inspect(name).await.unwrap().is_held());
        let short = we.lock(name).wait(Duration::from_millis(50));
        let error = short.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
        assert_eq!(etcd.keys(name), from_ref(&key), "we have left a key");

        let mut waiting = waiting(&we, name);
        until_queued(&etcd, name, 2).await;
        assert!(
            !granted_by_mistake(&mut waiting).await,
            "we have not waited"
        );
        they.unlock(name).await;
        let guard = soon("our turn", waiting).await.unwrap();
        assert!(they.try_fails(name).await);
        assert_eq!(etcd.keys(name).len(), 1, "they have left a key");
        guard.release().await.unwrap();
        assert_eq!(etcd.keys(name), [] as [String; 0]);
        they.take(name, LONG).await;
    }
}

async fn they_wait_for_us(etcd: Etcd, mut they: They) {
    for (options, name) in OURS {
        let we = etcd.client(options).await;
        let guard = take(&we, name).await;
        let ours = etcd.keys(name);
        assert_eq!(ours.len(), 1);
        assert!(they.try_fails(name).await);
        they.begin(name, LONG).await;
        until_queued(&etcd, name, 2).await;
        assert_eq!(etcd.keys(name)[0], ours[0], "we hold");
        guard.release().await.unwrap();
        let key = they.granted().await;
        assert_eq!(etcd.keys(name), [key]);
        assert!(try_fails(&we, name).await);
        they.unlock(name).await;
        assert_eq!(etcd.keys(name), [] as [String; 0]);
    }
}

/// Whoever came first is served first, whatever program it runs.
async fn all_are_served_in_order(etcd: Etcd, mut they: They) {
    // A client asks for a name once, however many of its tasks want it.
    let (we, other) = (etcd.client("").await, etcd.client("?lease=lock").await);
    let last = etcd.client("").await;
    let guard = take(&we, "a").await;
    they.begin("a", LONG).await;
    until_queued(&etcd, "a", 2).await;
    let mut second = waiting(&other, "a");
    until_queued(&etcd, "a", 3).await;
    let mut third = waiting(&last, "a");
    until_queued(&etcd, "a", 4).await;
    let first_token = guard.token();
    guard.release().await.unwrap();
    they.granted().await;
    assert!(!granted_by_mistake(&mut second).await && !granted_by_mistake(&mut third).await);
    they.unlock("a").await;
    let second = soon("the second one's turn", second).await.unwrap();
    assert!(!granted_by_mistake(&mut third).await);
    let tokens = (first_token, second.token());
    assert!(tokens.0 < tokens.1, "{tokens:?}");
    they.begin("a", LONG).await;
    until_queued(&etcd, "a", 3).await;
    second.release().await.unwrap();
    let third = soon("the third one's turn", third).await.unwrap();
    assert!(tokens.1 < third.token());
    third.release().await.unwrap();
    they.granted().await;
    they.unlock("a").await;
}

async fn they_are_killed(etcd: Etcd, mut they: They) {
    let we = etcd.client("").await;
    they.take("a", SHORT).await;
    they.kill();
    let lock = we.lock("a").wait(PATIENCE);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    guard.release().await.unwrap();
}

async fn we_are_killed(etcd: Etcd, mut they: They) {
    let mut we = our_holder(&etcd.url(""), "a", "2s").await;
    assert!(they.try_fails("a").await);
    we.kill().unwrap();
    they.begin("a", LONG).await;
    let key = they.granted().await;
    assert_eq!(etcd.keys("a"), [key]);
}

/// Published vectors: the lease in hexadecimal, without zeros before it.
#[tokio::test]
async fn a_lease_for_each_lock_is_the_key_of_their_package() {
    let Some(etcd) = Etcd::start() else { return };
    let mut they = or_skip!(They::go(&etcd).await);
    let is_theirs = |key: &str| {
        let lease = key.strip_prefix("a/").unwrap();
        let digits = lease.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits && !lease.starts_with('0') && lease == lease.to_lowercase()
    };
    let key = they.take("a", LONG).await;
    assert!(is_theirs(&key), "{key}");
    they.unlock("a").await;
    let we = etcd.client("?lease=lock").await;
    let guard = take(&we, "a").await;
    let keys = etcd.keys("a");
    assert!(keys.len() == 1 && is_theirs(&keys[0]), "{keys:?}");
    guard.release().await.unwrap();
    until("the end of its lease", || etcd.leases() == 0).await;
}

/// Their wait is by prefix: whoever wants `a` waits for all keys under `a/`, which may be those of `a/b`.
#[tokio::test]
async fn a_slash_in_a_name() {
    let Some(etcd) = Etcd::start() else { return };
    let mut they = or_skip!(They::go(&etcd).await);
    let we = etcd.client("").await;
    // Ours lies beside it.
    let guard = take(&we, "a/b").await;
    they.take("a", LONG).await;
    they.unlock("a").await;
    guard.release().await.unwrap();
    // Theirs lies in it.
    they.take("a/b", LONG).await;
    assert!(try_fails(&we, "a").await);
    assert!(!try_fails(&we, "a/b").await, "another one to them");
    they.unlock("a/b").await;
    // As it is written, it is the same lock to both.
    let raw = etcd.client("?names=raw").await;
    they.take("a/b", LONG).await;
    assert!(try_fails(&raw, "a/b").await);
    they.unlock("a/b").await;
    let guard = take(&raw, "a/b").await;
    assert!(they.try_fails("a/b").await);
    guard.release().await.unwrap();
    // With a prefix it is the part behind that.
    let prefixed = etcd.client("?prefix=app/").await;
    let guard = take(&prefixed, "a").await;
    assert!(they.try_fails("app/a").await);
    guard.release().await.unwrap();
}

/// The service's Unlock deletes what it is told, whoever owns it.
#[tokio::test]
async fn a_key_that_they_delete_is_a_lost_lock() {
    let Some(etcd) = Etcd::start() else { return };
    let we = etcd.client("").await;
    let lock = we.lock("a").ttl(Duration::from_secs(3));
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let keys = etcd.keys("a");
    etcd.unlock(&keys[0]);
    soon("the news of it", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

async fn no_increment_is_lost(etcd: Etcd, mut they: Driver) {
    let ours = (&etcd.client("").await, Duration::ZERO);
    support::no_increment_is_lost((&mut they, "30000"), ours, "a", [3, 25]).await;
}

#[tokio::test]
async fn no_increment_is_lost_beside_go() {
    let Some(etcd) = Etcd::start() else { return };
    if let Some(they) = Driver::start_with("go", &etcd, &["etcd"]).await {
        no_increment_is_lost(etcd, they).await;
    }
}

#[tokio::test]
async fn no_increment_is_lost_beside_jetcd() {
    let Some(etcd) = Etcd::start() else { return };
    if let Some(they) = Driver::start("jetcd", &etcd).await {
        no_increment_is_lost(etcd, they).await;
    }
}
