//! Writes that count only while the lock is held.

use std::time::Duration;

use tenure::ErrorKind;

use crate::support::{SHARED, TTL, assert_says, client_by, client_of, soon, take, unique};
use tenure_testkit::jute;
use tenure_testkit::proxy::Direction;
use tenure_testkit::zookeeper::{self, PASSWORD, USER};

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_applied_while_the_lock_is_held() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let (client, name) = (client_of(&SHARED).await, unique("write"));
    let path = format!("/total-{name}");
    let data = || SHARED.session().get(&path).map(|node| node.data);
    let guard = take(&client, &name, TTL).await;
    soon(guard.put(&path, "one")).await.unwrap();
    soon(guard.put(&path, b"\x00\xff")).await.unwrap();
    assert_eq!(data().unwrap(), b"\x00\xff");
    soon(guard.delete(&path)).await.unwrap();
    soon(guard.delete(&path)).await.unwrap();
    assert_eq!(data(), None);
    for (wrong, says) in [("total", "no path"), ("/no/such", "no node above")] {
        let refused = soon(guard.put(wrong, "x")).await;
        assert_says(refused, ErrorKind::Invalid, &[says]);
    }
    soon(guard.release()).await.unwrap();
}

/// The holder was cut off, somebody else holds and has written; the late write does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_is_refused() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let proxy = jute::proxy(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    let (name, ttl) = (unique("late"), Duration::from_millis(800));
    let path = format!("/total-{name}");
    let old = take(&client, &name, ttl).await;
    soon(old.put(&path, "old")).await.unwrap();
    // It is on its way, and stays there.
    proxy.hold(Direction::Up, true);
    let writing = {
        let path = path.clone();
        tokio::spawn(async move { (old.put(&path, "late").await, old) })
    };
    let next = soon(other.lock(&name).ttl(TTL).acquire()).await.unwrap();
    soon(next.put(&path, "new")).await.unwrap();
    proxy.resume();
    let (outcome, old) = soon(writing).await.unwrap();
    assert!(outcome.is_err(), "applied");
    assert!(!old.is_held());
    assert_says(soon(old.put(&path, "later")).await, ErrorKind::Lost, &[]);
    assert_eq!(SHARED.session().get(&path).unwrap().data, b"new");
    soon(next.release()).await.unwrap();
    SHARED.session().delete(&path);
}

/// Broken by an operator, before the holder knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_writes_nothing() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("broken");
    let guard = take(&client, &name, TTL * 10).await;
    assert!(soon(other.break_lock(&name, guard.token())).await.unwrap());
    let path = format!("/total-{name}");
    assert_says(soon(guard.put(&path, "x")).await, ErrorKind::Lost, &[]);
    assert!(!SHARED.session().exists(&path));
}

/// A transaction of the user's own, by a client of the user's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_multi_with_the_check_is_applied_while_the_lock_is_held() {
    if zookeeper::skip_unless_installed() {
        return;
    }
    let (client, name) = (client_of(&SHARED).await, unique("multi"));
    let theirs = format!("127.0.0.1:{}", SHARED.port());
    // The locks of a user are closed to others, and so is a look whether they are held.
    let login = format!("{USER}:{PASSWORD}");
    let connector = zookeeper_client::Client::connector().with_auth("digest", login.as_bytes());
    let theirs = soon(connector.connect(&theirs)).await.unwrap();
    let guard = soon(
        client
            .lock_all([name.clone(), format!("{name}-b")])
            .acquire(),
    )
    .await;
    let guard = guard.unwrap();
    assert!(guard.etcd().is_none());
    let lock = guard.zookeeper().unwrap();
    assert_eq!(lock.check().len(), 2);
    for (is_held, child) in [(true, "/first"), (false, "/late")] {
        if !is_held {
            // One of the two is enough.
            SHARED.session().delete(&lock.check()[1].path);
        }
        let path = format!("{child}-{name}");
        let mut multi = theirs.new_multi_writer();
        for check in lock.check() {
            multi.add_check_version(&check.path, check.version).unwrap();
        }
        let options = zookeeper_client::CreateMode::Persistent
            .with_acls(zookeeper_client::Acls::anyone_all());
        multi.add_create(&path, b"", &options).unwrap();
        let outcome = soon(multi.commit()).await;
        assert_eq!(outcome.is_ok(), is_held, "{path}: {outcome:?}");
        assert_eq!(SHARED.session().exists(&path), is_held);
        SHARED.session().delete(&path);
    }
}
