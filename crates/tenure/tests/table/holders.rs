//! Holders in processes of their own that are stopped and killed; looked at from the database's side.

use std::time::Duration;

use crate::common::holders;
use crate::support::{SHORT, connect, name, shared, short_lock_holder};
use tenure_testkit::TEST_TIMEOUT;

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_stopped_for_longer_than_its_ttl() {
    for db in shared().await {
        let (url, name) = (db.url(), name("stopped"));
        let (client, owner) = (connect(&url).await, || db.owner(&name));
        // The next holder keeps the lock for as long.
        let ttl = Duration::from_secs(4);
        holders::stop_one_for_longer_than_its_ttl((&url, &client), &name, ttl, owner).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_when_holders_crash() {
    for db in shared().await {
        let name = name("crash");
        let mut last = 0;
        for _ in 0..3 {
            let mut holder = short_lock_holder(&db.url(), &name);
            let token = tokio::time::timeout(SHORT + TEST_TIMEOUT, holder.held()).await;
            let token = token.unwrap().unwrap();
            assert!(token > last, "{token} follows {last}");
            last = token;
            holder.kill().unwrap();
        }
    }
}
