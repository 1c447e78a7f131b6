//! The process of the server is stopped: connections stay, and no request has an answer.

use tenure::{Error, ErrorKind};

use crate::common::{assert_clear, soon, take};
use crate::stores::{Store, TTL, acquire, name, on};

on!(alone [redis etcd zookeeper mysql postgres mysql_table postgres_table]:
    each_request_to_a_silent_server_says_so);

/// No request says that a name is held, free or unknown when the server has not said so; each ends in time, with an error.
async fn each_request_to_a_silent_server_says_so(store: &'static Store) {
    let (client, held, other) = (store.client().await, name("held"), name("other"));
    let guard = take(&client, &held, TTL * 10).await;
    let token = guard.token();
    let lock = client.lock(&other).ttl(TTL * 10);
    // Each of these asks the server when it runs.
    soon(client.inspect(&held)).await.unwrap();
    let _ = soon(client.list("")).await;
    store.server.stop();
    let wait = lock.clone().wait(TTL / 4);
    let all = client.lock_all([name("all"), name("all")]);
    let (tried, waited, all, inspected, listed, broken) = tokio::join!(
        soon(async { lock.try_acquire().await.map(drop) }),
        soon(async { wait.acquire().await.map(drop) }),
        soon(async { all.try_acquire().await.map(drop) }),
        soon(async { client.inspect(&held).await.map(drop) }),
        soon(async { client.list("").await.map(drop) }),
        soon(async { client.break_lock(&held, token).await.map(drop) }),
    );
    let released = soon(guard.release()).await;
    store.server.resume();
    for (what, outcome) in [
        ("inspect", inspected),
        ("list", listed),
        ("wait", waited),
        ("try", tried),
        ("all", all),
        ("break", broken),
        ("release", released),
    ] {
        assert_silent(store, what, outcome);
    }
    // All requests work again, and what was under way leaves nothing.
    for name in [&held, &other] {
        let lock = client.lock(name).ttl(TTL);
        let next = acquire(&lock).await;
        soon(next.release()).await.unwrap();
        store.until_idle(name).await;
    }
}

/// What changes nothing is `Unreachable`; of other requests the outcome may be unknown.
#[track_caller]
fn assert_silent(store: &Store, what: &str, outcome: Result<(), Error>) {
    let url = store.url();
    let Err(err) = outcome else {
        panic!("{what} has a result from a silent server ({url})");
    };
    assert_clear(&err);
    let is_read = matches!(what, "inspect" | "list");
    let is_unknown = !is_read && err.kind() == ErrorKind::Indeterminate;
    assert!(
        is_unknown || err.kind() == ErrorKind::Unreachable,
        "{what}, {url}: {err:?}"
    );
}
