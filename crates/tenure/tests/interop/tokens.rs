//! `dialect=token`: redis-py, redlock (npm), rslock, redsync and redislock (Go), each with its own random value
//! in a string key.

use std::time::Duration;

use tenure::{ErrorKind, Guard, Renew};

use crate::support::{
    self, Driver, LONG, Redis, WAIT_TIMEOUT, hex, millis, or_skip, our_holder, soon, take,
    try_fails, until, waiting,
};

/// A ttl that a busy machine can renew in time, and short enough for a test that waits for its end.
const SHORT: Duration = Duration::from_secs(1);
/// A ttl of a hold that is renewed: a process may stand still for some seconds.
const KEPT: Duration = Duration::from_secs(4);

macro_rules! with_each_client {
    ($($test:ident)*) => {
        with_each_client! { @ redis_py "python" [] $($test)* }
        with_each_client! { @ redlock "node" [] $($test)* }
        with_each_client! { @ rslock "rust" [] $($test)* }
        with_each_client! { @ redsync "go" ["redsync"] $($test)* }
        with_each_client! { @ redislock "go" ["redislock"] $($test)* }
    };
    (@ $client:ident $language:literal $options:tt $($test:ident)*) => {
        mod $client {
            use super::{Driver, Redis};
            $(
                #[tokio::test]
                async fn $test() {
                    let Some(redis) = Redis::start() else { return };
                    let foreign = Driver::start_with($language, &redis, &$options).await;
                    let Some(foreign) = foreign else { return };
                    super::$test(redis, foreign).await;
                }
            )*
        }
    };
}

with_each_client! {
    tenure_waits_for_a_foreign_holder
    a_foreign_client_waits_for_tenure
    a_foreign_client_does_not_release_our_hold
    we_do_not_release_a_foreign_hold
    our_renewal_keeps_foreign_clients_out
    a_foreign_holder_is_killed
    a_holder_of_ours_is_killed
    no_increment_is_lost
    names_are_taken_as_written
}

fn value_of(guard: &Guard) -> String {
    hex(guard.owner_id().to_hex().as_bytes())
}

async fn tenure_waits_for_a_foreign_holder(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    let value = foreign.take("a", LONG).await;
    assert_eq!(redis.value("a"), value);
    assert!((1..=30_000).contains(&redis.ttl("a")));
    assert!(try_fails(&our_client, "a").await);
    assert!(our_client.inspect("a").await.unwrap().is_held());
    let short = our_client.lock("a").wait(Duration::from_millis(50));
    let error = short.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    assert_eq!(redis.value("a"), value, "we have changed their hold");

    let waiting = waiting(&our_client, "a");
    let queued = || redis.ask(&["LLEN", "tenure:{a}:queue"]).int() == 2;
    until("our place in the queue", queued).await;
    assert_eq!(redis.value("a"), value, "we have not waited");
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    assert_eq!(redis.value("a"), value_of(&guard));
    assert!(foreign.try_fails("a").await);
    guard.release().await.unwrap();
    assert!(!foreign.try_fails("a").await);
}

async fn a_foreign_client_waits_for_tenure(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    let guard = take(&our_client, "a").await;
    assert_eq!(redis.value("a"), value_of(&guard));
    assert!(foreign.try_fails("a").await);
    assert_eq!(foreign.ask(&["locked", "a"]).await, "yes");
    let order = ["lock", "a", "200", "30000"];
    assert_eq!(foreign.ask(&order).await, "busy");

    let before = redis.commands();
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "30000"]);
    // More commands than this test sends.
    let mut looks = 0;
    until("their try", || {
        looks += 1;
        redis.commands() - before > looks + 1
    })
    .await;
    guard.release().await.unwrap();
    let value = foreign.held().await;
    assert_eq!(redis.value("a"), value);
    assert!(try_fails(&our_client, "a").await);
    foreign.unlock("a").await;
    assert!(!redis.exists("a"));
}

async fn a_foreign_client_does_not_release_our_hold(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    // A client refuses a grant that took longer than its lease.
    foreign.take("a", Duration::from_secs(1)).await;
    until("the end of their hold", || !redis.exists("a")).await;
    let guard = take(&our_client, "a").await;
    assert_eq!(foreign.ask(&["unlock", "a"]).await, "not-held");
    assert_eq!(redis.value("a"), value_of(&guard));
    assert!(guard.is_held());
    assert!(foreign.try_fails("a").await);
    guard.release().await.unwrap();
}

async fn we_do_not_release_a_foreign_hold(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    let lock = our_client.lock("a").ttl(SHORT).renew(Renew::Never);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    until("the end of our hold", || !redis.exists("a")).await;
    soon("the news of it", guard.lost()).await;
    let value = foreign.take("a", LONG).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(redis.value("a"), value);
    foreign.unlock("a").await;
}

async fn our_renewal_keeps_foreign_clients_out(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    let lock = our_client.lock("a").ttl(KEPT);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let wait = millis(KEPT * 3 / 2);
    assert_eq!(foreign.ask(&["lock", "a", &wait, "30000"]).await, "busy");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(!foreign.try_fails("a").await);
}

async fn a_foreign_holder_is_killed(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    foreign.take("a", SHORT).await;
    foreign.kill();
    let lock = our_client.lock("a").wait(WAIT_TIMEOUT);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    assert_eq!(redis.value("a"), value_of(&guard));
}

async fn a_holder_of_ours_is_killed(redis: Redis, mut foreign: Driver) {
    let mut our_client = our_holder(&redis.url(""), "a", "6s").await;
    assert!(foreign.try_fails("a").await);
    our_client.kill().unwrap();
    foreign.tell(&["lock", "a", &millis(WAIT_TIMEOUT), "30000"]);
    let value = foreign.held().await;
    assert_eq!(redis.value("a"), value);
}

async fn no_increment_is_lost(redis: Redis, mut foreign: Driver) {
    // Without a pause our client would hand the lock from task to task until the last task has ended.
    let (our_client, pause) = (redis.client().await, Duration::from_millis(5));
    support::no_increment_is_lost((&mut foreign, "30000"), (&our_client, pause), "a", [4, 100])
        .await;
}

async fn names_are_taken_as_written(redis: Redis, mut foreign: Driver) {
    let our_client = redis.client().await;
    for name in [
        "a{b}c",
        "{a}{b}",
        "a{}b",
        "mit Leerzeichen und 🔒",
        "a:b/c",
        "tenure",
    ] {
        let value = foreign.take(name, LONG).await;
        assert_eq!(redis.value(name), value, "{name}");
        assert!(try_fails(&our_client, name).await, "{name}");
        foreign.unlock(name).await;
        let guard = take(&our_client, name).await;
        assert_eq!(redis.value(name), value_of(&guard), "{name}");
        assert!(foreign.try_fails(name).await, "{name}");
        guard.release().await.unwrap();
        assert!(!redis.exists(name), "{name}");
    }
}

/// With a prefix in our URL, the foreign name `app:a` is our name `a`.
#[tokio::test]
async fn a_prefix_is_part_of_the_foreign_name() {
    let Some(redis) = Redis::start() else { return };
    let mut foreign = or_skip!(Driver::start("python", &redis).await);
    let our_client = tenure::connect(&redis.url("&prefix=app:")).await.unwrap();
    foreign.take("app:a", LONG).await;
    assert!(try_fails(&our_client, "a").await);
    foreign.unlock("app:a").await;
    let guard = take(&our_client, "a").await;
    assert!(foreign.try_fails("app:a").await);
    assert!(!foreign.try_fails("a").await);
    guard.release().await.unwrap();
}

/// redis-py without a timeout, and shell scripts, write a key that never expires.
#[tokio::test]
async fn a_foreign_key_without_ttl_is_waited_for() {
    let Some(redis) = Redis::start() else { return };
    let mut foreign = or_skip!(Driver::start("python", &redis).await);
    let our_client = redis.client().await;
    foreign.take("a", Duration::ZERO).await;
    assert_eq!(redis.ttl("a"), -1);
    assert!(try_fails(&our_client, "a").await);
    assert_eq!(redis.ttl("a"), -1, "we have given it a ttl");
    let waiting = waiting(&our_client, "a");
    let queued = || redis.ask(&["LLEN", "tenure:{a}:queue"]).int() == 2;
    until("our place in the queue", queued).await;
    foreign.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

/// A value of another format under the name is an error: the client neither guesses its meaning nor waits for ever.
#[tokio::test]
async fn a_hash_under_the_name_is_one_clear_error() {
    let Some(redis) = Redis::start() else { return };
    let our_client = redis.client().await;
    redis.ask(&["HSET", "a", "somebody:1", "1"]);
    for error in [
        our_client.lock("a").try_acquire().await.unwrap_err(),
        our_client
            .lock("a")
            .wait(WAIT_TIMEOUT)
            .acquire()
            .await
            .unwrap_err(),
    ] {
        let text = format!("{error:#}");
        assert!(text.contains("holds a hash"), "{text}");
        assert!(text.contains("use dialect=redisson"), "{text}");
        assert!(text.contains("\"a\""), "{text}");
    }
    assert_eq!(redis.hash("a").len(), 1);
}
