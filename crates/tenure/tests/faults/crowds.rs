//! Many clients on few names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tenure_testkit::TEST_TIMEOUT;
use tokio::sync::mpsc;

use crate::common::{connect, soon};
use crate::stores::{Store, TTL, name, on};

on!(shared [redis etcd zookeeper mysql postgres mysql_table postgres_table sqlite]:
    two_hundred_contenders_on_five_names_count_exactly);
on!(shared [redis etcd zookeeper mysql postgres mysql_table postgres_table]:
    a_long_wait_is_reported_with_the_holder);

/// What only the lock of a name protects: a number that is read and written, and the tokens in the order of the grants.
#[derive(Default)]
struct Shared {
    count: AtomicU64,
    inside: AtomicU64,
    tokens: Mutex<Vec<u64>>,
}

/// Two hundred tasks of twenty clients.
async fn two_hundred_contenders_on_five_names_count_exactly(store: &'static Store) {
    const CLIENTS: usize = 20;
    const TASKS: usize = 10;
    const NAMES: usize = 5;
    let names: Vec<_> = (0..NAMES).map(|_| name("crowd")).collect();
    let shared: Vec<_> = names.iter().map(|_| Arc::new(Shared::default())).collect();
    // Many clients share few connections to a database.
    let url = store.url().replace("timeout=3s", "timeout=20s");
    let mut contenders = Vec::new();
    for client in 0..CLIENTS {
        let connected = connect(&url).await;
        for task in 0..TASKS {
            let at = (client + task) % NAMES;
            let lock = connected.lock(&names[at]).ttl(TTL * 5);
            let shared = shared[at].clone();
            contenders.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let others = shared.inside.fetch_add(1, Ordering::SeqCst);
                assert_eq!(others, 0, "two tasks have the lock");
                shared.tokens.lock().unwrap().push(guard.token().get());
                let seen = shared.count.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                shared.count.store(seen + 1, Ordering::SeqCst);
                shared.inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }));
        }
    }
    for contender in contenders {
        // Where no waiter is told of its turn, each hand-over takes a look.
        let ended = tokio::time::timeout(TEST_TIMEOUT * 4, contender).await;
        ended.unwrap().unwrap();
    }
    for (name, shared) in names.iter().zip(shared) {
        let expected = (CLIENTS * TASKS / NAMES) as u64;
        assert_eq!(shared.count.load(Ordering::SeqCst), expected);
        let tokens = shared.tokens.lock().unwrap().clone();
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        store.until_idle(name).await;
    }
}

async fn a_long_wait_is_reported_with_the_holder(store: &'static Store) {
    let (holder, waiter, name) = (store.client().await, store.client().await, name("report"));
    let lock = holder.lock(&name).label("deploy");
    let guard = soon(lock.acquire()).await.unwrap();
    let (sender, mut reports) = mpsc::unbounded_channel();
    waiter.on_wait(move |waiting| {
        let _ = sender.send(waiting.clone());
    });
    let lock = waiter.lock(&name);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let report = soon(reports.recv()).await.unwrap();
    let found = report.holder().unwrap();
    assert_eq!((&*found.label, found.pid), ("deploy", std::process::id()));
    assert!(matches!(report.position, None | Some(1)));
    assert!(store.url().starts_with(&format!("{}:", report.scheme)));
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
}
