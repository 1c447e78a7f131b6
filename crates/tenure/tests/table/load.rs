//! Many at once.

use crate::support::{Db, TTL, connect, soon, take};

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_holds_need_four_connections() {
    for db in Db::servers() {
        db.init().await;
        let client = connect(&db.url()).await;
        let takes = (0..1_000).map(|at| {
            let lock = client.lock(format!("many/{at}")).ttl(TTL * 10);
            tokio::spawn(async move { lock.try_acquire().await })
        });
        let mut guards = Vec::new();
        for take in takes.collect::<Vec<_>>() {
            guards.push(soon(take).await.unwrap().unwrap().unwrap());
        }
        let most = db.connections();
        assert!((1..=4).contains(&most), "{most} connections");
        assert_eq!(soon(client.list("many/")).await.unwrap().len(), 1_000);
        // And one that waits.
        let other = connect(&db.url()).await;
        let lock = client.lock("wanted").ttl(TTL);
        let held = take(&other, "wanted", TTL).await;
        let waiting = tokio::spawn(async move { lock.acquire().await });
        crate::support::until("it waits", || db.waiting("wanted") == 1).await;
        soon(held.release()).await.unwrap();
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap();
        other.close().await;
        crate::support::until("the other one has hung up", || db.connections() <= 4).await;
        for guard in guards {
            assert!(guard.is_held());
            drop(guard);
        }
        crate::support::until("all are given back", || {
            db.number("SELECT COUNT(*) FROM tenure_locks WHERE owner<>''") == 0
        })
        .await;
    }
}

/// A hold goes on being renewed while an operator lists far more names than fit into one reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_very_many_names_leaves_room_for_renewals() {
    const DOUBLINGS: u32 = 16;
    for db in Db::all() {
        if !matches!(db, Db::File(_)) {
            db.init().await;
        }
        let client = connect(&db.url()).await;
        let guard = take(&client, "held", TTL).await;
        let seed = take(&client, "many/", TTL).await;
        // Each step doubles the number of rows.
        for letter in (b'a'..).take(DOUBLINGS as usize).map(char::from) {
            db.rows(&format!(
                "INSERT INTO tenure_locks (name, owner, token, until, since, min_hold, delay, holder, queued) \
                 SELECT CONCAT(name, '{letter}'), owner, token, until + 3600000000, since, 0, 0, holder, 0 FROM tenure_locks WHERE name LIKE 'many/%'"
            ));
        }
        let listed = soon(client.list("many/")).await.unwrap();
        assert_eq!(listed.len(), 1 << DOUBLINGS);
        assert!(listed.is_sorted_by_key(|status| status.name.as_str()));
        assert!(guard.is_held());
        drop(seed);
    }
}
