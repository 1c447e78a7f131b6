//! Several locks are acquired with one transaction, all or none.

use crate::support::{Db, TTL, connect, name, shared, soon, until};

const TAILS: [&str; 3] = ["a", "b", "c"];

/// No row says that one of these is held. A row that was never written is none either.
fn assert_free(db: &Db, names: &[String]) {
    for name in names {
        assert_eq!(held(db, name), 0, "{name}");
    }
}

fn held(db: &Db, name: &str) -> i64 {
    let now = db.now();
    let rows = format!("FROM tenure_locks WHERE name='{name}' AND owner<>'' AND until>{now}");
    db.number(&format!("SELECT COUNT(*) {rows}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn free_names_are_taken_with_one_transaction() {
    for db in shared().await {
        let client = connect(&db.url()).await;
        let names = TAILS.map(name);
        let lock = client.lock_all(&names).ttl(TTL);
        let mut last = 0;
        for _ in 0..2 {
            let guard = soon(lock.acquire()).await.unwrap();
            for ((name, token), id) in guard.tokens().zip(guard.owner_ids()) {
                assert_eq!(db.owner(name.as_str()), id.to_hex());
                let status = soon(client.inspect(name)).await.unwrap();
                assert_eq!(status.holds[0].token, Some(token));
                assert!(token.get() > last, "{token} follows {last}");
            }
            last = guard.tokens().map(|(_, token)| token.get()).max().unwrap();
            // Renewals know all of them.
            let end = |name| {
                db.number(&format!(
                    "SELECT until FROM tenure_locks WHERE name='{name}'"
                ))
            };
            let before = names.each_ref().map(end);
            until("all are renewed", || {
                let now = names.each_ref().map(end);
                now.iter().zip(before).all(|(now, before)| *now > before)
            })
            .await;
            assert!(guard.is_held(), "{:?}", guard.state());
            soon(guard.release()).await.unwrap();
            assert_free(db, &names);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn these_are_two_round_trips() {
    for db in Db::servers() {
        db.init().await;
        let (proxy, url) = db.proxied();
        let client = connect(&url).await;
        let lock = client.lock_all(TAILS).ttl(TTL * 10);
        // Without the requests that a busy machine adds: a renewal that is due, and a look after a slow grant.
        let seen = || {
            let mut seen = proxy.take_seen();
            seen.retain(|it| it != "renew" && it != "look");
            seen
        };
        soon(soon(lock.acquire()).await.unwrap().release())
            .await
            .unwrap();
        seen();
        let guard = soon(lock.acquire()).await.unwrap();
        assert_eq!(seen(), ["acquire", "commit"]);
        let other = connect(&url).await.lock_all(TAILS);
        assert!(soon(other.try_acquire()).await.unwrap().is_none());
        assert_eq!(seen(), ["acquire", "rollback"]);
        soon(guard.release()).await.unwrap();
    }
}
