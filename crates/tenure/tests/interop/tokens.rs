//! `dialect=token`: redis-py, redlock (npm), rslock, redsync and redislock (Go), each with its own random value
//! in a string key.

use std::time::Duration;

use tenure::{ErrorKind, Guard, Renew};

use crate::support::{
    self, Driver, LONG, PATIENCE, Redis, hex, millis, or_skip, our_holder, soon, take, try_fails,
    until, waiting,
};

/// Long enough to be renewed by a busy machine, short enough to be waited for.
const SHORT: Duration = Duration::from_secs(1);

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
                    let they = Driver::start_with($language, &redis, &$options).await;
                    let Some(they) = they else { return };
                    super::$test(redis, they).await;
                }
            )*
        }
    };
}

with_each_client! {
    we_wait_for_them
    they_wait_for_us
    what_is_not_theirs_they_do_not_release
    what_is_not_ours_we_do_not_release
    our_renewal_keeps_them_out
    they_are_killed
    we_are_killed
    no_increment_is_lost
    names_are_taken_as_written
}

fn value_of(guard: &Guard) -> String {
    hex(guard.owner_id().to_hex().as_bytes())
}

async fn we_wait_for_them(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    let value = they.take("a", LONG).await;
    assert_eq!(redis.value("a"), value);
    assert!((1..=30_000).contains(&redis.ttl("a")));
    assert!(try_fails(&we, "a").await);
    assert!(we.inspect("a").await.unwrap().is_held());
    let short = we.lock("a").wait(Duration::from_millis(50));
    let error = short.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    assert_eq!(redis.value("a"), value, "we have changed their hold");

    let waiting = waiting(&we, "a");
    let queued = || redis.ask(&["LLEN", "tenure:{a}:queue"]).int() == 2;
    until("our place in the queue", queued).await;
    assert_eq!(redis.value("a"), value, "we have not waited");
    they.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    assert_eq!(redis.value("a"), value_of(&guard));
    assert!(they.try_fails("a").await);
    guard.release().await.unwrap();
    assert!(!they.try_fails("a").await);
}

async fn they_wait_for_us(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    let guard = take(&we, "a").await;
    assert_eq!(redis.value("a"), value_of(&guard));
    assert!(they.try_fails("a").await);
    assert_eq!(they.ask(&["locked", "a"]).await, "yes");
    let order = ["lock", "a", "200", "30000"];
    assert_eq!(they.ask(&order).await, "busy");

    let before = redis.commands();
    they.tell(&["lock", "a", &millis(PATIENCE), "30000"]);
    // More than our looks at it.
    let mut looks = 0;
    until("their try", || {
        looks += 1;
        redis.commands() - before > looks + 1
    })
    .await;
    guard.release().await.unwrap();
    let value = they.held().await;
    assert_eq!(redis.value("a"), value);
    assert!(try_fails(&we, "a").await);
    they.unlock("a").await;
    assert!(!redis.exists("a"));
}

async fn what_is_not_theirs_they_do_not_release(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    they.take("a", Duration::from_millis(100)).await;
    until("the end of their hold", || !redis.exists("a")).await;
    let guard = take(&we, "a").await;
    assert_eq!(they.ask(&["unlock", "a"]).await, "not-held");
    assert_eq!(redis.value("a"), value_of(&guard));
    assert!(guard.is_held());
    assert!(they.try_fails("a").await);
    guard.release().await.unwrap();
}

async fn what_is_not_ours_we_do_not_release(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    let lock = we.lock("a").ttl(SHORT).renew(Renew::Never);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    until("the end of our hold", || !redis.exists("a")).await;
    soon("the news of it", guard.lost()).await;
    let value = they.take("a", LONG).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(redis.value("a"), value);
    they.unlock("a").await;
}

async fn our_renewal_keeps_them_out(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    let lock = we.lock("a").ttl(SHORT);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let wait = millis(SHORT * 7 / 2);
    assert_eq!(they.ask(&["lock", "a", &wait, "30000"]).await, "busy");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(!they.try_fails("a").await);
}

async fn they_are_killed(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    they.take("a", SHORT).await;
    they.kill();
    let lock = we.lock("a").wait(PATIENCE);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    assert_eq!(redis.value("a"), value_of(&guard));
}

async fn we_are_killed(redis: Redis, mut they: Driver) {
    let mut we = our_holder(&redis.url(""), "a", "1s").await;
    assert!(they.try_fails("a").await);
    we.kill().unwrap();
    they.tell(&["lock", "a", &millis(PATIENCE), "30000"]);
    let value = they.held().await;
    assert_eq!(redis.value("a"), value);
}

async fn no_increment_is_lost(redis: Redis, mut they: Driver) {
    // Without a pause we would hand it from task to task until the last one is done.
    let (we, pause) = (redis.client().await, Duration::from_millis(5));
    support::no_increment_is_lost((&mut they, "30000"), (&we, pause), "a", [4, 100]).await;
}

async fn names_are_taken_as_written(redis: Redis, mut they: Driver) {
    let we = redis.client().await;
    for name in [
        "a{b}c",
        "{a}{b}",
        "a{}b",
        "mit Leerzeichen und 🔒",
        "a:b/c",
        "tenure",
    ] {
        let value = they.take(name, LONG).await;
        assert_eq!(redis.value(name), value, "{name}");
        assert!(try_fails(&we, name).await, "{name}");
        they.unlock(name).await;
        let guard = take(&we, name).await;
        assert_eq!(redis.value(name), value_of(&guard), "{name}");
        assert!(they.try_fails(name).await, "{name}");
        guard.release().await.unwrap();
        assert!(!redis.exists(name), "{name}");
    }
}

/// What they call `app:a` is `a` to us, and the other way round.
#[tokio::test]
async fn a_prefix_is_part_of_their_name() {
    let Some(redis) = Redis::start() else { return };
    let mut they = or_skip!(Driver::start("python", &redis).await);
    let we = tenure::connect(&redis.url("&prefix=app:")).await.unwrap();
    they.take("app:a", LONG).await;
    assert!(try_fails(&we, "a").await);
    they.unlock("app:a").await;
    let guard = take(&we, "a").await;
    assert!(they.try_fails("app:a").await);
    assert!(!they.try_fails("a").await);
    guard.release().await.unwrap();
}

/// redis-py without a timeout, and many a shell script, write a key that never runs out.
#[tokio::test]
async fn a_foreign_key_without_ttl_is_waited_for() {
    let Some(redis) = Redis::start() else { return };
    let mut they = or_skip!(Driver::start("python", &redis).await);
    let we = redis.client().await;
    they.take("a", Duration::ZERO).await;
    assert_eq!(redis.ttl("a"), -1);
    assert!(try_fails(&we, "a").await);
    assert_eq!(redis.ttl("a"), -1, "we have given it a ttl");
    let waiting = waiting(&we, "a");
    let queued = || redis.ask(&["LLEN", "tenure:{a}:queue"]).int() == 2;
    until("our place in the queue", queued).await;
    they.unlock("a").await;
    let guard = soon("our turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

/// The lock of somebody with another format: no guess, and not a wait for ever.
#[tokio::test]
async fn a_hash_under_the_name_is_one_clear_error() {
    let Some(redis) = Redis::start() else { return };
    let we = redis.client().await;
    redis.ask(&["HSET", "a", "somebody:1", "1"]);
    for error in [
        we.lock("a").try_acquire().await.unwrap_err(),
        we.lock("a").wait(PATIENCE).acquire().await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("holds a hash"), "{text}");
        assert!(text.contains("use dialect=redisson"), "{text}");
        assert!(text.contains("\"a\""), "{text}");
    }
    assert_eq!(redis.hash("a").len(), 1);
}
