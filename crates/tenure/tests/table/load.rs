//! Many at once.

use std::sync::Arc;

use crate::support::{Db, TTL, connect, name, shared, soon, take};

/// 200 contenders add to five numbers by reading and writing them, which nothing but the locks keeps apart.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_contenders_on_five_names_count_exactly() {
    const CLIENTS: usize = 10;
    const TASKS: usize = 20;
    for db in shared().await {
        // Some twenty connections for all of them.
        let url = db.url().replace("timeout=3s", "timeout=20s");
        assert!(matches!(db, Db::File(_)) || url.contains("timeout=20s"));
        let names: Vec<_> = (0..5).map(|at| name(&format!("count{at}"))).collect();
        let counts = Arc::new([const { std::sync::atomic::AtomicU64::new(0) }; 5]);
        let mut tasks = Vec::new();
        for client in 0..CLIENTS {
            let client_of = connect(&url).await;
            for task in 0..TASKS {
                let at = (client + task) % names.len();
                let lock = client_of.lock(&names[at]).ttl(TTL * 5);
                let counts = counts.clone();
                tasks.push(tokio::spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    let order = std::sync::atomic::Ordering::Relaxed;
                    let seen = counts[at].load(order);
                    tokio::task::yield_now().await;
                    counts[at].store(seen + 1, order);
                    guard.release().await.unwrap();
                }));
            }
        }
        for task in tasks {
            // Where nobody is told, each hand-over takes a look.
            tokio::time::timeout(tenure_testkit::TEST_TIMEOUT * 4, task)
                .await
                .unwrap()
                .unwrap();
        }
        for count in &*counts {
            let count = count.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(count, (CLIENTS * TASKS / names.len()) as u64);
        }
    }
}

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
