//! Holders in processes of their own that are stopped and killed; looked at from the database's side.

use crate::support::{TTL, connect, name, shared, soon, taker};
use tenure_testkit::TEST_TIMEOUT;

/// It goes on when somebody else has the lock, and neither its renewals nor its release touch that.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_stopped_for_longer_than_its_ttl() {
    for db in shared().await {
        let name = name("stopped");
        let mut old = taker(&db.url(), &name);
        let token = soon(old.held()).await.unwrap();
        old.stop().unwrap();
        let client = connect(&db.url()).await;
        let lock = client.lock(&name).ttl(TTL);
        let next = tokio::time::timeout(TTL + TEST_TIMEOUT, lock.acquire()).await;
        let next = next.expect("the lease of the stopped one ends").unwrap();
        assert!(u64::from(next.token()) > token);
        let owner = db.owner(&name);
        old.go_on().unwrap();
        old.say("status").unwrap();
        let word = soon(old.line()).await.unwrap();
        assert!(
            word.starts_with("lost") || word.starts_with("status lost"),
            "it says {word}"
        );
        old.say("release").unwrap();
        old.hang_up();
        tokio::task::spawn_blocking(move || old.wait())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(db.owner(&name), owner);
        assert!(next.is_held(), "{:?}", next.state());
        soon(next.release()).await.unwrap();
        assert_eq!(db.owner(&name), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_when_holders_crash() {
    for db in shared().await {
        let name = name("crash");
        let mut last = 0;
        for _ in 0..3 {
            let mut holder = taker(&db.url(), &name);
            let token = tokio::time::timeout(TTL + TEST_TIMEOUT, holder.held()).await;
            let token = token.unwrap().unwrap();
            assert!(token > last, "{token} follows {last}");
            last = token;
            holder.kill().unwrap();
        }
    }
}
