//! Several locks are acquired with one transaction, all or none.

use tenure::ErrorKind::Indeterminate;
use tenure_testkit::proxy::Fault;

use crate::support::{Db, TTL, connect, name, shared, soon, start_acquire, take, until, wait_as};

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

/// A name with a holder in any mode, or with a waiter, is not free, and then nothing is taken.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_not_free() {
    for db in shared().await {
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let names = TAILS.map(name);
        let lock = client.lock_all(&names).ttl(TTL);
        for busy in &names {
            let held = take(&other, busy, TTL).await;
            assert!(soon(lock.try_acquire()).await.unwrap().is_none());
            let free: Vec<_> = names.iter().filter(|it| *it != busy).cloned().collect();
            assert_free(db, &free);
            soon(held.release()).await.unwrap();
        }
        let reader = soon(other.lock(&names[1]).shared().ttl(TTL).acquire()).await;
        let reader = reader.unwrap();
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        soon(reader.release()).await.unwrap();
        // A waiter is served before, also by a client that asks for all names.
        let held = take(&other, &names[1], TTL * 10).await;
        let waiter = connect(&db.url()).await;
        let waiting = wait_as(db, &waiter, &names[1], 1).await;
        let all = start_acquire(client.lock_all(&names).ttl(TTL * 10));
        until("both wait", || db.waiting(&names[1]) == 2).await;
        soon(held.release()).await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(!all.is_finished(), "two hold it");
        soon(next.release()).await.unwrap();
        let guard = soon(all).await.unwrap().unwrap();
        soon(guard.release()).await.unwrap();
        assert_free(db, &names);
    }
}

/// Whichever of the two requests gets lost, before or after the server has done it: all names are taken, or none is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_request_leaves_nothing() {
    for db in Db::servers() {
        db.init().await;
        let (proxy, url) = db.proxied();
        let (client, other) = (connect(&url).await, connect(&db.url()).await);
        for request in ["acquire", "commit"] {
            for fault in [Fault::CutBefore, Fault::CutAfter, Fault::NoReply] {
                let names = TAILS.map(name);
                proxy.plan(request, fault.clone());
                let lock = client.lock_all(&names).ttl(TTL);
                match soon(lock.try_acquire()).await {
                    Ok(guard) => {
                        let guard = guard.expect("all names are free");
                        soon(guard.release()).await.unwrap();
                    }
                    Err(err) => {
                        assert_eq!(err.kind(), Indeterminate, "{request}, {fault:?}: {err}");
                    }
                }
                assert!(proxy.is_done(), "the fault did not happen");
                proxy.resume();
                until("no name is held", || {
                    names.iter().all(|name| held(&db, name) == 0)
                })
                .await;
                let guard = soon(other.lock_all(&names).ttl(TTL).acquire()).await;
                soon(guard.unwrap().release()).await.unwrap();
            }
        }
    }
}

/// Clients that take the same names in different orders do not end each other's transactions.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_sets_do_not_disturb_each_other() {
    for db in shared().await {
        let names = TAILS.map(name);
        let mut players = Vec::new();
        for player in 0..4 {
            let client = connect(&db.url()).await;
            let mut names = names.clone();
            names.rotate_left(player % 3);
            players.push(tokio::spawn(async move {
                for count in [3, 2, 3, 2, 3] {
                    let lock = client.lock_all(&names[..count]).ttl(TTL * 100);
                    let guard = soon(lock.acquire()).await.unwrap();
                    tokio::task::yield_now().await;
                    soon(guard.release()).await.unwrap();
                }
            }));
        }
        for player in players {
            soon(player).await.unwrap();
        }
        assert_free(db, &names);
    }
}
