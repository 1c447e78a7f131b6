//! Writes that count only while the lock is held; what happens is in `common::writes`.

use tenure::ErrorKind;
use tenure::zookeeper::{KeyValueGuard as _, ZooKeeperGuard as _};
use tenure_core::guard_traits::EtcdGuard as _;

use crate::common::writes::{Data, Server};
use crate::support::{
    ROOT, SHARED, TTL, assert_says, client_by, client_of, nodes, soon, take, unique,
};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::zookeeper::{PASSWORD, USER, Zookeeper};

impl Server for Zookeeper {
    fn read(&self, path: &str) -> String {
        let node = self.session().get(path);
        node.map_or_else(String::new, |node| {
            String::from_utf8_lossy(&node.data).into_owned()
        })
    }

    fn evict(&self, name: &str) {
        for node in nodes(self, name) {
            self.session().delete(&format!("{ROOT}/{name}/{node}"));
        }
    }
}

fn total(name: &str) -> Data<'static, Zookeeper> {
    let key = format!("/total-{name}");
    Data {
        server: &SHARED,
        key,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_applied_while_the_lock_is_held() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("write"));
    let total = total(&name);
    let data = || SHARED.session().get(&total.key).map(|node| node.data);
    let guard = take(&client, &name, TTL).await;
    soon(guard.put(&total.key, b"\x00\xff")).await.unwrap();
    assert_eq!(data().unwrap(), b"\x00\xff");
    total.takes_writes_of_the_holder(&guard).await;
    assert_eq!(data(), None);
    for (wrong, says) in [("total", "no path"), ("/no/such", "no parent node")] {
        let refused = soon(guard.put(wrong, "x")).await;
        assert_says(refused, ErrorKind::Invalid, &[says]);
    }
    soon(guard.release()).await.unwrap();
    let clients = [client, client_of(&SHARED).await];
    total.refuses_a_former_holder(clients, &name).await;
    SHARED.session().delete(&total.key);
}

/// The holder was cut off, another client holds and has written; the late write of the former holder is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_is_refused() {
    needs!(zookeeper);
    let proxy = Proxy::zookeeper(SHARED.port());
    let (client, other) = (client_by(&proxy).await, client_of(&SHARED).await);
    let name = unique("late");
    let total = total(&name);
    let old = take(&client, &name, TTL).await;
    soon(old.put(&total.key, "old")).await.unwrap();
    // The request is sent and does not arrive.
    proxy.hold(Direction::Up, true);
    let writing = total.write_late(old);
    let next = soon(other.lock(&name).ttl(TTL).acquire()).await.unwrap();
    soon(next.put(&total.key, "new")).await.unwrap();
    proxy.resume();
    let (outcome, old) = soon(writing).await.unwrap();
    assert!(outcome.is_err(), "applied");
    assert!(!old.is_held());
    total.assert_refused(&old).await;
    assert_eq!(SHARED.session().get(&total.key).unwrap().data, b"new");
    soon(next.release()).await.unwrap();
    SHARED.session().delete(&total.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_several_names_wants_all_of_them() {
    needs!(zookeeper);
    let (client, total) = (client_of(&SHARED).await, total(&unique("several")));
    let names = [unique("w"), unique("w"), unique("w")];
    total.wants_all_names(client, names).await;
    SHARED.session().delete(&total.key);
}

/// An operator has broken the hold, and the holder does not know yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_writes_nothing() {
    needs!(zookeeper);
    let (client, other) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("broken");
    let guard = take(&client, &name, TTL * 10).await;
    assert!(soon(other.break_lock(&name, guard.token())).await.unwrap());
    let total = total(&name);
    total.assert_refused(&guard).await;
    assert!(!SHARED.session().exists(&total.key));
}

/// A transaction that the user makes with a client library of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_multi_with_the_check_is_applied_while_the_lock_is_held() {
    needs!(zookeeper);
    let (client, name) = (client_of(&SHARED).await, unique("multi"));
    let theirs = format!("127.0.0.1:{}", SHARED.port());
    // The nodes of a user are closed to other users, and so is a check of their versions.
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
            // One failed check of two is enough.
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
