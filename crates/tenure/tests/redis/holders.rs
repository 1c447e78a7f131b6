//! Holders in processes of their own that are stopped and killed; looked at from the server's side.

use crate::common::holders;
use crate::support::{
    TRUSTED, TTL, assert_all_expire, client_of, keys, owner, soon, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

/// Its key ends with its lease, its place in the queue is skipped, its channel is gone at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_a_waiter_are_killed() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = server.url() + TRUSTED;
    let mut holder = holders::start(&url, "x", TTL);
    soon(holder.held()).await.unwrap();
    let mut waiter = holders::start(&url, "x", TTL);
    soon(waiter.expect("waiting")).await.unwrap();
    until("it waits", || waiting(&server, "x") == 1).await;
    assert_eq!(server.ask(&["PUBSUB", "CHANNELS", "*"]).items().len(), 2);
    holder.kill().unwrap();
    waiter.kill().unwrap();
    until("no client is subscribed", || {
        server.ask(&["PUBSUB", "CHANNELS", "*"]).items().is_empty()
    })
    .await;
    assert_all_expire(&server);
    let client = client_of(&server).await;
    let lock = client.lock("x").ttl(TTL);
    let guard = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, lock.acquire()).await;
    soon(guard.expect("both leases end").unwrap().release())
        .await
        .unwrap();
    assert_eq!(owner(&server, "x"), "");
    assert_eq!(waiting(&server, "x"), 0);
    // What stays is the last token, for a day.
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);
    assert_all_expire(&server);
}
