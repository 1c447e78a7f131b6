//! The queue.

use crate::support::{
    Db, TTL, connect, name, shared, short_lock_holder, soon, start_acquire, take, until, wait_as,
};

/// It is skipped when its place has run out: after min(ttl, 5 s) at most.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_waiter_costs_a_bounded_time() {
    for db in shared().await {
        let name = name("dead");
        let client = connect(&db.url()).await;
        let guard = take(&client, &name, TTL * 10).await;
        let mut dead = short_lock_holder(&db.url(), &name);
        soon(dead.expect("waiting")).await.unwrap();
        until("it waits", || db.waiting(&name) == 1).await;
        dead.kill().unwrap();
        let now = db.now();
        let most = db.number(&format!(
            "SELECT MAX(until)-{now} FROM tenure_locks_waiters WHERE name='{name}'"
        ));
        assert!(most <= 2_000_000, "{most} µs are left");
        let other = connect(&db.url()).await;
        let behind = {
            let lock = other.lock(&name).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await })
        };
        until("it waits too", || {
            let count = "SELECT COUNT(*) FROM tenure_locks_waiters";
            db.number(&format!("{count} WHERE name='{name}' AND holder<>''")) >= 1
        })
        .await;
        soon(guard.release()).await.unwrap();
        let next = soon(behind).await.unwrap().unwrap();
        soon(next.release()).await.unwrap();
        let rows = format!("SELECT COUNT(*) FROM tenure_locks_waiters WHERE name='{name}'");
        assert_eq!(db.number(&rows), 0, "nothing is left of the dead one");
    }
}

/// Nobody looks again and again where the server tells.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_does_not_look() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    db.init().await;
    let (proxy, url) = db.proxied();
    let (first, second) = (connect(&db.url()).await, connect(&url).await);
    let ttl = TTL * 10;
    let guard = take(&first, "told", ttl).await;
    let waiting = start_acquire(second.lock("told").ttl(ttl));
    until("it waits and listens", || {
        let heard = "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE '%tenure:hello%'";
        db.waiting("told") == 1 && db.number(heard) > 0
    })
    .await;
    let mut before = proxy.requests();
    until("nothing is asked for a while", || {
        // Signs of life come every 5/3 s.
        std::thread::sleep(std::time::Duration::from_millis(500));
        std::mem::replace(&mut before, proxy.requests()) == proxy.requests()
    })
    .await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
}

/// With one connection there is none to spare: it looks.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_is_enough() {
    for db in shared().await {
        let name = name("one");
        let url = match db {
            Db::File(_) => format!("{}?connections=1", db.url()),
            _ => format!("{}&connections=1", db.url()),
        };
        let (first, second) = (connect(&url).await, connect(&url).await);
        let guard = take(&first, &name, TTL).await;
        let waiting = wait_as(db, &second, &name, 1).await;
        soon(guard.release()).await.unwrap();
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
    }
}
