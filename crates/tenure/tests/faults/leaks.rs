//! A client or a holder that gives up, ends or dies leaves nothing: no hold, no place in a queue, no subscription, no connection, no task.

use crate::common::runtimes::assert_no_panic_after_the_runtime;
use crate::common::{alive_tasks, drop_acquires, soon, take, until};
use crate::stores::{Store, TTL, name, on};

on!(alone [redis etcd zookeeper mysql postgres mysql_table postgres_table]:
    dropped_acquires_leave_nothing
    clients_that_come_and_go_leave_nothing
    tasks_that_wait_for_a_loss_end_with_the_hold
    a_guard_that_outlives_its_runtime_does_not_panic);

/// The tasks of this runtime, and the clients that the server knows, those of former tests among them.
struct Before {
    tasks: usize,
    clients: Vec<String>,
}

impl Before {
    fn of(store: &Store) -> Self {
        Self {
            tasks: alive_tasks(),
            clients: store.server.clients(),
        }
    }

    /// How many connections, sessions or leases are new.
    fn new_clients(&self, store: &Store) -> usize {
        let clients = store.server.clients();
        let is_new = |client: &&String| !self.clients.contains(client);
        clients.iter().filter(is_new).count()
    }

    async fn until_nothing_is_left(&self, store: &Store) {
        until("no client, no subscription, no task is left", || {
            let is_left = self.new_clients(store) > 0 || store.server.subscriptions() > 0;
            !is_left && alive_tasks() <= self.tasks
        })
        .await;
    }
}

/// Tries and futures of `acquire`, dropped after none to some polls, on names that are free and on one that is held.
async fn dropped_acquires_leave_nothing(store: &'static Store) {
    /// How many names are free.
    const FREE: u32 = 23;
    let before = Before::of(store);
    let (client, other) = (store.client().await, store.client().await);
    let holder = take(&other, "held", TTL * 10).await;
    for _ in 0..store.many.min(300) {
        let tried = soon(client.lock("held").ttl(TTL * 10).try_acquire()).await;
        assert!(tried.unwrap().is_none());
    }
    assert_eq!(store.counts("held"), (1, 0));
    drop_acquires(&client, TTL * 10, store.many, FREE).await;
    until("no other lock is held, no client waits", || {
        let free = (0..FREE).map(|number| store.contenders(&format!("free{number}")));
        store.counts("held") == (1, 0) && free.sum::<usize>() == 0
    })
    .await;
    // ZooKeeper has a watch for each name that its client may use again; clients of Redis have one channel each.
    let (clients, subscriptions) = match &store.url()[..5] {
        "etcd:" => (2, 0),
        "redis" => (2, 2),
        "zooke" => (4, FREE as usize + 2),
        _ => (usize::MAX, 0),
    };
    until("few subscriptions", || {
        store.server.subscriptions() <= subscriptions
    })
    .await;
    // A connection that broke on a busy machine is listed beside its successor for a moment.
    until("few connections, sessions or leases", || {
        before.new_clients(store) <= clients
    })
    .await;
    assert!(holder.is_held(), "{:?}", holder.state());
    soon(holder.release()).await.unwrap();
    // The last of these requests may still be on their way, so this waits.
    for (client, name) in [(&other, "free1"), (&other, "free22"), (&client, "held")] {
        let guard = soon(client.lock(name).ttl(TTL * 10).acquire())
            .await
            .unwrap();
        soon(guard.release()).await.unwrap();
    }
    soon(client.close()).await;
    soon(other.close()).await;
    drop((client, other));
    before.until_nothing_is_left(store).await;
}

async fn clients_that_come_and_go_leave_nothing(store: &'static Store) {
    let (before, name) = (Before::of(store), name("come-and-go"));
    for number in 0..(store.many / 10).min(60) {
        let client = store.client().await;
        let guard = take(&client, &name, TTL).await;
        match number % 3 {
            // Closed properly, with its lock released.
            0 => {
                soon(guard.release()).await.unwrap();
                soon(client.close()).await;
            }
            // Closed with a lock in hand.
            1 => {
                soon(client.close()).await;
                drop(guard);
            }
            // Just dropped, the guard last.
            _ => {
                drop(client);
                drop(guard);
            }
        }
        store.until_idle(&name).await;
    }
    before.until_nothing_is_left(store).await;
}

/// A task that waits for a loss ends with the hold, and the connection with the client.
async fn tasks_that_wait_for_a_loss_end_with_the_hold(store: &'static Store) {
    let before = Before::of(store);
    let client = store.client().await;
    let lock = client.lock(name("held")).ttl(TTL);
    soon(lock.acquire()).await.unwrap().release().await.unwrap();
    let with_client = alive_tasks();
    for round in 0..store.many.min(1_000) {
        let guard = soon(lock.acquire()).await.unwrap();
        tokio::spawn(guard.lost());
        tokio::spawn(guard.at_risk());
        match round % 2 {
            0 => soon(guard.release()).await.unwrap(),
            _ => drop(guard),
        }
    }
    // A client may open a connection more when it has much to do.
    until("the tasks end with their holds", || {
        alive_tasks() <= with_client + 8
    })
    .await;
    let guard = soon(lock.acquire()).await.unwrap();
    let kept = (guard.lost(), guard.at_risk());
    drop((guard, client, lock));
    before.until_nothing_is_left(store).await;
    assert_eq!(soon(kept.0).await, None);
}

/// A panic in a drop ends the process where `panic` is `abort`, though the driver catches it elsewhere.
async fn a_guard_that_outlives_its_runtime_does_not_panic(store: &'static Store) {
    let (url, name) = (store.url(), name("outlives"));
    let checked = tokio::task::spawn_blocking(move || {
        assert_no_panic_after_the_runtime(&url, &name);
    });
    checked.await.unwrap();
}
