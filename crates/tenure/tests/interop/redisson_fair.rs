//! `lock=fair` and Redisson's fair lock: one queue for the waiters of both.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Guard};
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tokio::task::JoinHandle;

use crate::support::{
    Driver, LONG, RESERVATION, Redis, WAIT_TIMEOUT, millis, no_increment_is_lost, or_skip,
    our_holder, our_process, print_line, soon, take, try_fails, until,
};

const NAME: &str = "orders/42";
const QUEUE: &str = "redisson_lock_queue:{orders/42}";
const DEADLINES: &str = "redisson_lock_timeout:{orders/42}";

/// A server, a client of ours, and Redisson; `None` where one of them is not installed.
async fn start_all() -> Option<(Redis, Client, Driver)> {
    let redis = Redis::start()?;
    let foreign = Driver::redisson(&redis, "fair").await?;
    let our_client = redis.redisson_lock("fair").await;
    Some((redis, our_client, foreign))
}

fn queued(redis: &Redis) -> i64 {
    redis.ask(&["LLEN", QUEUE]).int()
}

/// Until when each place in the queue is good, in ms since 1970.
fn deadlines(redis: &Redis) -> Vec<i64> {
    let all = ["ZRANGE", DEADLINES, "0", "-1", "WITHSCORES"];
    let all = redis.ask(&all).items();
    let scores = all.iter().skip(1).step_by(2);
    scores.map(|it| it.text().parse().unwrap()).collect()
}

/// Waits until so many are in the queue.
async fn until_queued(redis: &Redis, count: i64) {
    until("the place in the queue", || queued(redis) == count).await;
}

/// Starts to wait for the lock, until our client has a place and has subscribed to the channel of that place.
async fn waiting(redis: &Redis, client: &Client) -> JoinHandle<Guard> {
    let lock = client.lock(NAME).ttl(LONG).wait(WAIT_TIMEOUT);
    let count = queued(redis) + 1;
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    // A lease that has just ended needs no waiting.
    let is_over = || waiting.is_finished();
    until("the place in the queue", || {
        queued(redis) == count || is_over()
    })
    .await;
    let channel = channel_of(redis, -1);
    until("the subscription", || {
        redis.subscribers(&channel) == 1 || is_over()
    })
    .await;
    waiting
}

/// Lets Redisson wait for the lock, until it has a place and has subscribed to the channel of that place.
async fn lets_wait(redis: &Redis, foreign: &mut Driver) {
    let count = queued(redis) + 1;
    foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    until_queued(redis, count).await;
    until_subscribed(redis).await;
}

/// The channel of the waiter at that place.
fn channel_of(redis: &Redis, place: i64) -> String {
    let waiter = redis.ask(&["LINDEX", QUEUE, &place.to_string()]).text();
    format!("redisson_lock__channel:{{{NAME}}}:{waiter}")
}

/// The last waiter has subscribed.
async fn until_subscribed(redis: &Redis) {
    let channel = channel_of(redis, -1);
    until("the subscription", || redis.subscribers(&channel) == 1).await;
}

/// Nothing is left of the lock but what is ours.
fn assert_free(redis: &Redis) {
    for key in [NAME, QUEUE, DEADLINES] {
        assert!(!redis.exists(key), "{key}");
    }
}

#[tokio::test]
async fn waiters_of_both_sides_stand_in_one_queue() {
    let (redis, our_client, mut first) = or_skip!(start_all().await);
    let mut third = or_skip!(Driver::redisson(&redis, "fair").await);
    let other = redis.redisson_lock("fair").await;
    let holder = take(&other, NAME).await;
    lets_wait(&redis, &mut first).await;
    let second = waiting(&redis, &our_client).await;
    lets_wait(&redis, &mut third).await;
    let fourth = waiting(&redis, &other).await;
    assert_eq!(queued(&redis), 4);

    let status = other.inspect(NAME).await.unwrap();
    let queue = status.queue.unwrap();
    assert!(queue[0].label.starts_with("Redisson, "), "{queue:?}");
    assert_eq!(queue[1].pid, std::process::id());
    assert!(queue[2].label.starts_with("Redisson, "), "{queue:?}");

    let token = holder.token();
    let mut messages = redis.listen(&channel_of(&redis, 0));
    holder.release().await.unwrap();
    assert_eq!(messages(), "0");
    first.held().await;
    assert_eq!(queued(&redis), 3);
    assert!(try_fails(&our_client, NAME).await);
    // A lock that is free goes to the first waiter, and to no client that tries.
    first.unlock(NAME).await;
    let guard = soon("our first turn", second).await.unwrap();
    assert!(guard.token() > token);
    assert!(first.try_fails(NAME).await);
    guard.release().await.unwrap();
    third.held().await;
    third.unlock(NAME).await;
    let guard = soon("our second turn", fourth).await.unwrap();
    guard.release().await.unwrap();
    assert_free(&redis);
}

#[tokio::test]
async fn a_release_wakes_the_first_waiter_of_the_other_side() {
    const ROUNDS: usize = 20;
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        foreign.take(NAME, LONG).await;
        let turn = waiting(&redis, &our_client).await;
        let released = Instant::now();
        foreign.unlock(NAME).await;
        let guard = soon("our turn", turn).await.unwrap();
        ours.push(released.elapsed());

        lets_wait(&redis, &mut foreign).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        foreign.held().await;
        theirs.push(released.elapsed());
        foreign.unlock(NAME).await;
    }
    for (who, mut times) in [("we", ours), ("Redisson", theirs)] {
        times.sort();
        let (median, last) = (times[ROUNDS / 2], times[ROUNDS - 1]);
        print_line(&format!(
            "interop java, fair: {who} held {median:.1?} (at most {last:.1?}) after the other's release"
        ));
        // Much longer than a busy machine needs, and much shorter than the lease of 30 s.
        assert!(last < Duration::from_secs(5), "{who}: {last:?}");
    }
    assert_free(&redis);
}

/// After our release the name stays reserved, and the first waiter waits until then, no longer.
#[tokio::test]
async fn waiters_of_both_sides_wait_until_our_reservation_ends() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let start = Instant::now();
    let lock = our_client.lock(NAME).ttl(LONG).min_hold(RESERVATION);
    let guard = soon("our request", lock.try_acquire()).await.unwrap();
    lets_wait(&redis, &mut foreign).await;
    let turn = waiting(&redis, &our_client).await;
    guard.unwrap().release().await.unwrap();
    let status = our_client.inspect(NAME).await.unwrap();
    assert!(status.reserved.is_some() && !status.is_held());
    foreign.held().await;
    assert!(start.elapsed() >= RESERVATION);
    foreign.unlock(NAME).await;
    let guard = soon("our turn", turn).await.unwrap();
    guard.release().await.unwrap();
    assert_free(&redis);
}

/// Waiters that wait long keep their places; so do those of Redisson behind one of ours.
#[tokio::test]
async fn waiters_keep_their_places_while_the_lock_is_held() {
    let (redis, our_client, mut third) = or_skip!(start_all().await);
    let other = redis.redisson_lock("fair").await;
    let holder = take(&other, NAME).await;
    let short = |client: &Client| client.lock(NAME).ttl(Duration::from_secs(1));
    let start = |lock: tenure::Lock| {
        let lock = lock.wait(WAIT_TIMEOUT);
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    let first = start(short(&our_client));
    until_queued(&redis, 1).await;
    // The place of Redisson's waiter is good for as long as it waits, after that of the one before it.
    third.tell(&["lock", NAME, "20000", "30000"]);
    until_queued(&redis, 2).await;
    let last = redis.redisson_lock("fair").await;
    let fourth = start(short(&last));
    until_queued(&redis, 3).await;
    let before = deadlines(&redis);
    let place = 1_000;
    until("our place was kept several times", || {
        deadlines(&redis)[0] > before[0] + 3 * place
    })
    .await;
    // The waiters behind us have as much time after us as before.
    let now = deadlines(&redis);
    assert_eq!(now.len(), 3);
    assert!(now[1] - now[0] >= 20_000, "{before:?} {now:?}");
    assert_eq!(queued(&redis), 3);
    holder.release().await.unwrap();
    let guard = soon("the first turn", first).await.unwrap();
    guard.release().await.unwrap();
    third.held().await;
    third.unlock(NAME).await;
    let guard = soon("the last turn", fourth).await.unwrap();
    guard.release().await.unwrap();
    assert_free(&redis);
}

#[tokio::test]
async fn a_waiter_that_leaves_or_is_killed_is_skipped() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let url = redis.redisson_url("fair");
    let holder = take(&our_client, NAME).await;
    let mut killed = our_process(&url, NAME, &["--ttl", "6s"]);
    until_queued(&redis, 1).await;
    let client = redis.redisson_lock("fair").await;
    let leaves = waiting(&redis, &client).await;
    lets_wait(&redis, &mut foreign).await;
    killed.kill().unwrap();
    leaves.abort();
    until("ours left", || queued(&redis) <= 2).await;
    holder.release().await.unwrap();
    foreign.held().await;
    // Behind one of theirs that gives up, and one that is killed.
    let mut dies = or_skip!(Driver::redisson(&redis, "fair").await);
    let mut other = or_skip!(Driver::redisson(&redis, "fair").await);
    dies.tell(&["lock", NAME, "20000", "30000"]);
    until_queued(&redis, 1).await;
    dies.kill();
    other.tell(&["lock", NAME, "20000", "30000"]);
    until_queued(&redis, 2).await;
    let turn = waiting(&redis, &our_client).await;
    assert_eq!(other.answer().await, "busy");
    foreign.unlock(NAME).await;
    let guard = soon("our turn", turn).await.unwrap();
    guard.release().await.unwrap();
    assert_free(&redis);
}

#[tokio::test]
async fn a_lease_of_either_side_ends_when_its_process_is_killed() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let mut ours = our_holder(&redis.redisson_url("fair"), NAME, "6s").await;
    lets_wait(&redis, &mut foreign).await;
    ours.kill().unwrap();
    foreign.held().await;
    foreign.unlock(NAME).await;
    let mut dies = or_skip!(Driver::redisson(&redis, "fair").await);
    dies.take(NAME, Duration::from_secs(4)).await;
    let turn = waiting(&redis, &our_client).await;
    dies.kill();
    let guard = soon("our turn", turn).await.unwrap();
    guard.release().await.unwrap();
    assert_free(&redis);
}

#[tokio::test]
async fn operators_break_our_hold_and_not_theirs() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let guard = take(&our_client, NAME).await;
    lets_wait(&redis, &mut foreign).await;
    let token = guard.token().get();
    assert!(our_client.break_lock(NAME, token).await.unwrap());
    soon("the loss", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    foreign.held().await;
    assert!(!our_client.break_lock(NAME, token).await.unwrap());
    let listed = our_client.list("").await.unwrap();
    assert!(listed[0].holds[0].holder.label.starts_with("Redisson, "));
    assert_eq!(listed[0].holds[0].token, None);
    foreign.unlock(NAME).await;
    assert_free(&redis);
}

#[tokio::test]
async fn no_increment_of_a_fair_lock_is_lost() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let ours = (&our_client, Duration::ZERO);
    no_increment_is_lost((&mut foreign, "0"), ours, NAME, [4, 50]).await;
    assert_free(&redis);
}

/// Redisson compares the places in the queue with the clock of the client that asks, and leases with the server's.
#[tokio::test]
async fn a_client_in_java_whose_clock_is_ahead_skips_waiters_and_no_holder() {
    needs!("cc");
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let clock = Clock::make();
    clock.set(3_600);
    let early = Driver::start_in("java", &redis, Vec::new(), clock.environment());
    let mut early = early.await.expect("it has started once");
    early.ask(&["kind", "fair"]).await;
    let holder = take(&our_client, NAME).await;
    let client = redis.redisson_lock("fair").await;
    let ours = waiting(&redis, &client).await;
    assert!(early.try_fails(NAME).await);
    assert!(holder.is_held());
    lets_wait_at_all(&redis, &mut early).await;
    holder.release().await.unwrap();
    // Each of them has its turn, in any order.
    early.held().await;
    early.unlock(NAME).await;
    let guard = soon("our turn", ours).await.unwrap();
    assert!(foreign.try_fails(NAME).await);
    guard.release().await.unwrap();
}

/// Lets Redisson wait for the lock, until some waiter has a place.
async fn lets_wait_at_all(redis: &Redis, foreign: &mut Driver) {
    foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    until("a place in the queue", || queued(redis) > 0).await;
}
