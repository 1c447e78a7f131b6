//! Servers and connections that end.

use crate::support::{Db, TTL, connect, soon, take, until, until_renewed, wait_as};

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
