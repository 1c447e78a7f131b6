//! A client whose process was stopped, in an ensemble: a follower's reply does not prove that the leader has heard of the
//! client.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tenure::{Client, Lock};

use crate::support::{ROOT, connect, nodes, soon, unique, until};
use tenure_testkit::needs;
use tenure_testkit::zookeeper::{Ensemble, PASSWORD, USER};

static ENSEMBLE: LazyLock<Ensemble> = LazyLock::new(Ensemble::start);

/// Sessions for this ttl last 7 s.
const TTL: Duration = Duration::from_secs(6);

/// Long enough that the client notices the stop, and shorter than the connection timeout of 2 s.
const STOP: Duration = Duration::from_millis(1_500);

/// After this time the leader has heard of every client of a follower: a quarter of the session timeout.
const HEARD: Duration = Duration::from_millis(1_750);

async fn client() -> Client {
    let hosts = ENSEMBLE.hosts();
    connect(&format!(
        "zookeeper://{USER}:{PASSWORD}@{hosts}{ROOT}?ttl=6s&timeout=3s"
    ))
    .await
}

/// Stops all tasks of this runtime, also those of the client library that send pings. Returns when the stop began and
/// when it ended.
fn stop() -> (Instant, Instant) {
    let began = Instant::now();
    std::thread::sleep(STOP);
    (began, Instant::now())
}

async fn acquire(lock: &Lock) -> (tenure::Guard, Instant) {
    let guard = soon(lock.acquire()).await.expect("a lock");
    (guard, Instant::now())
}

/// One thread, so that a blocking call stops the whole runtime.
#[tokio::test]
async fn who_waited_through_a_stop_gets_no_lease_that_the_leader_does_not_know_of() {
    needs!(zookeeper);
    let name = unique("stopped-waiter");
    let (waiter, other) = (client().await, client().await);
    let held = soon(other.lock(&name).acquire()).await.unwrap();
    let lock = waiter.lock(&name).ttl(TTL);
    let waiting = tokio::spawn(async move { acquire(&lock).await });
    let look = || nodes(&ENSEMBLE.nodes[0], &name).len() == 2;
    until("it waits", look).await;
    soon(held.release()).await.unwrap();
    let (began, resumed) = stop();
    let (guard, granted) = soon(waiting).await.unwrap();
    let end = Instant::now() + guard.remaining();
    assert!(
        end <= began + TTL || granted >= resumed + HEARD,
        "granted {:?} after the stop, until {:?} after it",
        granted - resumed,
        end - resumed
    );
    guard.release().await.unwrap();
    waiter.close().await;
    other.close().await;
}

/// An acquisition after the stop gets a session that the leader makes, so neither kind of acquisition has to wait.
#[tokio::test]
async fn who_asks_after_a_stop_gets_a_whole_lease() {
    needs!(zookeeper);
    let client = client().await;
    for tries in [false, true] {
        let lock = client.lock(unique("free")).ttl(TTL);
        let (began, _) = stop();
        let guard = match tries {
            true => soon(lock.try_acquire())
                .await
                .unwrap()
                .expect("a free name"),
            false => acquire(&lock).await.0,
        };
        let end = Instant::now() + guard.remaining();
        assert!(
            end > began + TTL + STOP / 2,
            "no more than {:?} are left",
            guard.remaining()
        );
        guard.release().await.unwrap();
    }
    client.close().await;
}

/// The lock was held before the stop: the first renewals after the stop extend the lease only as far as the leader
/// certainly keeps the session.
#[tokio::test]
async fn who_held_before_a_stop_knows_how_long_its_session_lasts() {
    needs!(zookeeper);
    let client = client().await;
    let lock = client.lock(unique("holder")).ttl(TTL);
    let (guard, _) = acquire(&lock).await;
    let (began, resumed) = stop();
    // Renewals are sent now; the end of each lease is compared with the time from which the leader may count.
    while resumed.elapsed() < HEARD / 2 {
        let end = Instant::now() + guard.remaining();
        // On a busy machine this loop may run late.
        if resumed.elapsed() < HEARD {
            assert!(end <= began + TTL, "{:?} too long", end - (began + TTL));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Afterwards a renewal begins a whole lease again.
    let is_whole = || Instant::now() + guard.remaining() > began + TTL + STOP / 2;
    until("the lease is extended", is_whole).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    client.close().await;
}
