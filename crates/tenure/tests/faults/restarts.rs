//! The server is killed and started again.

use std::time::Duration;

use tenure::{Client, Error, Guard};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::proxy::Fault;
use tokio::task::JoinHandle;

use crate::common::{answered, soon, start_acquire, take, until, until_renewed};
use crate::stores::{LostReply, Store, TTL, acquire, name, on};

on!(alone [redis etcd zookeeper mysql_table postgres_table]: a_restart_keeps_holder_and_waiter);
on!(alone [redis redis_in_memory etcd zookeeper mysql postgres mysql_table postgres_table]:
    an_idle_client_goes_on_after_a_restart
    a_waiter_outlasts_a_server_that_is_down
    a_waiter_outlasts_a_server_that_starts_slowly
    a_waiter_outlasts_a_server_that_dies_before_its_first_reply);

/// What was granted is on disk: the holder goes on, and so does the waiter.
async fn a_restart_keeps_holder_and_waiter(store: &'static Store) {
    let (first, second, third) = (
        store.client().await,
        store.client().await,
        store.client().await,
    );
    // A restart takes a moment.
    let (ttl, name) = (TTL * 3, name("restarted"));
    let guard = take(&first, &name, ttl).await;
    let waiting = store.wait(&second, &name, ttl).await;
    for _ in 0..2 {
        store.server.restart();
        assert_eq!(store.counts(&name).0, 1, "the hold is forgotten");
        assert!(guard.is_held(), "{:?}", guard.state());
        let lock = third.lock(&name).ttl(ttl);
        let tried = answered(async || lock.try_acquire().await).await;
        assert!(tried.is_none(), "granted to a second client");
        until_renewed(&guard).await;
        assert!(!waiting.is_finished(), "two hold it");
    }
    until("the waiter has its place", || store.counts(&name) == (1, 1)).await;
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token, "{} follows {token}", next.token());
    soon(next.release()).await.unwrap();
    store.until_idle(&name).await;
}

/// Connections that lay idle ended with the server. A store that recovers tells no caller of that.
async fn an_idle_client_goes_on_after_a_restart(store: &'static Store) {
    let (client, name) = (store.client().await, name("idle"));
    let mut last = 0;
    for round in 0..3 {
        let lock = client.lock(&name).ttl(TTL);
        let guard = match store.lost_reply {
            LostReply::Recovered => take(&client, &name, TTL).await,
            _ => acquire(&lock).await,
        };
        let token = guard.token().get();
        assert!(token > last, "{token} follows {last} in round {round}");
        last = token;
        soon(guard.release()).await.unwrap();
        store.server.restart();
    }
}

/// Waiters go on waiting when the server dies, and are served when it is back, whether it still knows the holder or not.
async fn a_waiter_outlasts_a_server_that_is_down(store: &'static Store) {
    let (scene, second) = (Scene::new(store).await, store.client().await);
    let waiting = store.wait(&second, &scene.name, OUTLASTS).await;
    scene.outlast(waiting, Duration::ZERO).await;
}

/// The same, when the server answers nothing for longer than a request may take after its start.
async fn a_waiter_outlasts_a_server_that_starts_slowly(store: &'static Store) {
    let (scene, second) = (Scene::new(store).await, store.client().await);
    let waiting = store.wait(&second, &scene.name, OUTLASTS).await;
    scene.outlast(waiting, Duration::from_secs(5)).await;
}

/// The same, when the server has the waiter's request, and the waiter does not know that.
async fn a_waiter_outlasts_a_server_that_dies_before_its_first_reply(store: &'static Store) {
    let (scene, (proxy, second)) = (Scene::new(store).await, store.proxied().await);
    proxy.plan(store.requests.wait[0], Fault::NoReply);
    let waiting = start_acquire(second.lock(&scene.name).ttl(OUTLASTS));
    until("the server has the request", || proxy.is_done()).await;
    scene.outlast(waiting, Duration::ZERO).await;
}

/// A waiter goes on for so long without an answer.
const OUTLASTS: Duration = TTL.saturating_mul(6);

/// A name that a client holds.
struct Scene {
    store: &'static Store,
    name: String,
    holder: Guard,
    _client: Client,
}

impl Scene {
    async fn new(store: &'static Store) -> Self {
        let (client, name) = (store.client().await, name("down"));
        Self {
            store,
            // One try may get no answer in time on a busy machine.
            holder: acquire(&client.lock(&name).ttl(OUTLASTS)).await,
            name,
            _client: client,
        }
    }

    /// The server dies, and answers nothing for `silence` after its start.
    async fn outlast(self, waiting: JoinHandle<Result<Guard, Error>>, silence: Duration) {
        let store = self.store;
        store.server.kill();
        tokio::time::sleep(TTL / 4).await;
        store.server.start();
        if !silence.is_zero() {
            store.server.stop();
            tokio::time::sleep(silence).await;
            store.server.resume();
        }
        // The holder may learn that it lost the lock, or keep the lock and release it.
        let released = soon(self.holder.release()).await;
        let waited = tokio::time::timeout(OUTLASTS + TEST_TIMEOUT, waiting).await;
        match waited.expect("its turn comes").unwrap() {
            Ok(guard) => soon(guard.release()).await.unwrap(),
            Err(err) => panic!("told {err} instead of served ({released:?})"),
        }
        store.until_idle(&self.name).await;
    }
}
