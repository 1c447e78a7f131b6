//! `lock=rw` and Redisson's RReadWriteLock: readers of both go together, and a writer of either is alone.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Guard, Lock, Mode, Renew};
use tokio::task::JoinHandle;

use crate::support::{
    Driver, LONG, Redis, WAIT_TIMEOUT, millis, no_increment_is_lost, or_skip, our_holder_in,
    print_line, soon, until,
};

const NAME: &str = "orders/42";
const CHANNEL: &str = "redisson_rwlock:{orders/42}";
const SHORT: Duration = Duration::from_secs(1);
/// A ttl of a hold that is renewed: a process may stand still for some seconds.
const KEPT: Duration = Duration::from_secs(4);

/// A server, a client of ours, and Redisson; `None` where one of them is not installed.
async fn start_all(kind: &str) -> Option<(Redis, Client, Driver)> {
    let redis = Redis::start()?;
    let foreign = Driver::redisson(&redis, kind).await?;
    let our_client = redis.redisson_lock("rw").await;
    Some((redis, our_client, foreign))
}

async fn take(lock: Lock) -> Guard {
    let guard = soon("our request", lock.ttl(LONG).try_acquire()).await;
    guard.unwrap().expect("there is room")
}

async fn fails(lock: Lock) -> bool {
    let guard = soon("our request", lock.ttl(LONG).try_acquire()).await;
    guard.unwrap().is_none()
}

/// Starts to wait for the lock, until our client has subscribed.
async fn waiting(redis: &Redis, lock: Lock) -> JoinHandle<Guard> {
    let before = redis.subscriptions_made();
    let lock = lock.ttl(LONG).wait(WAIT_TIMEOUT);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    // A lease that has just ended needs no waiting.
    until("our subscription", || {
        redis.subscriptions_made() > before || waiting.is_finished()
    })
    .await;
    waiting
}

/// Lets Redisson wait for the lock, until its thread sleeps: a message for readers that comes earlier is lost.
async fn lets_wait(foreign: &mut Driver) {
    foreign.tell(&["wait", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    assert_eq!(foreign.answer().await, "waiting");
}

/// The keys of the lock that are not ours.
fn their_keys(redis: &Redis) -> Vec<String> {
    let keys = redis.ask(&["KEYS", "*"]).items();
    let mut keys: Vec<_> = keys.iter().map(|key| key.text()).collect();
    keys.retain(|key| !key.starts_with("tenure:{"));
    keys.sort();
    keys
}

#[tokio::test]
async fn readers_of_both_sides_go_together_and_writers_are_alone() {
    let (redis, our_client, mut reader) = or_skip!(start_all("read").await);
    let mut other = or_skip!(Driver::redisson(&redis, "read").await);
    let mut writer = or_skip!(Driver::redisson(&redis, "write").await);
    let lock = || our_client.lock(NAME);

    // A reader of each side, in both orders.
    for _ in 0..2 {
        let first = take(lock().shared()).await;
        reader.take(NAME, LONG).await;
        other.take(NAME, Duration::ZERO).await;
        let second = take(lock().shared()).await;
        assert!(second.token() > first.token());
        assert!(fails(lock()).await && writer.try_fails(NAME).await);
        assert_eq!(redis.hash(NAME).len(), 5);
        first.release().await.unwrap();
        reader.unlock(NAME).await;
        assert!(fails(lock()).await && writer.try_fails(NAME).await);
        second.release().await.unwrap();
        assert!(fails(lock()).await && writer.try_fails(NAME).await);
        other.unlock(NAME).await;
        assert_eq!(their_keys(&redis), [""; 0]);
    }
    // A writer of ours.
    let guard = take(lock()).await;
    assert_eq!(guard.mode(), Mode::Exclusive);
    assert!(reader.try_fails(NAME).await && writer.try_fails(NAME).await);
    assert!(fails(lock()).await && fails(lock().shared()).await);
    guard.release().await.unwrap();
    // A writer of theirs, who enters twice.
    writer.take(NAME, LONG).await;
    writer.take(NAME, LONG).await;
    let hash = redis.hash(NAME);
    assert!(fails(lock()).await && fails(lock().shared()).await);
    assert_eq!(redis.hash(NAME), hash, "we have changed their hold");
    writer.unlock(NAME).await;
    assert!(fails(lock()).await && fails(lock().shared()).await);
    writer.unlock(NAME).await;
    assert_eq!(their_keys(&redis), [""; 0]);
    take(lock().shared()).await.release().await.unwrap();
    assert_eq!(their_keys(&redis), [""; 0]);
}

#[tokio::test]
async fn a_release_wakes_the_readers_and_writers_of_the_other_side() {
    const ROUNDS: usize = 10;
    let (redis, our_client, mut reader) = or_skip!(start_all("read").await);
    let mut writer = or_skip!(Driver::redisson(&redis, "write").await);
    let lock = || our_client.lock(NAME);
    let mut message = redis.listen(CHANNEL);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        writer.take(NAME, LONG).await;
        let turn = waiting(&redis, lock().shared()).await;
        let released = Instant::now();
        writer.unlock(NAME).await;
        let guard = soon("our turn to read", turn).await.unwrap();
        ours.push(released.elapsed());
        assert_eq!(message(), "1");

        lets_wait(&mut writer).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        writer.held().await;
        theirs.push(released.elapsed());
        assert_eq!(message(), "0");
        writer.unlock(NAME).await;
        assert_eq!(message(), "1");

        reader.take(NAME, LONG).await;
        let turn = waiting(&redis, lock()).await;
        let released = Instant::now();
        reader.unlock(NAME).await;
        let guard = soon("our turn to write", turn).await.unwrap();
        ours.push(released.elapsed());
        assert_eq!(message(), "0");

        lets_wait(&mut reader).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        reader.held().await;
        theirs.push(released.elapsed());
        assert_eq!(message(), "1");
        reader.unlock(NAME).await;
        assert_eq!(message(), "0");
    }
    for (who, mut times) in [("we", ours), ("Redisson", theirs)] {
        times.sort();
        let (median, last) = (times[ROUNDS], times[2 * ROUNDS - 1]);
        print_line(&format!(
            "interop java, read-write: {who} held {median:.1?} (at most {last:.1?}) after the other's release"
        ));
        // Much longer than a busy machine needs, and much shorter than the lease of 30 s.
        assert!(last < Duration::from_secs(5), "{who}: {last:?}");
    }
}

/// Redisson computes from the keys of all readers how long the lock lives when a reader leaves.
#[tokio::test]
async fn each_reader_keeps_its_lease_when_others_leave() {
    let (redis, our_client, mut reader) = or_skip!(start_all("read").await);
    let guard = take(our_client.lock(NAME).shared()).await;
    reader.take(NAME, Duration::from_secs(120)).await;
    assert!(redis.ttl(NAME) > 100_000);
    reader.unlock(NAME).await;
    assert!((20_000..=30_000).contains(&redis.ttl(NAME)), "ours is left");
    reader.take(NAME, Duration::from_secs(120)).await;
    guard.release().await.unwrap();
    assert!(redis.ttl(NAME) > 100_000, "theirs is left");
    reader.unlock(NAME).await;
    assert_eq!(their_keys(&redis), [""; 0]);
}

/// The watchdog sets the time of the whole lock, which must not be shorter than what we believe.
#[tokio::test]
async fn a_shared_hold_believes_in_no_more_than_a_watchdog_leaves_it() {
    let (redis, our_client, mut reader) = or_skip!(start_all("read").await);
    let lock = || our_client.lock(NAME).shared().ttl(Duration::from_secs(120));
    let fixed = lock().renew(Renew::Never);
    let error = fixed.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(format!("{error:#}").contains("30s"), "{error}");
    assert_eq!(their_keys(&redis), [""; 0]);
    let guard = lock().try_acquire().await.unwrap().unwrap();
    assert!(guard.remaining() <= LONG);
    reader.take(NAME, Duration::ZERO).await;
    assert!((1..=30_000).contains(&redis.ttl(NAME)));
    guard.release().await.unwrap();
    reader.unlock(NAME).await;
}

#[tokio::test]
async fn renewals_of_readers_keep_writers_out() {
    let (redis, our_client, mut writer) = or_skip!(start_all("write").await);
    let lock = our_client.lock(NAME).shared().ttl(KEPT);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let wait = millis(KEPT * 3 / 2);
    assert_eq!(writer.ask(&["lock", NAME, &wait, "30000"]).await, "busy");
    assert!(guard.is_held());
    guard.release().await.unwrap();

    let quick = vec![millis(KEPT)];
    let quick = Driver::start_in("java", &redis, quick, Vec::new()).await;
    let mut reader = quick.expect("it has started once");
    reader.ask(&["kind", "read"]).await;
    reader.take(NAME, Duration::ZERO).await;
    let beside = take(our_client.lock(NAME).shared()).await;
    beside.release().await.unwrap();
    let lock = our_client.lock(NAME).wait(KEPT * 3 / 2);
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    reader.unlock(NAME).await;
    take(our_client.lock(NAME)).await.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_of_either_side_ends_when_its_process_is_killed() {
    let (redis, our_client, mut writer) = or_skip!(start_all("write").await);
    let url = redis.redisson_url("rw");
    for options in [&["--ttl", "6s", "--mode", "shared"][..], &["--ttl", "6s"]] {
        let mut ours = our_holder_in(&url, NAME, options).await;
        assert!(writer.try_fails(NAME).await);
        ours.kill().unwrap();
        writer.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
        writer.held().await;
        writer.unlock(NAME).await;
    }
    for kind in ["read", "write"] {
        let mut dies = or_skip!(Driver::redisson(&redis, kind).await);
        dies.take(NAME, SHORT).await;
        let turn = waiting(&redis, our_client.lock(NAME)).await;
        dies.kill();
        let guard = soon("our turn", turn).await.unwrap();
        guard.release().await.unwrap();
    }
    // One of two readers dies, and the other one leaves.
    let mut ours = our_holder_in(&url, NAME, &["--ttl", "6s", "--mode", "shared"]).await;
    let mut reader = or_skip!(Driver::redisson(&redis, "read").await);
    reader.take(NAME, LONG).await;
    ours.kill().unwrap();
    let turn = waiting(&redis, our_client.lock(NAME)).await;
    reader.unlock(NAME).await;
    let guard = soon("our turn", turn).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(their_keys(&redis), [""; 0]);
}

#[tokio::test]
async fn operators_see_all_holders_and_break_ours_only() {
    let (redis, our_client, mut reader) = or_skip!(start_all("read").await);
    let guard = take(our_client.lock(NAME).shared().label("ours")).await;
    reader.take(NAME, LONG).await;
    let status = our_client.inspect(NAME).await.unwrap();
    assert_eq!(our_client.list("").await.unwrap()[0].holds.len(), 2);
    let [theirs, ours] = &status.holds[..] else {
        panic!("{status:?}");
    };
    assert!(theirs.holder.label.starts_with("Redisson, "), "{status:?}");
    assert_eq!((theirs.token, theirs.mode), (None, Mode::Shared));
    assert!(theirs.ttl_left.is_some_and(|left| left <= LONG));
    assert_eq!(
        (ours.holder.label.as_str(), ours.mode),
        ("ours", Mode::Shared)
    );
    assert_eq!(ours.token, Some(guard.token()));
    let token = guard.token().get();
    assert!(!our_client.break_lock(NAME, 0_u64).await.unwrap());
    assert!(our_client.break_lock(NAME, token).await.unwrap());
    soon("the loss", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!our_client.break_lock(NAME, token).await.unwrap());
    assert_eq!(redis.hash(NAME).len(), 2, "their hold is left");
    reader.unlock(NAME).await;

    let mut writer = or_skip!(Driver::redisson(&redis, "write").await);
    writer.take(NAME, LONG).await;
    let status = our_client.inspect(NAME).await.unwrap();
    assert_eq!(status.holds[0].mode, Mode::Exclusive);
    assert_eq!(status.holds[0].token, None);
    writer.unlock(NAME).await;
}

#[tokio::test]
async fn a_downgrade_lets_their_readers_in() {
    let (redis, our_client, mut reader) = or_skip!(start_all("read").await);
    let guard = take(our_client.lock(NAME)).await;
    lets_wait(&mut reader).await;
    let mut message = redis.listen(CHANNEL);
    guard.downgrade().await.unwrap();
    reader.held().await;
    assert!(guard.is_held() && fails(our_client.lock(NAME)).await);
    let status = our_client.inspect(NAME).await.unwrap();
    assert!(status.holds.iter().all(|it| it.mode == Mode::Shared));
    assert_eq!(status.holds.len(), 2);
    guard.release().await.unwrap();
    reader.unlock(NAME).await;
    assert_eq!([message(), message()], ["1", "0"]);
    assert_eq!(their_keys(&redis), [""; 0]);

    // A lease that is longer than a shared one may be.
    let long = our_client.lock(NAME).ttl(LONG * 4);
    let guard = long.try_acquire().await.unwrap().unwrap();
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(reader.try_fails(NAME).await);
    guard.release().await.unwrap();

    let upgradable = our_client.lock(NAME).upgradable().try_acquire().await;
    let error = upgradable.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// Redisson itself lets its RReadWriteLock and its RLock hold the same name; we refuse to be the second.
#[tokio::test]
async fn another_lock_of_redisson_under_the_name_is_an_error() {
    let (redis, our_client, mut foreign) = or_skip!(start_all("lock").await);
    for kind in ["lock", "fair", "fenced"] {
        foreign.ask(&["kind", kind]).await;
        foreign.take(NAME, LONG).await;
        for lock in [our_client.lock(NAME), our_client.lock(NAME).shared()] {
            for error in [
                lock.clone().try_acquire().await.unwrap_err(),
                lock.wait(WAIT_TIMEOUT).acquire().await.unwrap_err(),
            ] {
                let text = format!("{error:#}");
                assert!(text.contains("lock=plain or lock=fair"), "{text}");
            }
        }
        assert_eq!(redis.hash(NAME).len(), 1);
        foreign.unlock(NAME).await;
    }
    for kind in ["read", "write"] {
        foreign.ask(&["kind", kind]).await;
        foreign.take(NAME, LONG).await;
        for lock in ["plain", "fair"] {
            let other = redis.redisson_lock(lock).await;
            let error = other.lock(NAME).try_acquire().await.unwrap_err();
            assert!(format!("{error:#}").contains("use lock=rw"), "{error}");
        }
        foreign.unlock(NAME).await;
        assert!(!redis.exists(NAME));
    }
}

#[tokio::test]
async fn no_increment_of_a_writer_is_lost() {
    let (_redis, our_client, mut foreign) = or_skip!(start_all("write").await);
    let ours = (&our_client, Duration::ZERO);
    no_increment_is_lost((&mut foreign, "0"), ours, NAME, [4, 150]).await;
}
