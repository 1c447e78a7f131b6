//! PgBouncer between us and the server, where each transaction gets whatever session is free.

use std::time::Duration;

use tenure::Renew;

use crate::support::{OPTIONS, connect, name, soon, take, until_renewed};
use tenure_testkit::needs;
use tenure_testkit::pgbouncer::Pooler;
use tenure_testkit::postgres::Postgres;

/// Few sessions for many clients: whatever was left behind in one would be met by another.
#[tokio::test(flavor = "multi_thread")]
async fn locks_are_kept_by_rows_whatever_session_serves() {
    needs!(pgbouncer);
    let server = Postgres::start(&[]);
    let pooler = Pooler::start(&server, "transaction", 2);
    let pooled = server.url_at(pooler.port()) + OPTIONS;
    let direct = connect(&(server.url() + OPTIONS)).await;
    soon(direct.init()).await.unwrap();
    let mut clients = vec![direct];
    for _ in 0..6 {
        clients.push(connect(&pooled).await);
    }
    let (name, ttl) = (name("pooled"), Duration::from_secs(20));
    // Each hands over to the next, and nobody but the holder gets it.
    let mut guard = take(&clients[0], &name, ttl).await;
    for client in &clients[1..] {
        let lock = client.lock(&name).ttl(ttl);
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let before = guard.token();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token() > before);
    }
    soon(guard.release()).await.unwrap();
    // Leases are renewed, and run out, as they are without it.
    let kept = take(&clients[1], &name, Duration::from_secs(6)).await;
    until_renewed(&kept).await;
    soon(kept.release()).await.unwrap();
    let lock = clients[2].lock(&name).ttl(Duration::from_secs(2));
    let fixed = soon(lock.renew(Renew::Never).acquire()).await.unwrap();
    let next = soon(clients[3].lock(&name).ttl(ttl).acquire()).await;
    assert!(!fixed.is_held(), "two believe");
    soon(next.unwrap().release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_behind_two_sessions_counts_exactly() {
    const TASKS: u64 = 40;
    needs!(pgbouncer);
    let server = Postgres::start(&[]);
    let pooler = Pooler::start(&server, "transaction", 2);
    let url = (server.url_at(pooler.port()) + OPTIONS).replace("timeout=3s", "timeout=20s");
    assert!(url.contains("timeout=20s"), "{url}");
    let direct = connect(&(server.url() + OPTIONS)).await;
    soon(direct.init()).await.unwrap();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = connect(&url).await;
        for _ in 0..TASKS / 4 {
            let (lock, count) = (
                client.lock("crowd").ttl(Duration::from_secs(30)),
                count.clone(),
            );
            tasks.spawn(async move {
                let order = std::sync::atomic::Ordering::Relaxed;
                let guard = lock.acquire().await.unwrap();
                let seen = count.load(order);
                tokio::task::yield_now().await;
                count.store(seen + 1, order);
                guard.release().await.unwrap();
            });
        }
    }
    soon(tasks.join_all()).await;
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), TASKS);
}
