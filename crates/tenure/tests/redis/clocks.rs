//! The server's wall clock jumps. Redis ends leases by that clock, so after a jump forward two clients may hold a lock;
//! the order of tokens must still be correct.

use std::mem::forget;
use std::time::Duration;

use tenure::{Client, Lock, Renew};

use crate::support::{
    TRUSTED, TTL, assert_all_expire, connect, owner, soon, start_acquire, take, take_and_release,
    until, until_renewed, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

const HOUR: i64 = 3_600;
/// Longer than the test.
const LONG: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_jumps_forward() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let url = format!("{}{TRUSTED}", server.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    let old = take(&first, "x", TTL * 10).await;
    clock.set(HOUR);
    // The table says so: leases end by the server's wall clock.
    let next = take(&second, "x", TTL * 10).await;
    assert!(old.is_held(), "it cannot know before it renews");
    assert!(
        next.token() > old.token(),
        "{} follows {}",
        next.token(),
        old.token()
    );
    soon(old.lost()).await;
    assert!(soon(old.release()).await.is_err());
    assert!(next.is_held());
    assert!(!owner(&server, "x").is_empty());
    soon(next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_jumps_back() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let url = format!("{}{TRUSTED}", server.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    let mut last = 0;
    for jump in [0, -HOUR, -2 * HOUR, HOUR, -12 * HOUR] {
        clock.set(jump);
        for client in [&first, &second] {
            let guard = take(client, "x", TTL).await;
            assert!(
                guard.token().get() > last,
                "{} follows {last} at {jump}",
                guard.token()
            );
            last = guard.token().get();
            soon(guard.release()).await.unwrap();
        }
    }
    // A holder that renews keeps the lock, and its lease does not outlast it for long.
    clock.set(0);
    let guard = take(&first, "x", TTL).await;
    clock.set(-HOUR);
    let start = std::time::Instant::now();
    while start.elapsed() < TTL * 2 {
        assert!(guard.is_held(), "{:?}", guard.state());
        assert!(
            soon(second.lock("x").try_acquire())
                .await
                .unwrap()
                .is_none(),
            "two hold it"
        );
        tokio::time::sleep(TTL / 10).await;
    }
    let left = server.ask(&["PTTL", "x"]).int();
    assert!(
        u128::try_from(left).unwrap() <= TTL.as_millis(),
        "{left} ms are left"
    );
    soon(guard.release()).await.unwrap();
    take_and_release(&second, "x", TTL).await;
    assert_all_expire(&server);
}

/// Waiters wait by their own clock.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_jumps_while_one_waits() {
    needs!(redis, "cc");
    for jump in [HOUR, -HOUR] {
        let clock = Clock::make();
        let server = Redis::start_with_clock(&clock, &[]);
        let url = format!("{}{TRUSTED}", server.url());
        let (first, second) = (connect(&url).await, connect(&url).await);
        let holder = take(&first, "x", TTL).await;
        let start = std::time::Instant::now();
        let limited = start_acquire(second.lock("x").ttl(TTL).wait(TTL * 2));
        crate::support::until("it waits", || crate::support::waiting(&server, "x") == 1).await;
        clock.set(jump);
        let waited = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, limited).await;
        let waited = waited.expect("the wait ends").unwrap();
        match waited {
            // Forward: the holder's lease was over at once.
            Ok(guard) => {
                assert_eq!(jump, HOUR);
                soon(guard.release()).await.unwrap();
            }
            Err(err) => {
                assert_eq!(err.kind(), tenure::ErrorKind::WaitElapsed, "{err}");
                assert!(start.elapsed() >= TTL * 2);
            }
        }
        // A release wakes the waiter, whatever the clock says.
        let waiter = start_acquire(second.lock("x").ttl(TTL));
        let _ = soon(holder.release()).await;
        let guard = tokio::time::timeout(TTL * 2 + TEST_TIMEOUT, waiter).await;
        let guard = guard.expect("its turn comes").unwrap().unwrap();
        soon(guard.release()).await.unwrap();
    }
}

/// A name stays taken for `min_hold` from the grant on, by the server's clock, also when its holder died.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_died_keeps_the_name_for_min_hold() {
    needs!(redis, "cc");
    for (number, dialect) in ["", "&dialect=redisson", "&dialect=redisson&lock=fair"]
        .into_iter()
        .enumerate()
    {
        dies_early(number, dialect, |lock| lock).await;
    }
    dies_early(3, "", |lock| lock.permits(1)).await;
    dies_early(4, "&dialect=redisson&lock=semaphore", |lock| {
        lock.permits(1)
    })
    .await;
}

async fn dies_early(number: usize, dialect: &str, mode: impl Fn(Lock) -> Lock) {
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let url = format!("{}{TRUSTED}{dialect}", server.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    let min_hold = Duration::from_secs(3 * HOUR.unsigned_abs());
    let lock = |client: &Client, name: &str| {
        let lock = client.lock(name).ttl(TTL).renew(Renew::Never);
        mode(lock.min_hold(min_hold))
    };
    // One grant at once, and one by the release of another holder.
    forget(soon(lock(&first, "granted").acquire()).await.unwrap());
    let other = soon(mode(second.lock("waited").ttl(LONG)).acquire()).await;
    let waiter = start_acquire(lock(&first, "waited"));
    if dialect.is_empty() {
        until("it waits", || waiting(&server, "waited") == 1).await;
    }
    soon(other.unwrap().release()).await.unwrap();
    forget(soon(waiter).await.unwrap().unwrap());
    // The last one is renewed, and dies afterwards.
    let renewed = lock(&first, "renewed").renew(Renew::Automatic);
    let renewed = soon(renewed.acquire()).await.unwrap();
    until_renewed(&renewed).await;
    clock.set(HOUR);
    for name in ["granted", "waited", "renewed"] {
        let tried = soon(lock(&second, name).try_acquire()).await.unwrap();
        assert!(tried.is_none(), "{name} is free, case {number}");
    }
    forget(renewed);
    clock.set(4 * HOUR);
    for name in ["granted", "waited"] {
        let tried = soon(lock(&second, name).try_acquire()).await.unwrap();
        assert!(tried.is_some(), "{name} stays taken, case {number}");
        forget(tried);
    }
}

/// The lease of a reader is over, the lock is looked at, and another reader comes: no key stays for ever.
#[tokio::test(flavor = "multi_thread")]
async fn readers_after_a_reader_that_died_leave_nothing() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let client = connect(&format!("{}{TRUSTED}", server.url())).await;
    let reader = |ttl| client.lock("x").ttl(ttl).renew(Renew::Never).shared();
    forget(soon(reader(LONG).acquire()).await.unwrap());
    let long = soon(reader(LONG * 100).acquire()).await.unwrap();
    clock.set(HOUR);
    soon(long.release()).await.unwrap();
    assert!(!soon(client.inspect("x")).await.unwrap().is_held());
    forget(soon(reader(LONG).acquire()).await.unwrap());
    assert_all_expire(&server);
}
