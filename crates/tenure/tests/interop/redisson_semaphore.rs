//! `lock=semaphore` and Redisson's RPermitExpirableSemaphore: both count the same permits.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Guard, Lock, Mode};
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tokio::task::JoinHandle;

use crate::support::{
    Driver, LONG, RESERVATION, Redis, WAIT_TIMEOUT, millis, no_increment_is_lost, or_skip,
    our_holder_in, soon, until,
};

const NAME: &str = "orders/42";
const CHANNEL: &str = "redisson_sc:{orders/42}";
const HELD: &str = "{orders/42}:timeout";
const SHORT: Duration = Duration::from_secs(1);
/// A ttl of a hold that is renewed: a process may stand still for some seconds.
const KEPT: Duration = Duration::from_secs(4);

/// A server, a client of ours, and Redisson; `None` where one of them is not installed.
async fn start_all() -> Option<(Redis, Client, Driver)> {
    let redis = Redis::start()?;
    let foreign = Driver::redisson(&redis, "semaphore").await?;
    let our_client = redis.redisson_lock("semaphore").await;
    Some((redis, our_client, foreign))
}

async fn take(lock: Lock) -> Guard {
    let guard = soon("our request", lock.ttl(LONG).try_acquire()).await;
    guard.unwrap().expect("a permit is free")
}

async fn fails(lock: Lock) -> bool {
    let guard = soon("our request", lock.ttl(LONG).try_acquire()).await;
    guard.unwrap().is_none()
}

/// Starts to wait for a permit, until our client has subscribed.
async fn waiting(redis: &Redis, lock: Lock) -> JoinHandle<Guard> {
    let before = redis.subscriptions_made();
    let lock = lock.ttl(LONG).wait(WAIT_TIMEOUT);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until("our subscription", || redis.subscriptions_made() > before).await;
    waiting
}

/// Lets Redisson wait for a permit, until it has subscribed.
async fn lets_wait(redis: &Redis, foreign: &mut Driver) {
    let before = redis.subscriptions_made();
    foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    until("their subscription", || redis.subscriptions_made() > before).await;
}

fn free(redis: &Redis) -> String {
    redis.ask(&["GET", NAME]).text()
}

fn held(redis: &Redis) -> i64 {
    redis.ask(&["ZCARD", HELD]).int()
}

#[tokio::test]
async fn both_sides_count_the_same_permits_and_wake_each_other() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let mut other = or_skip!(Driver::redisson(&redis, "semaphore").await);
    assert_eq!(foreign.ask(&["set", NAME, "3"]).await, "set");
    let lock = || our_client.lock(NAME).permits(3);
    let first = take(lock()).await;
    foreign.take(NAME, LONG).await;
    other.take(NAME, Duration::ZERO).await;
    assert_eq!((free(&redis), held(&redis)), ("0".into(), 3));
    assert!(fails(lock()).await);
    assert!(foreign.try_fails(NAME).await);
    assert!(other.try_fails(NAME).await);

    let mut message = redis.listen(CHANNEL);
    let ours = waiting(&redis, lock()).await;
    foreign.unlock(NAME).await;
    assert_eq!(message(), "1");
    let second = soon("our turn", ours).await.unwrap();
    assert!(second.token() > first.token());

    lets_wait(&redis, &mut foreign).await;
    first.release().await.unwrap();
    assert_eq!(message(), "1");
    foreign.held().await;
    foreign.unlock(NAME).await;
    other.unlock(NAME).await;
    assert_eq!(foreign.ask(&["available", NAME]).await, "available\t2");
    second.release().await.unwrap();
    assert_eq!(foreign.ask(&["available", NAME]).await, "available\t3");
    assert_eq!((free(&redis), held(&redis)), ("3".into(), 0));
}

/// After our release the permit stays reserved, and Redisson waits until then, no longer.
#[tokio::test]
async fn a_foreign_client_waits_until_our_reservation_ends() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let start = Instant::now();
    let kept = take(our_client.lock(NAME).permits(2)).await;
    let guard = take(our_client.lock(NAME).permits(2).min_hold(RESERVATION)).await;
    lets_wait(&redis, &mut foreign).await;
    guard.release().await.unwrap();
    assert_eq!((free(&redis), held(&redis)), ("0".into(), 2));
    let status = our_client.inspect(NAME).await.unwrap();
    assert!(status.reserved.is_some());
    assert_eq!(status.holds.len(), 1);
    assert!(fails(our_client.lock(NAME).permits(2)).await);
    foreign.held().await;
    assert!(start.elapsed() >= RESERVATION);
    foreign.unlock(NAME).await;
    kept.release().await.unwrap();
    assert_eq!((free(&redis), held(&redis)), ("2".into(), 0));
}

#[tokio::test]
async fn the_number_of_permits_is_set_once_and_another_number_is_refused() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    // Redisson waits for a semaphore that has no permits yet.
    lets_wait(&redis, &mut foreign).await;
    let guard = take(our_client.lock(NAME).permits(2)).await;
    foreign.held().await;
    assert_eq!(foreign.ask(&["set", NAME, "5"]).await, "kept");
    for (lock, says) in [
        (
            our_client.lock(NAME).permits(3),
            ["permits(2)", "setPermits(3)"],
        ),
        (our_client.lock(NAME), ["permits(2)", "setPermits(1)"]),
    ] {
        for error in [
            lock.clone().try_acquire().await.unwrap_err(),
            lock.wait(WAIT_TIMEOUT).acquire().await.unwrap_err(),
        ] {
            let text = format!("{error:#}");
            assert!(says.iter().all(|it| text.contains(it)), "{text}");
            assert!(text.contains(NAME), "{text}");
        }
    }
    assert_eq!((free(&redis), held(&redis)), ("0".into(), 2));
    // Only the number was deleted: the permits that are held still count.
    redis.ask(&["DEL", NAME]);
    assert!(fails(our_client.lock(NAME).permits(2)).await);
    assert!(foreign.try_fails(NAME).await);
    guard.release().await.unwrap();
    foreign.unlock(NAME).await;
    assert_eq!(foreign.ask(&["available", NAME]).await, "available\t2");
}

#[tokio::test]
async fn a_lease_of_either_side_ends_when_its_process_is_killed() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.ask(&["set", NAME, "2"]).await;
    let url = redis.redisson_url("semaphore");
    let options = ["--ttl", "6s", "--mode", "permits=2"];
    let mut ours = our_holder_in(&url, NAME, &options).await;
    let mut dies = or_skip!(Driver::redisson(&redis, "semaphore").await);
    dies.take(NAME, SHORT).await;
    dies.kill();
    let lock = our_client.lock(NAME).permits(2).ttl(LONG);
    let lock = lock.wait(WAIT_TIMEOUT);
    let guard = soon("our turn", lock.acquire()).await.unwrap();
    // Our process renews its permit.
    let wait = millis(KEPT * 3 / 2);
    assert_eq!(foreign.ask(&["lock", NAME, &wait, "30000"]).await, "busy");
    ours.kill().unwrap();
    foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    foreign.held().await;
    foreign.unlock(NAME).await;
    guard.release().await.unwrap();
    assert_eq!(foreign.ask(&["available", NAME]).await, "available\t2");
}

#[tokio::test]
async fn operators_see_all_permits_and_break_ours_only() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.ask(&["set", NAME, "2"]).await;
    let lock = our_client.lock(NAME).permits(2).label("ours");
    let guard = take(lock).await;
    let id = foreign.take(NAME, Duration::ZERO).await;
    let listed = our_client.list("").await.unwrap();
    assert_eq!(listed.len(), 1);
    let status = our_client.inspect(NAME).await.unwrap();
    assert_eq!(listed[0].holds.len(), 2);
    let [theirs, ours] = &status.holds[..] else {
        panic!("{status:?}");
    };
    assert_eq!(theirs.holder.label, format!("Redisson, {id}"));
    assert_eq!((theirs.token, theirs.ttl_left), (None, None));
    assert_eq!(ours.holder.label, "ours");
    assert_eq!(ours.token, Some(guard.token()));
    let limit = std::num::NonZeroU32::new(2).unwrap();
    assert!(
        [ours, theirs]
            .iter()
            .all(|it| it.mode == Mode::Permits { limit })
    );

    let token = guard.token().get();
    assert!(!our_client.break_lock(NAME, token + 1).await.unwrap());
    assert!(!our_client.break_lock(NAME, 0_u64).await.unwrap());
    assert!(our_client.break_lock(NAME, token).await.unwrap());
    soon("the loss", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!((free(&redis), held(&redis)), ("1".into(), 1));
    foreign.unlock(NAME).await;
    assert_eq!(foreign.ask(&["available", NAME]).await, "available\t2");
}

#[tokio::test]
async fn something_else_under_the_name_is_one_clear_error() {
    let Some(redis) = Redis::start() else { return };
    let our_client = redis.redisson_lock("semaphore").await;
    let lock = || our_client.lock(NAME).permits(2);
    redis.ask(&["SET", NAME, "somebody"]);
    let text = format!("{:#}", lock().try_acquire().await.unwrap_err());
    assert!(text.contains("leave dialect=redisson out"), "{text}");
    assert_eq!(redis.ask(&["GET", NAME]).text(), "somebody");
    redis.ask(&["DEL", NAME]);
    redis.ask(&["HSET", NAME, "somebody", "1"]);
    let text = format!("{:#}", lock().try_acquire().await.unwrap_err());
    assert!(
        text.contains("holds a hash") && text.contains("lock=rw"),
        "{text}"
    );
    assert_eq!(redis.hash(NAME).len(), 1);
    redis.ask(&["DEL", NAME]);
    redis.ask(&["SET", NAME, "2", "PX", "60000"]);
    let text = format!("{:#}", lock().try_acquire().await.unwrap_err());
    assert!(text.contains("clearExpire()"), "{text}");
    assert_eq!(free(&redis), "2");
}

/// An exclusive hold is the only permit of one.
#[tokio::test]
async fn no_increment_of_a_semaphore_is_lost() {
    let (_redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.ask(&["set", NAME, "1"]).await;
    let ours = (&our_client, Duration::ZERO);
    no_increment_is_lost((&mut foreign, "30000"), ours, NAME, [4, 150]).await;
}

/// Redisson compares the ends of leases with the clock of the client that asks.
#[tokio::test]
async fn a_client_in_java_whose_clock_is_ahead_takes_our_permit() {
    needs!("cc");
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let clock = Clock::make();
    clock.set(3_600);
    let early = Driver::start_in("java", &redis, Vec::new(), clock.environment());
    let mut early = early.await.expect("it has started once");
    early.ask(&["kind", "semaphore"]).await;
    foreign.ask(&["set", NAME, "1"]).await;
    let guard = take(our_client.lock(NAME)).await;
    assert!(foreign.try_fails(NAME).await);
    early.take(NAME, LONG).await;
    assert!(guard.is_held(), "two hold the only permit");
    assert!(foreign.try_fails(NAME).await);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}
