//! Servers and connections that end.

use tenure::LostReason;

use crate::support::{Db, TTL, connect, soon, start_acquire, take, until, until_renewed, wait_as};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::proxy::Direction;

/// What was granted is on disk: the holder goes on, and so do those who wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_killed_under_its_holder() {
    for db in Db::servers() {
        db.init().await;
        let (first, second) = (connect(&db.url()).await, connect(&db.url()).await);
        // A restart takes a moment.
        let ttl = TTL * 2;
        let guard = take(&first, "held", ttl).await;
        let waiting = start_acquire(second.lock("held").ttl(ttl));
        until("it waits", || db.waiting("held") == 1).await;
        db.restart();
        assert!(guard.is_held(), "{:?}", guard.state());
        until_renewed(&guard).await;
        assert!(!waiting.is_finished(), "two hold it");
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(next.token() > token, "{} follows {token}", next.token());
        soon(next.release()).await.unwrap();
    }
}

/// Connections that lay idle ended with it; nobody is told of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_killed_while_nobody_holds() {
    for db in Db::servers() {
        db.init().await;
        let client = connect(&db.url()).await;
        let guard = take(&client, "free", TTL).await;
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        db.restart();
        let guard = take(&client, "free", TTL).await;
        assert!(guard.token() > token, "{} follows {token}", guard.token());
        soon(guard.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_killed_by_an_administrator() {
    for db in Db::servers() {
        db.init().await;
        let (first, second) = (connect(&db.url()).await, connect(&db.url()).await);
        let guard = take(&first, "killed", TTL).await;
        let waiting = wait_as(&db, &second, "killed", 1).await;
        for _ in 0..3 {
            db.kill_connections();
            until_renewed(&guard).await;
        }
        assert!(guard.is_held(), "a connection is not the lease");
        db.kill_connections();
        soon(guard.release()).await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        soon(next.release()).await.unwrap();
    }
}

/// No FIN, no RST: the holder knows by its deadline, and the name is free within the ttl.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_cut_off_in_silence() {
    for db in Db::servers() {
        db.init().await;
        let (proxy, url) = db.proxied();
        let (cut_off, other) = (connect(&url).await, connect(&db.url()).await);
        // Longer than a busy machine needs to look, and not longer: the test waits for its end.
        let ttl = std::time::Duration::from_secs(4);
        let guard = take(&cut_off, "silent", ttl).await;
        let lost = guard.lost();
        for direction in [Direction::Up, Direction::Down] {
            proxy.hold(direction, true);
        }
        let now = db.now();
        let left = db.number(&format!(
            "SELECT until-{now} FROM tenure_locks WHERE name='silent'"
        ));
        let most = i64::try_from(ttl.as_micros()).unwrap();
        assert!((1..=most).contains(&left), "{left} µs are left");
        let lock = other.lock("silent").ttl(TTL);
        let next = tokio::time::timeout(ttl + TEST_TIMEOUT, lock.acquire()).await;
        let next = next.unwrap().unwrap();
        // It was told before, at the deadline.
        assert!(!guard.is_held(), "both claim to hold it");
        assert_eq!(soon(lost).await, Some(LostReason::Expired));
        assert!(next.token() > guard.token());
        proxy.resume();
        drop(guard);
        soon(next.release()).await.unwrap();
    }
}

/// Its listener is killed, and the message of the release is lost with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_lost_delays_and_does_no_more() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    db.init().await;
    let (first, second) = (connect(&db.url()).await, connect(&db.url()).await);
    for round in 0..3 {
        let name = format!("lost-{round}");
        let guard = take(&first, &name, TTL).await;
        let waiting = wait_as(&db, &second, &name, 1).await;
        let listens = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
        until("it listens", || {
            db.number(&format!("SELECT COUNT(*) {listens}")) > 0
        })
        .await;
        db.rows(&format!("SELECT pg_terminate_backend(pid)::text {listens}"));
        soon(guard.release()).await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        soon(next.release()).await.unwrap();
    }
}

/// Whatever a transaction did that was rolled back, tokens grow.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_rollbacks_and_lost_rows() {
    for db in Db::servers() {
        db.init().await;
        let client = connect(&db.url()).await;
        let guard = take(&client, "t", TTL).await;
        let last = guard.token();
        soon(guard.release()).await.unwrap();
        db.rows("START TRANSACTION; UPDATE tenure_locks SET token=token+1000; ROLLBACK");
        let guard = take(&client, "t", TTL).await;
        assert!(guard.token() > last, "{} follows {last}", guard.token());
        soon(guard.release()).await.unwrap();
        // The server's clock was an hour ahead at the time.
        db.rows("UPDATE tenure_locks SET token=token+3600000000");
        let last = tenure_token(&db);
        let guard = take(&client, "t", TTL).await;
        assert_eq!(u64::from(guard.token()), last + 1);
        soon(guard.release()).await.unwrap();
        db.rows("DELETE FROM tenure_locks");
        let now = u64::try_from(db.number(&format!("SELECT {}", db.now()))).unwrap();
        let guard = take(&client, "t", TTL).await;
        assert!(u64::from(guard.token()) >= now, "the clock is behind it");
        soon(guard.release()).await.unwrap();
    }
}

fn tenure_token(db: &Db) -> u64 {
    db.value("SELECT token FROM tenure_locks WHERE name='t'")
        .parse()
        .unwrap()
}
