//! Many locks on few sessions, and none that is granted twice to one session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::Renew;

use crate::support::{
    Database, OPTIONS, TTL, connect, name, on_both, on_both_alone, soon, take, take_and_release,
    until, wait_as,
};

on_both!(two_tasks_of_a_client_exclude_each_other one_release_is_enough a_hold_without_renewal_ends shared_locks_are_shared_or_refused);
on_both_alone!(a_thousand_free_locks_take_few_connections two_sessions_serve_many_requests waiters_take_no_more_connections_than_they_may idle_sessions_are_closed);

/// The server would grant the lock to the session once more, because it counts the locks of a session.
async fn two_tasks_of_a_client_exclude_each_other(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("tasks"));
    let guard = take(&client, &name).await;
    let lock = client.lock(&name).ttl(TTL);
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    let waiting = wait_as(database, &client, &name, 1).await;
    let (holders, waiters) = (database.holders(&name), database.waiters(&name));
    assert_ne!(holders, waiters, "the session waits for itself");
    let before = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > before);
    soon(next.release()).await.unwrap();
    assert!(database.holders(&name).is_empty());
}

/// The server counts how often a session has a lock, so one release must be enough for one grant.
async fn one_release_is_enough(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("count"));
    for _ in 0..20 {
        let guard = take(&client, &name).await;
        soon(guard.release()).await.unwrap();
        assert!(database.holders(&name).is_empty());
    }
}

/// The session of the hold lives on, because it has another lock.
async fn a_hold_without_renewal_ends(database: &dyn Database) {
    let client = connect(&database.url()).await;
    let (one, two) = (name("fixed"), name("other"));
    let other = take(&client, &two).await;
    let lock = client.lock(&one).ttl(TTL).renew(Renew::Never);
    let guard = soon(lock.acquire()).await.unwrap();
    assert_eq!(database.holders(&one), database.holders(&two));
    soon(guard.lost()).await;
    until("the lock is released", || database.holders(&one).is_empty()).await;
    assert!(other.is_held());
    soon(other.release()).await.unwrap();
}

async fn shared_locks_are_shared_or_refused(database: &dyn Database) {
    let client = connect(&database.url()).await;
    let (other, name) = (connect(&database.url()).await, name("shared"));
    let lock = client.lock(&name).ttl(TTL).shared();
    if !client.guarantees().shared {
        assert!(soon(lock.try_acquire()).await.is_err());
        return;
    }
    let one = soon(lock.acquire()).await.unwrap();
    let two = soon(lock.acquire()).await.unwrap();
    assert!(two.token() > one.token());
    // A session of its own for each: a session that has the lock already would overtake the waiters.
    let holders = database.holders(&name);
    assert!(
        holders.len() == 2 && holders[0] != holders[1],
        "{holders:?}"
    );
    let writer = wait_as(database, &other, &name, 1).await;
    assert!(soon(lock.try_acquire()).await.unwrap().is_none());
    soon(one.release()).await.unwrap();
    assert!(!writer.is_finished());
    soon(two.release()).await.unwrap();
    let writer = soon(writer).await.unwrap().unwrap();
    soon(writer.release()).await.unwrap();
}

async fn a_thousand_free_locks_take_few_connections(database: &dyn Database) {
    let client = connect(&database.url()).await;
    let ttl = Duration::from_secs(30);
    let mut taking = Vec::new();
    for at in 0..1_000 {
        let lock = client.lock(format!("free/{at}")).ttl(ttl);
        taking.push(tokio::spawn(async move { lock.try_acquire().await }));
    }
    let mut guards = Vec::new();
    for taken in taking {
        guards.push(soon(taken).await.unwrap().unwrap().unwrap());
    }
    let sessions = database.sessions().len();
    assert!(sessions <= 4, "{sessions} connections");
    let mut tokens: Vec<_> = guards.iter().map(|guard| guard.token()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 1_000, "no two grants share a token");
    for at in [0, 999] {
        assert_eq!(database.holders(&format!("free/{at}")).len(), 1);
    }
    for guard in guards {
        assert!(guard.is_held());
        soon(guard.release()).await.unwrap();
    }
    let sessions = database.sessions().len();
    assert!(sessions <= 4, "{sessions} connections");
}

/// On either session, never more than one task has a name at a time.
async fn two_sessions_serve_many_requests(database: &dyn Database) {
    let client = connect(&database.url()).await;
    let before = database.sessions().len();
    let (stop, names) = (Arc::new(AtomicU32::new(0)), name("many"));
    let inside: Vec<_> = (0..48).map(|_| Arc::new(AtomicU32::new(0))).collect();
    let mut tasks = Vec::new();
    for task in 0..64 {
        let lock = client.lock(format!("{names}/{}", task % 48)).ttl(TTL * 10);
        let (stop, inside) = (stop.clone(), inside[task % 48].clone());
        tasks.push(tokio::spawn(async move {
            while stop.load(Ordering::SeqCst) == 0 {
                // A lock that a task of this client has is known to be taken without a request.
                tokio::task::yield_now().await;
                if let Some(guard) = soon(lock.try_acquire()).await.unwrap() {
                    assert_eq!(
                        inside.fetch_add(1, Ordering::SeqCst),
                        0,
                        "two tasks have the lock"
                    );
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    soon(guard.release()).await.unwrap();
                }
            }
        }));
    }
    until("there is one session more", || {
        database.sessions().len() > before
    })
    .await;
    stop.store(1, Ordering::SeqCst);
    for task in tasks {
        soon(task).await.unwrap();
    }
    let sessions = database.sessions().len();
    assert!(sessions <= before + 1, "{sessions} after {before}");
}

/// The other waiters poll, and get the lock all the same.
async fn waiters_take_no_more_connections_than_they_may(database: &dyn Database) {
    let holder = connect(&database.url()).await;
    let client = connect(&format!("{}&connections=4", database.url())).await;
    let before = database.sessions().len();
    let names: Vec<_> = (0..12).map(|at| name(&format!("many{at}"))).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(&holder, name).await);
    }
    let ttl = Duration::from_secs(20);
    let mut waiting = Vec::new();
    for name in &names {
        let lock = client.lock(name).ttl(ttl);
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
    }
    let in_queue = || names.iter().map(|name| database.waiters(name).len()).sum();
    until("as many as may wait in the server", || {
        let in_queue: usize = in_queue();
        in_queue == 3
    })
    .await;
    let sessions = database.sessions().len();
    assert!(sessions <= before + 4 + 1, "{sessions} after {before}");
    for guard in guards {
        soon(guard.release()).await.unwrap();
    }
    for waiter in waiting {
        let guard = soon(waiter).await.unwrap().unwrap();
        soon(guard.release()).await.unwrap();
    }
}

async fn idle_sessions_are_closed(database: &dyn Database) {
    let before = database.sessions().len();
    let client = connect(&format!("{}?{OPTIONS}", database.url_at(database.port()))).await;
    let name = name("idle");
    let guard = take(&client, &name).await;
    let session = database.holders(&name)[0];
    soon(guard.release()).await.unwrap();
    until("the session is closed", || {
        !database.sessions().contains(&session)
    })
    .await;
    // Another session is opened when it is needed.
    take_and_release(&client, &name).await;
    client.close().await;
    until("all sessions are closed", || {
        database.sessions().len() == before
    })
    .await;
}
