//! Redisson's `RMultiLock`: it stores nothing of its own, and takes an `RLock` for each name, in the order given. Our locks of
//! several names do the same.

use tenure::Client;

use crate::support::{
    Driver, LONG, Redis, WAIT_TIMEOUT, millis, or_skip, soon, take, try_fails, until, waiting,
};

const NAMES: [&str; 2] = ["orders/1", "orders/2"];
/// As the driver expects it.
const BOTH: &str = "orders/1,orders/2";

/// A server, a client of ours, and Redisson with multi locks; `None` where one of them is not installed.
async fn start_all() -> Option<(Redis, Client, Driver)> {
    let redis = Redis::start()?;
    let foreign = Driver::redisson(&redis, "multi").await?;
    let our_client = redis.redisson().await;
    Some((redis, our_client, foreign))
}

fn assert_nothing_is_left(redis: &Redis) {
    for name in NAMES {
        assert!(!redis.exists(name), "{name}");
    }
}

#[tokio::test]
async fn a_multi_lock_excludes_our_locks() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.take(BOTH, LONG).await;
    for name in NAMES {
        assert!(try_fails(&our_client, name).await, "{name}");
    }
    let all = our_client.lock_all(NAMES).ttl(LONG);
    assert!(all.try_acquire().await.unwrap().is_none());
    let all_of_ours = {
        let all = all.clone();
        tokio::spawn(async move { all.acquire().await.unwrap() })
    };
    // A waiter for one name, behind the waiter for both.
    let one_of_ours = waiting(&our_client, NAMES[1]);
    for name in NAMES {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        until("our subscription", || redis.subscribers(&channel) > 0).await;
    }
    foreign.unlock(BOTH).await;
    let all = soon("both names", all_of_ours);
    let one = soon("one name", one_of_ours);
    // The two locks exclude each other, so the first to be served ends before the other one begins.
    let (all, one) = tokio::join!(async { all.await.unwrap().release().await }, async {
        one.await.unwrap().release().await
    },);
    all.unwrap();
    one.unwrap();
    assert_nothing_is_left(&redis);
}

#[tokio::test]
async fn our_locks_exclude_a_multi_lock() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    // The last name first: the multi lock has the other one for a moment, and gives it back.
    for held in [&NAMES[1..], &NAMES[..1], &NAMES[..]] {
        let lock = our_client.lock_all(held).ttl(LONG);
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert!(foreign.try_fails(BOTH).await, "{held:?}");
        for name in NAMES.iter().filter(|name| !held.contains(name)) {
            take(&our_client, name).await.release().await.unwrap();
        }
        assert_eq!(foreign.ask(&["lock", BOTH, "200", "30000"]).await, "busy");
        foreign.tell(&["lock", BOTH, &millis(WAIT_TIMEOUT), "30000"]);
        until("their subscription", || {
            redis.subscriptions_of("redisson") > 0
        })
        .await;
        guard.release().await.unwrap();
        foreign.held().await;
        for name in NAMES {
            assert!(try_fails(&our_client, name).await, "{name}");
        }
        foreign.unlock(BOTH).await;
        assert_nothing_is_left(&redis);
    }
}

/// Both sides take both names again and again, in the same order, and never at the same time.
#[tokio::test]
async fn both_sides_take_turns() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    for _ in 0..20 {
        foreign.tell(&["lock", BOTH, &millis(WAIT_TIMEOUT), "30000"]);
        let all = our_client.lock_all(NAMES).ttl(LONG);
        let ours = async { all.acquire().await.unwrap().release().await.unwrap() };
        let theirs = async {
            foreign.held().await;
            foreign.unlock(BOTH).await;
        };
        soon("both turns", async { tokio::join!(ours, theirs) }).await;
    }
    assert_nothing_is_left(&redis);
}
